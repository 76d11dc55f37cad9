"""The steps that a worker carries out: what decides which command a step sends to the worker of a host.

What the worker does with the command is in ``workers/actions``.
"""
