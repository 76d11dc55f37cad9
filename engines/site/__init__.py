"""Describes where moves are carried out: what a lab and an installation have in common, and the installation.

Nothing here knows of a move.
"""
