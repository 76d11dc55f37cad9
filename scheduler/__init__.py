"""Chooses the destination of a move: what the move asks for, which hosts can take it, and which of them is best.

A move between two hosts goes through these states: it runs, then it is *verifying*, and then a confirm or a revert ends
it.  While it is verifying, the server is on its new host with the status VERIFY_RESIZE, and the source keeps its disks.
"""
