"""Requests: every check before anything is written, and what comes back."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command
from support.queue import CODEC

from langgraph_pgstate import Backoff, DefaultAnswer
from langgraph_pgstate.errors import ConfigurationError, SerializationError
from langgraph_pgstate.runs.inputs import open_input
from langgraph_pgstate.runs.requests import RunRequest, options_of, request_run

DENY = DefaultAnswer("deny", after=timedelta(days=3))


def test_an_unknown_graph_is_refused_where_the_graphs_are_known() -> None:
    with pytest.raises(ConfigurationError, match="no graph 'c'; there are a, b"):
        request_run(CODEC, "c", known_graphs={"a", "b"})
    assert request_run(CODEC, "a", known_graphs={"a"}).graph == "a"


@pytest.mark.parametrize("where", ["input", "config", "context", "metadata"])
def test_a_value_that_cannot_be_stored_is_named(where: str) -> None:
    unstorable: Any = {"f": lambda: None}
    with pytest.raises(SerializationError) as raised:
        request_run(CODEC, "graph", **{where: unstorable})
    assert raised.value.channel == where


def test_what_is_given_comes_back() -> None:
    command: Command[Any] = Command(resume={"a": HumanMessage("yes", id="1")}, goto="node")
    given: dict[str, Any] = {
        "config": {"configurable": {"thread_id": "t", "x": 1}, "tags": ["a"], "recursion_limit": 7},
        "context": {"user": "u"},
        "metadata": {"m": [1.5, None]},
        "checkpoint_id": "c",
        "interrupt_before": ["a"],
        "interrupt_after": "*",
        "durability": "exit",
        "stream_mode": ["values", "custom"],
        "on_completion": "delete",
    }
    request = request_run(CODEC, "graph", command=command, **given)
    found = open_input(CODEC, request.data)
    assert request.thread_id == "t"
    assert {name: getattr(found, name) for name in given} == given
    assert (found.input, found.command) == (None, command)


def test_ids_are_read_from_the_config_and_made_otherwise() -> None:
    config = {"configurable": {"thread_id": 7, "checkpoint_id": "c"}}
    request = request_run(CODEC, "graph", config=config)
    assert request.thread_id == "7"
    assert open_input(CODEC, request.data).checkpoint_id == "c"
    assert UUID(request.run_id).version == 7
    assert request_run(CODEC, "graph", thread_id="t", config=config).thread_id == "t"
    assert request_run(CODEC, "graph", run_id=UUID(int=1)).run_id == str(UUID(int=1))
    others = {request_run(CODEC, "graph").thread_id for _ in range(100)}
    assert len(others) == 100


def test_options_come_back_without_content() -> None:
    retry = Backoff(retry_on=[ValueError, "httpx.ConnectError"])
    request = request_run(CODEC, "graph", {"secret": 1}, max_attempts=3, retry=retry, timeout=timedelta(minutes=1))
    import json

    found = options_of(json.dumps(request.options), "a run")
    assert (found["max_attempts"], found["timeout"], found["retry"]) == (3, 60.0, retry)
    assert "secret" not in json.dumps(request.options)


def test_a_default_answer_must_be_readable_when_it_is_due() -> None:
    assert open_input(CODEC, request_run(CODEC, "graph", {}, default_answer=DENY).data).default_answer == "deny"
    with pytest.raises(SerializationError, match="default_answer"):
        request_run(CODEC, "graph", {}, default_answer=DefaultAnswer(lambda: None, timedelta(1)))


def test_options_of_a_newer_version_are_left_out() -> None:
    options = {"graph": "g", "priority": 0, "retry": {"initial": 2.0, "growth": "cubic"}, "colour": 1}
    found = options_of(json.dumps(options), "a run")
    assert found["retry"] == Backoff(initial=2.0)


def test_a_run_that_is_enqueued_again_keeps_its_key_and_version() -> None:
    first = request_run(CODEC, "graph", key="k", version="2")
    again = RunRequest.again(CODEC, "t", "r", "default", json.dumps(first.options), first.data, {})
    assert (again.key, again.version) == ("k", "2")
