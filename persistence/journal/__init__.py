"""Keeps Droveway's own database: its tables, what is read of them and each change that may be made to them.

Nothing here knows of Nova's tables.
"""
