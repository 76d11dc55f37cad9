"""Compare what the product replaces of its libraries, and which private names it uses, with their known shapes.

A release of TaskFlow that renames one of them would not fail by itself: the override would never be called again.
Whoever changes the bounds of a library in setup.cfg and sees a test fail here compares that class with its override,
and then corrects the table.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from pymysql import connections
from taskflow.engines.action_engine import runtime
from taskflow.utils import misc
from zake import fake_storage

from droveway.flows.step import Step

PACKAGES = ("droveway.flows", "droveway.engines")

REPLACED = {
    "AlternateRetry.execute": "Retry(self, history, *args, **kwargs)",
    "AlternateRetry.on_failure": "Retry(self, history, *args, **kwargs)",
    "AlternateRetry.revert": "Retry(self, history, *args, **kwargs)",
    "WakeableTimeout.interrupt": "Timeout(self)",
    "WakeableTimeout.wait": "Timeout(self)",
    "LinearSelector._browse_atoms_for_execute": "Selector(self, atom=None)",
    "MoveBoard.JOB_PREFIX": "ZookeeperJobBoard: str",
    "MoveBoard._process_child": "ZookeeperJobBoard(self, path, request, quiet=True)",
    "MoveBoard.claim": "ZookeeperJobBoard(self, job, who)",
    "MoveBoard.close": "ZookeeperJobBoard(self)",
    "MoveBoard.connect": "ZookeeperJobBoard(self, timeout=10.0)",
    "MoveBoard.iterjobs": "ZookeeperJobBoard(self, only_unclaimed=False, ensure_fresh=False)",
    "MoveCompleter._process_atom_failure": "Completer(self, atom, failure)",
    "MoveConductor.NO_CONSUME_EXCEPTIONS": "ExecutorConductor: tuple",
    "MoveConductor._can_claim_more_jobs": "ExecutorConductor(self, job)",
    "MoveConductor._dispatch_job": "ExecutorConductor(self, job)",
    "MoveConductor._on_job_done": "ExecutorConductor(self, job, fut)",
    "MoveEngine._change_state": "ActionEngine(self, state)",
    "MoveEngine.compile": "ActionEngine(self)",
    "MoveEngine.storage": "ActionEngine: cachedproperty",
    "MoveStorage._save_atom_detail": "Storage(self, conn, original_atom_detail, atom_detail)",
    "MoveStorage.set_task_progress": "Storage(self, task_name, progress, details=None)",
    "Step._build_arg_mapping": (
        "Atom(self, executor, requires=None, rebind=None, auto_extract=True, ignore_list=None)"
    ),
    "Step.execute": "Atom(self, *args, **kwargs)",
    "Step.revert": "Atom(self, *args, **kwargs)",
}
"""What our classes replace, with the class of TaskFlow that has it and the shape that it has there."""

USED = {
    "LinearSelector": {"_execution_graph", "_get_maybe_ready"},
    "MoveBoard": {"_client", "_job_cond", "_known_jobs"},
    "MoveCompleter": {"_storage"},
    "MoveConductor": {"_dispatched", "_name", "_wait_timeout"},
    "MoveEngine": {"_backend", "_compiled", "_flow_detail", "_runtime"},
    "MoveJob": {
        "_client", "_created_on", "_lock_path", "_node_not_found", "_path", "_priority", "_root", "_sequence",
    },
    "MoveStorage": {"_lock"},
}  # fmt: skip
"""The private names of TaskFlow's classes that ours read or set without replacing them."""

REACHED = {"_completer", "_selector"}
"""Where TaskFlow's `Runtime` caches its properties of these names, which our engine sets."""


def theirs(ours: type) -> list[type]:
    """List the classes of TaskFlow that a class of ours is made from."""
    return [base for base in ours.__mro__ if base.__module__.startswith("taskflow.")]


def classes() -> Iterator[type]:
    """Yield each class of ours that is made directly from one of TaskFlow's: what a step adds to `Step` is our own."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            module = importlib.import_module(found.name)
            for each in vars(module).values():
                ours = inspect.isclass(each) and each.__module__ == module.__name__ and theirs(each)
                if ours and (each is Step or not issubclass(each, Step)):
                    yield each


CLASSES = {each.__name__: each for each in classes()}


def shape(owner: type, name: str) -> str:
    value = inspect.getattr_static(owner, name)
    if inspect.isfunction(value):
        return f"{owner.__name__}{inspect.signature(value)}"
    return f"{owner.__name__}: {type(value).__name__}"


def tree_of(of: type) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(of)))


def private(tree: ast.AST, within: str = "self") -> set[str]:
    """Find the private attributes of ``self``, or of what ``within`` names of it, that a class reads or sets."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == within and node.attr.startswith("_")
    }


def known(of: type) -> set[str]:
    """Find the names that a class of TaskFlow defines or sets."""
    return private(tree_of(of)) | set(vars(of))


def replaced() -> dict[str, str]:
    """Make the same as `REPLACED` from the classes themselves."""
    return {
        f"{name}.{attribute}": shape(owner, attribute)
        for name, ours in CLASSES.items()
        for attribute in vars(ours)
        if not attribute.startswith("__") and attribute != "_abc_impl"
        for owner in [next((base for base in theirs(ours) if attribute in vars(base)), None)]
        if owner is not None
    }


def used() -> dict[str, set[str]]:
    """Make the same as `USED` from the classes themselves."""
    found = {
        name: {each for each in private(tree_of(ours)) - set(vars(ours)) if any(each in known(b) for b in theirs(ours))}
        for name, ours in CLASSES.items()
    }
    return {name: names for name, names in found.items() if names}


def test_what_is_replaced_of_taskflow_is_there_in_the_known_shape() -> None:
    assert replaced() == REPLACED


def test_the_private_names_that_are_used_of_taskflow_are_there() -> None:
    assert used() == USED


def test_the_private_names_of_the_runtime_that_the_engine_sets_are_there() -> None:
    assert private(tree_of(CLASSES["MoveEngine"]), "self._runtime") == REACHED
    cached = {name for name, value in vars(runtime.Runtime).items() if isinstance(value, misc.cachedproperty)}
    assert {f"_{name}" for name in cached} >= REACHED


@pytest.mark.parametrize("name", ["_save_atom_detail", "_browse_atoms_for_execute"])
def test_a_renamed_name_of_taskflow_would_be_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = (each for each in REPLACED if each.endswith(f".{name}"))
    owner = next(base for base in theirs(CLASSES[key.partition(".")[0]]) if name in vars(base))
    monkeypatch.delattr(owner, name)
    assert replaced() != REPLACED


@pytest.mark.parametrize(
    ("owner", "name", "signature"),
    [
        (KazooClient, "_call", "(self, request, async_object)"),
        (connections.Connection, "_read_bytes", "(self, num_bytes)"),
    ],
)
def test_a_private_method_of_another_library_that_is_replaced_has_its_shape(
    owner: type, name: str, signature: str
) -> None:
    assert str(inspect.signature(inspect.getattr_static(owner, name))) == signature


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (KazooClient, {"_state"}),
        (connections.Connection, {"_read_timeout"}),
        (fake_storage.FakeStorage, {"_client_lock", "_clients", "_paths", "_sequences"}),
    ],
)
def test_a_private_name_of_another_library_that_is_used_is_there(owner: type, names: set[str]) -> None:
    assert known(owner) >= names
