"""The hypervisor of libvirt hosts: QEMU guests and their disk images."""
