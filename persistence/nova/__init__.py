"""Reads and writes Nova's API and cell databases: the tables, the objects kept in them, and what a move changes.

Nothing here knows the journal.  docs/glossary.rst explains all words; these are used in this package most:

* A *claim* is a conductor's right to run a move's flow and to write for the move.  Its *epoch* is its number: numbers
  only grow, and a claim with a newer epoch makes every older one worthless.
* A *copy* is a server's rows in one cell.  While a server moves between two cells, each of them has a copy.
* The *mapping* (Nova's `instance_mappings`) names the cell whose copy is the server for Nova's API.  The other copy is
  *hidden*: its `instances.hidden` is set.  To *show* a copy is to clear that column again.
* A *fence* is a row that names the claim which may write a server's rows in a cell: see `cells`.
* A *mark* is a row in a copy that names the move which made the copy: `cells.MOVE_KEY`.
* To *carry* something is to write it from one copy into the other one.
"""
