"""Where the disk transfer listens, and whom it admits: a Unix socket on this machine, or TCP with mutual TLS."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Final, Protocol

from droveway.certificates import Identity, peer_names
from droveway.errors import Refused, StepError

HANDSHAKE: Final = 10.0
"""Seconds within which a peer has to prove who it is and to say what it wants."""

SILENCE: Final = 30.0
"""Seconds without an answer after which a connection is given up."""

IDLE: Final = 300.0
"""Seconds without a question after which a peer's connection is closed; the peer connects again when it needs to."""

_BACKLOG: Final = 64
_CREDENTIALS: Final = struct.Struct("3i")


class Unwelcome(Exception):
    """A peer has connected that is not admitted; the text is for the log only.

    ``kind`` is one of a few.  The log repeats a line of one kind only seldom, so that no peer can fill it.
    """

    def __init__(self, kind: str, who: str) -> None:
        super().__init__(who)
        self.kind = kind


class Endpoint(Protocol):
    """A place where a worker serves disks."""

    address: str
    """The address that the workers of other hosts are told."""

    def listen(self) -> socket.socket:
        """Begin to listen; raises Refused when the address is not available."""

    def close(self) -> None:
        """Remove what `listen` has left."""

    def wrap(self, stream: socket.socket) -> socket.socket:
        """Return the stream over which to speak with a peer that has connected; nothing was said yet."""

    def welcome(self, stream: socket.socket) -> None:
        """Let the peer on a wrapped stream prove who it is; raises Unwelcome or OSError."""

    def vouches(self, stream: socket.socket, peer: str) -> bool:
        """Return whether the peer on a stream, after `welcome`, is the worker of that host."""


class UnixEndpoint:
    """A Unix socket on this machine; its peers are processes of one user."""

    def __init__(self, path: str, *, uid: int | None = None) -> None:
        self.address = f"unix:{path}"
        self._path = Path(path)
        self._uid = os.geteuid() if uid is None else uid

    def listen(self) -> socket.socket:
        """Begin to listen; a socket that a killed worker left is replaced."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        listener.listen(_BACKLOG)
        return listener

    def close(self) -> None:
        """Remove the socket."""
        self._path.unlink(missing_ok=True)

    def wrap(self, stream: socket.socket) -> socket.socket:
        """Return the stream itself."""
        return stream

    def welcome(self, stream: socket.socket) -> None:
        """Raise Unwelcome unless the peer runs as the user."""
        uid = _CREDENTIALS.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        if uid != self._uid:
            raise Unwelcome("user", f"a process of user {uid}")

    def vouches(self, stream: socket.socket, peer: str) -> bool:  # noqa: ARG002 - all hosts' workers run as one user
        """Return True: a process of this user can do all that any worker of this machine can."""
        return True


class TlsEndpoint:
    """A TCP port; both sides prove whose worker they are by certificates of one authority."""

    def __init__(self, host: str, listen: str, identity: Identity, *, advertised: str = "") -> None:
        """Listen at ``listen``, ADDRESS:PORT; others are told ``advertised``, NAME:PORT, or else the host's name."""
        self._where = split(listen)
        name, port = split(advertised) if advertised else (host, self._where[1])
        self.address = f"tcp:{name}:{port}"
        self._identity = identity

    def listen(self) -> socket.socket:
        """Begin to listen; raises Refused when the address is not available."""
        try:
            return socket.create_server(
                self._where, family=_family(self._where[0]), backlog=_BACKLOG, dualstack_ipv6=self._where[0] == "::"
            )
        except OSError as error:
            raise Refused(
                f"[worker] transfer_listen: {self._where[0]} port {self._where[1]} cannot be listened at "
                f"({error.strerror}): stop what has it, or name another"
            ) from None

    def close(self) -> None:
        """Do nothing, because a TCP port leaves nothing behind."""

    def wrap(self, stream: socket.socket) -> socket.socket:
        """Wrap the stream in TLS."""
        _keep_alive(stream)
        # The handshake is left to `welcome`, because a silent peer can hold the handshake up.  Another thread then ends
        # the connection by closing the wrapped stream.  It has that stream only after this method has returned.
        return self._identity.server_context().wrap_socket(stream, server_side=True, do_handshake_on_connect=False)

    def welcome(self, stream: socket.socket) -> None:
        """Do the TLS handshake; raises Unwelcome for a peer without a certificate of the authority."""
        assert isinstance(stream, ssl.SSLSocket)  # noqa: S101 - of `wrap`
        try:
            stream.do_handshake()
        except ssl.SSLError as error:
            kind = error.reason or "TLS"
            raise Unwelcome(kind, f"{address_of(stream)}, which does not prove who it is: {kind}") from None

    def vouches(self, stream: socket.socket, peer: str) -> bool:
        """Return whether the peer's certificate names that host."""
        return isinstance(stream, ssl.SSLSocket) and peer in peer_names(stream)


