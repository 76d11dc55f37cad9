"""The doctor's table, its exit codes, and the looks that need no servers."""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from oslo_config import cfg
from support.servers.certificates import Authority

from droveway.cli.commands import doctor, worker
from droveway.cli.registry import COMMANDS
from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, worker_path
from droveway.conf import services, settings
from droveway.doctor import certificate, configuration, host, run, workers
from droveway.doctor import services as look
from droveway.doctor.findings import FINE, MEANINGS, Examined, Finding, Level
from droveway.engines.site.installation import Installation
from droveway.wire import codec, commands, queries
from droveway.wire.levels import LEVEL
from droveway.wire.values import ACTION_VERSION

DOCTOR = Path(__file__).parents[2] / "doctor"
SECRET = "canary-doctor-55e1"


@pytest.fixture(name="conf")
def fixture_conf(tmp_path: Path) -> Iterator[cfg.ConfigOpts]:
    """Nothing of it answers."""
    path = tmp_path / "droveway.conf"
    nowhere = "auth_type = none\nendpoint_override = http://127.0.0.1:9/\n"
    url = f"postgresql+psycopg://droveway:{SECRET}@127.0.0.1:9/journal"
    path.write_text(
        "[zookeeper]\nhosts = 127.0.0.1:9\nsession_timeout = 1\n"
        f"[journal]\nconnection = {url}\n[api_database]\nconnection = {url}\n"
        + "".join(f"[{group}]\n{nowhere}" for group in services.GROUPS)
        + f"[worker]\nhypervisor = sandbox\nstate_path = {tmp_path / 'state'}\ninstances_root = {tmp_path / 'root'}\n"
    )
    conf = settings.load_deployment(path)
    yield conf
    # The options of a group, and so their overrides, are the whole process's.
    conf.clear_override("worker", "upgrade_levels")


def around(conf: cfg.ConfigOpts) -> Examined:
    return Examined(conf, Installation(conf), None)


def test_every_code_that_a_check_gives_is_in_the_table_and_no_other() -> None:
    used = {FINE}
    for path in DOCTOR.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                used |= {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}
    assert used == set(MEANINGS)


@pytest.mark.parametrize("code", MEANINGS)
def test_a_finding_is_told_in_whole_sentences_with_commands_that_are_there(code: str) -> None:
    meaning = MEANINGS[code]
    for text in (meaning.means, meaning.mend):
        assert re.fullmatch(r"[A-Z\[].*\.", text), text
    for words in re.findall(r"droveway ([a-z]+(?: [a-z]+)*)", meaning.mend):
        assert any(words == name or words.startswith(f"{name} ") for name in COMMANDS), words


def test_what_is_wrong_is_told_in_lines_that_fit_a_terminal_with_its_mend() -> None:
    long = "the ensemble has one server only, and no move goes on while that server is away or is started anew"
    rows = [
        ("ok", FINE, "clock", "it agrees", "Nothing."),
        ("warning", "zookeeper-alone", "zk1", long, "Add two. Wait."),
    ]
    assert "".join(doctor.lines(rows, 80)) == (
        "ok       clock: it agrees\n"
        "warning  zk1: the ensemble has one server only, and no move goes on while that\n"
        "         server is away or is started anew (zookeeper-alone)\n"
        "         Add two. Wait.\n"
    )


@pytest.mark.parametrize(
    ("codes", "code"), [((), 0), ((FINE,), 0), ((FINE, "space-low"), 1), (("space-none", "space-low", FINE), 2)]
)
def test_the_worst_finding_is_the_exit_code(codes: tuple[str, ...], code: int) -> None:
    assert run.worst(Finding(each, "it", "so it is") for each in codes) == code


def test_a_check_that_breaks_ends_itself_alone_and_tells_no_secret(conf: cfg.ConfigOpts) -> None:
    def half(_around: Examined) -> Iterator[Finding]:
        yield Finding(FINE, "one", "it answers")
        raise ValueError(SECRET)

    found = run.examine(conf, (half, lambda _around: [Finding(FINE, "two", "it answers")]))
    assert [(each.code, each.subject) for each in found] == [
        (FINE, "one"),
        ("check-broken", "test_doctor"),
        (FINE, "two"),
    ]
    assert SECRET not in repr(found)


