"""Compare what setup.cfg requires with what the product imports: nothing is installed for nobody or comes by chance."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIBVIRT = {"libvirt": "libvirt-python", "libvirt_qemu": "libvirt-python"}
"""The unit tests run without libvirt's bindings, so nothing that is installed need name their distribution."""

PRIVATE = {"taskflow", "kazoo", "zake", "PyMySQL"}
"""The distributions of which private names are used: a new minor version may change them."""


def required() -> dict[str, str]:
    """Read the product's requirements with their bounds, those of the extras that one part of it needs among them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = setup["options.extras_require"]
    lines = "\n".join((setup["options"]["install_requires"], extras["libvirt"], extras["mysql"], extras["postgresql"]))
    found = (re.fullmatch(r"([\w.-]+)(?:\[\w+\])?(.*)", line) for line in lines.split())
    return {each[1]: each[2] for each in found if each}


def imported() -> set[str]:
    """Find the top names of all modules that the product imports, those for types alone left out."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    folders = [ROOT.joinpath(*package.split(".")[1:]) for package in setup["options"]["packages"].split()]
    paths = [path for folder in folders for path in folder.glob("*.py")]
    return {name for path in paths for name in _names(ast.parse(path.read_bytes()))} - {"droveway"}


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        yield from _named(node)


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]
    for child in ast.iter_child_nodes(node):
        yield from _named(child)


def distribution(module: str) -> str:
    """Name the distribution that has a module."""
    known = importlib.metadata.packages_distributions()
    return LIBVIRT.get(module) or known.get(module, [module])[0]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_required_and_what_is_required_is_imported() -> None:
    modules = imported() - set(sys.stdlib_module_names)
    assert {normal(distribution(module)) for module in modules} == {normal(name) for name in required()}


def test_a_module_for_types_alone_is_not_counted() -> None:
    tree = ast.parse(
        "import a.b\nif TYPE_CHECKING:\n    import c\ndef f():\n    from d.e import g\n    from . import h\n"
    )
    assert set(_names(tree)) == {"a", "d"}


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_whose_private_names_are_used_is_bound_below_a_minor_version(name: str) -> None:
    assert re.fullmatch(r">=[\d.]+,<\d+\.\d+", required()[name])
