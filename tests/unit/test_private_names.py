"""Compare what the product replaces of its libraries, and which private names it uses, with their known shapes.

A release of TaskFlow that renames one of them would not fail by itself: the override would never be called again.
Whoever changes the bounds of a library in setup.cfg and sees a test fail here compares that class with its override,
and then corrects the table.  Whoever adds an override says here what it is for.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from pymysql import connections
from taskflow.engines.action_engine import runtime
from taskflow.utils import misc
from zake import fake_storage

PACKAGES = ("droveway.flows", "droveway.engines")

ADAPTERS = "droveway.engines.conductor.taskflow"
"""The only package that imports TaskFlow (see test_tree.py)."""

ENTRY = "is one of TaskFlow's entries, which it leaves to us"
FASTER = "only makes it faster: "

REPLACED = {
    "AlternateRetry.execute": ("Retry(self, history, *args, **kwargs)", ENTRY),
    "AlternateRetry.on_failure": ("Retry(self, history, *args, **kwargs)", ENTRY),
    "AlternateRetry.revert": ("Retry(self, history, *args, **kwargs)", ENTRY),
    "JobConductor._can_claim_more_jobs": (
        "ExecutorConductor(self, job)",
        "leaves slots free for urgent jobs, where TaskFlow only counts jobs",
    ),
    "JobConductor._dispatch_job": (
        "ExecutorConductor(self, job)",
        "claims the move and runs our engine, where TaskFlow loads a flow from a book that it read once",
    ),
    "JobConductor._on_job_done": (
        "ExecutorConductor(self, job, fut)",
        "gives the job back until that worked, where TaskFlow tries once and trashes a job that raised",
    ),
    "LinearSelector._browse_atoms_for_execute": (
        "Selector(self, atom=None)",
        FASTER + "looks at the next atom, where TaskFlow looks at all later ones and all that was before each",
    ),
    "MoveBoard.JOB_PREFIX": ("ZookeeperJobBoard: str", "lets a job's node have the name of its flow"),
    "MoveBoard._process_child": (
        "ZookeeperJobBoard(self, path, request, quiet=True)",
        "makes jobs that are named by their flows, and removes what is no job",
    ),
    "MoveBoard.claim": (
        "ZookeeperJobBoard(self, job, who)",
        "leaves jobs to others that cannot run here, and remembers claims of which nobody heard",
    ),
    "MoveBoard._force_refresh": (
        "ZookeeperJobBoard(self)",
        "lists the jobs by a watch that outlives a wiped board, and remembers which of them are claimed",
    ),
    "MoveBoard.close": ("ZookeeperJobBoard(self)", "ends the watch on the listing"),
    "MoveBoard.iterjobs": (
        "ZookeeperJobBoard(self, only_unclaimed=False, ensure_fresh=False)",
        "lists anew when the board changed, and gives claims back of which nobody heard",
    ),
    "MoveJob.state": (
        "ZookeeperJob: property",
        FASTER + "knows by the listing which jobs are claimed, where TaskFlow asks three times for each job",
    ),
    "MoveCompleter._process_atom_failure": (
        "Completer(self, atom, failure)",
        "undoes also steps that a journal which was put back does not know of",
    ),
    "MoveEngine._change_state": (
        "ActionEngine(self, state)",
        "keeps the state of a flow that is parked or fenced, where TaskFlow stores that it failed",
    ),
    "MoveEngine.compile": ("ActionEngine(self)", "puts our selector and completer in"),
    "MoveEngine.storage": ("ActionEngine: cachedproperty", "puts our storage in"),
    "MoveStorage._save_atom_detail": (
        "Storage(self, conn, original_atom_detail, atom_detail)",
        FASTER + "saves once before TaskFlow's retries are set up",
    ),
    "MoveStorage.set_task_progress": (
        "Storage(self, task_name, progress, details=None)",
        FASTER + "drops the progress of 0.0 and 1.0 that TaskFlow writes for each step",
    ),
    "StepTask._build_arg_mapping": (
        "Atom(self, executor, requires=None, rebind=None, auto_extract=True, ignore_list=None)",
        FASTER + "looks at no signature, since all steps have the same",
    ),
    "StepTask.execute": ("Atom(self, *args, **kwargs)", ENTRY),
    "StepTask.revert": ("Atom(self, *args, **kwargs)", ENTRY),
    "WakeableTimeout.interrupt": ("Timeout(self)", "ends the wait below"),
    "WakeableTimeout.wait": ("Timeout(self)", "ends when the board changes, where TaskFlow polls"),
}
"""What our classes replace: the class of TaskFlow that has it, the shape that it has there, and what ours is for."""

USED = {
    "JobConductor._dispatched": "counts the jobs that run, and which of them are urgent",
    "JobConductor._wait_timeout": "tells whether the conductor was told to stop",
    "LinearSelector._execution_graph": "has the order of the atoms",
    "LinearSelector._get_maybe_ready": "decides whether an atom may run",
    "MoveBoard._client": "deletes a node without waiting for it, and knows its own time-out",
    "MoveBoard._job_cond": "guards the known jobs",
    "MoveBoard._job_watcher": "is set to our listing, so that TaskFlow watches none itself",
    "MoveBoard._known_jobs": "holds the jobs that are listed",
    "MoveBoard._on_job_posting": "is handed the names that were listed",
    "MoveCompleter._storage": "has the state of each atom",
    "MoveEngine._backend": "is handed to our storage",
    "MoveEngine._compiled": "tells whether the flow was compiled",
    "MoveEngine._flow_detail": "is handed to our storage",
    "MoveEngine._runtime": "holds selector, completer and atoms",
    **{
        f"MoveJob.{name}": "is what the parent's initialiser sets, which insists on a number in the node's name"
        for name in (
            "_client", "_created_on", "_lock_path", "_node_not_found", "_path", "_priority", "_root", "_sequence",
        )
    },
    "MoveStorage._lock": FASTER + "is replaced by no lock, since one thread runs a flow",
}  # fmt: skip
"""The private names of TaskFlow's classes that ours read or set without replacing them, and what for."""

