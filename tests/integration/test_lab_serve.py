"""A lab that daemons serve: its commands, its moves while daemons are killed, how it ends, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support import console
from support.labs.small_lab import SERVER, assert_balanced, in_child, read_move, small_cloud, until

from droveway.errors import Refused
from droveway.flows import registry
from droveway.lab import build, cloud, serve_settings, serve_zookeeper
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State

LONG: Final = 180.0
HOWTO: Final = Path(__file__).parents[2] / "docs" / "howto"
SLOW: Final = "[worker]\ntransfer_limit = 0.5\n[zookeeper]\nsession_timeout = 2\n"
"""The copy of the 6 MiB that the image has takes 12 s, in which daemons can be killed."""


def droveway(*words: str, **environment: str) -> tuple[int, str, str]:
    """Run a command, and return its exit code, stdout and stderr."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DROVEWAY")}
    done = subprocess.run(
        [sys.executable, "-m", "droveway.cli.main", *words],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    return done.returncode, done.stdout, done.stderr


class Served:
    """`droveway lab serve` as a process, and an operator's commands on what it serves."""

    def __init__(self, root: Path, *words: str) -> None:
        """Start it; all daemons are ready when this returns."""
        self.root = root
        self.lab = Lab.open(root)
        self.configuration = root / "serve" / "droveway.conf"
        self.output = root.parent / f"{root.name}.out"
        with self.output.open("wb") as output:
            command = [sys.executable, "-m", "droveway.cli.main", "lab", "serve", str(root), *words]
            # What the operator's shell sets for another installation is not for these daemons.
            others = {"OS_WORKER__STATE_PATH": str(root / "another"), "DROVEWAY_LAB": str(root / "another")}
            self.process = subprocess.Popen(command, env={**os.environ, **others}, stdout=output, stderr=output)
        until(lambda: "use it with:" in self.said() or self.process.poll() is not None, "the daemons", LONG)
        assert self.process.poll() is None, self.said()

    def said(self) -> str:
        """All that it has printed."""
        return self.output.read_text()

    def pids(self, name: str = r"\S+") -> list[int]:
        """The processes of this name that were ever ready, the last one last."""
        return [int(pid) for pid in re.findall(rf"^{name} is ready, pid (\d+)$", self.said(), re.MULTILINE)]

    def kill(self, name: str) -> None:
        """Kill the process of this name."""
        os.kill(self.pids(name)[-1], signal.SIGKILL)

    def await_again(self, name: str, times: int) -> None:
        """Wait until so many processes of this name were ready."""
        until(lambda: len(self.pids(name)) >= times, f"{name} again", LONG)

    def droveway(self, *words: str) -> tuple[int, str, str]:
        """Run an operator's command on the daemons."""
        return droveway(*words, DROVEWAY_CONFIG_FILE=str(self.configuration))

    def done(self, *words: str) -> str:
        """What a command says that has to succeed."""
        code, said, complained = self.droveway(*words)
        assert code == 0, complained
        return said

    def told(self, *words: str) -> Any:
        """The same as JSON."""
        return json.loads(self.done(*words, "-f", "json"))

    def resize(self) -> str:
        """Ask for the server's resize, and return the move's id."""
        short = self.done("server", "resize", SERVER, "--flavor", "large").split()[1]
        with self.lab.journal.read() as session:
            return moves.find(session, short).id

    def await_step(self, move: str, step: str) -> None:
        """Wait until the resize has come to this step."""
        number = registry.latest("resize").names().index(step) + 1
        until(lambda: (read_move(self.lab, move).step_number or 0) >= number, step, LONG)

    def assert_clean(self) -> None:
        """The audit has seen every host and finds nothing."""
        code, _, complained = self.droveway("audit")
        assert (code, "the books balance" in complained) == (0, True), complained

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(LONG)

    def close(self) -> None:
        """End it where a test has not."""
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)
        self.lab.close()


def make(root: Path, spec: cloud.Cloud, options: str = "") -> Path:
    """A lab with these options beside its own."""
    in_child(lambda: build.create(root, spec).close())
    with (root / "droveway.conf").open("a") as file:
        file.write(options)
    return root


@pytest.fixture(name="root")
def fixture_root(tmp_path: Path) -> Iterator[Path]:
    """A lab of two hosts."""
    root = make(tmp_path / "lab", small_cloud("host1", "host2", image_mb=96), SLOW)
    yield root
    if root.exists():
        build.destroy(root)


@pytest.fixture(name="served")
def fixture_served(root: Path) -> Iterator[Served]:
    made = Served(root)
    yield made
    made.close()


