"""Adapts TaskFlow: its tasks, engine and conductor, its persistence on the journal, and its board for moves.

No other package imports TaskFlow.  What a step does, and what a conductor does with a move, lie outside of this one.
TaskFlow calls a step an *atom*, and keeps a *detail* of each flow and atom: its state and results.  A method that
does something "for TaskFlow" overrides or implements one of TaskFlow's, and TaskFlow calls it.
"""
