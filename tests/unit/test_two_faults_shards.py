"""A full run of the two faults adds up: each point is in one shard, and a verdict counts for the code that it is of."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support import two_faults_full, two_faults_shards
from support.two_faults import command, others, restores
from support.two_faults.world import Verdict
from support.two_faults_shards import Code, Shard

TREE = {
    "setup.cfg": "[options]\npackages =\n    droveway\n    droveway.flows\n",
    "errors.py": "x = 1\n",
    "flows/steps.py": "x = 1\n",
    "docs/generate.py": "x = 1\n",
    "tools/mutate.py": "x = 1\n",
    "tests/unit/test_flows.py": "x = 1\n",
    "tests/support/two_faults/judge.py": "from support import lab\nfrom support.beside import x\n",
    "tests/support/lab.py": "def late():\n    import support.later\n",
    "tests/support/later.py": "from proofs.crash import points\n",
    "tests/proofs/crash/points.py": "x = 1\n",
    "tests/proofs/crash/unused.py": "x = 1\n",
    "tests/support/beside.py": "x = 1\n",
    "tests/support/unused.py": "x = 1\n",
}
COUNTS = {
    "errors.py", "flows/steps.py", "tests/support/two_faults/judge.py",
    "tests/support/lab.py", "tests/support/later.py", "tests/support/beside.py", "tests/proofs/crash/points.py",
}  # fmt: skip


@pytest.fixture(name="root")
def fixture_root(tmp_path: Path) -> Path:
    """A checkout."""
    for name, text in TREE.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


class Fake:
    """A kind of points: the first word of one is its lab, and of each that is run a file tells."""

    KIND = "deaths"

    def __init__(self, folder: Path, points: list[str]) -> None:
        self._folder = folder
        self._points = points
        self.meets: dict[str, Callable[[], str]] = {}

    def points(self) -> list[str]:
        return self._points

    def run(self, folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
        assert list(folder.iterdir()) == []
        for point in points:
            with (self._folder / "ran").open("a") as file:
                file.write(f"{point}\n")
            yield Verdict(self.KIND, point, self.meets.get(point, str)(), 0.1)

    def ran(self) -> list[str]:
        """What was run since it was last asked for."""
        path = self._folder / "ran"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture(name="fake")
def fixture_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Two labs of three points, each a shard."""
    made = Fake(tmp_path, [f"{lab}:{number}" for lab in ("one", "two") for number in range(3)])
    monkeypatch.setattr(command, "kinds", lambda: {"deaths": made})
    monkeypatch.setattr(two_faults_shards, "SIZES", {"deaths": 3})
    return made


def files(root: Path) -> set[str]:
    return {path.name for path in root.glob("tests/matrices/deaths/*")}


@pytest.mark.parametrize("kind", [restores, others], ids=lambda kind: kind.KIND)
def test_each_point_is_in_exactly_one_shard(kind: command.Kind) -> None:
    points = kind.points()
    found = two_faults_shards.cut(kind.KIND, points)
    assert sorted(point for shard in found for point in shard.points) == sorted(points)
    assert [shard.number for shard in found] == list(range(1, len(found) + 1))
    size = two_faults_shards.SIZES[kind.KIND]
    assert all(len(shard.points) <= 1.5 * size for shard in found)
    assert len(found) <= 2 * len(points) / size + 1


def test_points_that_share_a_recording_stay_together_and_in_order() -> None:
    points = [f"{lab}:{number}" for lab, count in (("a", 4), ("b", 3), ("c", 25), ("d", 2)) for number in range(count)]
    mixed = [*points[1::2], *points[::2]]
    found = two_faults_shards.cut("deaths", mixed, 10)
    met = ["".join(dict.fromkeys(point[0] for point in shard.points)) for shard in found]
    assert [(lab, len(shard.points)) for lab, shard in zip(met, found, strict=True)] == [
        ("ab", 7),
        ("c", 13),
        ("c", 12),
        ("d", 2),
    ]
    for lab in "abcd":
        order = [point for shard in found for point in shard.points if point[0] == lab]
        assert order == [point for point in mixed if point[0] == lab]


