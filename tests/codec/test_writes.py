"""Pending writes as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.samples import exactly

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.writes import encode_writes, pack_writes, unpack_writes
from langgraph_pgstate.errors import CorruptStateError
from tests.codec.test_values import CODEC, PLAIN, QUICK

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


# Pending writes.


@QUICK
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "__error__", "__interrupt__", "__resume__", "__scheduled__"]), PLAIN),
        max_size=7,
    )
)
def test_writes_come_back_under_their_numbers(writes: list[tuple[str, Any]]) -> None:
    """Ordinary writes keep their places in the call, special channels their negative numbers, the last one counting."""
    expected: dict[int, tuple[str, Any]] = {}
    special = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}
    for index, (channel, value) in enumerate(writes):
        expected[special.get(channel, index)] = (channel, value)
    rows = encode_writes(CODEC, writes)
    assert len({idx for idx, _ in rows}) == len(rows)
    found = {
        number: (channel, CODEC.loads(type_, data, "here"))
        for _, row in rows
        for number, channel, type_, data in unpack_writes(pack_writes(row), "here")
    }
    assert exactly(found) == exactly(expected)


def test_damaged_writes_are_noticed() -> None:
    """A frame that is whole but holds something else is refused."""
    with pytest.raises(CorruptStateError):
        unpack_writes(frames.pack(b"\x93\x01\x02\x03"), "here")
