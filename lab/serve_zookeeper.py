"""Runs the ZooKeeper server of Debian's package with its files in any directory."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Final

from droveway.errors import Refused

JARS: Final = Path("/usr/share/java/zookeeper.jar")

NETTY: Final = "handler codec resolver common buffer transport transport-native-unix-common transport-native-epoll"
"""The parts of Netty that TLS needs; the package's own manifest names only some of them."""

TICK: Final = 0.2
"""Seconds of a tick; the time-out of a session is at least 2 ticks."""

_ANSWERS_WITHIN: Final = 1.0


def require() -> None:
    """Raise `droveway.errors.Refused` naming the Debian package that is missing on this machine."""
    for package, there in {"zookeeper": JARS.exists(), "default-jre-headless": bool(shutil.which("java"))}.items():
        if not there:
            raise Refused(f"the Debian package {package} is missing here, and with it ZooKeeper: apt install {package}")


def configuration(data: Path, ports: str) -> str:
    """Return the server's configuration file; ``ports`` are its lines about ports."""
    return (
        f"tickTime={int(TICK * 1000)}\ndataDir={data}\n{ports}admin.enableServer=false\nmaxClientCnxns=0\n"
        "maxSessionTimeout=60000\n"
    )


def plain(port: int) -> str:
    """Return the lines of a server without TLS that only this machine can reach."""
    return f"clientPort={port}\nclientPortAddress=127.0.0.1\n"


def command(config: Path, *options: str) -> list[str]:
    """Return the command line of a server with this configuration file; ``options`` are for Java."""
    classes = ":".join([str(JARS), *(str(JARS.with_name(f"netty-{part}.jar")) for part in NETTY.split())])
    memory = ["-Xmx128m", "-XX:TieredStopAtLevel=1"]
    return ["java", *memory, *options, "-cp", classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]


def answers(port: int) -> bool:
    """Say whether the server at this port of this machine serves requests."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWERS_WITHIN) as connection:
            connection.sendall(b"srvr")
            return connection.recv(len(b"Zookeeper")) == b"Zookeeper"
    except OSError:
        return False
