"""Adapts TaskFlow: its tasks, engine and conductor, its persistence on the journal, and its board for moves.

No other package imports TaskFlow; what a step does and what a conductor does with a move lie outside of it.
"""
