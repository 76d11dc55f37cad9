"""Encodes the records of the wire as JSON and decodes them.

Decoding checks everything, because anybody who may write a node of ZooKeeper may have written anything into it.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from droveway.errors import Refused
from droveway.wire.commands import ACTIONS, Command, Result
from droveway.wire.queries import QUERIES, Page, Query
from droveway.wire.values import ACTION_VERSION, MOST_BYTES, harmless

_Record = TypeVar("_Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """Encode the record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes, kind: type[_Record]) -> _Record:
    """Decode the record that a node holds; raises `droveway.errors.Refused` when it is no valid record of that kind."""
    name = kind.__name__.lower()
    if len(data) > MOST_BYTES:
        raise Refused(f"the node holds {len(data)} bytes, more than a {name} may have ({MOST_BYTES})")
    if b"\\u0000" in data:
        raise Refused(f"the node holds a NUL character, which no {name} has")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the node holds no valid {name}: {error}") from None


def decode_command(data: bytes) -> Command:
    """Decode a command; raises as `decode` does."""
    return decode(data, Command)


def decode_result(data: bytes) -> Result:
    """Decode a result and make the host's words in its error safe to store and show; raises as `decode` does."""
    result = decode(data, Result)
    if result.error is not None and not {"code", "message"} <= result.error.keys():
        raise Refused("the node holds a result whose error has no code or no message")
    if result.error is not None:
        return msgspec.structs.replace(result, error={key: harmless(text) for key, text in result.error.items()})
    return result


def decode_answer(data: bytes, key: str) -> Result:
    """Decode the result of the command ``key``; raises as `decode` does, and for the result of another command."""
    result = decode_result(data)
    if result.key != key:
        raise Refused(f"the node holds the result of {result.key[:80]}")
    return result


def decode_query(data: bytes, host: str, query_id: str) -> Query:
    """Decode the query ``query_id`` to ``host``; raises as `decode` does, and for any other query."""
    query = decode(data, Query)
    if (query.id, query.host) != (query_id, host):
        raise Refused(f"the node holds the query {query.id[:80]} to host {query.host[:80]}")
    return query


def decode_page(data: bytes, query: Query, number: int) -> Page:
    """Decode page ``number`` of the answer to a query; raises as `decode` does, and for any other page."""
    page = decode(data, Page)
    if (page.id, page.host, page.number) != (query.id, query.host, number):
        raise Refused(f"the node holds page {page.number} of {page.id[:80]} by host {page.host[:80]}")
    for held in page.held:
        if not isinstance(held, QUERIES[query.question].answer):
            raise Refused(f"the node holds a {type(held).__name__.lower()}, which is no answer to {query.question}")
    return page


def details_of(command: Command) -> Any:
    """Decode the command's details into the action's record; raises Refused for an unknown action or bad details."""
    schema = ACTIONS.get(command.action)
    if schema is None or command.version != ACTION_VERSION:
        raise Refused(f"this worker does not know the action {command.action}@{command.version}: upgrade it first")
    try:
        return msgspec.convert(command.details, type=schema.details)
    except msgspec.ValidationError as error:
        raise Refused(f"the details of {command.action} break their schema: {error}") from None


def learn_types() -> None:
    """Let msgspec build its decoders of all record types that are loaded.

    A process calls this before it starts threads.  Two threads that make msgspec build a decoder for one type at the
    same time crash the process (SIGSEGV, msgspec 0.22).
    """
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__.startswith("droveway.") and each not in _LEARNED:
                msgspec.json.Decoder(each)
                _LEARNED.add(each)


_LEARNED: Final[set[type[msgspec.Struct]]] = set()
