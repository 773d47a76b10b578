"""Metadata as a JSON part and a rest."""

from __future__ import annotations

import json
import math
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_pgstate.codec.metadata import filter_json, join_metadata, split_metadata
from tests.codec.test_values import ODD, QUICK, TEXT, plain

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


# Metadata.

META_TEXT = st.one_of(TEXT, st.text(st.characters(exclude_categories=()), max_size=5))


META = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.sampled_from([-0.0, 1e16, 1e22, -1e300, 5e-324, math.inf, 0.1]),
        META_TEXT,
        ODD,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(META_TEXT, inner, max_size=3),
        st.dictionaries(st.integers(0, 5), inner, max_size=2),
    ),
    max_leaves=5,
)


def without_nul(value: Any) -> Any:
    """Metadata as LangGraph promises it: no NUL at the top level, tuples as lists where JSON says them."""
    return value.replace("\0", "") if type(value) is str else value


@QUICK
@given(st.dictionaries(META_TEXT.map(without_nul), META.map(without_nul), max_size=4))
def test_metadata_is_split_and_joined_without_loss(metadata: dict[str, Any]) -> None:
    """What JSON says exactly comes from it, the rest from beside it; `jsonb` gets nothing it would refuse."""
    text, exact = split_metadata(metadata)
    assert "\\u0000" not in text
    assert "NaN" not in text
    assert "Infinity" not in text
    text.encode()
    joined = join_metadata(text, exact)
    assert {key: plain(value) for key, value in joined.items()} == {
        key: plain(value) for key, value in metadata.items()
    }


class Level(IntEnum):
    HIGH = 3


class Mood(str, Enum):  # noqa: UP042 # its `str` is not its value
    CALM = "calm"


class Ratio(float):
    """A class that no serializer knows."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Level.HIGH, 3), (Mood.CALM, "calm"), (Ratio(1.5), 1.5), ([Level.HIGH], [3])],
    ids=repr,
)
def test_a_number_or_text_of_a_subclass_is_stored_as_its_plain_value(value: Any, expected: Any) -> None:
    """As in LangGraph's PostgreSQL saver: any process can read it, and a filter by the value finds it.

    A config's metadata may hold such values. Stored with its type, the checkpoint could not be read where the type's
    module is not imported.
    """
    text, exact = split_metadata({"key": value})
    assert not exact
    assert json.loads(text) == json.loads(filter_json({"key": value})) == {"key": expected}
    found = join_metadata(text, exact)["key"]
    assert type(found) is type(expected)
