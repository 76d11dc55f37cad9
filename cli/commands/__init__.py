"""Defines the commands, one module for each noun: what each takes, what it calls and what it prints.

The package ``view`` has the code by which several commands show things.
"""
