"""The sandbox, the hypervisor of labs: a guest is a process and a disk is a file."""
