"""Provides the command line `droveway`: how commands are found and run, and what they print.

A *keeper* decides which moves run and offers them to *conductors*, which run flows. A move that *rests* does not go on
by itself. A *debt* is a clean-up that a host or a cell still has to do. To *park* a move is to leave its step
unfinished, so that the step can be entered again; the move then rests.
"""
