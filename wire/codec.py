"""Writes the records of the wire as JSON, and reads them: whoever may write a node may have written anything."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from droveway.errors import Refused
from droveway.wire.commands import ACTIONS, Command, Result
from droveway.wire.queries import QUERIES, Page, Query
from droveway.wire.values import ACTION_VERSION, MOST_BYTES, harmless

_Record = TypeVar("_Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes, kind: type[_Record]) -> _Record:
    """The record in a node; raises `droveway.errors.Refused` when it holds none of that kind.

    Whoever may write the node may have written anything.
    """
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
    """The command in a node; raises as `decode` does."""
    return decode(data, Command)


def decode_result(data: bytes) -> Result:
    """The result in a node; raises as `decode` does."""
    result = decode(data, Result)
    if result.error is not None and not {"code", "message"} <= result.error.keys():
        raise Refused("the node holds a result whose error has no code or no message")
    if result.error is not None:
        return msgspec.structs.replace(result, error={key: harmless(text) for key, text in result.error.items()})
    return result


def decode_answer(data: bytes, key: str) -> Result:
    """The result of the command ``key`` in a node; raises as `decode` does."""
    result = decode_result(data)
    if result.key != key:
        raise Refused(f"the node holds the result of {result.key[:80]}")
    return result


def decode_query(data: bytes, host: str, number: str) -> Query:
    """The query of this name to this host in a node; raises as `decode` does."""
    query = decode(data, Query)
    if (query.id, query.host) != (number, host):
        raise Refused(f"the node holds the inquiry {query.id[:80]} to host {query.host[:80]}")
    return query


def decode_page(data: bytes, query: Query, number: int) -> Page:
    """The page of the answer to this query in a node; raises as `decode` does."""
    page = decode(data, Page)
    if (page.id, page.host, page.number) != (query.id, query.host, number):
        raise Refused(f"the node holds page {page.number} of {page.id[:80]} by host {page.host[:80]}")
    for held in page.held:
        if not isinstance(held, QUERIES[query.question].answer):
            raise Refused(f"the node holds a {type(held).__name__.lower()}, which is no answer to {query.question}")
    return page


def details_of(command: Command) -> Any:
    """The command's details as the action's record; raises Refused for an unknown action or malformed details."""
    schema = ACTIONS.get(command.action)
    if schema is None or command.version != ACTION_VERSION:
        raise Refused(f"this worker does not know the action {command.action}@{command.version}: upgrade it first")
    try:
        return msgspec.convert(command.details, type=schema.details)
    except msgspec.ValidationError as error:
        raise Refused(f"the details of {command.action} break their schema: {error}") from None


def learn_types() -> None:
    """Let msgspec learn every record type that is loaded; whoever starts threads calls it first.

    A thread that meets a type while another one makes msgspec learn it crashes the process (SIGSEGV, msgspec 0.22).
    """
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__.startswith("droveway.") and each not in _LEARNED:
                msgspec.json.Decoder(each)
                _LEARNED.add(each)


_LEARNED: Final[set[type[msgspec.Struct]]] = set()
