"""Chooses the destination of a move: what the move asks for, which hosts can take it, and which of them is best."""
