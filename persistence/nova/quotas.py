"""Quotas as Nova's own tables have them: limits of projects and users, and what counts against them."""

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
    """How much of a resource somebody has (cores, or ram in MiB), and may have; -1 is no limit."""

    owner: str
    """As ``project ID`` or ``user ID``."""
    resource: str
    used: int
    limit: int


def quota_usages(
    api: orm.Session, cells: Iterable[orm.Session], *, project: str, user: str, defaults: Mapping[str, int]
) -> list[QuotaUsage]:
    """What the project has, and what the user has in it, of each resource that ``defaults`` limits.

    Counted and limited as Nova's legacy quota driver does: the rows of every cell, without those that are deleted or
    hidden; a user without a limit of his own has the project's, a project without one the default class's.
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
    """Nova's `_get_count_in_db`: of two copies of a server in two cells one is hidden."""
    query = _USED if user is None else _USED_BY
    cores, ram = cell.execute(query, {"project": project, "user": user}).one()
    return {CORES: int(cores or 0), RAM: int(ram or 0)}
