"""Examines an installation from one of its machines: what it needs, whether that is there, and how to mend it."""