@pytest.mark.parametrize("name", TREE)
def test_the_digest_is_of_product_judges_and_what_those_import(root: Path, name: str) -> None:
    code, shard = Code(root), Shard("deaths", 1, ("one:0", "one:1"))
    before = code.digest(shard)
    assert code.digest(Shard("deaths", 7, shard.points)) == before
    (root / name).write_text(TREE[name] + "\n")
    assert (code.digest(shard) != before) == (name in COUNTS)


def test_the_digest_is_of_the_names_of_the_points_and_of_each_new_file(root: Path) -> None:
    code, shard = Code(root), Shard("deaths", 1, ("one:0", "one:1"))
    before = code.digest(shard)
    for points in (("one:0",), ("one:1", "one:0"), ("one:0", "one:2"), ("one:0", "one:1", "one:2")):
        assert code.digest(Shard("deaths", 1, points)) != before
    (root / "docs" / "more.py").touch()
    assert code.digest(shard) == before
    for new in ("flows/more.py", "tests/support/two_faults/more.py"):
        (root / new).touch()
        assert code.digest(shard) != before
        before = code.digest(shard)


def test_the_digest_of_this_checkout_is_of_all_that_runs() -> None:
    names = {str(path.relative_to(two_faults_shards.ROOT)) for path in Code().files()}
    assert {"wire/codec.py", "lab/session.py", "persistence/migrations/env.py"} <= names
    assert {"tests/support/two_faults/world.py", "tests/support/labs/operations.py"} <= names
    assert not [name for name in names if name.startswith(("docs/", "tools/", "tests/unit/", "tests/integration/"))]
    # Who only runs and counts decides about no point.
    assert not names & {"tests/support/two_faults_full.py", "tests/support/two_faults_shards.py"}


def test_a_verdict_counts_while_the_code_is_the_same(
    root: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert two_faults_full.main(["deaths", "--shards", "1-1"], root=root) == 0
    assert fake.ran() == ["one:0", "one:1", "one:2"]
    assert files(root) == {"01.json"}
    told = json.loads((root / "tests/matrices/deaths/01.json").read_text())
    assert set(told) == {"digest", "points", "seconds", "date"}
    assert told["points"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["date"])
    assert two_faults_full.main(["--jobs", "2"], root=root) == 0
    assert fake.ran() == ["two:0", "two:1", "two:2"]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "shards: 1 run, 1 kept from earlier, 0 due",
        "two faults: 6 points, 6 held (restores 0, sleeps 0, others 0, deaths 6, strangers 0)",
    ]
    assert two_faults_full.main([], root=root) == 0
    assert fake.ran() == []
    (root / "errors.py").write_text("x = 2\n")
    assert two_faults_full.main(["--jobs", "1"], root=root) == 0
    assert fake.ran() == fake.points()
    assert json.loads((root / "tests/matrices/deaths/01.json").read_text())["digest"] != told["digest"]


def test_a_file_that_is_no_verdict_counts_for_nothing(root: Path, fake: Fake) -> None:
    assert two_faults_full.main([], root=root) == 0
    fake.ran()
    (root / "tests/matrices/deaths/01.json").write_text("<<<<<<< ours\n")
    (root / "tests/matrices/deaths/02.json").write_text("{}")
    (root / "tests/matrices/deaths/03.json").write_text("{}")
    assert two_faults_full.main(["--jobs", "1"], root=root) == 0
    assert fake.ran() == fake.points()
    assert files(root) == {"01.json", "02.json"}


