"""Holds the records that conductors and workers exchange through ZooKeeper.

A conductor sends a *command* for one step of a move, and the worker answers it with a result.  A *query* asks a worker
about everything that its host holds, and the answer comes in pages.  The *level* of a release is the number of its
protocol: see `droveway.wire.levels`.  A conductor *claims* a move before it works on it.  The *epoch* is the number
of that claim.  It rises each time a conductor claims the move anew.  Each command carries the epoch of the conductor
that sent it, and workers refuse a command whose epoch is lower than one that they have seen.

This package only describes the records.  It sends nothing and carries nothing out.
"""
