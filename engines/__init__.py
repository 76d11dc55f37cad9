"""Runs the graphs of moves.

``conductor`` runs one claimed flow, ``keeper`` decides over all moves, ``operations`` are what commands do, and
``site`` opens the databases and services of an installation.  `docs/glossary.rst` explains the words.
"""
