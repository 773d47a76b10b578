"""Arguments of several operations: what is refused, and what is passed on."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_pgstate.arguments import (
    json_of,
    since_of,
    stored_time_of,
    text_of,
    texts_of,
    time_of,
    times_of,
    understanding,
)
from langgraph_pgstate.errors import ConfigurationError, DatabaseError

pytestmark = pytest.mark.smoke

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(value=st.none() | st.dictionaries(TEXTS, PLAIN, max_size=4))
def test_a_mapping_becomes_the_same_json(value: dict[str, Any] | None) -> None:
    found = json_of("facts", value)
    assert (None if found is None else json.loads(found)) == value


@pytest.mark.parametrize("value", [[], "x", {"a": math.nan}, {"a": {1, 2}}, {"a": object()}, {"a": b""}])
def test_a_value_that_is_no_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="facts"):
        json_of("facts", value)


def test_texts_are_those_that_postgresql_stores() -> None:
    assert texts_of({"user": "eve", "agent": None}, "user", "agent", "tenant") == {
        "user": "eve",
        "agent": None,
        "tenant": None,
    }
    for value in ("a\0b", "\ud800", 7):
        with pytest.raises(ConfigurationError, match="user"):
            text_of("user", value)  # type: ignore[arg-type]


def test_times_have_a_zone() -> None:
    noon = datetime(2026, 5, 5, 12, tzinfo=timezone(timedelta(hours=9)))
    assert times_of({"since": noon}, "since", "until") == {"since": noon, "until": None}
    for value in (datetime(2026, 5, 5), "2026-05-05", 7):
        with pytest.raises(ConfigurationError, match="until must be a datetime with a time zone"):
            time_of("until", value)  # type: ignore[arg-type]


def test_a_stored_time_can_be_read_back_in_every_zone() -> None:
    assert stored_time_of("expires_at", None) is None
    for year in (2, 9998):
        assert stored_time_of("expires_at", datetime(year, 1, 1, tzinfo=UTC)) is not None
    for year in (1, 9999):
        with pytest.raises(ConfigurationError, match="years 2 to 9998"):
            stored_time_of("expires_at", datetime(year, 1, 1, tzinfo=UTC))


def test_a_range_begins_at_a_time_or_at_an_age() -> None:
    noon = datetime(2026, 5, 5, tzinfo=UTC)
    assert since_of(noon) == {"since": noon, "age": None}
    assert since_of(timedelta(days=1)) == {"since": None, "age": timedelta(days=1)}
    assert since_of(None) == {"since": None, "age": None}


@pytest.mark.parametrize(
    ("sqlstate", "value", "is_callers"), [("42601", "a &", True), ("42P01", "a &", False), ("22P02", None, False)]
)
def test_an_expression_that_postgresql_cannot_parse_is_the_callers(
    sqlstate: str, value: str | None, is_callers: bool
) -> None:
    with pytest.raises(ConfigurationError if is_callers else DatabaseError), understanding("where", value):
        raise DatabaseError("no", sqlstate)
