"""From the checkout to a source distribution, to a wheel, to a command that runs where no checkout is."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def options() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source distribution of a checkout that is not called droveway."""
    place = tmp_path_factory.mktemp("packaging")
    leave_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    checkout = shutil.copytree(ROOT, place / "a checkout", ignore=leave_out)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "out", checkout, cwd=place)
    (built,) = (place / "out").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of a fresh virtual environment: the wheel, and the dependencies that are here already."""
    place = wheel.parents[1] / "venv"
    venv.create(place)
    python = place / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place)
    (site_packages,) = place.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def shared() -> dict[str, Path]:
    """What stands beside the package in an installation: its path below the prefix, and the file in the checkout."""
    return {
        "share/bash-completion/completions/droveway": ROOT / "cli/completion/droveway",
        "share/zsh/site-functions/_droveway": ROOT / "cli/completion/_droveway",
        "share/droveway/droveway.conf.sample": ROOT / "etc/droveway.conf.sample",
        **{f"share/droveway/{path.relative_to(ROOT / 'etc')}": path for path in (ROOT / "etc/sql").glob("*/*.sql")},
        **{f"share/droveway/systemd/{path.name}": path for path in (ROOT / "etc/systemd").iterdir()},
        **{f"share/droveway/sysusers.d/{path.name}": path for path in (ROOT / "etc/sysusers.d").iterdir()},
        **{f"share/man/man1/{path.name}": path for path in (ROOT / "docs/reference/man").iterdir()},
    }


def test_wheel_holds_the_package_and_what_is_installed_beside_it_and_nothing_else(wheel: Path) -> None:
    packages = options()["options"]["packages"].split()
    folders = {package: ROOT.joinpath(*package.split(".")[1:]) for package in packages}
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package, folder in folders.items()
        for path in folder.glob("*.py")
    }
    for package, patterns in options()["options.package_data"].items():
        for pattern in patterns.split():
            found = folders[package].glob(pattern)
            expected |= {f"{package.replace('.', '/')}/{path.relative_to(folders[package])}" for path in found}
    data = "-".join(wheel.name.split("-")[:2]) + ".data/data"
    expected |= {f"{data}/{path}" for path in shared()}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_every_package_imports_from_the_wheel(python: Path, tmp_path: Path) -> None:
    packages = options()["options"]["packages"].split()
    imported = run(python, "-c", IMPORT_ALL, *packages, cwd=tmp_path).splitlines()
    assert len(imported) == len(packages)
    assert all(Path(path).is_relative_to(python.parents[1]) for path in imported)


def test_installed_command_tells_its_version(python: Path, tmp_path: Path) -> None:
    printed = run(python.with_name("droveway"), "--version", cwd=tmp_path)
    assert printed.split() == ["droveway", options()["metadata"]["version"]]


def test_units_users_sample_manual_and_completion_are_installed_as_they_are(python: Path) -> None:
    prefix = python.parents[1]
    assert {path for path, source in shared().items() if (prefix / path).read_bytes() != source.read_bytes()} == set()


def test_man_reads_every_installed_page_without_a_warning(python: Path) -> None:
    pages = sorted((python.parents[1] / "share/man/man1").iterdir())
    assert "droveway.1" in {page.name for page in pages}
    for page in pages:
        words = ["man", "--warnings", "-E", "UTF-8", "-Tutf8", "--local-file", page]
        done = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        assert done.stderr == "", page.name
        assert done.stdout.startswith(f"{page.stem.upper()}(1)")


def test_man_finds_the_pages_of_an_environment_whose_commands_are_found(python: Path) -> None:
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    words = ["man", "--where", "droveway-move"]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == python.parents[1] / "share/man/man1/droveway-move.1"


def test_the_installed_command_prints_its_completion(python: Path, tmp_path: Path) -> None:
    for words, name in ((("complete",), "droveway"), (("complete", "--shell", "zsh"), "_droveway")):
        printed = run(python.with_name("droveway"), *words, cwd=tmp_path)
        assert printed == (ROOT / "cli/completion" / name).read_text(encoding="utf-8")
