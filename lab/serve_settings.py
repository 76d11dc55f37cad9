"""Writes the configuration by which daemons run over a lab's hosts, databases and services."""

from __future__ import annotations

import configparser
from pathlib import Path

import sqlalchemy as sa

from droveway.lab import served_cloud
from droveway.lab.parts import Parts
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import api


def settings_of(
    lab: Parts, zookeeper: str, urls: dict[str, str], services_port: int, run: Path
) -> dict[str, dict[str, str]]:
    """Return the configuration of all daemons.

    ``zookeeper`` is NAME:PORT, ``urls`` is what `in_place` returns, ``run`` is a directory for the workers' sockets.
    """
    host = str(lab.layout.host("{host}"))
    return {
        "zookeeper": {"hosts": zookeeper},
        "journal": {"connection": urls["journal"]},
        "api_database": {"connection": urls["api"]},
        **served_cloud.settings(services_port),
        "worker": {"hypervisor": "sandbox", "run_path": str(run), "state_path": host, "instances_root": host},
        "sandbox": {"guests_log": str(lab.layout.guests_log), "volumes": str(lab.layout.volumes)},
    }


def write(settings: dict[str, dict[str, str]], path: Path, base: Path | None = None) -> None:
    """Write a configuration file that only its owner can read; options that ``settings`` lacks come from ``base``."""
    written = configparser.ConfigParser(interpolation=None, strict=False)
    if base is not None:
        written.read(base, encoding="utf-8")
    written.read_dict(settings)
    # A daemon refuses a file with passwords that others may read.
    path.touch(mode=0o600)
    path.chmod(0o600)
    with path.open("w", encoding="utf-8") as file:
        written.write(file)


def in_place(lab: Parts) -> dict[str, str]:
    """Let the daemons use the lab's SQLite files where they lie, and return the URLs of two of them by name.

    Writes the URL of each cell's file into the cell mappings of Nova's API database. Returns the journal's URL as
    ``journal``, and that of Nova's API database as ``api``.
    """
    files = lab.layout
    for name in lab.cell_databases:
        map_cell(lab.api, name, sqlite_url(files.cell(name)))
    return {"journal": sqlite_url(files.journal), "api": sqlite_url(files.api)}


def map_cell(database: Database, name: str, url: str) -> None:
    """Set the URL of the cell's database in Nova's API database."""
    with database.write() as session:
        session.execute(sa.update(api.CellMapping).where(api.CellMapping.name == name).values(database_connection=url))
