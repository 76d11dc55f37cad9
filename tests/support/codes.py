"""The stable error codes that the code can give, collected from its text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BESIDE = {"tests", "tools", "docs", "etc", "build", "dist"}


@functools.cache
def raised() -> dict[str, set[str]]:
    """Every code and the files that it stands in: class attributes, arguments named code, and stored errors.

    An argument may be a module's constant, and may be given by its place to a function of the tree whose parameter is
    named code. The clients' codes are made of the service's name and what went wrong.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
    places = _places(trees.values())
    constants = _constants(trees.values())
    for tree in trees.values():
        _Resolve(constants).visit(tree)
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for code in (*_classes(tree), *_arguments(tree, places), *_stored(tree)):
            found.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    for service in _called(trees.values(), "Rest", 1):
        for what in _called(trees.values(), "_code", 0):
            found.setdefault(f"{service.lower()}-{what}", set()).add("clients/rest.py")
    return found


def _files() -> Iterator[Path]:
    for top in sorted(ROOT.iterdir()):
        if top.is_dir() and top.name not in BESIDE and not top.name.startswith("."):
            yield from sorted(top.rglob("*.py"))
        elif top.suffix == ".py":
            yield top


def _places(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Functions with a parameter named code, and its place among what a caller gives."""
    found = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                if "code" in names:
                    found[node.name] = names.index("code")
    return found


def _constants(trees: Iterable[ast.Module]) -> dict[str, ast.Constant]:
    """Modules' constants that are texts, by name."""
    found = {}
    for tree in trees:
        for line in tree.body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            value = getattr(line, "value", None)
            if isinstance(target, ast.Name) and target.id.isupper() and isinstance(value, ast.Constant):
                found[target.id] = value
    return found


class _Resolve(ast.NodeTransformer):
    """Puts the text of a constant in the place of its name."""

    def __init__(self, constants: dict[str, ast.Constant]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name that is read."""
        return self._constants.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _classes(tree: ast.Module) -> Iterator[str]:
    """``code = "..."`` in the body of a class, annotated or not."""
    for node in ast.walk(tree):
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "code" for target in targets):
                yield from _text(getattr(line, "value", None))


def _arguments(tree: ast.Module, places: dict[str, int]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from _text(keyword.value)
            name = _name(node)
            if name in places and len(node.args) > places[name]:
                yield from _text(node.args[places[name]])


def _stored(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code":
                    yield from _text(value)


def _called(trees: Iterable[ast.Module], name: str, place: int) -> set[str]:
    """What is given at a place to the functions of a name."""
    return {
        text
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node) == name and len(node.args) > place
        for text in _text(node.args[place])
    }


def _name(node: ast.Call) -> str:
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def _text(node: ast.AST | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _text(node.body)
        yield from _text(node.orelse)
