"""Defines the options for Nova's API database."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("api_database", "Nova's API database")

OPTS = (
    cfg.StrOpt(
        "connection",
        secret=True,
        help="URL of Nova's API database, as SQLAlchemy writes it. The cell databases are found in its table "
        "cell_mappings. Nova's option of the same name.",
    ),
)
