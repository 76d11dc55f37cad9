"""Records may be met by several threads at once."""

from __future__ import annotations

import subprocess
import sys

from droveway.wire import codec
from droveway.workers.directories import Manifest

# Threads that meet many fresh record types, each in the same moment.
MEETING = """
import sys, threading
import msgspec
from droveway.wire import codec

sys.setswitchinterval(1e-6)
for number in range(200):
    fields = [(f"f{n}", dict[str, int | None]) for n in range(10)]
    inner = msgspec.defstruct(f"Inner{number}", fields, module="droveway.meeting")
    fields = [("inner", list[inner]), *((f"f{n}", list[dict[str, int | None]]) for n in range(30))]
    outer = msgspec.defstruct(f"Outer{number}", fields, module="droveway.meeting")
    data = {"inner": [{f"f{n}": {} for n in range(10)}], **{f"f{n}": [{}] for n in range(30)}}
    codec.learn_types()
    barrier = threading.Barrier(4)

    def meet():
        barrier.wait()
        msgspec.convert(data, type=outer)

    threads = [threading.Thread(target=meet) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del inner, outer
print("met")
"""


def test_threads_that_meet_a_type_together_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", MEETING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "met\n"), done.stderr


def test_every_record_that_is_loaded_can_be_learned() -> None:
    codec.learn_types()
    assert Manifest.__module__.startswith("droveway.")
