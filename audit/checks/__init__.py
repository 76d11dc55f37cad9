"""The checks of an audit, one subject a module: each compares records of one snapshot and yields findings.

Nothing here reads anything but the snapshot, and nothing is changed.
"""
