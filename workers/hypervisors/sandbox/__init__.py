"""The hypervisor of labs: files for disks, processes for guests."""
