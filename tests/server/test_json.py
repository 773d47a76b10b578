"""Values as JSON."""

from __future__ import annotations

import json
from collections import deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Interrupt, Send
from support import examples

from langgraph_pgstate import heavy
from langgraph_pgstate.server import json as module
from langgraph_pgstate.server.json import answer, is_deeper, selected, to_json, to_json_in_parts


@dataclass
class Booking:
    """A value of the application."""

    hotel: str
    at: Any = None


class Status(Enum):
    """A value of the application."""

    OPEN = "open"


Point = namedtuple("Point", "x y")
WHEN = datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)
PLAIN: list[tuple[Any, Any]] = [
    ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
    ((1, {2}, frozenset([3]), deque([4])), [1, [2], [3], [4]]),
    ({1: 2, None: 3}, {"1": 2, "null": 3}),
    (WHEN, "2026-11-23T04:05:06Z"),
    (date(2026, 11, 23), "2026-11-23"),
    (timedelta(seconds=1.5), 1.5),
    (UUID(int=7), str(UUID(int=7))),
    (Decimal("1.5"), 1.5),
    (b"abc", "YWJj"),
    (float("nan"), None),
    (Status.OPEN, "open"),
    (Point(1, Point(2, 3)), {"x": 1, "y": {"x": 2, "y": 3}}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (Booking("Astoria", Booking("Fjord")), {"hotel": "Astoria", "at": {"hotel": "Fjord", "at": None}}),
    (numpy.array([1, 2]), [1, 2]),
    (ValueError("no"), {"error": "ValueError", "message": "no"}),
    (Interrupt({"q": 1}, id="i"), {"value": {"q": 1}, "id": "i"}),
    (Send("node", 1), "Send(node='node', arg=1)"),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=lambda value: type(value).__name__)
def test_a_value_becomes_json(value: Any, expected: Any) -> None:
    found = json.loads(to_json(value))
    if isinstance(value, Send):
        assert isinstance(found, str | dict)
        return
    assert found == expected
    # Beside something that the fast encoder refuses.
    assert json.loads(to_json([value, 2**70]))[1] == 2**70


def test_messages_and_models_are_objects() -> None:
    human, ai = json.loads(to_json([HumanMessage("Hi.", id="1"), AIMessage("", tool_calls=[])]))
    assert (human["type"], human["content"], human["id"]) == ("human", "Hi.", "1")
    assert (ai["type"], ai["tool_calls"]) == ("ai", [])
    assert json.loads(to_json(Document("text")))["page_content"] == "text"


def test_nothing_makes_it_fail() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    for value in (deep, "\ud800", {"\ud800": 1}, {(1, 2): 3}, object(), 2**80, {"a": {2**80: "\ud800"}}):
        assert to_json(value)
        json.loads(to_json(value))


def test_levels_are_counted() -> None:
    assert not is_deeper([{"a": [], "b": 1}, [2]], 3)
    assert is_deeper([{"a": [], "b": 1}, [2]], 2)
    assert not is_deeper("text", 0)


def test_an_answer_is_json() -> None:
    response = answer({"a": 1}, 201, {"X-Total": "1"})
    assert (response.status_code, response.body, response.headers["X-Total"]) == (201, b'{"a":1}', "1")
    assert response.headers["content-type"] == "application/json"


def test_fields_are_selected() -> None:
    assert selected({"a": 1, "b": 2}, None) == {"a": 1, "b": 2}
    assert selected({"a": 1, "b": 2}, ["b", "c"]) == {"b": 2}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([WHEN, HumanMessage("Hello.")]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner).map(tuple),
)


@pytest.mark.slow
@given(value=VALUES)
@example(value={"a": [{"b": HumanMessage("Hello." * 20)}] * 1500, 1: (1.5, 2**70, "\ud800")})
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_json_in_parts_is_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heavy, "MANY_VALUES", 3)
        patch.setattr(module, "_PART", 2)
        assert json.loads(to_json_in_parts(value)) == json.loads(to_json(value))
    # Beyond what is shown, as `to_json`.
    deep: Any = "x" * heavy.HEAVY_BYTES * 2
    for _ in range(300):
        deep = [deep]
    assert json.loads(to_json_in_parts(deep)) == json.loads(to_json(deep))
