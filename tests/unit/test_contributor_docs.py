"""Hold the contributor's pages against the code: the files, the names and the order of steps that they tell."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from droveway.flows import registry
from droveway.wire.levels import LEVEL

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "contributor"
ORDER: Final = "docs/contributor/why-this-order.rst"
REVISIONS: Final = Path("persistence/migrations/versions")
"""The map names the folder of the journal's revisions alone: none of them is read to understand another module."""


def packaged() -> set[str]:
    """Find the modules of the package, whose folders setup.cfg lists and test_tree.py compares with the tree."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    folders = {Path(*name.split(".")[1:]) for name in config["options"]["packages"].split()} - {REVISIONS}
    found = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).glob("*.py")}
    return {path.as_posix() for path in found if path.name != "__init__.py"}


def test_the_map_lists_each_module_once() -> None:
    page = "docs/contributor/map.rst"
    listed = re.findall(r"^\* ``([\w/]+\.py)``: \S.*\.$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    missing, surplus = sorted(packaged() - set(listed)), sorted(set(listed) - packaged())
    assert not missing, f"give each of these modules a line in {page}: {', '.join(missing)}"
    assert not surplus, f"take the lines of these out of {page}, they are no modules: {', '.join(surplus)}"
    twice = sorted({each for each in listed if listed.count(each) > 1})
    assert not twice, f"{page} lists these twice: {', '.join(twice)}"


def reasoned() -> dict[str, list[str]]:
    """Read which steps the page gives a reason for, in its order, by kind."""
    text = (ROOT / ORDER).read_text(encoding="utf-8")
    sections = re.split(r"^((?:``\w+``(?:, )?)+)\n=+\n", text, flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for heading, body in zip(sections[1::2], sections[2::2], strict=True):
        bullets = re.findall(r"^\* ((?:``\w+``(?:,\s+)?)+):\s+\w", body, re.MULTILINE)
        steps = [step for bullet in bullets for step in re.findall(r"``(\w+)``", bullet)]
        found |= dict.fromkeys(re.findall(r"``(\w+)``", heading), steps)
    return found


def test_the_page_of_reasons_has_a_section_for_each_kind() -> None:
    assert reasoned().keys() == set(registry.kinds()), f"give each kind of flow a section in {ORDER}"


@pytest.mark.parametrize("kind", registry.kinds())
def test_each_step_of_the_newest_graph_has_its_reason(kind: str) -> None:
    there, told = registry.latest(kind).names(), reasoned().get(kind, [])
    missing, surplus = [step for step in there if step not in told], [step for step in told if step not in there]
    assert not missing, f"say in {ORDER} why these steps of {kind} stand where they stand: {', '.join(missing)}"
    assert not surplus, f"take these out of the section {kind} of {ORDER}, it has no such steps: {', '.join(surplus)}"
    assert told == there, f"put the steps of {kind} in {ORDER} into the order of the graph: {', '.join(there)}"


@pytest.mark.parametrize("file", sorted({f"flows/{kind}.py" for kind in registry.kinds()} & packaged()))
def test_a_graphs_file_names_the_page_of_reasons(file: str) -> None:
    docstring = (ROOT / file).read_text(encoding="utf-8").split('"""')[1]
    assert ORDER in docstring, f"name {ORDER} in the docstring of {file}"


# The names of files, classes and functions.

PAGES: Final = sorted(FOLDER.glob("*.rst"))
EVERY_PAGE: Final = pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.rst"], ids=lambda page: page.name)
MEANT: Final = re.compile(r"\b(?:KIND|NAME|SERVICE)\b|\.venv/")
"""What a path that stands for many has in it, and what an installation makes."""


def named_files(text: str) -> set[str]:
    """Find what a page quotes that has the form of a path of the repository."""
    quoted = re.findall(r"``([\w.-]+(?:/[\w.-]+)*/?)(?:::\w+)?``", text)
    paths = {each for each in quoted if "/" in each or re.search(r"\.(?:py|rst|cfg|toml)$", each)}
    return {each for each in paths if not MEANT.search(each)}


