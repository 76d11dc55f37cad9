"""The embedded cloud: build it, run it, arm faults."""
