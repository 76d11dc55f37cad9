"""Defines the option that fills the URL templates of Nova's cell mappings."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("database", "The cell databases whose URLs in cell_mappings are templates")

OPTS = (
    cfg.StrOpt(
        "connection",
        secret=True,
        help="URL whose parts ({scheme}, {username}, {password}, {hostname}, {port}, {path}, {query}) fill the "
        "templates that cell_mappings may hold instead of URLs. Nova's option of the same name, which Nova uses for "
        "the same.",
    ),
)
