"""docs/install.rst, followed to the letter on a machine with systemd; with the addresses of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support.console import blocks
from support.daemons import unit_site
from support.daemons.unit_site import CONDUCTOR, ETC, WORKERS
from support.labs.small_lab import assert_balanced, until

from droveway.clients import sessions
from droveway.conf import settings
from droveway.lab.serve_settings import write

PAGE: Final = Path(__file__).parents[2] / "docs/install.rst"


def test_the_configuration_of_the_page_is_one(tmp_path: Path) -> None:
    """Daemons read it: no option of it is unknown, and it says all that they have to be told."""
    path = tmp_path / "droveway.conf"
    path.write_text("\n".join(blocks(PAGE.read_text(), "ini")))
    conf = settings.load_deployment(path)
    assert conf.journal.connection.startswith("postgresql+psycopg://")
    assert sessions.connect(conf, "placement")


def test_who_follows_the_page_has_an_installation_that_moves_servers() -> None:
    steps = blocks(PAGE.read_text(), "sh")
    assert any("systemctl enable --now droveway-worker" in step for step in steps)
    with unit_site.prepared({}) as there:
        source = there.shared / "source"
        source.mkdir()
        first, *_ = steps[0].splitlines()
        assert first.startswith("share=$(")
        # As pip installs it: tests/integration/test_packaging.py.
        copy = f'mkdir -p "$share" && cp -r {ETC}/systemd {ETC}/sysusers.d "$share"'
        there.machine.run("bash", "-euc", f"{first}\n{copy}")
        write(there.settings, source / "droveway.conf")
        (there.shared / "worker2").write_text((ETC / "systemd" / WORKERS["host1"]).read_text().replace("%H", "host2"))
        for step in steps:
            if "droveway-conductor" in step:
                there.let_the_units_in()
            there.machine.run("bash", "-euc", f"cd {source}\n{first}\n{step}")
        for unit in (CONDUCTOR, WORKERS["host1"]):
            assert there.machine.shown(unit, "ActiveState") == "active", there.machine.said(unit)
            assert there.machine.shown(unit, "UnitFileState") == "enabled"
        there.machine.run(
            "install", "-m", "644", str(there.shared / "worker2"), f"/etc/systemd/system/{WORKERS['host2']}"
        )
        there.machine.run("systemctl", "daemon-reload")
        there.machine.start(WORKERS["host2"])
        # Conductors write into the journal whom they see, every second.
        listed = ("droveway", "worker", "list", "-f", "value", "-c", "state")
        until(lambda: there.machine.run(*listed).split() == ["up", "up"], "both workers")
        said = there.machine.run("droveway", "move", "create", "web", "--flavor", "large", "--wait")
        assert "host1 → host2" in said
        assert_balanced(there.lab)
