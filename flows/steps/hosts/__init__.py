"""The steps that a worker carries out, and what decides which command its host is sent.

What the worker does with the command is in ``workers/actions``.
"""
