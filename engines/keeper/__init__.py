"""Looks at all moves again and again: what may run now, whose time has come, who owes what and who is there.

What one flow needs while it runs lies in ``conductor``, what a person asks for in ``operations``.
"""