def test_all_that_does_not_answer_is_named_once(conf: cfg.ConfigOpts) -> None:
    found = run.examine(conf)
    assert {(each.code, each.subject) for each in found} == {
        ("zookeeper-away", "zookeeper"),
        ("database-away", "journal"),
        ("database-away", "api"),
        *(("service-away", group) for group in services.GROUPS),
        ("certificate-none", "certificate"),
        ("configuration-open", "configuration"),
    }
    assert SECRET not in repr(found)
    assert all("\n" not in each.detail for each in found)


def test_a_service_that_moves_can_do_without_is_looked_for_where_it_is_named(
    conf: cfg.ConfigOpts, tmp_path: Path
) -> None:
    path = tmp_path / "without.conf"
    path.write_text("[zookeeper]\nhosts = 127.0.0.1:9\n")
    few = settings.load_deployment(path)
    for said, looked in ((conf, {*services.GROUPS}), (few, {*services.GROUPS} - {"glance"})):
        assert {each.subject for each in look.check(around(said))} == looked


@pytest.mark.parametrize(
    ("mode", "code"), [(0o640, FINE), (0o644, "configuration-open"), (0o642, "configuration-open")]
)
def test_a_configuration_that_others_may_read_is_found(conf: cfg.ConfigOpts, mode: int, code: str) -> None:
    """S13: its passwords' options are named, their values never."""
    Path(conf.config_file[0]).chmod(mode)
    (found,) = configuration.check(around(conf))
    assert found.code == code
    assert ("[journal] connection" in found.detail) == (code != FINE)
    assert SECRET not in found.detail


def test_a_worker_that_is_given_a_databases_password_names_the_option(
    conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    """S14: who takes the host has it; the value itself is not told either."""
    worker._warn_of_databases(conf)
    (said,) = caplog.messages
    assert "holds what no worker needs ([journal] connection" in said
    assert SECRET not in said
    path = Path(conf.config_file[0])
    kept = [line for line in path.read_text().splitlines() if SECRET not in line]
    path.write_text("\n".join(kept) + "\n")
    caplog.clear()
    worker._warn_of_databases(conf)
    assert caplog.messages == []


@pytest.mark.parametrize(("days", "code"), [(13, "certificate-expires"), (20, FINE), (-1, "certificate-wrong")])
def test_a_certificate_is_told_before_it_ends(tmp_path: Path, days: int, code: str) -> None:
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=days, minutes=1)
    files = Authority(tmp_path / "tls").issue("conductor", begins=ends - dt.timedelta(days=30), ends=ends)
    path = tmp_path / "tls.conf"
    path.write_text("[tls]\n" + "".join(f"{name} = {value}\n" for name, value in files.options().items()))
    (found,) = certificate.check(around(settings.load_deployment(path)))
    assert found.code == code
    assert (f"holds until {ends:%Y-%m-%d %H:%M}Z" in found.detail) == (days > 0)


@pytest.mark.parametrize(("said", "code"), [("", "zookeeper-refused"), ("tls = false", "zookeeper-plain")])
def test_a_zookeeper_without_tls_where_there_are_certificates_is_found(
    tmp_path: Path, conf: cfg.ConfigOpts, said: str, code: str
) -> None:
    """S16: it is on this machine, and every user of it would command every host."""
    assert conf.zookeeper.hosts == "127.0.0.1:9"
    tls = Authority(tmp_path / "tls").issue("droveway-conductor").options()
    path = tmp_path / "plain.conf"
    text = (tmp_path / "droveway.conf").read_text().replace("hosts = 127.0.0.1:9", f"hosts = 127.0.0.1:9\n{said}")
    path.write_text(text + "\n[tls]\n" + "".join(f"{name} = {value}\n" for name, value in tls.items()))
    path.chmod(0o640)
    found = {each.code: each for each in run.examine(settings.load_deployment(path))}
    assert code in found
    assert "127.0.0.1:9" in found[code].detail
    assert ("zookeeper-plain" in found) == (code == "zookeeper-plain")


def test_a_machine_without_a_worker_has_nothing_to_look_at(conf: cfg.ConfigOpts) -> None:
    assert list(host.check(around(conf))) == []


