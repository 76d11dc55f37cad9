"""The tree itself: what is packaged, who imports whom, and what no file may hold."""

from __future__ import annotations

import ast
import configparser
import functools
import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Folders of the checkout that are no part of the package.
BESIDE = {"tests", "tools", "docs", "etc", "build", "dist"}

# Folders that tools make, wherever they lie; .ci is the only hidden one that someone wrote.
MADE = re.compile(r"\.(?!ci$).*|__pycache__|.*\.egg-info|build|dist")

# Who may import whom. Every module may also import its own layer, its parent packages and droveway.errors.
EVERY_LAYER = {
    "authority", "certificates", "clocks", "deadlines", "log_context", "outages", "printable", "wire",
    "conf", "persistence", "clients", "scheduler", "flows", "engines", "workers", "audit", "doctor", "lab",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "authority": set(),
    "certificates": set(),
    "clocks": set(),
    "deadlines": set(),
    "log_context": set(),
    "outages": set(),
    "printable": set(),
    "wire": set(),
    "conf": {"log_context", "wire"},
    "persistence": {"deadlines", "printable", "conf"},
    "clients": {"certificates", "deadlines", "conf"},
    "scheduler": {"conf", "persistence", "clients"},
    "flows": {"deadlines", "printable", "wire", "conf", "persistence", "clients", "scheduler"},
    "engines": {
        "certificates", "clocks", "deadlines", "log_context", "outages", "printable", "wire",
        "conf", "persistence", "clients", "scheduler", "flows",
    },
    "workers": {
        "certificates", "clocks", "log_context", "outages", "printable", "wire",
        "conf", "clients.references", "clients.zookeeper",
    },
    "audit": {
        "printable", "wire", "conf", "persistence", "clients",
        "workers.hypervisors", "workers.host_contents", "workers.digests",
    },
    "doctor": {"certificates", "clocks", "wire", "conf", "persistence", "clients", "flows", "engines", "workers"},
    "lab": EVERY_LAYER,
    "cli": EVERY_LAYER,
}  # fmt: skip
MAY_NOT_IMPORT = {"cli": {"flows.steps"}}

# What the rooms of one layer must not know of each other; a room's rule holds for those inside it too.
ROOMS: dict[str, set[str]] = {
    "engines.conductor": {"engines.keeper", "engines.operations", "engines.site", "engines.start"},
    "engines.keeper": {"engines.operations", "engines.site", "engines.start"},
    "engines.operations": {"engines.start"},
    "engines.site": {"engines.conductor", "engines.keeper", "engines.operations", "engines.start"},
    "persistence.journal": {"persistence.nova", "persistence.invariants"},
    "persistence.nova": {"persistence.journal", "persistence.invariants"},
    "workers.actions": {"workers.daemon", "workers.run"},
    "workers.transfer": {"workers.actions", "workers.daemon", "workers.run"},
    "workers.hypervisors": {"workers.actions", "workers.transfer", "workers.context", "workers.daemon", "workers.run"},
    "workers.hypervisors.libvirt": {"workers.hypervisors.sandbox"},
    "workers.hypervisors.sandbox": {"workers.hypervisors.libvirt"},
    "audit.read": {"audit.checks", "audit.heal", "audit.run", "audit.findings"},
    "audit.checks": {"audit.read", "audit.heal", "audit.run", "audit.sources"},
    "cli.view": {"cli.commands", "cli.main", "cli.base"},
    "flows.steps": {"flows.resize", "flows.confirm", "flows.revert", "flows.delete", "flows.registry"},
    "flows.steps.hosts": {"flows.steps.records"},
}

# Libraries that one room of the package adapts to the others.
ADAPTED = {"taskflow": "engines.conductor.taskflow"}

