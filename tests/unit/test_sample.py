"""The sample of the configuration, which oslo-config-generator writes from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from droveway.conf import services, settings

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "etc/droveway.conf.sample"


def test_the_sample_is_what_the_code_says(tmp_path: Path) -> None:
    generator = Path(sys.executable).with_name("oslo-config-generator")
    written = tmp_path / "sample"
    subprocess.run(
        [generator, "--config-file", ROOT / "etc/config-generator.conf", "--output-file", written],
        check=True,
        cwd=ROOT,
    )
    again = "oslo-config-generator --config-file etc/config-generator.conf"
    assert SAMPLE.read_text() == written.read_text(), f"{SAMPLE} is out of date: run {again}"


def test_every_option_of_the_sample_is_one_that_is_read(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines()
    plain = tmp_path / "plain.conf"
    plain.write_text("\n".join(line for line in lines if line.startswith("[")))
    conf = settings.load_deployment(plain)
    for group, options in settings.list_opts():
        shown = lines[lines.index(f"[{group}]") :]
        for option in options:
            assert any(line.startswith(f"#{option.dest} =") for line in shown), f"[{group}] {option.dest}"
            assert conf[group][option.dest] == option.default


def test_the_options_of_the_services_are_offered_too() -> None:
    generator = Path(sys.executable).with_name("oslo-config-generator")
    words = [generator, "--namespace", "droveway.services"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    for group in services.GROUPS:
        assert f"[{group}]" in said
    assert said.count("#auth_type = <None>") == len(services.GROUPS)
