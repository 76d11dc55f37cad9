"""Checks one snapshot; each module has one subject, compares the records of it, and yields findings.

The checks read the snapshot alone and change nothing.
"""
