"""What a person asks for, one module each: a move, a plan, a request to a move, a settlement, an adopted journal.

Nothing here runs by itself: a command calls it, and the journal is left for a conductor or the keeper to act on.
"""
