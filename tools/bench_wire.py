"""`tools/bench wire`: a sparse disk through TLS, beside rsync over ssh, QEMU's NBD over TLS and a plain loop.

All four copy the same bytes between two processes over loopback, encrypted, the source out of the page cache before
each copy and the copy synced to the medium at its end.  Beside the time stands what the whole machine's processors
worked meanwhile, the kernel included.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import bench_copy
import bench_figures as figures
from bench_copy import DATA_MB, MIB, SIZE_MB, SOURCE, Copy, Site, answers, free_port, until
from support.servers.certificates import Authority, Files

from droveway import certificates
from droveway.certificates import Identity

OF_FLOOR: Final = 0.9
TIMES_RSYNC: Final = 1.5
TIMES_NBD: Final = 5.0

_WORKING: Final = (0, 1, 2, 5, 6)
"""The columns of /proc/stat that are work: user, nice, system and the interrupts."""


def main() -> int:
    """Measure the four in turns."""
    parser = argparse.ArgumentParser(prog="tools/bench wire", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=bench_copy.ROUNDS)
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder, contextlib.ExitStack() as stack:
        site = Site(Path(folder))
        files = Authority(Path(folder) / "pki").issue(SOURCE, names=(SOURCE,))
        copies = {name: stack.enter_context(make(site, files)) for name, make in CONTENDERS.items()}
        best = dict.fromkeys(copies, float("inf"))
        work = dict.fromkeys(copies, float("inf"))
        for _ in range(wanted.rounds):
            for name, copy in copies.items():
                before = worked()
                best[name] = min(best[name], site.seconds(copy))
                work[name] = min(work[name], worked() - before)
    return figures.report(wire_bench(best, work), write=wanted.write)


def worked() -> float:
    """Return the seconds that all processors of the machine together have worked since it started."""
    columns = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    return sum(int(columns[column]) for column in _WORKING) / os.sysconf("SC_CLK_TCK")


def identity_of(files: Files) -> Identity:
    """Return the identity that both ends use."""
    return certificates.read(files.certificate, files.key, files.authority)


@contextlib.contextmanager
def droveway(site: Site, files: Files) -> Iterator[Copy]:
    """Copy by the workers' own code at both ends."""
    with bench_copy.droveway(site, identity_of(files)) as copy:
        yield copy


@contextlib.contextmanager
def floor(site: Site, files: Files) -> Iterator[Copy]:
    """Copy by a plain loop."""
    with bench_copy.floor(site, identity_of(files)) as copy:
        yield copy


@contextlib.contextmanager
def rsync(site: Site, _files: Files) -> Iterator[Copy]:
    """Copy by rsync over ssh to a server of its own, sparse, synced at the end."""
    port, keys = free_port(), site.folder / "ssh"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    settings = keys / "sshd_config"
    settings.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile {keys}/pid\nPermitRootLogin prohibit-password\n"
    )
    # sshd needs this directory, which its package makes when sshd is started as a service.
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", settings], stderr=subprocess.DEVNULL)
    way = (
        f"ssh -p {port} -i {keys}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
        "-o BatchMode=yes"
    )
    target = f"{getpass.getuser()}@127.0.0.1:{site.target}/"

    def copy() -> None:
        subprocess.run(["rsync", "--sparse", "--whole-file", "--fsync", "-e", way, site.disk, target], check=True)

    try:
        until(lambda: answers(port))
        yield copy
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def nbd(site: Site, files: Files) -> Iterator[Copy]:
    """Copy by QEMU: qemu-nbd serves the disk through TLS, and qemu-img copies it."""
    port, pki = free_port(), site.folder / "nbd"
    pki.mkdir()
    named = {"ca-cert": files.authority, "server-cert": files.certificate, "server-key": files.key}
    named |= {"client-cert": files.certificate, "client-key": files.key}
    for name, path in named.items():
        (pki / f"{name}.pem").symlink_to(path)

    def credentials(end: str) -> list[str]:
        return ["--object", f"tls-creds-x509,id=tls,dir={pki},endpoint={end},verify-peer=on"]

    serve = ["qemu-nbd", *credentials("server"), "--tls-creds", "tls", "--persistent", "--shared=8", "--read-only"]
    serve += ["--bind=127.0.0.1", f"--port={port}", "--format=raw", "--export-name=disk", str(site.disk)]
    daemon = subprocess.Popen(serve)
    export = f"driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port},export=disk,tls-creds=tls"
    export += f",tls-hostname={SOURCE}"
    fetch = ["qemu-img", "convert", *credentials("client"), "--image-opts", "-m", "8", "-W", "-T", "none"]
    fetch += ["-O", "raw", export, str(site.copy)]

    def copy() -> None:
        subprocess.run(fetch, check=True)
        with site.copy.open("rb") as file:
            os.fsync(file.fileno())

    try:
        until(lambda: answers(port))
        yield copy
    finally:
        daemon.terminate()
        daemon.wait()


def wire_bench(best: dict[str, float], work: dict[str, float]) -> figures.Bench:
    """Return the figures and the goals."""
    rate = {name: DATA_MB / seconds for name, seconds in best.items()}
    gib = DATA_MB * MIB / (1 << 30)
    rows = [
        [
            TITLES[name],
            f"{best[name]:.2f}",
            f"{rate[name]:.0f}",
            f"{rate[name] / rate['floor']:.2f}",
            f"{work[name] / gib:.1f}",
        ]
        for name in best
    ]
    return figures.Bench(
        name="wire",
        title="Copy of a disk through TLS",
        text=(
            f"The disk of the copy above ({SIZE_MB} MiB with {DATA_MB} MiB of data in it), over loopback, encrypted. "
            "Droveway's workers prove to each other by certificates who they are; their time ends when the copy was "
            "read back from the medium and held against what was sent. Rsync runs over ssh with ``--sparse "
            "--whole-file --fsync``, QEMU's NBD from ``qemu-nbd`` to ``qemu-img convert`` with eight requests at "
            "once; the floor is a loop that reads, hashes, sends through TLS, receives, hashes and writes. The last "
            "column is what all of the machine's processors worked for a GiB."
        ),
        head=["copy", "seconds", "MiB/s", "times the floor", "CPU seconds per GiB"],
        rows=rows,
        goals=[
            figures.at_least("Droveway, times the floor", rate["droveway"] / rate["floor"], OF_FLOOR),
            figures.at_least("Droveway, times rsync over ssh", rate["droveway"] / rate["rsync"], TIMES_RSYNC),
            figures.at_least("Droveway, times NBD over TLS", rate["droveway"] / rate["nbd"], TIMES_NBD),
        ],
        bars=[(TITLES[name], rate[name]) for name in best],
        unit="MiB of data a second",
    )


Contender = Callable[[Site, Files], contextlib.AbstractContextManager[Copy]]

CONTENDERS: Final[dict[str, Contender]] = {"droveway": droveway, "rsync": rsync, "nbd": nbd, "floor": floor}
TITLES: Final = {
    "droveway": "Droveway",
    "rsync": "rsync over ssh",
    "nbd": "NBD over TLS",
    "floor": "floor",
}

if __name__ == "__main__":
    sys.exit(main())
