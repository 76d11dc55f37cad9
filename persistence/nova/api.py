"""Nova's API database: the tables that a move reads or writes, with Nova's own names, types and indexes.

Nova does not soft-delete rows here, it deletes them. The models have no relationships, so a session does not know the
order in which rows must be inserted: flush a parent before you add its children.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from droveway.persistence.nova.base import ApiBase, LongString, MediumText, Real, String255, Timestamps, Uuid

__all__ = [
    "CELL_NAME",
    "Aggregate",
    "AggregateHost",
    "AggregateMetadata",
    "ApiBase",
    "CellMapping",
    "Flavor",
    "FlavorExtraSpec",
    "FlavorProject",
    "HostMapping",
    "InstanceGroup",
    "InstanceGroupMember",
    "InstanceGroupPolicy",
    "InstanceMapping",
    "ProjectUserQuota",
    "Quota",
    "QuotaClass",
    "RequestSpec",
]


class CellMapping(Timestamps, ApiBase):
    """A cell: its name, where its database is, and whether it takes new servers. Cell 0 has the uuid of all zeros."""

    __tablename__ = "cell_mappings"
    __table_args__ = (
        UniqueConstraint("uuid", name="uniq_cell_mappings0uuid"),
        Index("uuid_idx", "uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[Uuid]
    name: Mapped[String255 | None]
    transport_url: Mapped[LongString | None]
    database_connection: Mapped[LongString | None]
    disabled: Mapped[bool | None] = mapped_column(default=False)


CELL_NAME: Final = sa.func.coalesce(sa.func.nullif(CellMapping.name, ""), CellMapping.uuid)
"""What a cell is called: its name, or its id if it has none.

