"""Bodies of requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.types import Command, Send
from pydantic import ValidationError

from langgraph_pgstate.server import bodies


def test_unknown_fields_are_ignored_and_a_missing_body_is_empty() -> None:
    assert bodies.ThreadCreate.of({"thread_id": "t", "newer": 1}).thread_id == "t"
    assert bodies.ThreadSearch.of(None).limit == 10


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"resume": "yes"}, Command(resume="yes", goto=[])),
        ({"goto": "a"}, Command(goto=["a"])),
        ({"goto": {"node": "a", "input": 1}}, Command(goto=[Send("a", 1)])),
        ({"goto": ["a", {"node": "b"}], "update": {"x": 1}}, Command(goto=["a", Send("b", None)], update={"x": 1})),
        ({"update": [["x", 1], ["x", 2]]}, Command(goto=[], update=[("x", 1), ("x", 2)])),
    ],
)
def test_a_command_is_langgraphs(given: Any, command: Command[Any]) -> None:
    assert bodies.CommandBody.of(given).command() == command


def test_a_time_to_live_is_in_minutes() -> None:
    assert bodies.ThreadCreate.of({"ttl": {"ttl": 1.5}}).ttl.time == timedelta(seconds=90)  # type: ignore[union-attr]
    with pytest.raises(ValidationError):
        bodies.ThreadCreate.of({"ttl": {"ttl": 1, "strategy": "keep"}})


def test_a_checkpoint_names_keys_of_a_config() -> None:
    given = {"thread_id": "t", "checkpoint_id": "c", "checkpoint_ns": "", "checkpoint_map": None}
    assert bodies.CheckpointBody.of(given).configurable() == {"checkpoint_id": "c", "checkpoint_ns": ""}


@pytest.mark.parametrize(
    ("given", "modes"), [("values", ["values"]), (["updates", "custom"], ["updates", "custom"]), (None, [])]
)
def test_one_mode_is_a_list_of_one(given: Any, modes: list[str]) -> None:
    assert bodies.RunCreate.of({"assistant_id": "a", "stream_mode": given}).stream_mode == modes


def test_a_batch_is_a_list() -> None:
    assert bodies.RunBatch.of([{"assistant_id": "a"}]).runs[0].assistant_id == "a"
    for bad in ([], None, {"runs": []}):
        with pytest.raises(ValidationError):
            bodies.RunBatch.of(bad)


@pytest.mark.parametrize(
    "metadata",
    [
        {str(number): 1 for number in range(10_001)},
        {"a": [[1] * 6000, [1] * 6000]},
        {"a": ["x" * 200_000, "x" * 200_000]},
        {"x" * 300_000: 1},
        {"a": [10**4000] * 100},
    ],
)
def test_metadata_are_bounded(metadata: Any) -> None:
    """Each page of threads reads them, and they are converted on the event loop."""
    for body in (bodies.ThreadCreate, bodies.ThreadSearch, bodies.RunCreate, bodies.CronChange, bodies.AssistantChange):
        with pytest.raises(ValidationError, match=r"metadata\n.*at most 10000 values and 256 KB"):
            body.of({"metadata": metadata})
    assert bodies.ThreadCreate.of({"metadata": {"a": ["x" * 1000] * 200}}).metadata


def test_what_runs_have_in_their_config_is_bounded() -> None:
    """Their checkpoints have it among their metadata, and LangGraph prepares all tasks without a pause."""
    many = {"a": [1] * 10_001}
    run = {"assistant_id": "a"}
    for body, given in (
        (bodies.RunCreate, {**run, "context": many}),
        (bodies.RunCreate, {**run, "config": {"configurable": many}}),
        (bodies.RunCreate, {**run, "config": {"tags": ["x"] * 1001}}),
        (bodies.RunCreate, {**run, "command": {"goto": ["x"] * 251}}),
        (bodies.ThreadCreate, {"supersteps": [{"updates": [{"values": 1}] * 251}]}),
        (bodies.AssistantCreate, {"graph_id": "a", "context": many}),
        (bodies.CronCreate, {**run, "schedule": "* * * * *", "context": many}),
    ):
        with pytest.raises(ValidationError, match=r"at most (10000 values|\d+ items)"):
            body.of(given)
    # Content is not.
    assert bodies.RunCreate.of({**run, "input": many, "command": {"update": many}}).input == many


def test_conditions_are_bounded() -> None:
    """They are compared with each value of each state, or of each item."""
    many = {"a": [[1]] * 501}
    for body, given in (
        (bodies.ThreadSearch, {"values": many}),
        (bodies.ThreadCount, {"values": many}),
        (bodies.ItemSearch, {"namespace_prefix": [], "filter": many}),
    ):
        with pytest.raises(ValidationError, match="at most 1000 values"):
            body.of(given)  # type: ignore[attr-defined]
    assert bodies.ThreadSearch.of({"values": {"a": [1] * 900}}).values
