"""Elements of an encoded array, cut out without being built."""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest

from langgraph_pgstate.codec.opaque import join_elements, split_elements


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, -1, -33, 200, 70_000, 2**40, -200, -70_000, -(2**40), 1.5, True, None],
        ["", "a" * 31, "b" * 40, "c" * 300, "d" * 70_000, b"e", b"f" * 300, b"g" * 70_000],
        [{}, {"a": [1, {"b": [2]}]}, {str(number): number for number in range(20)}, [[]] * 20, list(range(70_000))],
        [dict.fromkeys(range(70000))],
        [ormsgpack.Ext(1, b"x" * size) for size in (1, 2, 4, 8, 16, 17, 300, 70_000)],
    ],
)
def test_an_array_is_cut_into_its_elements(value: list[Any]) -> None:
    encoded = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    elements = split_elements(encoded)
    assert elements is not None
    assert elements == [ormsgpack.packb(item, option=ormsgpack.OPT_NON_STR_KEYS) for item in value]
    assert join_elements(elements) == encoded
    for size in range(min(len(encoded), 200)):
        assert split_elements(encoded[:size]) is None
    assert split_elements(encoded + b"\0") is None


def test_what_is_no_array_is_not_cut() -> None:
    for value in ({"a": 1}, "text", 7, None, b"bytes"):
        assert split_elements(ormsgpack.packb(value)) is None
