"""Nova's cell database: tables that Nova 34 still has but no longer writes.  Old rows in them may name servers."""

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from droveway.persistence.nova.base import CellBase, SoftDelete, String255, Timestamps, Uuid


class ConsolePool(Timestamps, SoftDelete, CellBase):
    """The console proxies of a host."""

    __tablename__ = "console_pools"
    __table_args__ = (
        UniqueConstraint(
            "host",
            "console_type",
            "compute_host",
            "deleted",
            name="uniq_console_pools0host0console_type0compute_host0deleted",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str | None] = mapped_column(String(39))
    username: Mapped[String255 | None]
    password: Mapped[String255 | None]
    console_type: Mapped[String255 | None]
    public_hostname: Mapped[String255 | None]
    host: Mapped[String255 | None]
    compute_host: Mapped[String255 | None]


class Console(Timestamps, SoftDelete, CellBase):
    """A server's console behind one of the proxies of `ConsolePool`."""

    __tablename__ = "consoles"
    __table_args__ = (Index("consoles_instance_uuid_idx", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_name: Mapped[String255 | None]
    password: Mapped[String255 | None]
    port: Mapped[int | None]
    pool_id: Mapped[int | None] = mapped_column(ForeignKey("console_pools.id"))
    instance_uuid: Mapped[Uuid | None] = mapped_column(ForeignKey("instances.uuid", name="consoles_instance_uuid_fkey"))


class FixedIp(Timestamps, SoftDelete, CellBase):
    """An address of nova-network, which Nova no longer has; Neutron has the addresses of today's servers."""

    __tablename__ = "fixed_ips"
    __table_args__ = (
        UniqueConstraint("address", "deleted", name="uniq_fixed_ips0address0deleted"),
        Index("fixed_ips_deleted_allocated_idx", "address", "deleted", "allocated"),
        Index("fixed_ips_deleted_allocated_updated_at_idx", "deleted", "allocated", "updated_at"),
        Index("fixed_ips_host_idx", "host"),
        Index("network_id", "network_id"),
        Index("fixed_ips_network_id_host_deleted_idx", "network_id", "host", "deleted"),
        Index("fixed_ips_address_reserved_network_id_deleted_idx", "address", "reserved", "network_id", "deleted"),
        Index("address", "address"),
        Index("fixed_ips_instance_uuid_fkey", "instance_uuid"),
        Index("fixed_ips_virtual_interface_id_fkey", "virtual_interface_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str | None] = mapped_column(String(39))
    network_id: Mapped[int | None]
    allocated: Mapped[bool | None]
    leased: Mapped[bool | None]
    reserved: Mapped[bool | None]
    virtual_interface_id: Mapped[int | None]
    host: Mapped[String255 | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="fixed_ips_instance_uuid_fkey")
    )
