"""Runs the graphs of moves.

``conductor`` runs one claimed flow, ``keeper`` decides over all moves, ``operations`` are what commands do, and
``site`` opens the databases and services of an installation.

- A *move* is the whole life of one operation on one server, such as a resize or a migration.
- A *flow* is one graph of steps that runs for a move: first the forward flow, then a confirm or a revert.
- The *journal* is the database of moves, flows, steps and claims.
- A *site* is where moves run.  It is either an *installation*, whose daemons run the moves, or a *lab*: a small cloud
  in one directory, whose commands run the moves themselves.

`docs/glossary.rst` in the repository explains the words that all packages use.  The first lines of ``conductor`` and
those of ``keeper`` explain the words that only these packages use.
"""
