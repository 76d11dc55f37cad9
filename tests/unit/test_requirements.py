"""Compare what setup.cfg requires with what the product imports: nothing is installed for nobody or comes by chance."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import droveway
from droveway.errors import Refused
from droveway.lab import packages
from droveway.lab.session import Lab

ROOT = Path(__file__).parents[2]

LIBVIRT = {"libvirt": "libvirt-python", "libvirt_qemu": "libvirt-python"}
"""The unit tests run without libvirt's bindings, so nothing that is installed need name their distribution."""

EXTRAS = {
    "lab": {"lab", "clients.embedded"},
    "libvirt": {"lab.boot_guests", "workers.hypervisors.libvirt"},
    "mysql": set(),
    "postgresql": set(),
}
"""The extras that parts of the product need, and what cannot be imported without them."""

WITHOUT = """
import importlib, pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
"""
"""Begins a program in which the modules that it is given are not installed."""

IMPORT_PRODUCT = """
import droveway

for found in pkgutil.walk_packages(droveway.__path__, "droveway."):
    if found.name.split(".")[1] not in {"tests", "tools", "docs", "etc"} and ".migrations." not in found.name:
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError:
            print(found.name)
"""

IMPORT_TOOLS = """
from proofs.demo import command
from proofs.matrix import command as matrix, full
from proofs.soak import command as soak

command.warm("sandbox")
"""

PRIVATE = {
    "PyMySQL": "its waits for a server are bounded, and its socket is looked at",
    "cliff": "its commands are listed in a table of ours",
    "kazoo": "it refuses requests while its connection is away",
    "openstack-placement": "its tables are filled once for each database, not once a process",
    "psycopg": "its one way to wait, which is in no document, is bounded",
    "taskflow": "see test_private_names.py",
    "zake": "its store of nodes is replaced by a faster one",
}
"""The distributions of which private names are used, and what for: a new minor version may change them."""


def setup_cfg() -> configparser.ConfigParser:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def required() -> dict[str, str]:
    """Read the product's requirements with their bounds, those of the extras that one part of it needs among them."""
    setup = setup_cfg()
    extras = setup["options.extras_require"]
    lines = "\n".join((setup["options"]["install_requires"], *(extras[extra] for extra in EXTRAS)))
    found = (re.fullmatch(r"([\w.-]+)(?:\[\w+\])?(.*)", line) for line in lines.split())
    return {each[1]: each[2] for each in found if each}


def of_extra(extra: str) -> list[str]:
    """Name the distributions of an extra."""
    return re.findall(r"^([\w.-]+)", setup_cfg()["options.extras_require"][extra], re.MULTILINE)


def imported() -> set[str]:
    """Find the top names of all modules that the product imports, those for types alone left out."""
    setup = setup_cfg()
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


def test_only_what_an_extra_is_for_needs_it() -> None:
    absent = {normal(name) for extra in EXTRAS for name in of_extra(extra)}
    modules = [module for module in imported() if normal(distribution(module)) in absent]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT + IMPORT_PRODUCT, *modules],
        capture_output=True,
        text=True,
        check=True,
    )
    failed = [name.removeprefix("droveway.") for name in done.stdout.split()]
    rooms = set().union(*EXTRAS.values())
    assert {"clients.embedded.nodes", "workers.hypervisors.libvirt.hypervisor"} <= set(failed)
    assert [name for name in failed if not any(f"{name}.".startswith(f"{room}.") for room in rooms)] == []


def test_the_demonstration_soak_and_matrix_need_nothing_of_libvirt() -> None:
    """`tools/demo`, the first command of the README, installs the extra of labs alone."""
    program = [sys.executable, "-W", "ignore", "-c", WITHOUT + IMPORT_TOOLS, *LIBVIRT, "lxml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_lab_says_what_is_to_be_installed_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None if name == "placement" else name)
    with pytest.raises(Refused, match=r"missing \(placement\); run: pip install 'droveway\[lab\]'"):
        Lab.open(tmp_path)


def test_what_a_lab_asks_for_is_what_its_extra_has() -> None:
    assert {normal(distribution(module)) for module in packages.NEEDED} == {normal(name) for name in of_extra("lab")}


def test_a_module_for_types_alone_is_not_counted() -> None:
    tree = ast.parse(
        "import a.b\nif TYPE_CHECKING:\n    import c\ndef f():\n    from d.e import g\n    from . import h\n"
    )
    assert set(_names(tree)) == {"a", "d"}


def written(of: type) -> set[str]:
    """Find the private names that a class's own functions have, read or set; libraries give classes others."""
    mine = {name: each for name, each in vars(of).items() if inspect.isfunction(each)}
    functions = {name: each for name, each in mine.items() if each.__module__ == of.__module__}
    named = {name for each in functions.values() for name in each.__code__.co_names}
    return {name for name in named | set(functions) if re.match("_(?!_)", name)}


def replaced() -> set[str]:
    """Name the distributions of whose classes we replace or use private names in classes that are made of theirs."""
    found = set()
    for each in pkgutil.walk_packages(droveway.__path__, "droveway."):
        # What lies beside the package in a checkout is no part of it, and alembic runs the migrations' scripts.
        if each.name.split(".")[1] in {"tests", "tools", "docs", "etc"} or ".migrations." in each.name:
            continue
        module = importlib.import_module(each.name)
        for ours in vars(module).values():
            if inspect.isclass(ours) and ours.__module__ == module.__name__:
                found |= {base.__module__.partition(".")[0] for base in ours.__mro__[1:] if written_in_both(ours, base)}
    return {distribution(name) for name in found - set(sys.stdlib_module_names)}


def written_in_both(ours: type, base: type) -> set[str]:
    library = base.__module__.partition(".")[0]
    return written(ours) & written(base) if library not in {"droveway", *sys.stdlib_module_names} else set()


def test_whose_private_names_are_used_is_told() -> None:
    assert {normal(name) for name in replaced()} <= {normal(name) for name in PRIVATE}
    assert {"kazoo", "taskflow", "cliff", "zake"} <= replaced()


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_whose_private_names_are_used_is_bound_below_a_minor_version(name: str) -> None:
    assert re.fullmatch(r">=[\d.]+,<\d+\.\d+", required()[name])
