"""A guest with a distribution's kernel whose guest agent is the real one, or one that lies.

Kernel and agent are of the Debian packages that `tools/test` unpacks, busybox is of one that it installs; the guest
has nothing but an initramfs.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

from droveway.workers.hypervisors.libvirt.lines import AGENT

UNPACKED: Final = Path(__file__).parents[3] / ".venv/debian"

MODULES: Final = (
    "virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev", "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci", "char/virtio_console",
)  # fmt: skip

_REPLY: Final = """
while :; do
  while read -r line; do
    id=${line##*:}; id=${id%%\\}*}; id=$(echo $id)
    case $line in
      *guest-sync*) [ ${#id} -gt 13 ] && MINE || echo "{\\"return\\": $id}" ;;
      *) OTHER ;;
    esac >&3
  done <&3
  sleep 1
done
"""
"""libvirt's own numbers have 13 digits, which a liar may tell from others.

A port reads as ended until the guest has learnt that its host is there: the agent that it stands for tries again too.
"""

AGENTS: Final = {
    "real": "qemu-ga -m virtio-serial -p $port -t /run",
    "no-process": "true",
    "deaf": "exec 3<>$port; sleep 100000",
    "wrong-number": "exec 3<>$port" + _REPLY.replace("MINE", 'echo "{\\"return\\": 42}"').replace("OTHER", "true"),
    "deep": "exec 3<>$port" + _REPLY.replace("MINE", "cat /deep").replace("OTHER", 'echo "{\\"return\\": {}}"'),
    "wordy": "exec 3<>$port" + _REPLY.replace("MINE", 'echo "{\\"return\\": $id}"').replace("OTHER", "cat /wordy"),
    "refusing": "exec 3<>$port"
    + _REPLY.replace("MINE", 'echo "{\\"return\\": $id}"').replace(
        "OTHER", 'printf "{\\"error\\": {\\"class\\": \\"x\\", \\"desc\\": \\"\\\\\\\\u001b[2J all is well\\"}}\\n"'
    ),
    "endless": "exec 3<>$port; tr '\\\\0' A </dev/zero >&3",
    "endless-lines": "exec 3<>$port; yes '{\"return\": 1}' >&3",
}
"""What runs in the guest in the place of an agent, by its kind."""

_INIT: Final = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
mkdir -p /var/run
for module in {modules}; do insmod /modules/$module.ko; done
for _ in 1 2 3 4 5; do port=$(ls -d /dev/vport*p1 2>/dev/null) && break; sleep 1; done
echo agent-guest is up with ${{port:-no port}} >/dev/ttyS0
{agent}
while :; do sleep 1000; done
"""

_DOMAIN: Final = """<domain type='qemu'>
  <name>a-{name}</name><uuid>{server}</uuid><memory unit='MiB'>256</memory><vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel><initrd>{initrd}</initrd><cmdline>console=ttyS0 quiet panic=-1</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    <controller type='usb' model='none'/>
    <serial type='pty'><log file='{log}' append='off'/></serial>
    {channel}
    <memballoon model='none'/>
  </devices>
</domain>"""

CHANNEL: Final = f"<channel type='unix'><target type='virtio' name='{AGENT}'/></channel>"


class Guest:
    """One guest, not started yet."""

    def __init__(self, folder: Path, kind: str, *, channel: bool = True) -> None:
        """``folder`` can be entered and read by the user of QEMU."""
        self.server = str(uuid.uuid4())
        self.log = folder / f"{self.server}.log"
        self.log.touch()
        self.log.chmod(0o666)
        kernel, initrd = folder / "vmlinuz", folder / f"{kind}.cpio"
        if not kernel.exists():
            (found,) = (UNPACKED / "linux-image-cloud-amd64/boot").glob("vmlinuz-*")
            shutil.copyfile(found, kernel)
        if not initrd.exists():
            initrd.write_bytes(_initramfs(AGENTS[kind]))
        for path in (kernel, initrd):
            path.chmod(0o644)
        self.definition = _DOMAIN.format(
            name=self.server[:8],
            server=self.server,
            kernel=kernel,
            initrd=initrd,
            log=self.log,
            channel=CHANNEL if channel else "",
        )

    def is_up(self) -> bool:
        """Whether its init has come so far that an agent runs, or soon will."""
        return "agent-guest is up with" in self.log.read_text(errors="replace")


def _initramfs(agent: str) -> bytes:
    assert UNPACKED.is_dir(), f"{UNPACKED} is missing: run tools/test integration, which makes it"
    files = {
        "bin/busybox": Path("/bin/busybox").read_bytes(),
        "deep": b'{"return": ' + b"[" * 400 + b"]" * 400 + b"}\n",
        "wordy": b'{"return": {"a": "' + b"A" * 100_000 + b'"}}\n',
        "init": _INIT.format(modules=" ".join(Path(name).name for name in MODULES), agent=agent).encode(),
    }
    (modules,) = (UNPACKED / "linux-image-cloud-amd64/lib/modules").iterdir()
    for name in MODULES:
        files[f"modules/{Path(name).name}.ko"] = (modules / f"kernel/drivers/{name}.ko").read_bytes()
    if "qemu-ga" in agent:
        program = UNPACKED / "qemu-guest-agent/usr/sbin/qemu-ga"
        files["bin/qemu-ga"] = program.read_bytes()
        for word in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = Path(word).read_bytes()
    folders = sorted({str(parent) for name in files for parent in Path(name).parents} | {"dev", "proc", "sys", "run"})
    entries = [(name, 0o040755, b"") for name in folders if name != "."]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    archive = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))
    return archive + _entry(0, "TRAILER!!!", 0, b"")


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """One file of a cpio archive of the format newc."""
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
