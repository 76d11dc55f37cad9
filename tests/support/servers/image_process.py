"""A lab's images behind HTTP in a process of their own, which dies in the middle of a disk and is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from droveway.lab import served_cloud
from droveway.lab.layout import Layout

LONG: Final = 60.0
"""Seconds within which a process that is to die has died."""


class ImageProcess:
    """The process; it keeps its port from one life to the next."""

    def __init__(self, files: Layout) -> None:
        self._files = files
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """How it is reached."""
        return f"http://127.0.0.1:{self._port}/image"

    def start(self, way: str = "", size: int = 0) -> None:
        """Start it; it answers when this returns, and dies once ``size`` bytes went the ``way``, if one is given."""
        words = [str(self._files.root), str(self._port), way, str(size)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def await_death(self) -> None:
        """Wait until it has killed itself."""
        assert self._process is not None
        assert self._process.wait(LONG) == -signal.SIGKILL
        self._close()

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


class _Mortal(served_cloud.Server):
    """Kills its process once so many bytes went one way."""

    def __init__(self, root: Path, port: int, way: str, size: int) -> None:
        super().__init__(Layout(root), port)
        self._way = way
        self._left = size

    def passed(self, way: str, size: int) -> None:
        """Count what goes the way."""
        if way == self._way:
            self._left -= size
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, port: str, way: str, size: str) -> None:
    """Serve until killed; the first line on stdout is the port."""
    server = _Mortal(Path(root), int(port), way, int(size))
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
