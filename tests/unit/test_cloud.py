"""A service of the cloud is declared once, as a field of `Cloud`: what else has to know of it is named here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import pytest

from droveway.cli.view.explanations import EXPLANATIONS
from droveway.clients.cloud import Cloud
from droveway.clients.configured import Services
from droveway.clients.embedded.cloud import EmbeddedCloud, embedded_cloud
from droveway.conf import services, settings
from droveway.errors import Refused

CLIENTS: Final = tuple(field.name for field in dataclasses.fields(Cloud))
OPTIONAL: Final = {field.name for field in dataclasses.fields(Cloud) if field.default is None}
"""What an installation can do without."""
WAY_IN: Final = "auth_type = none\nendpoint_override = http://127.0.0.1:9/\n"


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> EmbeddedCloud:
    return embedded_cloud(
        placement=tmp_path / "placement.sqlite",
        database=tmp_path / "services.sqlite",
        volumes=tmp_path,
        images=tmp_path,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lab_has_every_service(client: str, lab: EmbeddedCloud) -> None:
    assert getattr(lab, client) is not None, f"make {client} in clients/embedded/cloud.py"


@pytest.mark.parametrize("client", CLIENTS)
def test_an_operator_is_told_what_the_errors_of_every_service_mean(client: str, lab: EmbeddedCloud) -> None:
    name = getattr(lab, client)._rest._name
    codes = {f"{name.lower()}-{what}" for what in ("unavailable", "overdue", "failed")}
    assert codes <= EXPLANATIONS.keys(), f"name {name} in _SERVICES of cli/view/explanations.py"


def test_an_installation_says_of_every_service_that_moves_ask_how_it_is_reached(tmp_path: Path) -> None:
    assert len(services.GROUPS) == len(CLIENTS), f"{CLIENTS} and the groups of conf/services.py do not agree"
    path = tmp_path / "droveway.conf"
    path.write_text("".join(f"[{group}]\n{WAY_IN}" for group in services.GROUPS))
    made = Services(settings.load_deployment(path)).cloud()
    assert [name for name in CLIENTS if getattr(made, name) is None] == [], "make it in clients/configured.py"


def test_an_installation_may_leave_out_what_most_moves_do_without(tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    asked = services.GROUPS.keys() - services.OPTIONAL
    path.write_text("".join(f"[{group}]\n{WAY_IN}" for group in asked))
    made = Services(settings.load_deployment(path))
    assert {name for name in CLIENTS if getattr(made.cloud(), name) is None} == OPTIONAL
    for group in services.OPTIONAL:
        made.require_answer(group)


@pytest.mark.parametrize("group", services.GROUPS)
def test_each_service_is_asked_though_nobody_says_how_the_others_are_reached(group: str, tmp_path: Path) -> None:
    """The doctor looks at one after the other, and each finding names its own service."""
    path = tmp_path / "droveway.conf"
    path.write_text(f"[{group}]\nauth_type = none\nendpoint_override = http://127.0.0.1:1/\n")
    with pytest.raises(Refused, match=rf"start it, or correct \[{group}\]$"):
        Services(settings.load_deployment(path)).require_answer(group)
