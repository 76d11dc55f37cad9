"""Holds the records that conductors and workers exchange through ZooKeeper.

A conductor sends a *command* for one step of a move, and the worker answers it with a result.  A *query* asks a worker
about everything that its host holds, and the answer comes in pages.  The *level* of a release is the number of its
protocol: see `droveway.wire.levels`.  The *epoch* in a command is the number of the claim that asks: a conductor that
takes a move over raises it, and workers refuse commands of lower epochs.

This package only describes the records.  It sends nothing and carries nothing out.
"""
