"""One module per operation: the graph of its steps, read top to bottom.

Words that these modules use:

* A database is **put back** when it was restored from an older copy, so that it lacks what was written since.
* A journal that was put back is **adopted** when an operator runs ``droveway db adopt``.  The moves then go on from
  what it says, and it may not know the last steps that they did.
* ZooKeeper **mirrors** a part of the journal of a running move: what the server was before, the destinations that were
  tried, and how the disks are stored.  A journal that is adopted gets from this mirror what it lacks.
* In a move between cells the source's cell and the **target** (the destination's cell) may both have a **copy** of the
  server's rows.  The server is **mapped** to one cell, whose copy counts.  Nova lists no copy that is **hidden**.
* A cell or host is **away** while it does not answer.  It is **declared down** when a person said that it is off
  (``droveway cell down``, ``droveway host down``, or Nova's forced_down).  The rows of such a cell are **gone**.
* A **claim** is a conductor's right to run a move's flow.  Its **epoch** is its number; a newer claim has a higher one.
  The step `claim` is something else: it claims resources in Placement.
* A move that is **held** (``droveway move pause``) stops before its next step, until ``droveway move resume``.  A move
  that is **frozen** (``droveway freeze``) is not claimed until ``droveway thaw``.  If it is under way already, it stops
  only before a step that deletes what cannot be brought back.
* A cell or host **owes** what could not be done there while it was away.  The journal has it as a debt, and the keeper
  has it done once the cell or host is back.
* A **mark** tells others that something belongs to a move.  In the server's rows it is the task_state, which keeps
  Nova's API away.  On a host it is the move's id in the guest's definition and beside the disks, which a confirm takes
  off.  In a copy of the rows it is the move's id in the system metadata.
* A flow **continues** another one when the next alternate needs a graph of another kind: the first steps, which both
  graphs have, are then not done twice.
"""
