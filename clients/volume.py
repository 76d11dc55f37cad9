"""Speaks to Cinder: volumes and their attachments (microversion 3.44).

The session has to send a service token (keystoneauth's ServiceTokenAuthWrapper): without it Cinder refuses to delete an
attachment that a live server uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tenacity

from droveway.clients.rest import CONFLICT, NOT_FOUND, Adapter, Rest, TryAgainError, detail_of
from droveway.errors import AttachmentLost, DestinationFault, StepError

MICROVERSION: Final = "3.44"
RESERVED: Final = "reserved"
ATTACHED: Final = "attached"

_POLL_SECONDS: Final = 0.5
_CREATE_SECONDS: Final = 300


@dataclass(frozen=True)
class Attachment:
    """An attachment without its connection info, which may hold a secret.

    ``status`` is reserved, attaching or attached. ``host`` is the host that the volume is exported to. It is None if
    the volume is exported to no host. It is empty if the volume is exported but the attachment is not complete yet:
    until then Cinder does not name the host.
    """

    id: str
    volume: str
    server: str
    status: str
    host: str | None

    @property
    def connected(self) -> bool:
        """Say whether the volume is exported to a host by this attachment."""
        return self.host is not None


class Volumes:
    """The client of Cinder; ``adapter`` is openstacksdk's ``connection.block_storage`` or the embedded service.

    Every method that a move uses may be repeated. All raise `droveway.errors.StepError` with the codes
    ``volume-unavailable`` and ``volume-failed``, and `droveway.errors.AttachmentLost` when Cinder does not have the
    attachment. The session's user needs the role admin: Cinder hides hosts from others.
    """

    def __init__(self, adapter: Adapter, *, on_request: Callable[[str, str], None] | None = None) -> None:
        self._rest = Rest(adapter, "volume", on_request)

    def status(self, volume: str) -> str:
        """Return the volume's status in Cinder's words: available, reserved, attaching, in-use ..."""
        return str(self._rest.get(f"/volumes/{volume}")["volume"]["status"])

    def attachments(self, volume: str) -> list[Attachment]:
        """Return the volume's attachments, sorted by id."""
        return self._attachments(volume_id=volume)

    def for_server(self, server: str) -> list[Attachment]:
        """Return the server's attachments, sorted by id."""
        return self._attachments(instance_id=server)

    def all_attachments(self) -> list[Attachment]:
        """Return every attachment, sorted by id; the audit needs them."""
        return self._attachments()

    def create_attachment(self, volume: str, server: str, *, known: Collection[str] = ()) -> str:
        """Reserve the volume for the server, and return the id of an attachment that is reserved and not connected.

        Cinder chooses the id. So a repeat takes an attachment that is reserved and not connected instead of making
        another. Those among ``known`` belong to somebody else and are not taken.
        """

        def create() -> str:
            found = [
                attachment.id
                for attachment in self.attachments(volume)
                if attachment.server == server
                and attachment.status == RESERVED
                and not attachment.connected
                and attachment.id not in known
            ]
            if found:
                return found[0]
            body = {"attachment": {"volume_uuid": volume, "instance_uuid": server}}
            response = self._send("POST", "/attachments", json=body)
            return str(self._rest.done("POST", "/attachments", response).json()["attachment"]["id"])

        return self._rest.repeat(create)

    def connect(self, attachment: str, connector: Mapping[str, Any], device: str) -> None:
        """Export the volume to the connector's host, as ``device`` of the server; nothing is done when it is exported.

        Raises `droveway.errors.StepError` ``volume-connected-elsewhere`` while another attachment is connected, and
        `droveway.errors.DestinationFault` ``connect-refused`` when the volume cannot be exported to this host.
        """
        host = str(connector.get("host", ""))
        path = f"/attachments/{attachment}"
        body = {"attachment": {"connector": {**connector, "mountpoint": device}}}

        def export() -> None:
            if self._is_connected(attachment):
                return
            try:
                response = self._send("PUT", path, json=body)
            except TryAgainError:
                if self._is_connected(attachment):
                    return
                raise
            if response.status_code == CONFLICT:
                raise StepError(
                    f"the volume of attachment {attachment} is connected by another attachment"
                    f" ({detail_of(response)}): run droveway audit",
                    code="volume-connected-elsewhere",
                    host=host,
                )
            self._rest.done("PUT", path, response)

        try:
            self._rest.repeat(export)
        except StepError as error:
            if error.error_code != "volume-failed":
                raise
            raise DestinationFault(error.message, code="connect-refused", host=host) from None

    def complete(self, attachment: str) -> None:
        """Tell Cinder that the host has connected the volume; then the attachment is attached and the volume in-use."""
        if self.shown(attachment)["status"] != ATTACHED:
            path = f"/attachments/{attachment}/action"
            response = self._rest.repeat(lambda: self._send("POST", path, json={"os-complete": {}}))
            self._rest.done("POST", path, response)

    def delete_attachment(self, attachment: str) -> None:
        """Delete the attachment; nothing is done when it does not exist. Deleting the last one frees the volume."""
        self._delete(f"/attachments/{attachment}")

    def shown(self, attachment: str) -> dict[str, Any]:
        """Return the attachment as Cinder shows it.

        Its ``connection_info`` has the driver's data beside the driver's type, and may hold a secret.
        """
        path = f"/attachments/{attachment}"
        response = self._rest.repeat(lambda: self._send("GET", path))
        if response.status_code == NOT_FOUND:
            raise AttachmentLost(f"the volume service has no attachment {attachment}")
        return dict(self._rest.done("GET", path, response).json()["attachment"])

    def connection_info(self, attachment: str) -> dict[str, Any]:
        """Return how the host reaches the volume, as os-brick takes it; it may hold a secret, so do not store it."""
        row = self.shown(attachment)
        info = dict(row["connection_info"] or {})
        kind = info.pop("driver_volume_type", None)
        if kind is None:
            raise AttachmentLost(
                f"the attachment {attachment} is not connected to a host: run droveway audit", code="volume-unconnected"
            )
        return {"driver_volume_type": kind, "data": info, "serial": row["volume_id"]}

    def create_volume(self, *, name: str, size_gb: int, bootable: bool = False) -> str:
        """Make a volume for a lab and return its id, once it is available.

        Raises `droveway.errors.StepError` ``volume-failed`` when it has another status once Cinder is no longer
        creating it, or after `_CREATE_SECONDS`.
        """
        body = {"volume": {"name": name, "size": size_gb}}
        made = self._rest.repeat(lambda: self._send("POST", "/volumes", json=body))
        volume = str(self._rest.done("POST", "/volumes", made).json()["volume"]["id"])
        status = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda status: status == "creating"),
            wait=tenacity.wait_fixed(_POLL_SECONDS),
            stop=tenacity.stop_after_delay(_CREATE_SECONDS),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )(self.status, volume)
        if status != "available":
            raise StepError(
                f"the volume service has not made volume {name}: {volume} is {status}, not available: look at its log, "
                "and delete the volume there",
                code="volume-failed",
            )
        if bootable:
            path = f"/volumes/{volume}/action"
            body = {"os-set_bootable": {"bootable": True}}
            self._rest.done("POST", path, self._rest.repeat(lambda: self._send("POST", path, json=body)))
        return volume

    def delete_volume(self, volume: str) -> None:
        """Delete a volume that is not attached; nothing is done when it does not exist."""
        self._delete(f"/volumes/{volume}")

    def _send(self, method: str, path: str, **options: Any) -> Any:
        return self._rest.send(method, path, microversion=MICROVERSION, **options)

    def _delete(self, path: str) -> None:
        response = self._rest.repeat(lambda: self._send("DELETE", path))
        if response.status_code != NOT_FOUND:
            self._rest.done("DELETE", path, response)

    def _is_connected(self, attachment: str) -> bool:
        return bool(self.shown(attachment)["connection_info"])

    def _attachments(self, **filters: str) -> list[Attachment]:
        params = {"all_tenants": "1", **filters}
        rows = self._rest.get("/attachments/detail", params=params, microversion=MICROVERSION)["attachments"]
        hosts: dict[str, str] = {}
        for volume in sorted({row["volume_id"] for row in rows}):
            shown = self._rest.get(f"/volumes/{volume}")["volume"]["attachments"]
            hosts |= {held["attachment_id"]: held["host_name"] or "" for held in shown}
        found = [_attachment(row, hosts.get(row["id"], "")) for row in rows]
        return sorted(found, key=lambda attachment: attachment.id)


def _attachment(row: Mapping[str, Any], host: str) -> Attachment:
    return Attachment(
        id=row["id"],
        volume=row["volume_id"],
        server=row["instance"] or "",
        status=row["status"],
        host=host if row["connection_info"] else None,
    )