# Hosts that a file may name; anything else is a machine, a mirror or a registry that a reader cannot rely on.
KNOWN_HOSTS = re.compile(
    r"localhost|127\.0\.0\.1|\[::1\]|[\w.]*\bexample(\.(org|com|net))?|[\w.]*\.(invalid|test)"
    r"|www\.apache\.org|www\.w3\.org|libvirt\.org|(docs|www)\.openstack\.org"
)
URL_HOST = re.compile(r"\bhttps?://(\[[^\]]*\]|[\w.-]+)")
MACHINE_PATH = re.compile(r"(?<![\w.{}$*-])/(home|root|work|Users)/\w")
MOST_LINES = 600


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file of the checkout that someone wrote, relative to the root."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not MADE.fullmatch(name)]
        found += [(Path(folder) / name).relative_to(ROOT) for name in names]
    return tuple(sorted(found))


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("droveway", *parts)).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of the package and its file."""
    return {module_name(path): path for path in files() if path.suffix == ".py" and path.parts[0] not in BESIDE}


def text_of(path: Path) -> str | None:
    """The file's text, or nothing for a binary file."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def imports(source: str, known: set[str]) -> Iterator[str]:
    """The modules of droveway that a source text imports, at any depth of it; "." stands for a relative import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "droveway")
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "."
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "droveway":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)


def within(name: str, layers: set[str]) -> bool:
    return any(name == layer or name.startswith(layer + ".") for layer in layers)


def barred(importer: str) -> set[str]:
    """What the rooms that a module lies in must not know."""
    name = importer.removeprefix("droveway.")
    return {each for room, rule in ROOMS.items() if within(name, {room}) for each in rule}


def offences(importer: str, source: str, known: set[str]) -> list[str]:
    """Why each import of a module that breaks the rules does so."""
    layer = importer.removeprefix("droveway").removeprefix(".").split(".")[0]
    allowed = MAY_IMPORT.get(layer, set()) | {layer, "errors"}
    forbidden = MAY_NOT_IMPORT.get(layer, set()) | barred(importer)
    found = []
    for imported in imports(source, known):
        name = imported.removeprefix("droveway").removeprefix(".")
        if imported == ".":
            found.append(f"{importer}: relative import")
        elif name and (not within(name, allowed) or within(name, forbidden)):
            found.append(f"{importer} imports {imported}")
    return found


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def listed(value: str) -> list[str]:
    return value.split()


def test_package_list_equals_the_tree() -> None:
    in_tree = {name for name, path in modules().items() if path.name == "__init__.py"}
    packages = listed(setup_cfg()["options"]["packages"])
    assert sorted(in_tree) == packages


def test_every_module_lies_in_a_package() -> None:
    packages = set(listed(setup_cfg()["options"]["packages"]))
    homeless = [
        str(path) for name, path in modules().items() if module_name(path.parent / "__init__.py") not in packages
    ]
    assert homeless == []


def test_package_data_equals_the_tree() -> None:
    packages = listed(setup_cfg()["options"]["packages"])
    folders = {package: Path(*package.split(".")[1:]) for package in packages}
    declared = set()
    for package, patterns in setup_cfg()["options.package_data"].items():
        for pattern in listed(patterns):
            matches = {path.relative_to(ROOT) for path in (ROOT / folders[package]).glob(pattern)}
            assert matches, f"{package}: {pattern} matches no file"
            declared |= matches
    # In the root only py.typed is data; in every other folder of the package all that is not Python is.
    in_tree = {
        path
        for path in files()
        if path.suffix != ".py" and path.parts[0] not in BESIDE | {".ci"} and len(path.parts) > 1
    } | {Path("py.typed")}
    assert in_tree == declared


@pytest.mark.parametrize("folder", ["tests", "tools", "docs", "etc"])
def test_folders_beside_the_package_are_no_packages(folder: str) -> None:
    assert [str(path) for path in files() if path.parts[0] == folder and path.name == "__init__.py"] == []


def test_test_file_names_are_unique() -> None:
    names = [path.name for path in files() if path.parts[0] == "tests" and path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_every_layer_has_its_rule() -> None:
    layers = {name.split(".")[1] for name in modules() if "." in name}
    assert layers == set(MAY_IMPORT) & layers
    assert set(MAY_IMPORT) - layers <= {"errors", "outages", "printable", "wire"}


def test_imports_follow_the_rules() -> None:
    known = modules()
    found = []
    for name, path in known.items():
        found += offences(name, (ROOT / path).read_text(encoding="utf-8"), set(known))
    assert found == []


def test_every_rule_is_about_modules_that_exist() -> None:
    known = {name.removeprefix("droveway.") for name in modules()}
    told = set(ROOMS) | set().union(*ROOMS.values())
    assert sorted(told - known) == []


@pytest.mark.parametrize("path", [str(path) for path in files() if path.parts[0] == "tools" and path.suffix == ".py"])
def test_a_tool_imports_what_is_there(path: str) -> None:
    """No test runs every bench, and the type checker sees none of the tools."""
    wanted = [
        (str(node.module), alias.name)
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in {"droveway", "proofs", "support"}
        for alias in node.names
    ]
    assert [f"{module} has no {name}" for module, name in wanted if not has(module, name)] == []


def has(module: str, name: str) -> bool:
    """Whether the module has the name, as a part of its own or as a module below it."""
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def test_no_modules_import_one_another() -> None:
    """Not even for their types, and not late either: what needs each other is one subject, or has a third one."""
    known = modules()
    graph = {
        name: set(imports((ROOT / path).read_text(encoding="utf-8"), set(known))) & set(known) - {name}
        for name, path in known.items()
    }
    assert circles(graph) == []


def circles(graph: dict[str, set[str]]) -> list[str]:
    """What is left of the graph once all that leads to no circle is taken off."""
    left = dict(graph)
    while leaves := [name for name, wanted in left.items() if not wanted & set(left)]:
        for name in leaves:
            del left[name]
    return sorted(left)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["a", "b", "c"]


def test_the_package_imports_nothing_of_its_tests() -> None:
    found = [
        f"{name}: {line}"
        for name, path in modules().items()
        for line in re.findall(r"^ *(?:from|import) (?:support|proofs)\b.*", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert found == []


def strays(importer: str, source: str) -> list[str]:
    """The imports of adapted libraries by a module outside of their rooms."""
    wanted = [
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)])
    ]
    return [
        f"{importer} imports {name}: only {room} may"
        for name in wanted
        for library, room in ADAPTED.items()
        if within(name, {library}) and not within(importer.removeprefix("droveway."), {room})
    ]


def test_an_adapted_library_is_imported_in_its_room_alone() -> None:
    assert [stray for name, path in modules().items() for stray in strays(name, (ROOT / path).read_text())] == []


@pytest.mark.parametrize("source", ["from taskflow import states", "def f():\n    import taskflow.task"])
def test_an_import_outside_of_the_room_is_found(source: str) -> None:
    assert len(strays("droveway.flows.step", source)) == 1
    assert strays("droveway.engines.conductor.taskflow.engine", source) == []


def test_no_python_file_imports_relatively() -> None:
    found = [
        str(path)
        for path in files()
        if path.suffix == ".py" and "." in imports((ROOT / path).read_text(encoding="utf-8"), set())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("droveway.flows.resize", "from droveway.engines import board"),
        ("droveway.flows.resize", "from droveway import engines"),
        ("droveway.flows.resize", "from . import steps"),
        ("droveway.lab.build", "import droveway.cli.main"),
        ("droveway.cli.commands.move", "from droveway.flows.steps import hosts"),
        ("droveway.cli.commands.move", "from droveway.flows import steps"),
        ("droveway.workers.daemon", "from droveway.clients import placement"),
        ("droveway.workers.daemon", "def late() -> None:\n    from droveway.persistence import journal"),
        ("droveway.audit.compare", "from droveway.workers import daemon"),
        ("droveway.errors", "from droveway.conf import base"),
        ("droveway.engines.conductor.run", "from droveway.engines.keeper import debts"),
        (
            "droveway.engines.conductor.taskflow.board",
            "from droveway.engines.operations.move_requests import file_request",
        ),
        ("droveway.engines.keeper.queue", "from droveway.engines.site.site import Site"),
        ("droveway.persistence.journal.moves", "from droveway.persistence.nova import cell"),
        ("droveway.workers.transfer.copying", "def late() -> None:\n    from droveway.workers.actions import disks"),
        ("droveway.workers.hypervisors.libvirt.files", "from droveway.workers.hypervisors.sandbox import guest"),
    ],
)
def test_a_forbidden_import_is_found(importer: str, source: str) -> None:
    known = {
        f"droveway.{name}"
        for name in ("engines", "flows.steps", "flows.steps.hosts", "clients.placement", "workers.daemon", "cli.main")
    }
    assert len(offences(importer, source, known)) == 1


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("droveway.flows.resize", "from droveway.flows.steps import hosts"),
        ("droveway.workers.daemon", "from droveway.clients import references, zookeeper"),
        ("droveway.audit.compare", "from droveway.workers.hypervisors import libvirt"),
        ("droveway.conf.base", "from droveway.errors import Refused"),
        ("droveway.cli.main", "from droveway import __version__"),
        ("droveway.cli.commands.flow", "from droveway.flows import registry"),
        ("droveway.engines.keeper.debts", "from droveway.engines.conductor import fencing"),
        ("droveway.engines.start", "from droveway.engines.keeper import queue"),
    ],
)
def test_an_allowed_import_passes(importer: str, source: str) -> None:
    known = {"droveway.clients.references", "droveway.clients.zookeeper", "droveway.flows.registry"}
    assert offences(importer, source, known) == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in files():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            strange = [host for host in URL_HOST.findall(line) if not KNOWN_HOSTS.fullmatch(host)]
            if strange or MACHINE_PATH.search(line) or f"{ROOT}/" in line:
                found.append(f"{path}:{number}: {line.strip()}")
    assert found == []


def test_no_file_is_long() -> None:
    long = {
        str(path): lines
        for path in files()
        if not {"data", "reference"} & set(path.parts)
        and (lines := len((text_of(path) or "").splitlines())) > MOST_LINES
    }
    assert long == {}


@pytest.mark.parametrize(
    ("requirement", "module", "layer"),
    [
        ("taskflow", "taskflow", "engines"),
        ("zake", "zake", "clients"),
        ("kazoo", "kazoo", "clients"),
        ("sqlalchemy", "sqlalchemy", "persistence"),
        ("openstacksdk", "openstack", "clients"),
        ("libvirt-python", "libvirt", "workers"),
        ("pytest", "pytest", "tests"),
    ],
)
def test_what_the_project_is_built_with_is_required_and_used(requirement: str, module: str, layer: str) -> None:
    """RC-10: each is named in setup.cfg and imported where it serves."""
    assert re.search(rf"^    {requirement}>=", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    found = re.compile(rf"^ *(import|from) {module}\b", re.MULTILINE)
    users = [path for path in files() if path.suffix == ".py" and found.search(text_of(path) or "")]
    assert any(path.parts[0] == layer for path in users)