def gone(pids: list[int]) -> bool:
    """Whether none of these processes is there any more."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_operator_moves_a_server_through_the_daemons(served: Served) -> None:
    """A resize and its confirm; the other commands of an installation answer."""
    assert served.configuration.stat().st_mode & 0o777 == 0o600
    assert [row["state"] for row in served.told("worker", "list")] == ["up", "up"]
    assert [row["state"] for row in served.told("conductor", "list")] == ["up"]
    code, said, complained = served.droveway("doctor", "-f", "json")
    assert (code, complained) == (1, ""), said
    assert {row["finding"] for row in json.loads(said)} == {
        "fine", "zookeeper-alone", "zookeeper-open", "certificate-none"
    }  # fmt: skip
    served.done("freeze")
    move = served.resize()
    assert "everything is frozen" in served.told("move", "show", move)["waits_for"]
    served.done("thaw")
    assert "verifying" in served.done("move", "wait", move)
    assert served.told("server", "show", SERVER)["move"] == move
    served.done("server", "confirm", SERVER)
    served.done("move", "watch", move)
    shown = served.told("server", "show", SERVER)
    assert (shown["host"], shown["flavor"], shown["move"]) == ("host2", "large", None)
    served.assert_clean()


def test_a_move_ends_though_its_conductor_and_a_worker_are_killed(served: Served) -> None:
    """Each of them is started again after a second, with a line that says so."""
    move = served.resize()
    served.await_step(move, "copy_disks")
    assert served.told("move", "show", move)["state"] == "running"
    served.kill("worker-host2")
    served.await_again("worker-host2", 2)
    assert read_move(served.lab, move).state == State.RUNNING
    served.kill("conductor-1")
    served.await_again("conductor-1", 2)
    assert "verifying" in served.done("move", "wait", move)
    for name in ("conductor-1", "worker-host2"):
        log = served.root / "serve" / f"{name}.log"
        assert f"{name} was killed by SIGKILL (its log is {log}), and is started again in 1 s\n" in served.said()
    served.assert_clean()


def test_a_move_goes_on_though_zookeeper_is_killed(served: Served) -> None:
    move = served.resize()
    served.await_step(move, "copy_disks")
    served.kill("zookeeper")
    served.await_again("zookeeper", 2)
    assert "verifying" in served.done("move", "wait", move)
    served.assert_clean()


def test_a_move_ends_though_the_services_are_killed(served: Served) -> None:
    """What cannot be asked of them while they are away is tried some times; then the move is undone."""
    move = served.resize()
    served.await_step(move, "copy_disks")
    served.kill("cloud")
    served.await_again("cloud", 2)
    served.droveway("move", "wait", move)
    assert read_move(served.lab, move).state in {State.VERIFYING, State.FAILED}
    served.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_ends_all_in_order_and_leaves_the_lab_usable(served: Served, number: int) -> None:
    """A move that is under way goes on in the next command of the lab."""
    move = served.resize()
    served.await_step(move, "copy_disks")
    assert served.stop(number) == 0, served.said()
    ended = [line for line in served.said().splitlines() if line.startswith("ended: ")]
    assert ended == ["ended: worker-host1, worker-host2", "ended: conductor-1", "ended: cloud", "ended: zookeeper"]
    assert gone(served.pids())
    assert not served.configuration.exists()
    code, _, complained = droveway("--lab", str(served.root), "move", "resume")
    assert code == 0, complained
    assert read_move(served.lab, move).state == State.VERIFYING
    assert_balanced(served.lab)


def test_a_serve_that_is_killed_leaves_no_daemon_behind(served: Served) -> None:
    move = served.resize()
    served.await_step(move, "copy_disks")
    assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: gone(served.pids()), "the end of all daemons")
    code, _, complained = droveway("--lab", str(served.root), "move", "resume")
    assert code == 0, complained
    assert read_move(served.lab, move).state == State.VERIFYING
    assert_balanced(served.lab)


def test_a_lab_that_is_served_is_for_no_lab_command(served: Served) -> None:
    """One sentence names the file by which the daemons are reached, and nothing is changed."""
    expected = (
        f"droveway: daemons serve the lab {served.root}: give --config-file {served.configuration} instead of the lab, "
        "or, for a command  droveway lab ..., stop  droveway lab serve  first\n"
    )
    for words in (
        ["server", "list"], ["server", "resize", SERVER, "--flavor", "large"], ["lab", "serve"], ["lab", "destroy"],
    ):  # fmt: skip
        assert droveway("--lab", str(served.root), *words) == (2, "", expected)
    expected = "droveway: this command is for a lab, and an installation is named: give --lab DIR\n"
    assert served.droveway("lab", "worker", "stop", "host1") == (2, "", expected)
    assert served.told("move", "list") == []
    assert served.stop() == 0
    code, _, complained = served.droveway("move", "list")
    expected = (
        f"droveway: DROVEWAY_CONFIG_FILE names the configuration {served.configuration}, which is missing: unset the "
        "variable, or write the file\n"
    )
    assert (code, complained) == (2, expected)


def test_the_command_line_is_asked_before_the_environment_and_an_installation_before_a_lab(
    root: Path, tmp_path: Path
) -> None:
    """What is listed are the hosts of the installation, host1 and host2, or the host of another lab."""
    other = str(make(tmp_path / "other", small_cloud("elsewhere")))
    named = str(tmp_path / "named.conf")

    def write() -> None:
        lab = Lab.open(root)
        urls = serve_settings.in_place(lab)
        serve_settings.write(serve_settings.settings_of(lab, "127.0.0.1:1", urls, 1, tmp_path), Path(named))

    in_child(write)
    installation, lab = "host1\nhost2\n", "elsewhere\n"
    words = ["host", "list", "-f", "value", "-c", "name"]
    for options, environment, expected in (
        (["--config-file", named, "--lab", other], {}, installation),
        (["--config-file", named], {"DROVEWAY_LAB": other}, installation),
        (["--lab", other], {"DROVEWAY_CONFIG_FILE": named}, lab),
        ([], {"DROVEWAY_CONFIG_FILE": named, "DROVEWAY_LAB": other}, installation),
        ([], {"DROVEWAY_CONFIG_FILE": named}, installation),
        ([], {"DROVEWAY_CONFIG_FILE": "", "DROVEWAY_LAB": other}, lab),
    ):
        code, said, complained = droveway(*words, *options, **environment)
        assert (code, said) == (0, expected), (options, environment, complained)
    code, _, complained = droveway("lab", "server", "stop", SERVER, DROVEWAY_CONFIG_FILE=named)
    assert (code, complained.endswith("named: give --lab DIR\n")) == (2, True), complained
    build.destroy(Path(other))


def refused(*words: str, **environment: str) -> str:
    """The sentence by which `droveway lab serve` is refused."""
    code, said, complained = droveway("lab", "serve", *words, **environment)
    assert (code, said, complained.count("\n")) == (2, "", 1), complained
    return complained


def test_what_cannot_be_served_is_refused_and_changes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "droveway: the Debian package default-jre-headless is missing here, and with it ZooKeeper"
    assert refused(str(root), PATH=str(tmp_path)).startswith(missing)
    assert "host none is unknown" in refused(str(root), "--host", "none")
    assert "is no lab" in refused(str(tmp_path))
    for host in ("host1", "host2"):
        assert droveway("--lab", str(root), "lab", "worker", "stop", host)[0] == 0
    assert "the workers of all hosts are stopped" in refused(str(root))
    assert not (root / "serve").exists()
    code, _, complained = droveway("lab", "serve", str(root), "--conductors", "0")
    assert (code, "give 1 to 100" in complained) == (2, True), complained
    monkeypatch.setattr(serve_zookeeper, "JARS", tmp_path / "zookeeper.jar")
    with pytest.raises(Refused, match="the Debian package zookeeper is missing here"):
        serve_zookeeper.require()


def test_a_daemon_that_cannot_start_ends_the_serve_with_its_reason(root: Path) -> None:
    with (root / "droveway.conf").open("a") as file:
        file.write("[keeper]\nmax_runing = 3\n")
    code, said, complained = droveway("lab", "serve", str(root))
    assert code == 1
    assert "droveway: conductor-1 ended before it was ready: " in complained
    assert "[keeper] has no option max_runing: did you mean max_running?" in complained
    assert said.splitlines()[-2:] == ["ended: cloud", "ended: zookeeper"]


def test_a_destroy_removes_what_serving_has_left(root: Path) -> None:
    made = Served(root, "--host", "host2", "--conductors", "2")
    try:
        names = re.findall(r"^(\S+) is ready", made.said(), re.MULTILINE)
        assert sorted(names) == ["cloud", "conductor-1", "conductor-2", "worker-host2", "zookeeper"]
        assert made.stop() == 0
    finally:
        made.close()
    assert (root / "serve" / "conductor-2.log").exists()
    again = Served(root, "--host", "host2")
    try:
        assert not (root / "serve" / "conductor-2.log").exists(), "what an earlier one has left is removed"
    finally:
        again.close()
    code, _, complained = droveway("lab", "destroy", str(root))
    assert code == 0, complained
    assert not root.exists()


@pytest.mark.parametrize("name", ["try-daemons", "three-in-the-morning", "first-move"])
def test_a_page_about_daemons_shows_what_happens(tmp_path: Path, name: str) -> None:
    """Each command of its second terminal prints what the page shows, as does the one of its first terminal."""
    text = (HOWTO / f"{name}.rst").read_text(encoding="utf-8")
    page = text.replace("code-block:: console", "").replace("shell-session", "console")
    serve, *wanted = console.commands(page)
    assert serve.text == f"droveway lab serve {console.LAB}"
    root = tmp_path / "lab"
    in_child(lambda: build.create(root, cloud.demo_cloud()).close())
    made = Served(root)
    try:
        assert console.agrees(serve.shown, made.said().replace(str(root), console.LAB)), made.said()
        ran = console.run(wanted, root, seconds=4 * LONG)  # for all commands of the page
        assert len(ran) == len(wanted)
        for number, (command, done) in enumerate(zip(wanted, ran, strict=True)):
            asked = [each.text for each in wanted[number + 1 : number + 2]] == ["echo $?"]
            shown = console.agrees(command.shown, done.output)
            assert (shown, done.code == 0 or asked) == (True, True), (command, done)
        log = root / "serve" / "conductor-1.log"
        told = f"conductor-1 was killed by SIGKILL (its log is {log}), and is started again in 1 s\n" in made.said()
        assert told == any(command.text.startswith("kill -9") for command in wanted)
    finally:
        made.close()
        build.destroy(root)