def test_a_point_that_did_not_hold_leaves_no_verdict(
    root: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert two_faults_full.main([], root=root) == 0
    (root / "errors.py").write_text("x = 2\n")
    fake.meets["one:1"] = lambda: "a guest runs twice"
    assert two_faults_full.main([], root=root) == 1
    assert files(root) == {"02.json"}
    out = capsys.readouterr().out
    assert "deaths one:1  BAD  0.1 s\n  a guest runs twice\n  again:  tools/matrix --two deaths one:1\n" in out
    assert out.splitlines()[-2] == "shards: 2 run, 0 kept from earlier, 1 due"
    assert out.splitlines()[-1].startswith("two faults: 6 points, 5 held (")
    fake.ran()
    del fake.meets["one:1"]
    assert two_faults_full.main([], root=root) == 0
    assert fake.ran() == ["one:0", "one:1", "one:2"]


def crash() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def fail() -> str:
    raise OSError("no space left")


@pytest.mark.parametrize(
    ("meets", "why"),
    [
        (crash, "its process ended with -9 behind two:0"),
        (fail, "its process ended with 1 behind two:0: OSError: no space"),
    ],
)
def test_a_shard_whose_process_dies_is_told_and_does_not_count(
    root: Path, fake: Fake, capsys: pytest.CaptureFixture[str], meets: Callable[[], str], why: str
) -> None:
    fake.meets["two:1"] = meets
    assert two_faults_full.main(["--jobs", "1"], root=root) == 1
    assert files(root) == {"01.json"}
    out = capsys.readouterr().out
    assert f"  deaths 02 does not count: {why}" in out
    assert "  again:  tools/matrix --two --full deaths --shards 2\n" in out
    assert out.splitlines()[-1].startswith("two faults: 6 points, 3 held (")


def test_a_shard_that_tells_of_too_few_points_does_not_count(
    root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fake.run
    monkeypatch.setattr(fake, "run", lambda folder, points: whole(folder, list(points)[:-1]))
    assert two_faults_full.main([], root=root) == 1
    assert files(root) == set()
    assert "deaths 01 does not count: it told of 2 of its 3 points" in capsys.readouterr().out


def test_a_shard_that_hangs_is_ended(
    root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(two_faults_full, "LONGEST", 1.0)
    fake.meets["one:0"] = lambda: str(time.sleep(600))
    assert two_faults_full.main(["--shards", "1", "deaths"], root=root) == 1
    assert "deaths 01 does not count: its process ended with -9" in capsys.readouterr().out


def test_code_that_changes_meanwhile_leaves_no_verdict(
    root: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.meets["one:2"] = lambda: "" if (root / "errors.py").write_text("x = 3\n") else "it could not"
    assert two_faults_full.main(["--shards", "1", "deaths"], root=root) == 1
    assert files(root) == set()
    assert "deaths 01 does not count: the code was changed while it ran" in capsys.readouterr().out


def test_no_shard_is_begun_once_the_time_is_over(root: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert two_faults_full.main(["--shards", "2", "deaths"], root=root) == 0
    fake.ran()
    assert two_faults_full.main(["--minutes", "0"], root=root) == 0
    assert fake.ran() == []
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "shards: 0 run, 1 kept from earlier, 1 due",
        "two faults: 3 points, 3 held (restores 0, sleeps 0, others 0, deaths 3, strangers 0)",
    ]


def test_a_kind_says_which_points_are_those_of_a_full_run(
    root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "full", lambda: ["three:0"], raising=False)
    assert two_faults_full.main([], root=root) == 0
    assert fake.ran() == ["three:0"]


def test_points_that_cannot_be_told_are_no_full_run(root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "points", fail)
    with pytest.raises(RuntimeError, match=r"the points of deaths cannot be told: .*: OSError: no space left"):
        two_faults_full.main([], root=root)


@pytest.mark.parametrize("words", [["--shards", "1-2"], ["births"], ["--jobs", "0"], ["deaths", "--shards", "x"]])
def test_what_is_no_choice_of_shards_is_refused(root: Path, fake: Fake, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        two_faults_full.main(words, root=root)
    assert ended.value.code == 2
    assert fake.ran() == []
