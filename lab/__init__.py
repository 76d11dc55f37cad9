"""Builds labs, runs them, and arms faults in them.

A lab is a whole cloud in one directory: databases, services and hypervisor hosts. Its parts run inside the command that
needs them, while that command holds the lab's lock; only guests, and the daemons of libvirt hosts, stay between
commands.

Words that the modules of this package use:

- A *debt* is a clean-up that a host or a cell still owes, for example because it was away when the step ran.
- To *park* a move is to leave its step unfinished on purpose, without a result, so that it can be entered again.
- The *incarnation* of a journal is a random number that tells it from every other journal. When an operator adopts a
  restored journal (`droveway db adopt`), it gets a new one.
"""
