"""Configures Sphinx for the documents."""

from __future__ import annotations

import configparser
from pathlib import Path

_metadata = configparser.ConfigParser()
_metadata.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")

project = "Droveway"
version = release = _metadata["metadata"]["version"]
root_doc = "index"
exclude_patterns: list[str] = ["_build"]
nitpicky = True
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": _metadata["metadata"]["description"]}
html_show_copyright = False
html_copy_source = False
highlight_language = "none"
pygments_style = "friendly"
