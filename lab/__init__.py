"""Builds labs, runs them, and arms faults in them.

A lab is a whole cloud in one directory: databases, services and hypervisor hosts. Its parts run inside the command that
needs them, while that command holds the lab's lock; only guests, and the daemons of libvirt hosts, stay between
commands.
"""