@functools.cache
def members() -> dict[str, set[str]]:
    """Read the names that each class of the package defines or inherits from another class of the package."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in packaged():
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                fields = {each.target for each in node.body if isinstance(each, ast.AnnAssign)}
                fields |= {target for each in node.body if isinstance(each, ast.Assign) for target in each.targets}
                own.setdefault(node.name, set()).update(defined, map(ast.unparse, fields))
                bases.setdefault(node.name, set()).update(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    for name in own:
        waiting, seen = [name], {name}
        while waiting:
            further = {base for base in bases.get(waiting.pop(), ()) if base in own} - seen
            seen |= further
            waiting += further
            own[name] |= {each for base in further for each in own[base]}
    return own


@EVERY_PAGE
def test_each_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    gone = sorted(each for each in named_files(text) if not (ROOT / each).exists())
    assert not gone, f"{page.name} names files that the repository does not have: {', '.join(gone)}"


@EVERY_PAGE
def test_each_method_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"``([A-Z][a-z]\w*)\.(\w+)``", page.read_text(encoding="utf-8")))
    gone = sorted(f"{owner}.{name}" for owner, name in named if name not in members().get(owner, ()))
    assert not gone, f"{page.name} names methods that no class of the package has: {', '.join(gone)}"


@EVERY_PAGE
def test_each_name_that_a_page_places_in_a_file_is_defined_there(page: Path) -> None:
    placed = re.findall(r"``(\w+)``\s+in\s+``([\w/]+\.py)``", page.read_text(encoding="utf-8"))
    gone = [
        f"{name} in {file}"
        for name, file in placed
        if not (ROOT / file).exists()
        or not re.search(rf"^(?:(?:def|class) {name}\b|{name}(?::| =))", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not gone, f"{page.name} places names in files that do not define them: {', '.join(gone)}"


def test_what_is_not_there_is_found() -> None:
    """Otherwise the tests above could pass whatever the pages say."""
    assert named_files("``flows/nowhere.py`` ``setup.cfg`` ``flows/KIND.py`` ``x.y``") == {
        "flows/nowhere.py",
        "setup.cfg",
    }
    assert "perform" in members()["StopGuest"]
    assert "perform_nothing" not in members()["StopGuest"]


def test_the_page_of_taskflow_has_each_replacement() -> None:
    """They are listed, with what each is for, in test_private_names.py."""
    names = ast.parse((ROOT / "tests" / "unit" / "test_private_names.py").read_text(encoding="utf-8"))
    (listed,) = (
        node.value
        for node in names.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "REPLACED"
        and isinstance(node.value, ast.Dict)
    )
    replaced = {ast.literal_eval(key) for key in listed.keys if key is not None}
    page = (FOLDER / "taskflow.rst").read_text(encoding="utf-8")
    missing = sorted(name for name in replaced if f"``{name}``" not in page)
    assert not missing, f"say in docs/contributor/taskflow.rst why these are replaced: {', '.join(missing)}"


# Additions, made in a copy of the tree.


class Place(NamedTuple):
    """A row of the table on a page that says what an addition needs."""

    number: int
    file: str
    guard: str
    """The test that fails without it; empty where an import does, or nothing."""


def places(page: str) -> dict[int, Place]:
    """Read the table of a page."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (\d+)\n     - ``(\S+)``\n     - .+\n     - (.+)$", text, re.MULTILINE)
    found = [
        Place(int(number), file, "".join(re.findall(r"``(tests/\S+::\w+)``", told))) for number, file, told in rows
    ]
    return {place.number: place for place in found}


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of the tree, in which somebody adds something."""

    root: Path

    def put(self, file: str, old: str, new: str) -> None:
        """Replace a text that the file has once; ``{}`` in the new one stands for the old one."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times: correct the addition of this test"
        path.write_text(text.replace(old, new.replace("{}", old)), encoding="utf-8")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment over the copy."""
        there = os.pathsep.join([str(self.root.parent), str(self.root / "tests")])
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": there},
            capture_output=True,
            text=True,
            check=False,
        )

    def failing(self, guards: Iterable[str]) -> set[str]:
        """Run the tests and return those that failed, a case of each counting for it."""
        done = self.run("-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *guards)
        assert " passed" in done.stdout or " failed" in done.stdout, done.stdout + done.stderr
        return set(re.findall(r"^(?:FAILED|ERROR) (tests/\S+?::\w+)", done.stdout, re.MULTILINE))

    def generate(self) -> None:
        """Run the commands that write what is generated, as the page of a step names them."""
        generator = str(Path(sys.executable).with_name("oslo-config-generator"))
        for words in (
            ("-m", "support.pinned_graphs"),
            ("docs/generate.py",),
            (generator, "--config-file", "etc/config-generator.conf"),
        ):
            done = self.run(*words)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(name="copy")
def fixture_copy(tmp_path: Path) -> Copy:
    """Copy what the repository has, with what Python has compiled of it, and nothing else that tools have made."""
    made = shutil.ignore_patterns(".[!c]*", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, tmp_path / "droveway", ignore=made)
    return Copy(tmp_path / "droveway")


STEP: Final = '''class SyncSource(HostStep):
    """The source flushes what it has of the server's files."""

    where = Where.SOURCE
    does = "flush the server's files on the source"
    no_undo = "it changes nothing"


