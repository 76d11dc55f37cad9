"""Nova's cell database: a server's own tables, with Nova's own names, types and indexes.

Nova soft-deletes rows: `deleted` gets the row's id and `deleted_at` the time; live rows have 0. The unique keys
`instances.uuid` and `block_device_mapping.uuid` do not include `deleted`, so the server cannot come back into a cell
that has a soft-deleted copy of its rows. The models have no relationships, so a session does not know the order in
which rows must be inserted: flush a parent before you add its children.
"""

from datetime import datetime

from sqlalchemy import Enum, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from droveway.persistence.nova.base import (
    BigInt,
    BigKey,
    CellBase,
    LongString,
    MediumText,
    SoftDelete,
    String255,
    Timestamps,
    Uuid,
)
from droveway.persistence.nova.cell_hosts import ComputeNode, PciDevice, Service
from droveway.persistence.nova.cell_legacy import Console, ConsolePool, FixedIp

__all__ = [
    "BlockDeviceMapping",
    "CellBase",
    "ComputeNode",
    "Console",
    "ConsoleAuthToken",
    "ConsolePool",
    "FixedIp",
    "Instance",
    "InstanceAction",
    "InstanceActionEvent",
    "InstanceExtra",
    "InstanceFault",
    "InstanceIdMapping",
    "InstanceInfoCache",
    "InstanceMetadata",
    "InstanceSystemMetadata",
    "Migration",
    "PciDevice",
    "SecurityGroup",
    "SecurityGroupInstanceAssociation",
    "Service",
    "ShareMapping",
    "Tag",
    "VirtualInterface",
]


