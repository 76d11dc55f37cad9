"""Assembles the boot guest: 4 KiB of machine code in the first sectors of its own disk.

It answers on the serial line, counts its boots in its disk, keeps a mark there, and fills and sums sectors; see
``bootguest.S``.  Assembled with binutils when an image is made.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from droveway.errors import Refused

SOURCE = Path(__file__).with_name("bootguest.S")


def assemble() -> bytes:
    """Return the guest's machine code; raises `droveway.errors.Refused` when binutils are missing."""
    with tempfile.TemporaryDirectory() as folder:
        object_file, code = Path(folder, "boot.o"), Path(folder, "boot.bin")
        try:
            subprocess.run(["as", "--32", SOURCE, "-o", object_file], check=True)
            subprocess.run(
                ["ld", "-m", "elf_i386", "-Ttext", "0", "--oformat", "binary", object_file, "-o", code], check=True
            )
        except FileNotFoundError:
            raise Refused("the boot guest needs the Debian package binutils; run: apt-get install binutils") from None
        return code.read_bytes()