def test_the_worker_of_this_machine_is_looked_at(
    conf: cfg.ConfigOpts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "worker.sqlite").touch()
    nova = tmp_path / "nova.conf"
    nova.write_text("[DEFAULT]\nresize_confirm_window = 60\n")
    monkeypatch.setattr(host, "NOVA_CONF", nova)
    codes = {each.subject: each.code for each in host.check(around(conf))}
    assert codes["sandbox"] == FINE
    assert codes[str(nova)] == "nova-confirms"
    assert codes[str(tmp_path / "root")] == "space-none", "it is not there"
    nova.write_text("[DEFAULT]\n")
    assert {each.subject: each.code for each in host.check(around(conf))}[str(nova)] == FINE


@pytest.mark.parametrize(
    ("total", "free", "code"),
    [(100 << 30, 50 << 30, FINE), (100 << 30, 9 << 30, "space-low"), (8 << 30, 1, "space-none")],
)
def test_room_is_told_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, total: int, free: int, code: str
) -> None:
    class Usage:
        def __init__(self) -> None:
            self.total, self.free = total, free

    monkeypatch.setattr(host.shutil, "disk_usage", lambda _path: Usage())
    assert host._room(tmp_path).code == code


def test_a_mend_belongs_to_its_level() -> None:
    assert {meaning.level for meaning in MEANINGS.values()} == set(Level)


def test_a_session_that_would_not_be_protected_is_named(tmp_path: Path, conf: cfg.ConfigOpts) -> None:
    path = tmp_path / "beyond.conf"
    path.write_text((tmp_path / "droveway.conf").read_text().replace("hosts = 127.0.0.1:9", "hosts = zk1.example:2181"))
    assert conf.zookeeper.hosts == "127.0.0.1:9"
    (found,) = [each for each in run.examine(settings.load_deployment(path)) if each.subject == "zookeeper"]
    assert found.code == "zookeeper-refused"
    assert "[tls] is empty and ZooKeeper at zk1.example is beyond this machine" in found.detail


CAN = sorted(f"{action}@{ACTION_VERSION}" for action in (*commands.ACTIONS, *queries.QUERIES))
UP, LACKS = CAN, CAN[1:]


def register(session: Coordination, host: str, actions: list[str]) -> None:
    """A worker of this release registers itself."""
    up = commands.Registration(
        host=host, version=metadata.version("droveway"), hypervisor="sandbox", actions=actions, address=""
    )
    session.create(worker_path(host), codec.encode(up))


@pytest.mark.parametrize(
    ("heard", "own", "told"),
    [
        ({"host1": UP, "host2": UP}, "", True),
        ({"host1": UP, "host2": LACKS}, "", False),
        ({"host1": UP, "host2": None}, "", False),
        ({}, "", False),
        ({"host1": UP}, "host1", False),
    ],
    ids=["all", "one lacks an action", "one is away", "no host", "own host alone"],
)
def test_a_pin_counts_as_needless_once_every_worker_was_heard(
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
    heard: dict[str, list[str] | None],
    own: str,
    told: bool,
) -> None:
    conf.set_override("worker", LEVEL - 1, "upgrade_levels")
    monkeypatch.setattr(workers, "_known", lambda _examined: dict.fromkeys(heard))
    monkeypatch.setattr(workers, "_given", lambda _examined: None)
    session = connect_embedded(embedded_store())
    for name, actions in heard.items():
        if actions is not None:
            register(session, name, actions)
    found = workers.check(Examined(conf, Installation(conf), session, host=own))
    assert ("level-pinned" in {each.code for each in found}) == told
    session.close()


@pytest.mark.parametrize("up", [[], ["host1"]], ids=["every host is declared down", "one host has a worker"])
def test_a_pin_counts_as_needless_only_by_workers_that_were_heard(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch, up: list[str]
) -> None:
    """A host that is declared down has no worker whose level could speak for or against the pin."""
    conf.set_override("worker", LEVEL - 1, "upgrade_levels")
    monkeypatch.setattr(workers, "_known", lambda _examined: {"host2": "burnt"} | dict.fromkeys(up))
    monkeypatch.setattr(workers, "_given", lambda _examined: None)
    session = connect_embedded(embedded_store())
    for name in up:
        register(session, name, CAN)
    found = {each.code: each.detail for each in workers.check(Examined(conf, Installation(conf), session))}
    assert ("level-pinned" in found) == bool(up)
    assert up or found[FINE] == "host host2 is declared down: burnt"
    session.close()