REACHED = {
    "self._runtime._completer": "is set to our completer",
    "self._runtime._selector": "is set to our selector",
}
"""The private names of TaskFlow's objects that are reached from outside: where `Runtime` caches its properties."""


def theirs(ours: type) -> list[type]:
    """List the classes of TaskFlow that a class of ours is made from."""
    return [base for base in ours.__mro__ if base.__module__.startswith("taskflow.")]


def classes() -> Iterator[type]:
    """Yield each class of ours that is made from one of TaskFlow's."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            module = importlib.import_module(found.name)
            for each in vars(module).values():
                if inspect.isclass(each) and each.__module__ == module.__name__ and theirs(each):
                    yield each


CLASSES = {each.__name__: each for each in classes()}


def shape(owner: type, name: str) -> str:
    value = inspect.getattr_static(owner, name)
    if inspect.isfunction(value):
        return f"{owner.__name__}{inspect.signature(value)}"
    return f"{owner.__name__}: {type(value).__name__}"


def tree_of(of: type) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(of)))


def private(tree: ast.AST) -> set[str]:
    """Find the private attributes of ``self`` that a class reads or sets."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and node.attr.startswith("_")
    }


def known(of: type) -> set[str]:
    """Find the names that a class of TaskFlow defines or sets."""
    return private(tree_of(of)) | set(vars(of))


def replaced() -> dict[str, str]:
    """Make the names and shapes of `REPLACED` from the classes themselves."""
    return {
        f"{name}.{attribute}": shape(owner, attribute)
        for name, ours in CLASSES.items()
        for attribute in vars(ours)
        if not attribute.startswith("__") and attribute != "_abc_impl"
        for owner in [next((base for base in theirs(ours) if attribute in vars(base)), None)]
        if owner is not None
    }


def used() -> set[str]:
    """Make the names of `USED` from the classes themselves."""
    return {
        f"{name}.{each}"
        for name, ours in CLASSES.items()
        for each in private(tree_of(ours)) - set(vars(ours))
        if any(each in known(base) for base in theirs(ours))
    }


def reached() -> set[str]:
    """Find the private names of other objects than ``self`` and of other classes that the adapters read or set."""
    adapters = importlib.import_module(ADAPTERS)
    trees = [
        ast.parse(inspect.getsource(importlib.import_module(found.name)))
        for found in pkgutil.walk_packages(adapters.__path__, f"{ADAPTERS}.")
    ]
    return {
        ast.unparse(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_(?!_)", node.attr)
        and ast.unparse(node.value) not in {"self", "super()"}
    }


def test_what_is_replaced_of_taskflow_is_there_in_the_known_shape() -> None:
    assert replaced() == {name: shape for name, (shape, _why) in REPLACED.items()}


def test_the_private_names_that_are_used_of_taskflow_are_there() -> None:
    assert used() == set(USED)


def test_only_the_adapters_replace_or_use_what_is_taskflows() -> None:
    listed = {name.partition(".")[0] for name in (*REPLACED, *USED)}
    assert [name for name in listed if not CLASSES[name].__module__.startswith(ADAPTERS)] == []


def test_the_private_names_of_the_runtime_that_the_engine_sets_are_there() -> None:
    ours = {"other._order", "other._path"}  # of a job that is compared with another one
    assert reached() - ours == set(REACHED)
    cached = {name for name, value in vars(runtime.Runtime).items() if isinstance(value, misc.cachedproperty)}
    assert {f"self._runtime._{name}" for name in cached} >= set(REACHED)


@pytest.mark.parametrize("name", ["_save_atom_detail", "_browse_atoms_for_execute"])
def test_a_renamed_name_of_taskflow_would_be_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = (each for each in REPLACED if each.endswith(f".{name}"))
    owner = next(base for base in theirs(CLASSES[key.partition(".")[0]]) if name in vars(base))
    monkeypatch.delattr(owner, name)
    assert replaced() != {name: shape for name, (shape, _why) in REPLACED.items()}


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