class Instance(Timestamps, SoftDelete, CellBase):
    """A server."""

    __tablename__ = "instances"
    __table_args__ = (
        UniqueConstraint("uuid", name="uniq_instances0uuid"),
        Index("instances_compute_id_deleted_idx", "compute_id", "deleted"),
        Index("instances_deleted_created_at_idx", "deleted", "created_at"),
        Index("instances_host_deleted_cleaned_idx", "host", "deleted", "cleaned"),
        Index("instances_host_node_deleted_idx", "host", "node", "deleted"),
        Index("instances_project_id_deleted_idx", "project_id", "deleted"),
        Index("instances_project_id_idx", "project_id"),
        Index("instances_reservation_id_idx", "reservation_id"),
        Index("instances_task_state_updated_at_idx", "task_state", "updated_at"),
        Index("instances_terminated_at_launched_at_idx", "terminated_at", "launched_at"),
        Index("instances_updated_at_project_id_idx", "updated_at", "project_id"),
        Index("instances_uuid_deleted_idx", "uuid", "deleted"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    internal_id: Mapped[int | None]
    user_id: Mapped[String255 | None]
    project_id: Mapped[String255 | None]
    image_ref: Mapped[String255 | None]
    kernel_id: Mapped[String255 | None]
    ramdisk_id: Mapped[String255 | None]
    launch_index: Mapped[int | None]
    key_name: Mapped[String255 | None]
    key_data: Mapped[MediumText | None]
    power_state: Mapped[int | None]
    vm_state: Mapped[String255 | None]
    memory_mb: Mapped[int | None]
    vcpus: Mapped[int | None]
    hostname: Mapped[String255 | None]
    host: Mapped[String255 | None]
    user_data: Mapped[MediumText | None]
    reservation_id: Mapped[String255 | None]
    launched_at: Mapped[datetime | None]
    terminated_at: Mapped[datetime | None]
    display_name: Mapped[String255 | None]
    display_description: Mapped[String255 | None]
    availability_zone: Mapped[String255 | None]
    locked: Mapped[bool | None]
    os_type: Mapped[String255 | None]
    launched_on: Mapped[MediumText | None]
    instance_type_id: Mapped[int | None]
    vm_mode: Mapped[String255 | None]
    uuid: Mapped[Uuid]
    architecture: Mapped[String255 | None]
    root_device_name: Mapped[String255 | None]
    access_ip_v4: Mapped[str | None] = mapped_column(String(39))
    access_ip_v6: Mapped[str | None] = mapped_column(String(39))
    config_drive: Mapped[String255 | None]
    task_state: Mapped[String255 | None]
    default_ephemeral_device: Mapped[String255 | None]
    default_swap_device: Mapped[String255 | None]
    progress: Mapped[int | None]
    auto_disk_config: Mapped[bool | None]
    shutdown_terminate: Mapped[bool | None] = mapped_column(default=False)
    disable_terminate: Mapped[bool | None] = mapped_column(default=False)
    root_gb: Mapped[int | None]
    ephemeral_gb: Mapped[int | None]
    cell_name: Mapped[String255 | None]
    node: Mapped[String255 | None]
    locked_by: Mapped[str | None] = mapped_column(Enum("owner", "admin", name="instances0locked_by"))
    cleaned: Mapped[int | None] = mapped_column(default=0)
    ephemeral_key_uuid: Mapped[Uuid | None]
    hidden: Mapped[bool | None] = mapped_column(default=False)
    compute_id: Mapped[BigInt | None]


class InstanceExtra(Timestamps, SoftDelete, CellBase):
    """What Nova keeps as JSON about a server: flavors, migration context, topology, devices, key pairs."""

    __tablename__ = "instance_extra"
    __table_args__ = (Index("instance_extra_idx", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[Uuid] = mapped_column(ForeignKey("instances.uuid", name="instance_extra_instance_uuid_fkey"))
    numa_topology: Mapped[LongString | None]
    pci_requests: Mapped[LongString | None]
    flavor: Mapped[LongString | None]
    vcpu_model: Mapped[LongString | None]
    migration_context: Mapped[LongString | None]
    keypairs: Mapped[LongString | None]
    device_metadata: Mapped[LongString | None]
    trusted_certs: Mapped[LongString | None]
    vpmems: Mapped[LongString | None]
    resources: Mapped[LongString | None]


class InstanceInfoCache(Timestamps, SoftDelete, CellBase):
    """The last known ports of a server, as a JSON list of VIFs."""

    __tablename__ = "instance_info_caches"
    __table_args__ = (UniqueConstraint("instance_uuid", name="uniq_instance_info_caches0instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    network_info: Mapped[MediumText | None]
    instance_uuid: Mapped[Uuid] = mapped_column(
        ForeignKey("instances.uuid", name="instance_info_caches_instance_uuid_fkey")
    )


class InstanceMetadata(Timestamps, SoftDelete, CellBase):
    """A key and value that the user set on a server."""

    __tablename__ = "instance_metadata"
    __table_args__ = (Index("instance_metadata_instance_uuid_idx", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[String255 | None]
    value: Mapped[String255 | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="instance_metadata_instance_uuid_fkey")
    )


class InstanceSystemMetadata(Timestamps, SoftDelete, CellBase):
    """A key and value that the system set on a server.

    When the key is removed, Nova deletes the row for good.  When the server is deleted, Nova soft-deletes the row.
    """

    __tablename__ = "instance_system_metadata"
    __table_args__ = (Index("instance_uuid", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[Uuid] = mapped_column(ForeignKey("instances.uuid", name="instance_system_metadata_ibfk_1"))
    key: Mapped[String255]
    value: Mapped[String255 | None]


class InstanceIdMapping(Timestamps, SoftDelete, CellBase):
    """The EC2 id of a server."""

    __tablename__ = "instance_id_mappings"
    __table_args__ = (Index("ix_instance_id_mappings_uuid", "uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[Uuid]


class BlockDeviceMapping(Timestamps, SoftDelete, CellBase):
    """A disk of a server: local or a volume."""

    __tablename__ = "block_device_mapping"
    __table_args__ = (
        UniqueConstraint("uuid", name="uniq_block_device_mapping0uuid"),
        Index("block_device_mapping_instance_uuid_device_name_idx", "instance_uuid", "device_name"),
        Index("block_device_mapping_instance_uuid_idx", "instance_uuid"),
        Index("block_device_mapping_instance_uuid_volume_id_idx", "instance_uuid", "volume_id"),
        Index("snapshot_id", "snapshot_id"),
        Index("volume_id", "volume_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_name: Mapped[String255 | None]
    delete_on_termination: Mapped[bool | None] = mapped_column(default=False)
    snapshot_id: Mapped[Uuid | None]
    volume_id: Mapped[Uuid | None]
    volume_size: Mapped[int | None]
    no_device: Mapped[bool | None]
    connection_info: Mapped[MediumText | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="block_device_mapping_instance_uuid_fkey")
    )
    source_type: Mapped[String255 | None]
    destination_type: Mapped[String255 | None]
    guest_format: Mapped[String255 | None]
    device_type: Mapped[String255 | None]
    disk_bus: Mapped[String255 | None]
    boot_index: Mapped[int | None]
    image_id: Mapped[Uuid | None]
    tag: Mapped[String255 | None]
    attachment_id: Mapped[Uuid | None]
    uuid: Mapped[Uuid | None]
    volume_type: Mapped[String255 | None]
    encrypted: Mapped[bool | None] = mapped_column(default=False)
    encryption_secret_uuid: Mapped[Uuid | None]
    encryption_format: Mapped[str | None] = mapped_column(String(128))
    encryption_options: Mapped[str | None] = mapped_column(String(4096))


class Tag(CellBase):
    """A tag of a server."""

    __tablename__ = "tags"
    __table_args__ = (Index("tags_tag_idx", "tag"),)

    resource_id: Mapped[Uuid] = mapped_column(primary_key=True)
    tag: Mapped[str] = mapped_column(String(80), primary_key=True)


class VirtualInterface(Timestamps, SoftDelete, CellBase):
    """A port of a server; `address` is the MAC address and the port's id, with a slash between them."""

    __tablename__ = "virtual_interfaces"
    __table_args__ = (
        UniqueConstraint("address", "deleted", name="uniq_virtual_interfaces0address0deleted"),
        Index("virtual_interfaces_instance_uuid_fkey", "instance_uuid"),
        Index("virtual_interfaces_network_id_idx", "network_id"),
        Index("virtual_interfaces_uuid_idx", "uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[String255 | None]
    network_id: Mapped[int | None]
    uuid: Mapped[Uuid | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="virtual_interfaces_instance_uuid_fkey")
    )
    tag: Mapped[String255 | None]


class SecurityGroup(Timestamps, SoftDelete, CellBase):
    """A security group; only the project's `default` one exists when Neutron serves the ports."""

    __tablename__ = "security_groups"
    __table_args__ = (
        UniqueConstraint("project_id", "name", "deleted", name="uniq_security_groups0project_id0name0deleted"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[String255 | None]
    description: Mapped[String255 | None]
    user_id: Mapped[String255 | None]
    project_id: Mapped[String255 | None]


class SecurityGroupInstanceAssociation(Timestamps, SoftDelete, CellBase):
    """A security group of a server; unused when Neutron serves the ports."""

    __tablename__ = "security_group_instance_association"
    __table_args__ = (Index("security_group_instance_association_instance_uuid_idx", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    security_group_id: Mapped[int | None] = mapped_column(
        ForeignKey("security_groups.id", name="security_group_instance_association_ibfk_1")
    )
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="security_group_instance_association_instance_uuid_fkey")
    )


class InstanceFault(Timestamps, SoftDelete, CellBase):
    """Why an operation on a server failed."""

    __tablename__ = "instance_faults"
    __table_args__ = (
        Index("instance_faults_host_idx", "host"),
        Index("instance_faults_instance_uuid_deleted_created_at_idx", "instance_uuid", "deleted", "created_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="fk_instance_faults_instance_uuid")
    )
    code: Mapped[int]
    message: Mapped[String255 | None]
    details: Mapped[MediumText | None]
    host: Mapped[String255 | None]


class InstanceAction(Timestamps, SoftDelete, CellBase):
    """One call of the API on a server."""

    __tablename__ = "instance_actions"
    __table_args__ = (
        Index("instance_actions_instance_uuid_updated_at_idx", "instance_uuid", "updated_at"),
        Index("instance_uuid_idx", "instance_uuid"),
        Index("request_id_idx", "request_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    action: Mapped[String255 | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="fk_instance_actions_instance_uuid")
    )
    request_id: Mapped[String255 | None]
    user_id: Mapped[String255 | None]
    project_id: Mapped[String255 | None]
    start_time: Mapped[datetime | None]
    finish_time: Mapped[datetime | None]
    message: Mapped[String255 | None]


class InstanceActionEvent(Timestamps, SoftDelete, CellBase):
    """One part of an instance action, on one host."""

    __tablename__ = "instance_actions_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[String255 | None]
    action_id: Mapped[int | None] = mapped_column(ForeignKey("instance_actions.id"))
    start_time: Mapped[datetime | None]
    finish_time: Mapped[datetime | None]
    result: Mapped[String255 | None]
    traceback: Mapped[LongString | None]
    host: Mapped[String255 | None]
    details: Mapped[LongString | None]


class ConsoleAuthToken(Timestamps, CellBase):
    """A token that opens a server's console; `expires` is in seconds since 1970."""

    __tablename__ = "console_auth_tokens"
    __table_args__ = (
        UniqueConstraint("token_hash", name="uniq_console_auth_tokens0token_hash"),
        Index("console_auth_tokens_host_expires_idx", "host", "expires"),
        Index("console_auth_tokens_instance_uuid_idx", "instance_uuid"),
        Index("console_auth_tokens_token_hash_instance_uuid_idx", "token_hash", "instance_uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[String255]
    console_type: Mapped[String255]
    host: Mapped[String255]
    port: Mapped[int]
    internal_access_path: Mapped[String255 | None]
    instance_uuid: Mapped[Uuid]
    expires: Mapped[int]
    access_url_base: Mapped[String255 | None]
    tls_port: Mapped[int | None]


class ShareMapping(Timestamps, CellBase):
    """A Manila share that a server mounts."""

    __tablename__ = "share_mapping"
    __table_args__ = (
        UniqueConstraint("instance_uuid", "share_id", name="uniq_key_pairs0instance_uuid0share_id"),
        UniqueConstraint("instance_uuid", "tag", name="uniq_key_pairs0instance_uuid0tag"),
        Index("share_idx", "share_id"),
        Index("share_mapping_instance_uuid_share_id_idx", "instance_uuid", "share_id"),
    )

    id: Mapped[BigKey]
    uuid: Mapped[Uuid | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(
        ForeignKey("instances.uuid", name="share_mapping_instance_uuid_fkey")
    )
    share_id: Mapped[Uuid | None]
    status: Mapped[str | None] = mapped_column(String(32))
    tag: Mapped[str | None] = mapped_column(String(48))
    export_location: Mapped[LongString | None]
    share_proto: Mapped[str | None] = mapped_column(String(32))


class Migration(Timestamps, SoftDelete, CellBase):
    """A move of a server as Nova records it; the uuid is the consumer of the source's allocation in Placement."""

    __tablename__ = "migrations"
    __table_args__ = (
        Index("migrations_by_dest_host_nodes_and_status_idx", "deleted", "dest_compute", "dest_node", "status"),
        Index(
            "migrations_by_host_nodes_and_status_idx",
            "deleted",
            "source_compute",
            "dest_compute",
            "source_node",
            "dest_node",
            "status",
        ),
        Index("migrations_by_src_host_nodes_and_status_idx", "deleted", "source_compute", "source_node", "status"),
        Index("migrations_dest_compute_id_deleted_idx", "dest_compute_id", "deleted"),
        Index("migrations_instance_uuid_and_status_idx", "deleted", "instance_uuid", "status"),
        Index("migrations_updated_at_idx", "updated_at"),
        Index("migrations_uuid", "uuid", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    source_compute: Mapped[String255 | None]
    dest_compute: Mapped[String255 | None]
    dest_host: Mapped[String255 | None]
    status: Mapped[String255 | None]
    instance_uuid: Mapped[Uuid | None] = mapped_column(ForeignKey("instances.uuid", name="fk_migrations_instance_uuid"))
    old_instance_type_id: Mapped[int | None]
    new_instance_type_id: Mapped[int | None]
    source_node: Mapped[String255 | None]
    dest_node: Mapped[String255 | None]
    migration_type: Mapped[str | None] = mapped_column(
        Enum("migration", "resize", "live-migration", "evacuation", name="migration_type")
    )
    hidden: Mapped[bool | None] = mapped_column(default=False)
    memory_total: Mapped[BigInt | None]
    memory_processed: Mapped[BigInt | None]
    memory_remaining: Mapped[BigInt | None]
    disk_total: Mapped[BigInt | None]
    disk_processed: Mapped[BigInt | None]
    disk_remaining: Mapped[BigInt | None]
    uuid: Mapped[Uuid | None]
    cross_cell_move: Mapped[bool | None] = mapped_column(default=False)
    user_id: Mapped[String255 | None]
    project_id: Mapped[String255 | None]
    dest_compute_id: Mapped[BigInt | None]
