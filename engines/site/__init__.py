"""Describes where moves run: `site` is what a lab and an installation have in common, `installation` the latter.

Nothing here knows of a move.
"""
