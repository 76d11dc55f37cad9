"""Reads and writes Nova's API and cell databases: tables, the objects kept in them, and what a move changes.

Nothing here knows of the journal.
"""
