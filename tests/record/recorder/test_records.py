"""Rows of runs and spans."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.capture import capture
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from tests.record.recorder.test_writer import begin


@pytest.mark.parametrize(
    "value",
    ["plain", "a\0b", "\ud800", 2**70, "long" * 2000, {"a\0": ["\0", {"b": None}]}],
    ids=["plain", "nul", "surrogate", "large", "long", "nested"],
)
def test_a_row_says_the_same_whether_it_is_made_at_once_or_piece_by_piece(value: Any) -> None:
    settings = RecorderSettings()
    tracker = Tracker(WriteQueue(settings))
    root = begin(tracker, None, "graph")
    span = begin(tracker, root, f"node {value}"[:20], 1, lc_agent_name=str(value)[:9], langgraph_node="n")
    record = tracker.find(span)
    assert record is not None
    record.input = capture({"value": value})
    tracker.end(span, {"value": value})
    said = orjson.loads(record.dump(settings))
    exact = orjson.loads(orjson.dumps(record._row(settings)))
    # A column that a row does not name is empty.
    assert [{name: each for name, each in row.items() if each not in (None, {})} for row in (said, exact)] == [
        {name: each for name, each in exact.items() if each not in (None, {})}
    ] * 2
    assert b"\\u0000" not in record.dump(settings)
