"""Holds the records that conductors and workers exchange through ZooKeeper.

A conductor sends a *command* for one step of a move, and the worker answers it with a result.  A *query* asks a worker
about everything that its host holds, and the answer comes in pages.  The *level* of a release is the number of its
protocol: see `droveway.wire.levels`.  A conductor *claims* a move before it works on it.  The *epoch* is the number
of that claim.  It rises each time a conductor claims the move anew.  Each command carries the epoch of the conductor
that sent it, and workers refuse a command whose epoch is lower than one that they have seen.

Words for what an action finds or leaves on a host:

- A *mark* on a guest names the move that defined it.  A *marker* is a file in a directory of disks that names the move
  which copied them.  A *manifest* is a file that lists the disks which a move set aside.
- A server's directory is *set aside* when it is renamed to ``<uuid>_resize`` on the source, and *kept* when it is
  renamed to ``<uuid>_keep-<move>`` after the confirm.
- A worker *fences* before it changes something that cannot be undone: it reads the move's epoch from ZooKeeper, and
  stops if the epoch is higher than the command's.
- A *storage probe* is a file that a worker writes into its instances directory.  Another host that sees the file shares
  the storage.

This package only describes the records.  It sends nothing and carries nothing out.
"""