def address_of(stream: socket.socket) -> str:
    """Return the peer's address, as far as it is known, for the log."""
    try:
        found = stream.getpeername()
    except OSError:
        return "a peer that has gone"
    return str(found[0]) if isinstance(found, tuple) else "a process of this machine"


def peer_of(stream: socket.socket) -> str:
    """Return the address of a peer that was made welcome, and the names in its certificate, for the log."""
    names = peer_names(stream) if isinstance(stream, ssl.SSLSocket) else frozenset()
    where = address_of(stream)
    return f"{where} ({', '.join(sorted(names))})" if names else where


def split(text: str) -> tuple[str, int]:
    """Split NAME:PORT or [IPv6]:PORT into its parts; raises Refused for anything else."""
    name, _, port = text.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Refused(f"{text!r} is no NAME:PORT: give both, as 0.0.0.0:4790")
    return name, int(port)


def socket_path(address: str) -> str:
    """Return the path in ``unix:/path``; raises StepError (``address``) for any other address."""
    kind, _, path = address.partition(":")
    if kind != "unix" or not path:
        raise StepError(f"{address!r} is no transfer address: it must be unix:/path or tcp:NAME:PORT", code="address")
    return path


def connect(address: str, host: str, identity: Identity | None) -> socket.socket:
    """Connect to the worker of ``host`` at its address.

    Raises OSError when there is no connection, and StepError ``address`` for a text that is no address.  Raises
    StepError ``certificate`` when the address needs a certificate and this worker has none, and for a peer that does
    not prove to be the host's worker.
    """
    kind, _, where = address.partition(":")
    if kind != "tcp":
        if identity is not None:
            # The other host chose the address, and could name any socket of this machine.
            raise StepError(
                f"the worker of {host} names {address[:200]!r}, and with [tls] disks are fetched from tcp:HOST:PORT "
                f"alone: set [worker] transfer_listen of {host}",
                code="address",
                host=host,
            )
        return _connect_here(socket_path(address))
    if identity is None:
        raise StepError(
            f"the worker of {host} serves disks through TLS, and the one here has no certificate: give it [tls]",
            code="certificate",
        )
    try:
        name_and_port = split(where)
    except Refused as error:
        raise StepError(f"{address!r} is no transfer address: {error}", code="address") from None
    stream = socket.create_connection(name_and_port, timeout=SILENCE)
    _keep_alive(stream)
    try:
        return identity.client_context().wrap_socket(stream, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        stream.close()
        raise StepError(
            f"what answers at {address} does not prove to be the worker of {host}: {error.verify_message}",
            code="certificate",
            host=host,
        ) from None
    except OSError:
        stream.close()
        raise


def _connect_here(path: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(SILENCE)
    try:
        stream.connect(path)
    except OSError:
        stream.close()
        raise
    return stream


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _keep_alive(stream: socket.socket) -> None:
    # A peer whose machine has lost power never says that it has gone.
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