``nova-manage cell_v2 simple_cell_setup`` makes a cell without a name.
"""


class HostMapping(Timestamps, ApiBase):
    """Which cell a host belongs to."""

    __tablename__ = "host_mappings"
    __table_args__ = (
        UniqueConstraint("host", name="uniq_host_mappings0host"),
        Index("host_idx", "host"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cell_mappings.id"))
    host: Mapped[String255]


class InstanceMapping(Timestamps, ApiBase):
    """Which cell a server lives in; no other row decides that."""

    __tablename__ = "instance_mappings"
    __table_args__ = (
        UniqueConstraint("instance_uuid", name="uniq_instance_mappings0instance_uuid"),
        Index("instance_mappings_user_id_project_id_idx", "user_id", "project_id"),
        Index("instance_uuid_idx", "instance_uuid"),
        Index("project_id_idx", "project_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[Uuid]
    cell_id: Mapped[int | None] = mapped_column(ForeignKey("cell_mappings.id"))
    project_id: Mapped[String255]
    queued_for_delete: Mapped[bool | None]
    user_id: Mapped[String255 | None]


class Flavor(Timestamps, ApiBase):
    """A flavor that servers can be given; `swap` and `memory_mb` are in MiB, the disks in GiB."""

    __tablename__ = "flavors"
    __table_args__ = (
        UniqueConstraint("flavorid", name="uniq_flavors0flavorid"),
        UniqueConstraint("name", name="uniq_flavors0name"),
    )

    name: Mapped[String255]
    id: Mapped[int] = mapped_column(primary_key=True)
    memory_mb: Mapped[int]
    vcpus: Mapped[int]
    swap: Mapped[int] = mapped_column(default=0)
    vcpu_weight: Mapped[int | None]
    flavorid: Mapped[String255]
    rxtx_factor: Mapped[Real | None] = mapped_column(default=1.0)
    root_gb: Mapped[int | None]
    ephemeral_gb: Mapped[int | None] = mapped_column(default=0)
    disabled: Mapped[bool | None] = mapped_column(default=False)
    is_public: Mapped[bool | None] = mapped_column(default=True)
    description: Mapped[LongString | None]


class FlavorExtraSpec(Timestamps, ApiBase):
    """One extra spec of a flavor."""

    __tablename__ = "flavor_extra_specs"
    __table_args__ = (
        UniqueConstraint("flavor_id", "key", name="uniq_flavor_extra_specs0flavor_id0key"),
        Index("flavor_extra_specs_flavor_id_key_idx", "flavor_id", "key"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    flavor_id: Mapped[int] = mapped_column(ForeignKey("flavors.id"))
    key: Mapped[String255]
    value: Mapped[String255 | None]


class FlavorProject(Timestamps, ApiBase):
    """A project that has access to a flavor that is not public."""

    __tablename__ = "flavor_projects"
    __table_args__ = (UniqueConstraint("flavor_id", "project_id", name="uniq_flavor_projects0flavor_id0project_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    flavor_id: Mapped[int] = mapped_column(ForeignKey("flavors.id"))
    project_id: Mapped[String255]


class RequestSpec(Timestamps, ApiBase):
    """What a server's user asked for when the server was made, as a RequestSpec object in JSON."""

    __tablename__ = "request_specs"
    __table_args__ = (
        UniqueConstraint("instance_uuid", name="uniq_request_specs0instance_uuid"),
        Index("request_spec_instance_uuid_idx", "instance_uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[Uuid]
    spec: Mapped[MediumText]


class InstanceGroup(Timestamps, ApiBase):
    """A server group."""

    __tablename__ = "instance_groups"
    __table_args__ = (UniqueConstraint("uuid", name="uniq_instance_groups0uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[String255 | None]
    project_id: Mapped[String255 | None]
    uuid: Mapped[Uuid]
    name: Mapped[String255 | None]


class InstanceGroupPolicy(Timestamps, ApiBase):
    """The policy of a server group; `rules` is plain JSON."""

    __tablename__ = "instance_group_policy"
    __table_args__ = (Index("instance_group_policy_policy_idx", "policy"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    policy: Mapped[String255 | None]
    group_id: Mapped[int] = mapped_column(ForeignKey("instance_groups.id"))
    rules: Mapped[LongString | None]


class InstanceGroupMember(Timestamps, ApiBase):
    """A server in a server group."""

    __tablename__ = "instance_group_member"
    __table_args__ = (Index("instance_group_member_instance_idx", "instance_uuid"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_uuid: Mapped[String255 | None]
    group_id: Mapped[int] = mapped_column(ForeignKey("instance_groups.id"))


class Aggregate(Timestamps, ApiBase):
    """A host aggregate."""

    __tablename__ = "aggregates"
    __table_args__ = (
        UniqueConstraint("name", name="uniq_aggregate0name"),
        Index("aggregate_uuid_idx", "uuid"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[Uuid | None]
    name: Mapped[String255 | None]


class AggregateHost(Timestamps, ApiBase):
    """A host in an aggregate."""

    __tablename__ = "aggregate_hosts"
    __table_args__ = (UniqueConstraint("host", "aggregate_id", name="uniq_aggregate_hosts0host0aggregate_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    host: Mapped[String255 | None]
    aggregate_id: Mapped[int] = mapped_column(ForeignKey("aggregates.id"))


class AggregateMetadata(Timestamps, ApiBase):
    """A key and value of an aggregate; the key `availability_zone` makes the aggregate a zone."""

    __tablename__ = "aggregate_metadata"
    __table_args__ = (
        UniqueConstraint("aggregate_id", "key", name="uniq_aggregate_metadata0aggregate_id0key"),
        Index("aggregate_metadata_key_idx", "key"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    aggregate_id: Mapped[int] = mapped_column(ForeignKey("aggregates.id"))
    key: Mapped[String255]
    value: Mapped[String255]


class QuotaClass(Timestamps, ApiBase):
    """A default limit of one resource, in the class `default`."""

    __tablename__ = "quota_classes"
    __table_args__ = (Index("quota_classes_class_name_idx", "class_name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    class_name: Mapped[String255 | None]
    resource: Mapped[String255 | None]
    hard_limit: Mapped[int | None]


class Quota(Timestamps, ApiBase):
    """A project's limit of one resource."""

    __tablename__ = "quotas"
    __table_args__ = (UniqueConstraint("project_id", "resource", name="uniq_quotas0project_id0resource"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[String255 | None]
    resource: Mapped[String255]
    hard_limit: Mapped[int | None]


class ProjectUserQuota(Timestamps, ApiBase):
    """A user's limit of one resource within a project."""

    __tablename__ = "project_user_quotas"
    __table_args__ = (
        UniqueConstraint(
            "user_id", "project_id", "resource", name="uniq_project_user_quotas0user_id0project_id0resource"
        ),
        Index("project_user_quotas_project_id_idx", "project_id"),
        Index("project_user_quotas_user_id_idx", "user_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[String255]
    project_id: Mapped[String255]
    resource: Mapped[String255]
    hard_limit: Mapped[int | None]
