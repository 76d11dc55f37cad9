"""Keeps Droveway's own database, the journal: its tables, the queries on them and the changes that may be made to them.

Nothing here knows Nova's tables.  docs/glossary.rst explains all words; these are used in this package most:

* A *claim* is a conductor's right to run a move's flow and to write for the move.  Its *epoch* is its number: numbers
  only grow, and a claim with a newer epoch makes every older one worthless.
* To *park* is to stop a flow at a step that has no result, so that the step can be entered again.
* A *debt* is a clean-up that a host or a cell still owes, mostly because it was away.
* An *alternate* is a host that a move may try as its destination.  The move tries the next alternate when the one
  before was at fault.  The first destination is alternate 1.
* A *lab* is a whole cloud in one directory, for trials and tests.
* A *kind* of flow is resize, migrate, confirm, revert, delete and so on: `kinds.Kind`.
* A flow is *filed* when its row is written and its move names it: a conductor then claims it.
* A move is *at rest* while it waits for confirm or revert, or for an operator.  In the first case it has no flow to
  run.  In the second case it may have a flow, which is parked.
* The *keeper* is the part of the leading conductor that admits queued moves and acts on deadlines.  Its *collector*
  settles debts.
* To *settle* a debt is to do what is owed.  A debt that is *void* or *written off* is settled without being done.
* A cell, a host or a database is *away* while it does not answer.
* A *copy* is a server's rows in one cell, or its disks on one host.  While the server moves there may be two of either.
"""
