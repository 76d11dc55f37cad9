"""Libvirt keeps the contract of hypervisors, with real daemons and real QEMU guests."""

from __future__ import annotations

from hypervisor_contract import HypervisorContract


class TestLibvirt(HypervisorContract):
    pass
