"""A real browser without a window, spoken to over a pair of pipes in its own protocol (Chrome DevTools)."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "chromium-headless-shell"
_END: Final = b"\0"


class Page:
    """One page that the browser shows, and all that it asked for and complained about."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **facts: Any) -> Any:
        """What the browser answers; events that come before it are kept in `events`."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._writing, json.dumps({"id": number, "method": method, "params": facts, **session}).encode() + _END
        )
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                return told["result"]
            self.events.append(told)

    def open(self, url: str) -> None:
        """Show what lies there, until all of it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.told("Page.loadEventFired"):
            self.events.append(self._next())

    def told(self, method: str) -> list[Any]:
        """What the events of this name say."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def show(self, width: int, *, media: str = "screen", **features: str) -> None:
        """Give the page this width (pixels) and medium; ``features`` as forced_colors="active"."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=named)

    def printed(self) -> bytes:
        """The page on paper, as PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def pictured(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _next(self) -> dict[str, Any]:
        while _END not in self._rest:
            data = os.read(self._reading, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        whole, _, self._rest = self._rest.partition(_END)
        told: dict[str, Any] = json.loads(whole)
        return told


@contextlib.contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which keeps its files in ``profile``; a page that hangs is the test's timeout."""
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()
    # The protocol is spoken over the browser's descriptors 3 and 4.
    script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    options = ["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", PROGRAM, *options],
        pass_fds=(to_browser, from_browser),
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(ours_in, ours_out)
    finally:
        process.terminate()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