'''
ACTION: Final = '''@action(thrifty=True)
def sync_source(ctx: Context, _: NoDetails) -> dict[str, Any]:
    """Flush the server's files."""
    ctx.effect("synced")
    return dict(files=0)


'''
ANSWER: Final = '''class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """How many files were flushed."""

    files: Number


'''


@pytest.mark.timeout(600)
def test_a_host_step_needs_the_places_that_its_page_lists(copy: Copy) -> None:
    """Without its code nothing is imported; without each other place its guard fails, and with all of them none does.

    Only the page of mutants is left out at the end, which takes long to write.
    """
    rows = places("add-a-step.rst")
    entry = f'    "sync_source": Schema(NoDetails, Synced, since={LEVEL + 1}),\n'
    copy.put(rows[1].file, "ACTIONS: Final[", f"{ANSWER}{{}}")
    copy.put(rows[1].file, '    "remove_guest": Schema(NoDetails, Nothing, since=1),\n', f"{{}}{entry}")
    assert "nothing does sync_source" in copy.run("-c", "import droveway.workers.actions.dispatch").stderr
    copy.put("workers/actions/disks.py", "def _manifest(", f"{ACTION}{{}}")
    copy.put("flows/shelve.py", "        shelving.StopGuest,\n", "{}        host.SyncSource,\n")
    copy.put("flows/shelve.py", "hosts import ", "{}host, ")
    assert "SyncSource" in copy.run("-c", "import droveway.flows.registry").stderr
    copy.put(rows[3].file, "class SetAside(", f"{STEP}{{}}")
    needed = {rows[number].guard for number in range(4, 12)}
    assert copy.failing(needed) == needed

    copy.put("flows/shelve.py", "    version=1,", "    version=2,")
    copy.put("flows/shelve.py", "GRAPHS: Final = (", "{}older(SHELVE, host.SyncSource), ")
    copy.put("flows/shelve.py", "import Graph", "{}, older")
    stage = '        Stage("alpha", "sync_source", commands.NoDetails(), undone=False),\n'
    copy.put(rows[6].file, '        Stage("alpha", "remove_guest"', f"{stage}{{}}")
    copy.put(rows[7].file, "    commands.Nothing: ", '    commands.Synced: {"files": 1},\n    commands.Nothing: ')
    copy.put(
        rows[8].file, "* ``upload_disks``: stands in front of", "* ``sync_source``: stands behind the shutdown.\n{}"
    )
    copy.generate()
    assert copy.failing(needed) == {rows[11].guard}


@pytest.mark.timeout(600)
def test_an_operation_needs_the_places_that_its_page_lists(copy: Copy) -> None:
    """Add a kind that is a shelve by another name.  The pages that take long to write are left out at the end."""
    rows = places("add-an-operation.rst")
    graph = (copy.root / "flows/shelve.py").read_text(encoding="utf-8").replace("SHELVE", "STASH")
    (copy.root / "flows/stash.py").write_text(graph, encoding="utf-8")
    record = 'STASH: Final = _shelving("stash", "stashed", carries=Carries.NOWHERE)\n'
    copy.put(rows[1].file, "\nUNSHELVE: Final = ", f"\n{record}UNSHELVE: Final = ")
    copy.put(rows[1].file, "*(SHELVE, ", "{}STASH, ")
    copy.put(rows[4].file, "    shelve,\n", "{}    stash,\n")
    copy.put(rows[4].file, "*(shelve, ", "{}stash, ")
    needed = {rows[number].guard for number in range(5, 14)}
    assert copy.failing(needed) == needed

    copy.put(rows[5].file, "* ``flows/shelve.py``: has the graph of shelve.\n", "{}* ``flows/stash.py``: stashes.\n")
    copy.put(rows[7].file, '    "server shelve": (', '    "server stash": ("shelve:Shelve", "stash a server"),\n{}')
    copy.put(rows[8].file, 'for kind in ("shelve", ', '{}"stash", ')
    copy.put(rows[8].file, '    "shelve": State.RUNNING,\n', '{}    "stash": State.RUNNING,\n')
    purpose = '    "stash": Purpose(State.DONE, done=offloaded, undone=as_before),\n'
    copy.put(rows[9].file, '    "shelve": Purpose(', f"{purpose}{{}}")
    copy.put(rows[10].file, "``shelve``\n==========\n", "``shelve``, ``stash``\n=====================\n")
    copy.generate()
    assert copy.failing(needed) == {rows[12].guard, rows[13].guard}
