"""Reads quotas in Nova's own tables: the limits of projects and users, and what counts against them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.api import ProjectUserQuota, Quota, QuotaClass
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.vm_states import VmState

CORES: Final = "cores"
RAM: Final = "ram"

UNLIMITED: Final = -1

_DEFAULT_CLASS: Final = "default"

_USED: Final = sa.select(sa.func.sum(Instance.vcpus), sa.func.sum(Instance.memory_mb)).where(
    Instance.deleted == 0,
    Instance.project_id == sa.bindparam("project"),
    sa.or_(Instance.vm_state != VmState.SOFT_DELETED, Instance.vm_state.is_(None)),
    sa.or_(Instance.hidden.is_(False), Instance.hidden.is_(None)),
)
_USED_BY: Final = _USED.where(Instance.user_id == sa.bindparam("user"))


@dataclasses.dataclass(frozen=True)
class QuotaUsage:
    """Holds how much of a resource (cores, or ram in MiB) an owner uses, and may use; the limit -1 means no limit."""

    owner: str
    """``project ID`` or ``user ID``."""
    resource: str
    used: int
    limit: int


def quota_usages(
    api: orm.Session, cells: Iterable[orm.Session], *, project: str, user: str, defaults: Mapping[str, int]
) -> list[QuotaUsage]:
    """Return the usage and limit of the project, and of the user in it, for each resource in ``defaults``.

    Both are computed as Nova's legacy quota driver does.  It counts the rows of all cells, without deleted and hidden
    rows.  A user without a limit has the project's limit.  A project without a limit has the limit of the default
    class.  When the default class has no limit, the limit is the one in ``defaults``.
    """
    limits = _limits(api, project, defaults)
    of_user = limits | _rows(api, ProjectUserQuota, project_id=project, user_id=user)
    used: dict[str, int] = dict.fromkeys(defaults, 0)
    used_by_user = dict(used)
    for cell in cells:
        for total, owner in ((used, None), (used_by_user, user)):
            for resource, amount in _count(cell, project, owner).items():
                total[resource] += amount
    return [
        QuotaUsage(owner, resource, total[resource], known[resource])
        for resource in defaults
        for owner, total, known in ((f"project {project}", used, limits), (f"user {user}", used_by_user, of_user))
    ]


def _limits(api: orm.Session, project: str, defaults: Mapping[str, int]) -> dict[str, int]:
    return dict(defaults) | _rows(api, QuotaClass, class_name=_DEFAULT_CLASS) | _rows(api, Quota, project_id=project)


def _rows(api: orm.Session, model: Any, **owner: str) -> dict[str, int]:
    found = api.execute(_limits_of(model, tuple(owner)), owner)
    return {resource: limit for resource, limit in found if resource in (CORES, RAM)}


@functools.cache
def _limits_of(model: Any, owner: tuple[str, ...]) -> sa.Select[str, int]:
    return sa.select(model.resource, model.hard_limit).where(
        model.hard_limit.is_not(None), *(getattr(model, column) == sa.bindparam(column) for column in owner)
    )


def _count(cell: orm.Session, project: str, user: str | None) -> dict[str, int]:
    """Count as Nova's `_get_count_in_db` does; a server that has copies in two cells counts once, as one is hidden."""
    query = _USED if user is None else _USED_BY
    cores, ram = cell.execute(query, {"project": project, "user": user}).one()
    return {CORES: int(cores or 0), RAM: int(ram or 0)}
