"""Runs one claimed flow to its end: the claim, the commands to hosts, the history of steps, the marks in ZooKeeper.

``keeper`` decides over many moves, and only ``taskflow`` imports TaskFlow.  The words of this package:

- A conductor claims a move by taking the next *epoch* for it.  The epoch *stands* until somebody takes a newer one.
- A *fence* refuses writes of an older epoch: in the journal, in a cell's database or in ZooKeeper.
- A *tombstone* replaces the epoch in ZooKeeper when the move has ended: workers then take no command of it.
- A *mark* in ZooKeeper says how far the journal had come.  It shows that a journal was put back from an older copy.
  Nothing runs on such a journal until an operator *adopts* it with ``droveway db adopt``.  The glossary's mark is
  another one: workers put it on a server's disks and guest.
- A host or cell that is away *owes* a step, or a step's undo.  The keeper *pays* this debt when it is back.
- A *boundary* is the moment before a step begins, at which a flow may be parked or cancelled.
"""
