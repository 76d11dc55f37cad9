"""Describes where moves run: in an installation or in a lab.

In an *installation* daemons run the moves of a real cloud: see `installation`.  A *lab* is a small cloud in one
directory, and the command that uses it also runs its moves.  `site` has what both have in common.  Nothing here knows
of a move.
"""
