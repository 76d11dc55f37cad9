"""Builds labs, runs them, and arms faults in them.

A lab is a whole cloud in one directory: databases, services and hypervisor hosts. Its parts run inside the command that
needs them, while that command holds the lab's lock; only guests, and the daemons of libvirt hosts, stay between
commands.

Words that the modules of this package use:

- A *debt* is a clean-up that a host or a cell still owes, for example because it was away when the step ran.
- To *park* a move is to leave its step unfinished on purpose, without a result, so that it can be entered again.
- The *keeper* is the part of a conductor that admits moves to the board and acts on deadlines.
- A *mirror* is a copy, outside the journal, of what only the journal knows of a running move
  (`droveway.engines.conductor.recorded`). It helps when the journal is restored from an older copy.
- A *mark* of a database is a number in it that only grows. The lab writes the marks into a file of its own, and
  recognises by them a database that was restored from an older copy (`droveway.lab.marks`).
- A *boot guest* is what runs in a server of a lab with libvirt: a little machine code that counts its boots and answers
  on its serial line (`droveway.lab.boot_image`). The *mark* of a boot guest is one word that it writes into its disk.
- The *incarnation* of a journal is a random number that tells it from every other journal. When an operator adopts a
  restored journal (`droveway db adopt`), it gets a new one.
"""
