"""Hold the contributor's pages against the code: the files, the names and the order of steps that they tell."""

from __future__ import annotations

import ast
import configparser
import functools
import re
from pathlib import Path
from typing import Final

import pytest

from droveway.flows import registry

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
        if not re.search(rf"^(?:(?:def|class) {name}\b|{name}(?::| =))", (ROOT / file).read_text(), re.MULTILINE)
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
