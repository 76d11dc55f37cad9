"""The hypervisors that a worker can use, behind the interface in ``base``: the sandbox and libvirt."""
