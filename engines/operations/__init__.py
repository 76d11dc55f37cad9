"""Does what a person asks for, one module each: a move, a plan, a request to a move, a settlement, an adoption.

Nothing here runs by itself: a command calls it, and a conductor or the keeper acts on what it leaves in the journal.
"""
