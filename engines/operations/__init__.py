"""Does what a person asks for, one module each: a move, a plan, a request to a move, a settlement, an adoption.

Nothing here runs by itself: a command calls it, and a conductor or the keeper acts on what it writes into the journal.
The words of this package:

- A database is *put back* when an older copy of it replaces it, for instance after a disk was lost.
- What a move has *left* in a database is what its steps had written there, as far as the journal knows them.
- An operator *settles* a move with ``droveway move settle``.  The operator either says what became of the step at which
  the move rests, or lets a database that was put back say again what the move had left there.
- A move *rests at a step* when its flow is parked there.  A move is *at a rest* while it waits for its confirm or
  revert, and after its end: no flow is under way then.
- A server *goes elsewhere* when a revert brings it to another host of the source's cell, since its source is gone.
"""
