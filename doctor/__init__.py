"""Looks at an installation from one of its machines: what it needs, whether it is there, and how to mend it."""
