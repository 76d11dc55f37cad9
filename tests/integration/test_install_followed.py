"""docs/install.rst, followed on a machine with systemd where Droveway's command and ZooKeeper are already.

tools/install-trial follows all of the page, with the wheel and on machines that are fresh.
"""

from __future__ import annotations

from typing import Final

from proofs.install_trial.page import PAGE, blocks
from support.daemons import unit_site
from support.daemons.unit_site import CONDUCTOR, ETC, WORKERS
from support.labs.small_lab import assert_balanced, until

from droveway.lab.serve_settings import write

FOLLOWED: Final = ("systemd-sysusers", "droveway db sync", "systemctl enable --now")
"""What the blocks hold that need neither packages, nor certificates, nor servers of databases."""


def test_who_follows_the_page_has_an_installation_that_moves_servers() -> None:
    page = [block for block in blocks(PAGE.read_text()) if block.section != "Upgrade"]
    steps = [block for block in page if any(word in block.text for word in FOLLOWED)]
    assert len(steps) == 4
    with unit_site.prepared({}) as there:
        # As pip installs it: tests/integration/test_packaging.py.
        share = "/opt/droveway/share/droveway"
        there.machine.run("bash", "-euc", f"mkdir -p {share} && cp -r {ETC}/systemd {ETC}/sysusers.d {share}")
        (there.shared / "worker2").write_text((ETC / "systemd" / WORKERS["host1"]).read_text().replace("%H", "host2"))
        for step in steps:
            if "droveway db sync" in step.text:
                write(there.settings, there.shared / "written.conf")
                command = f"install -g droveway -m 640 {there.shared}/written.conf /etc/droveway/droveway.conf"
                there.machine.run("bash", "-euc", command)
                there.let_the_units_in()
            there.machine.run("bash", "-euc", step.text)
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
