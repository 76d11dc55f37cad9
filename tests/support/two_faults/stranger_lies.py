"""What a stranger may say: names, numbers, trees and bytes, the same ones for one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

HOST: Final = "host2"
"""The stranger's own."""

WORDS: Final = (
    "", "\x1b[2J\x1b]0;pwned\x07", "a\nb", "\x00", "x" * 20_000, "../../etc", "\u202eevil", "{}", "'; --", "\ud800",
    "host1", HOST, "/etc/shadow", "unix:/run/docker.sock", "..", ".", "-rf", "%s%n", "\x9b31m", "a" * 255,
)  # fmt: skip
NUMBERS: Final = (-1, 0, 1, 2, 2**31, 2**53, 2**63 - 1, 2**63, -(2**70), 10**30)


class Lies(random.Random):
    """One stranger's lies."""

    def word(self) -> str:
        """A hostile word, or any few characters."""
        if self.random() < 0.7:
            return self.choice(WORDS)
        return "".join(chr(self.choice((self.randrange(0x20, 0x7F), self.randrange(0xD800)))) for _ in range(8))

    def number(self) -> int:
        """A number at the edge of what anything holds."""
        return self.choice(NUMBERS)

    def plain(self) -> Any:
        """No tree."""
        return self.choice((None, True, False, self.number(), self.word(), self.uniform(-1e3, 1e3), 1e308))

    def tree(self, depth: int = 3) -> Any:
        """Anything that JSON can tell."""
        if not depth or self.random() < 0.4:
            return self.plain()
        if self.random() < 0.5:
            return [self.tree(depth - 1) for _ in range(self.randrange(4))]
        return {self.word(): self.tree(depth - 1) for _ in range(self.randrange(4))}

    def bent(self, honest: dict[str, Any], **lies: Callable[[], Any]) -> dict[str, Any]:
        """The record with at least one of its fields as ``lies`` has it, gone, or anything at all; perhaps with more.

        A field without a lie of its own is told honestly or not at all.
        """
        told = {**honest}
        for name in self.sample(sorted(told), self.randrange(1, 1 + min(3, len(told)))):
            turn = self.random()
            if turn < 0.15:
                del told[name]
            elif turn < 0.3:
                told[name] = self.tree()
            elif name in lies:
                told[name] = lies[name]()
        return told if self.random() < 0.9 else told | {self.word(): self.tree()}

    def planted(self, honest: Any) -> Any:
        """The tree with a lie somewhere in it: another value, one more, none, or far too many."""
        if isinstance(honest, dict) and honest and self.random() < 0.9:
            name = self.choice(sorted(honest))
            if self.random() < 0.1:
                return {key: value for key, value in honest.items() if key != name}
            return {**honest, name: self.planted(honest[name])}
        if isinstance(honest, list) and honest and self.random() < 0.8:
            return honest * 300 if self.random() < 0.2 else [self.planted(honest[0]), *honest[1:]]
        if isinstance(honest, str) and self.random() < 0.6:
            return self.word()
        return self.number() if isinstance(honest, int) and self.random() < 0.6 else self.tree()

    def written(self, record: Callable[[], dict[str, Any]]) -> bytes:
        """What is written in a record's place: mostly the record, else another tree, a torn one, or no text at all."""
        turn = self.random()
        if turn < 0.75:
            return json.dumps(record()).encode()
        if turn < 0.85:
            return json.dumps(self.tree()).encode()
        if turn < 0.9:
            return json.dumps(record()).encode()[: self.randrange(60)]
        return self.choice((self.randbytes(60), b"[" * 50_000, b'{"a":' * 5_000, b"x" * (1 << 19)))
