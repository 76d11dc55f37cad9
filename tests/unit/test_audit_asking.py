"""What the audit makes of its hosts' answers: shared directories once, no host believed about another, read twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rows.audit_books import ENDED, MOVE, SERVER, SMALL, books, directory, guest, view

from droveway.audit import Finding, Snapshot, judge, run
from droveway.audit.heal.healing import Evidence, plan
from droveway.audit.read.hosts import answered
from droveway.audit.records import DebtRow, HostsSeen, Unseen
from droveway.audit.sources import Sources
from droveway.persistence.journal.states import State
from droveway.wire import queries


def answer(store: str, *entries: tuple[str, list[str], str]) -> list[queries.Held]:
    """A host whose instances directory has this id and these directories: name, files, move."""
    held: list[queries.Held] = [queries.StoreRef(id=store, path="/instances")]
    return held + [queries.Entry(name=name, directory=True, files=files, move=move) for name, files, move in entries]


def at_rest(looked: HostsSeen, **changes: Any) -> Snapshot:
    """The server at rest on the source, after moves that ended; what lies on the hosts is what they answered."""
    changes = {"allocations": {SERVER: {"node-source": SMALL}}, "flows": (), "migrations": ()} | changes
    snapshot = books(stores=looked.stores, unseen=looked.unseen, begun=frozenset(), **changes)
    moves = tuple(replace(move, state=State.FAILED, flow_uuid=None) for move in snapshot.moves)
    servers = tuple(replace(row, task_state=None, fence=None) for row in snapshot.servers)
    return replace(snapshot, moves=moves, servers=servers)


OWN = (SERVER, ["disk"], "")


def test_hosts_with_one_id_share_one_directory() -> None:
    """Each entry once, however many of them see it; one whose files came in parts is whole."""
    many = [(SERVER, ["disk"], ""), (SERVER, ["disk.swap"], "")]
    looked = answered({"source": answer("a", *many), "dest": answer("a", OWN), "third": answer("b")}, {})
    assert [(store.hosts, store.entries) for store in looked.stores] == [
        (("dest", "source"), (directory(files=("disk", "disk.swap")),)),
        (("third",), ()),
    ]
    assert [host.host for host in looked.hosts] == ["dest", "source", "third"]
    assert judge(at_rest(looked)).clean


def test_a_host_that_tells_of_no_directory_or_of_two_is_not_seen() -> None:
    two = [*answer("a"), *answer("b")]
    looked = answered({"source": answer("a", OWN), "dest": [], "third": two}, {"fourth": "it is away"})
    assert looked.unseen == (
        Unseen(host="dest", why="its worker told of 0 instances directories"),
        Unseen(host="fourth", why="it is away"),
        Unseen(host="third", why="its worker told of 2 instances directories"),
    )
    assert [host.host for host in looked.hosts] == ["source"]


def test_a_host_that_says_it_shares_another_s_directory_proves_nothing_about_it() -> None:
    """The source has lost its disk: a liar must not let the last copy be taken away by saying that it is there."""
    liar = answer("a", OWN)
    copy = (SERVER, ["disk"], ENDED)
    looked = answered({"source": answer("a", (SERVER, [], "")), "dest": liar, "third": answer("c", copy)}, {})
    snapshot = at_rest(looked)
    report = judge(snapshot)
    assert ("disk", "source") in {(found.kind, found.host) for found in report.findings}
    (mend,) = [mend for mend in plan(snapshot, report, Evidence()) if mend.finding.host == "third"]
    assert (mend.does, "these may be the last" in mend.why) == ("", True)
    honest = answered({"source": answer("a", OWN), "dest": answer("b"), "third": answer("c", copy)}, {})
    (mend,) = plan(at_rest(honest), judge(at_rest(honest)), Evidence())
    assert mend.does.startswith("let third remove the copy of the disks")


def test_what_lies_in_a_directory_that_a_host_which_was_not_seen_may_share_is_no_finding() -> None:
    """To remove it would be to remove the disks of a server that lives on the other host."""
    kept = f"{SERVER}_keep-{ENDED}"
    debt = DebtRow(id=1, host="source", move=ENDED, action="purge_kept", kept=True)
    shared = answer("a", OWN, (kept, ["disk"], ENDED))
    hosts = (view("dest"), view("third"))
    looked = answered({"dest": shared, "third": answer("c")}, {"source": "it is away"})
    found = judge(at_rest(looked, hosts=hosts, debts=(debt,))).findings
    assert {(finding.kind, finding.host) for finding in found} == {("host", "source")}
    looked = answered({"dest": shared, "third": answer("c"), "source": answer("d", OWN)}, {})
    found = judge(at_rest(looked, debts=(debt,))).findings
    subjects = {f"instances/{SERVER}", f"instances/{kept}"}
    assert {(finding.subject, finding.host) for finding in found} == {(subject, "dest") for subject in subjects}


@pytest.mark.parametrize("state", [State.VERIFYING, State.RUNNING])
def test_what_a_move_has_there_is_none_either(state: State) -> None:
    """Its source is away, and the destination of another move tells of the directory that both use."""
    shared = answer("a", (SERVER, ["disk"], ""), (f"{SERVER}_resize", ["disk"], MOVE))
    looked = answered({"third": shared}, {"source": "it is away", "dest": "it is away"})
    snapshot = books(state, stores=looked.stores, unseen=looked.unseen, hosts=(view("third"),))
    assert [finding for finding in judge(snapshot).findings if finding.kind == "disk"] == []
    assert "holds something" not in " ".join(finding.detail for finding in judge(snapshot).findings)


def test_what_a_move_holds_stays_while_its_host_was_not_seen() -> None:
    held = {SERVER: {"node-source": SMALL}, ENDED: {"node-third": SMALL}}
    hosts = (view("source", guest(running=True), volumes=("volume",), ports=("port",)), view("dest"))
    looked = answered({"source": answer("a", OWN), "dest": answer("b")}, {"third": "it is away"})
    snapshot = at_rest(looked, allocations=held, hosts=hosts)
    plans = {mend.finding.subject: mend for mend in plan(snapshot, judge(snapshot), Evidence())}
    assert (plans[ENDED].does, "nobody could look" in plans[ENDED].why) == ("", True)
    # Whoever declared the host to be off has looked after it.
    snapshot = replace(snapshot, down=frozenset({"third"}))
    plans = {mend.finding.subject: mend for mend in plan(snapshot, judge(snapshot), Evidence())}
    assert plans[ENDED].does.startswith("release what the ended move")


def audited(monkeypatch: pytest.MonkeyPatch, *looks: HostsSeen) -> list[Finding]:
    """What is found by an audit that sees these, one after the other."""
    seen = iter([at_rest(looked) for looked in looks])
    monkeypatch.setattr(run, "take", lambda _: next(seen))
    nothing: Any = None
    sources = Sources(api=nothing, cells=nothing, journal=nothing, cloud=nothing, read_hosts=nothing)
    return list(run.audit(sources).findings)


def test_what_a_move_does_that_began_while_hosts_were_asked_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal that was read before knows nothing of it; the second look does."""
    honest = {"source": answer("a", OWN), "third": answer("c")}
    before = answered({**honest, "dest": answer("b", (f"{SERVER}.part-{ENDED}-dest", [], ""))}, {})
    assert len(audited(monkeypatch, before, before)) == 1
    assert audited(monkeypatch, before, answered({**honest, "dest": answer("b")}, {})) == []


@pytest.mark.parametrize(("later", "why"), [({"dest": "it is away"}, "it is away"), ({}, "it went away")])
def test_a_host_that_either_look_could_not_see_is_named(
    later: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the other one saw there was seen once only; two reasons are no reason to call the host clean."""
    both = {"source": answer("a", OWN), "third": answer("c")}
    second = both if later else {**both, "dest": answer("b", (f"{SERVER}_resize", [], ""))}
    (found,) = audited(
        monkeypatch,
        answered(both, {"dest": "it went away"}),
        answered(second, later),
    )
    assert (found.kind, found.host, found.detail.rpartition(": ")[2]) == ("host", "dest", why)


def test_a_name_that_a_host_tells_runs_nothing_in_the_shell_of_who_mends() -> None:
    looked = answered({"source": answer("a", OWN, (f"{SERVER}_x; reboot", [], ""))}, {})
    (found,) = [finding for finding in judge(at_rest(looked)).findings if finding.kind == "disk"]
    assert found.mend == f"rm -r '/instances/{SERVER}_x; reboot'"
