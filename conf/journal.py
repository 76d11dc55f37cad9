"""Defines the options for the journal, Droveway's own database."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("journal", "Droveway's own database")

OPTS = (
    cfg.StrOpt(
        "connection",
        secret=True,
        help="URL of the journal database, as SQLAlchemy writes it: postgresql+psycopg://USER:PASSWORD@HOST/NAME. "
        "`droveway db sync` makes its tables.",
    ),
)
