"""Nova's API and cell databases: their tables, the objects that Nova keeps in them, and what a move changes there.

Nothing here knows of the journal.
"""
