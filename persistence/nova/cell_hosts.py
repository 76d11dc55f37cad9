"""Nova's cell database: the tables of the hosts, with Nova's own names, types and indexes."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from droveway.persistence.nova.base import (
    CellBase,
    LongString,
    MediumText,
    Real,
    SoftDelete,
    String255,
    Timestamps,
    Uuid,
)


class Service(Timestamps, SoftDelete, CellBase):
    """A Nova service on a host; it is up when `last_seen_up` is recent, and it may be disabled or forced down."""

    __tablename__ = "services"
    __table_args__ = (
        UniqueConstraint("host", "topic", "deleted", name="uniq_services0host0topic0deleted"),
        UniqueConstraint("host", "binary", "deleted", name="uniq_services0host0binary0deleted"),
        Index("services_uuid_idx", "uuid", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    host: Mapped[String255 | None]
    binary: Mapped[String255 | None]
    topic: Mapped[String255 | None]
    report_count: Mapped[int] = mapped_column(default=0)
    disabled: Mapped[bool | None] = mapped_column(default=False)
    disabled_reason: Mapped[String255 | None]
    last_seen_up: Mapped[datetime | None]
    forced_down: Mapped[bool | None] = mapped_column(default=False)
    version: Mapped[int | None] = mapped_column(default=0)
    uuid: Mapped[Uuid | None]


class ComputeNode(Timestamps, SoftDelete, CellBase):
    """A hypervisor host: what it has, and what the servers on it use."""

    __tablename__ = "compute_nodes"
    __table_args__ = (
        UniqueConstraint(
            "host", "hypervisor_hostname", "deleted", name="uniq_compute_nodes0host0hypervisor_hostname0deleted"
        ),
        Index("compute_nodes_uuid_idx", "uuid", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    service_id: Mapped[int | None]
    vcpus: Mapped[int]
    memory_mb: Mapped[int]
    local_gb: Mapped[int]
    vcpus_used: Mapped[int]
    memory_mb_used: Mapped[int]
    local_gb_used: Mapped[int]
    hypervisor_type: Mapped[MediumText]
    hypervisor_version: Mapped[int]
    cpu_info: Mapped[MediumText]
    disk_available_least: Mapped[int | None]
    free_ram_mb: Mapped[int | None]
    free_disk_gb: Mapped[int | None]
    current_workload: Mapped[int | None]
    running_vms: Mapped[int | None]
    hypervisor_hostname: Mapped[String255 | None]
    host_ip: Mapped[str | None] = mapped_column(String(39))
    supported_instances: Mapped[LongString | None]
    pci_stats: Mapped[LongString | None]
    metrics: Mapped[LongString | None]
    extra_resources: Mapped[LongString | None]
    stats: Mapped[LongString | None]
    numa_topology: Mapped[LongString | None]
    host: Mapped[String255 | None]
    ram_allocation_ratio: Mapped[Real | None]
    cpu_allocation_ratio: Mapped[Real | None]
    uuid: Mapped[Uuid | None]
    disk_allocation_ratio: Mapped[Real | None]
    mapped: Mapped[int | None] = mapped_column(default=0)


class PciDevice(Timestamps, SoftDelete, CellBase):
    """A PCI device of a host."""

    __tablename__ = "pci_devices"
    __table_args__ = (
        UniqueConstraint(
            "compute_node_id", "address", "deleted", name="uniq_pci_devices0compute_node_id0address0deleted"
        ),
        Index("ix_pci_devices_compute_node_id_deleted", "compute_node_id", "deleted"),
        Index("ix_pci_devices_compute_node_id_parent_addr_deleted", "compute_node_id", "parent_addr", "deleted"),
        Index("ix_pci_devices_instance_uuid_deleted", "instance_uuid", "deleted"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    compute_node_id: Mapped[int] = mapped_column(
        ForeignKey("compute_nodes.id", name="pci_devices_compute_node_id_fkey")
    )
    address: Mapped[str] = mapped_column(String(12))
    product_id: Mapped[str] = mapped_column(String(4))
    vendor_id: Mapped[str] = mapped_column(String(4))
    dev_type: Mapped[str] = mapped_column(String(8))
    dev_id: Mapped[String255 | None]
    label: Mapped[String255]
    status: Mapped[Uuid]
    extra_info: Mapped[LongString | None]
    instance_uuid: Mapped[Uuid | None]
    request_id: Mapped[Uuid | None]
    numa_node: Mapped[int | None]
    parent_addr: Mapped[str | None] = mapped_column(String(12))
    uuid: Mapped[Uuid | None]
