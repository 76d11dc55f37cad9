"""The steps that have a host's worker carry out a command; they decide which worker gets which command.

What the worker does with the command is in ``workers/actions``.
"""
