"""Hypervisors behind one narrow interface."""
