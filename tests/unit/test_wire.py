"""Records from nodes that others may have written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from droveway.errors import Refused
from droveway.wire import codec, commands
from droveway.wire.values import LONGEST_ERROR, MOST_BYTES, Text, harmless

RESULT = commands.Result(key="f.s.execute.1", epoch=1, value={"text": "x"})


def data(**changes: object) -> bytes:
    return codec.encode(msgspec.structs.replace(RESULT, **changes))


def test_what_is_right_is_taken() -> None:
    assert codec.decode_answer(data(), RESULT.key) == RESULT
    largest = data(value={"text": "x" * (MOST_BYTES - len(data(value={"text": ""})))})
    assert len(largest) == MOST_BYTES
    assert codec.decode_result(largest)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (data(value={"text": "x" * MOST_BYTES}), "bytes, more than a result may have"),
        (data(value={"text": "a\0b"}), "holds a NUL character"),
        (b'{"key": "f.s.execute.1", "epoch": 1, "value": {"a": "\xff"}}', "no valid result: .*(?i:utf-8)"),
        (b'{"value": ' + b'{"a": ' * 20_000 + b"1" + b"}" * 20_000 + b"}", "no valid result: maximum recursion depth"),
        (data(epoch=2**63), "no valid result: Expected `int` <= 9223372036854775807"),
        (data(epoch=-1), "no valid result: Expected `int` >= 0"),
        (data(key="f.s.execute.2"), "holds the result of f.s.execute.2"),
        (data(error={"code": "x"}), "whose error has no code or no message"),
        (data(error={"message": "x"}), "whose error has no code or no message"),
    ],
    ids=["large", "nul", "no-text", "deep", "high", "low", "another's", "no-message", "no-code"],
)
def test_what_is_wrong_is_named(found: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        codec.decode_answer(found, RESULT.key)


_PARTS = st.lists(
    st.tuples(st.sampled_from(["x", "\x1b", "\ud800", "\n", " ", "\u2028", "\\"]), st.integers(0, 3 * LONGEST_ERROR))
)


@given(_PARTS.map(lambda parts: "".join(part * times for part, times in parts)))
@example("x" * (LONGEST_ERROR + 1))
@example("\x1b" * LONGEST_ERROR)
@example("x" * (LONGEST_ERROR - 1) + "\0")
def test_what_was_made_harmless_fits_into_every_field_for_text(text: str) -> None:
    told = harmless(text)
    assert msgspec.convert(told, type=Text) == told
    assert harmless(told) == told


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=LONGEST_ERROR))
@example("x" * LONGEST_ERROR)
def test_plain_words_that_fit_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text
