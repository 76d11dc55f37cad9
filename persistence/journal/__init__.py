"""Keeps Droveway's own database, the journal: its tables, the queries on them and the changes that may be made to them.

Nothing here knows Nova's tables.  The words of this package, beside those of docs/glossary.rst:

* A *kind* of flow is resize, migrate, confirm, revert, delete and so on: `kinds.Kind`.
* A flow is *filed* when its row is written and its move names it: a conductor then claims it.
* A move is *at rest* when it has no flow to run: it waits for confirm or revert, or for an operator.
* The *keeper* is the part of the leading conductor that admits queued moves and acts on deadlines.  Its *collector*
  settles debts.
* To *settle* a debt is to do what is owed.  A debt that is *void* or *written off* is settled without being done.
* A cell, a host or a database is *away* while it does not answer.
* A *copy* is a server's rows in one cell, or its disks on one host.  While the server moves there may be two of either.
"""
