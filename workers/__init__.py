"""The worker daemon of a hypervisor host: takes commands from conductors and carries them out on its host.

Words that the modules of this package use:

- An *effect* is one change that an action makes on the host, such as a rename or a start.
- An action *fences* before an effect that cannot be undone: it reads the move's epoch and its own command from
  ZooKeeper, and stops unless the epoch is still the newest and the command is still there (`droveway.workers.fence`).
- A worker *slept* when its process or its machine was suspended.  Other hosts may have gone on without it meanwhile.
- A command is *stamped* with the epoch of the claim that asks.  A conductor that takes the move over stamps it anew.
- A *mark* on a guest names the move that defined it.  A *marker* is a file in a directory of disks that names the move
  which copied them.  A *manifest* is a file that lists the disks which a move set aside.
- A server's directory is *set aside* when it is renamed to ``<uuid>_resize`` on the source, and *kept* when it is
  renamed to ``<uuid>_keep-<move>`` after the confirm.
- The *storage probe* is a file that the destination writes into its instances directory.  If the source sees the file
  in its own, both hosts share the directory.
- To *prove* a copy is to read it back from the medium and to compare its checksums with those of the source.
- An *overlay* is a disk that only holds its difference to another file, its *base*.
- A *note* is a number that an action writes into the worker's journal, to find it again after a crash.
- A *debt* is a clean-up that a host still owes, for example because its worker was away when the step ran.  A conductor
  sends the clean-up later as a command, which *pays* the debt.
- A *question* is an action that looks at the host and changes nothing.  Its answer is soon out of date, so the worker
  keeps none and looks again each time (`droveway.wire.commands.ages`).
- The *value* of an action is what its function returns: the facts that the worker answers to the conductor.
"""
