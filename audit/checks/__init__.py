"""Checks one snapshot, a subject a module: each compares records and yields findings.

Nothing here reads anything but the snapshot, and nothing is changed.
"""
