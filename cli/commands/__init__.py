"""Defines the commands, one module for each noun: what each takes, what it calls and what it prints.

What several of them show things with lies in ``view``.
"""
