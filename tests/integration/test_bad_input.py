"""Bad input to the commands that move servers: one sentence, the right exit code, and nothing changed or lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, changes, photograph, stage

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.nova.cell import ShareMapping

CLOUD = """
cells:
  cell1:
    hosts:
      host1: {}
      host2: {}
      shut: {enabled: false}
      tiny: {memory_mb: 256}
      down: {}
  cell2: {hosts: {other: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 2}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 4}
  shrunk: {vcpus: 2, memory_mb: 1024, root_gb: 1}
  huge: {vcpus: 1, memory_mb: 8192, root_gb: 2}
  eph: {vcpus: 1, memory_mb: 512, root_gb: 2, ephemeral_gb: 1}
  none: {vcpus: 1, memory_mb: 256, root_gb: 0}
  many: {vcpus: 8, memory_mb: 1024, root_gb: 2}
  pinned: {vcpus: 2, memory_mb: 1024, root_gb: 2, extra_specs: {"hw:cpu_policy": dedicated}}
  private: {vcpus: 2, memory_mb: 1024, root_gb: 2}
  disabled: {vcpus: 2, memory_mb: 1024, root_gb: 2}
quotas: {lab: {cores: 14}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  eph: {flavor: eph, host: host1, image: base}
  error: {flavor: small, host: host1, image: base}
  busy: {flavor: small, host: host1, image: base}
  moving: {flavor: small, host: host1, image: base}
  sharing: {flavor: small, host: host1, image: base}
  stranded: {flavor: small, host: down, image: base}
"""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("bad") / "lab", CLOUD) as made:
        made.cli("server", "migrate", "moving", "--host", "host2")
        made.cli("lab", "worker", "stop", "down")
        with made.lab.api.write() as session:
            session.connection().exec_driver_sql("UPDATE flavors SET is_public = 0 WHERE name = 'private'")
            session.connection().exec_driver_sql("UPDATE flavors SET disabled = 1 WHERE name = 'disabled'")
        share = ShareMapping(uuid=str(uuid.uuid4()), instance_uuid=made.id_of("sharing"), share_id=str(uuid.uuid4()))
        with made.lab.cell_databases["cell1"].write() as session:
            session.add(share)
            for name, column, value in (("error", "vm_state", "error"), ("busy", "task_state", "rebooting")):
                connection = session.connection()
                connection.exec_driver_sql(f"UPDATE instances SET {column} = ? WHERE display_name = ?", (value, name))
        yield made


# The words, and what the sentence has to say: the thing, the rule and the mend.
REFUSED = [
    (("server", "migrate", "nobody"), ["server nobody is unknown", "server list"]),
    (("server", "resize", "nobody", "--flavor", "large"), ["server nobody is unknown", "server list"]),
    (("server", "resize", "web", "--flavor", "no"), ["flavor no is unknown", "flavor list"]),
    (("server", "migrate", "web", "--host", "none"), ["host none is unknown", "host list"]),
    (("server", "list", "--cell", "none"), ["cell none is unknown", "cell list"]),
    (("server", "resize", "web", "--flavor", "small"), ["web has flavor small already", "choose another"]),
    (("server", "resize", "web", "--flavor", "shrunk"), ["shrink its disk from 2 GB", "root_gb >= 2"]),
    (("server", "resize", "eph", "--flavor", "large"), ["shrink its ephemeral disk", "ephemeral_gb >= 1"]),
    (("server", "resize", "web", "--flavor", "none"), ["flavor none has a root disk of 0 GB", "root_gb >= 2"]),
    (("server", "resize", "web", "--flavor", "private"), ["flavor private is private", "give the project access"]),
    (("server", "resize", "web", "--flavor", "disabled"), ["flavor disabled is disabled", "flavor list"]),
    (("server", "resize", "web", "--flavor", "pinned"), ["pinned CPUs (hw:cpu_policy=dedicated", "another flavor"]),
    (("server", "resize", "web", "--flavor", "many"), ["7 more vCPUs", "8 of the 14", "raise the quota"]),
    (("move", "plan", "web", "--flavor", "many"), ["7 more vCPUs", "8 of the 14", "raise the quota"]),
    (("server", "migrate", "sharing"), ["sharing has 1 share attached", "detach"]),
    (("server", "migrate", "error"), ["server error is ERROR", "ACTIVE or SHUTOFF", "bring it into one of"]),
    (("server", "migrate", "busy"), ["task rebooting", "wait for its task"]),
    (("server", "migrate", "moving"), ["has move", "one move at a time", "droveway move show"]),
    (("server", "resize", "moving", "--flavor", "large"), ["has move", "one move at a time", "droveway move show"]),
    (("server", "migrate", "web", "--host", "tiny"), ["tiny", "no room"]),
    (("server", "resize", "web", "--flavor", "huge"), ["no host can take the server web", "host1", "host2", "no room"]),
    (("server", "migrate", "web", "--host", "shut"), ["host shut is disabled", "host enable shut"]),
    (("server", "migrate", "web", "--host", "down"), ["host down is down", "start its worker"]),
    (("server", "migrate", "stranded"), ["host down, which server stranded is on, is down", "start it"]),
    (("server", "migrate", "web", "--host", "host1"), ["on host host1 already", "name another host"]),
    (("server", "migrate", "web", "--host", "other"), ["host other is in cell cell2", "name a host of cell1"]),
    (("move", "create", "web", "--flavor", "large", "--to-host", "host2"), ["not both", "--flavor or --to-host"]),
    (("move", "plan", "web", "--flavor", "large", "--to-host", "host2"), ["not both", "--flavor or --to-host"]),
    (("move", "create", "web", "--from-plan", "p"), ["no plan begins with p", "move plan"]),
    (("server", "confirm", "web"), ["server web has no move under way", "server show web"]),
    (("server", "revert", "idle"), ["server idle has no move under way", "server show idle"]),
    (("move", "confirm", "ffff"), ["no move's id begins with ffff", "move list"]),
    (("move", "cancel", "ffff"), ["no move's id begins with ffff", "move list"]),
    (("lab", "server", "stop", "moving"), ["server moving is resized", "server show moving"]),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(words) for words, _says in REFUSED])
def test_what_cannot_be_done_is_refused_and_nothing_is_changed(
    lab: Stage, words: tuple[str, ...], says: list[str]
) -> None:
    """R0-10, R0-12, R0-16: exit 2 at submit; every row and every file of the lab is as it was."""
    before = photograph(lab.root)
    said = lab.refused(*words)
    assert [each for each in says if each not in said] == [], said
    assert changes(before, photograph(lab.root)) == []


@pytest.mark.parametrize(
    "words",
    [
        ("server", "resize", "web", "--flavor", "large", "--host", "host2"),
        ("server", "resize", "web"),
        ("server", "migrate"),
        ("server", "migrate", "web", "--deadline", "tomorrow"),
        ("move", "create", "web", "--confirm", "perhaps"),
        ("move", "wait"),
    ],
    ids=" ".join,
)
def test_bad_usage_changes_nothing(lab: Stage, words: tuple[str, ...]) -> None:
    """R0-15: a resize takes no host, and so on; exit 2 with argparse's own words."""
    before = photograph(lab.root)
    assert lab.cli(*words, code=2) == ""
    assert "usage: droveway" in lab.error
    assert changes(before, photograph(lab.root)) == []


def test_a_running_server_does_not_notice_a_refusal(lab: Stage) -> None:
    """R0-10: the guest goes on without a break."""
    server, host = lab.id_of("web"), lab.server("web").host or ""
    starts, said = lab.starts("web"), lab.lab.hypervisor(host).probe_guest(server)
    lab.refused("server", "resize", "web", "--flavor", "shrunk")
    assert lab.starts("web") == starts
    assert lab.lab.hypervisor(host).probe_guest(server) == said


def test_a_move_whose_host_goes_away_after_it_was_accepted_ends_undone(lab: Stage) -> None:
    """Exit 3 when a move had begun: the host that was named takes no servers any more."""
    before = lab.standing("idle")
    move = submit(lab.lab, MoveSpec(server="idle", host="host2")).id
    lab.cli("host", "disable", "host2", "--reason", "work on it")
    assert "host2" in lab.cli("move", "resume", code=3)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("failed", "no-valid-host")
    assert lab.standing("idle") == before
    lab.cli("host", "enable", "host2")
