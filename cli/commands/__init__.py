"""The commands, one module for each noun: what each takes, what it calls and what it prints.

What several of them share in showing things is in ``view``; what they do is done elsewhere.
"""
