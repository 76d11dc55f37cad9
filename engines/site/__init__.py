"""Where moves are carried out: what a lab and an installation have in common, and the installation itself.

Nothing here knows of a move.
"""
