"""Requests: every check before anything is written, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command
from support_queue import CODEC

from langgraph_pgstate import Backoff, DefaultAnswer
from langgraph_pgstate.codec.frames import pack, unpack
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, CorruptStateError, SerializationError
from langgraph_pgstate.operations.runs.requests import (
    RunRequest,
    change_request,
    open_request,
    options_of,
    read_field,
    request_run,
)
from langgraph_pgstate.tools import ToolRetry

DENY = DefaultAnswer("deny", after=timedelta(days=3))

BAD: dict[str, dict[str, Any]] = {
    "thread_id": {"thread_id": ""},
    "run_id": {"run_id": ""},
    "queue": {"queue": ""},
    "key": {"key": "k" * 600},
    "priority": {"priority": 2**31},
    "whole number": {"max_attempts": 0},
    "seconds": {"timeout": 0},
    "timedelta": {"superstep_timeout": timedelta(0)},
    "time zone": {"run_after": datetime(2026, 1, 1)},
    "a timedelta, or a datetime": {"run_after": 5},
    "1,000 years": {"run_after": timedelta(days=10**6)},
    "multitask_strategy": {"multitask_strategy": "wait"},
    "durability": {"durability": "never"},
    "on_completion": {"on_completion": "archive"},
    "interrupt_before": {"interrupt_before": "node"},
    "config must": {"config": ["a"]},
    "metadata must": {"metadata": "a"},
    "a Backoff": {"retry": 3},
    "a DefaultAnswer": {"default_answer": "deny"},
    "not both": {"input": 1, "command": Command(resume=1)},
    "types.Command": {"command": "resume"},
    "no option 'prio'": {"prio": 1},
    "NUL": {"thread_id": "a\0b"},
    "bytes together": {"thread_id": "t" * 3000},
}


@pytest.mark.parametrize("message", BAD)
def test_a_wrong_argument_is_named(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        request_run(CODEC, "graph", **BAD[message])


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


def test_a_large_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="of which input is"):
        request_run(CODEC, "graph", "x" * 1000, size_limit=900)
    assert request_run(CODEC, "graph", "x" * 1000, size_limit=2000)


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
    found = open_request(CODEC, request.data)
    assert request.thread_id == "t"
    assert {name: getattr(found, name) for name in given} == given
    assert (found.input, found.command) == (None, command)


def test_ids_are_read_from_the_config_and_made_otherwise() -> None:
    config = {"configurable": {"thread_id": 7, "checkpoint_id": "c"}}
    request = request_run(CODEC, "graph", config=config)
    assert request.thread_id == "7"
    assert open_request(CODEC, request.data).checkpoint_id == "c"
    assert UUID(request.run_id).version == 7
    assert request_run(CODEC, "graph", thread_id="t", config=config).thread_id == "t"
    assert request_run(CODEC, "graph", run_id=UUID(int=1)).run_id == str(UUID(int=1))
    others = {request_run(CODEC, "graph").thread_id for _ in range(100)}
    assert len(others) == 100


def test_options_come_back_without_content() -> None:
    retry = Backoff(retry_on=[ValueError, "httpx.ConnectError"])
    request = request_run(CODEC, "graph", {"secret": 1}, max_attempts=3, retry=retry, timeout=timedelta(minutes=1))
    import json

    found = options_of(json.dumps(request.options))
    assert (found["max_attempts"], found["timeout"], found["retry"]) == (3, 60.0, retry)
    assert "secret" not in json.dumps(request.options)


def test_fields_are_read_and_changed_without_the_others() -> None:
    """A process that does not know the types of an input can answer its interrupt."""
    data = request_run(CODEC, "graph", {"x": 1}, metadata={"a": 1}, default_answer=DENY).data
    encoded = ormsgpack.unpackb(unpack(data, "here"))
    data = pack(ormsgpack.packb({**encoded, "input": ("unknown", b"nonsense")}))
    assert read_field(CODEC, data, "metadata", "here") == {"a": 1}
    assert read_field(CODEC, data, "default_answer", "here") == "deny"
    assert read_field(CODEC, data, "command", "here") is None
    changed = change_request(CODEC, data, "here", input=None, command=Command(resume=1), metadata={"b": 2})
    found = open_request(CODEC, changed)
    assert found.command is not None
    assert (found.input, found.command.resume, found.metadata) == (None, 1, {"b": 2})
    with pytest.raises(CorruptStateError, match="here"):
        change_request(CODEC, b"nonsense", "here", input=None)


def test_a_default_answer_must_be_readable_when_it_is_due() -> None:
    assert open_request(CODEC, request_run(CODEC, "graph", {}, default_answer=DENY).data).default_answer == "deny"
    with pytest.raises(SerializationError, match="default_answer"):
        request_run(CODEC, "graph", {}, default_answer=DefaultAnswer(lambda: None, timedelta(1)))


def test_a_damaged_request_is_an_error() -> None:
    data = request_run(CODEC, "graph", {"x": 1}).data
    for broken in (b"", data[:-3], data[:9] + bytes([data[9] ^ 255]) + data[10:]):
        with pytest.raises(CorruptStateError):
            open_request(CODEC, broken)


@pytest.mark.parametrize(
    ("retry_on", "error", "retries"),
    [
        (None, ConnectionError(), True),
        (None, ValueError(), False),
        ([OSError], ConnectionError(), True),
        ([OSError], ValueError(), False),
        (["OSError"], ConnectionError(), True),
        (["builtins.OSError"], ConnectionError(), True),
        (["json.decoder.JSONDecodeError"], ValueError(), False),
        ([], ConnectionError(), False),
    ],
)
def test_a_backoff_knows_which_errors_are_tried_again(retry_on: Any, error: Exception, retries: bool) -> None:
    assert Backoff(retry_on=retry_on).retries(error) is retries


def test_delays_grow_up_to_a_maximum() -> None:
    backoff = Backoff(initial=1.0, factor=3.0, maximum=20.0, jitter=0.5)
    assert [backoff.delay(attempt, 0.0) for attempt in (1, 2, 3, 4, 10_000)] == [1.0, 3.0, 9.0, 20.0, 20.0]
    assert backoff.delay(1, 0.999) == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(initial=-1),
        lambda: Backoff(jitter=2),
        lambda: Backoff(maximum=float("inf")),
        lambda: Backoff(retry_on="OSError"),
        lambda: Backoff(retry_on=[1]),  # type: ignore[list-item]
    ],
)
def test_a_wrong_backoff_is_refused(make: Callable[[], Backoff]) -> None:
    with pytest.raises((ConfigurationError, ArgumentTypeError)):
        make()


def test_the_retries_of_a_tool_are_refused_by_their_module() -> None:
    with pytest.raises(ArgumentTypeError, match=r"langgraph_pgstate\.Backoff\), not langgraph_pgstate\.tools"):
        request_run(CODEC, "graph", retry=ToolRetry())


def test_options_of_a_newer_version_are_left_out() -> None:
    found = options_of('{"retry": {"initial": 2.0, "growth": "cubic"}, "colour": 1}')
    assert found["retry"] == Backoff(initial=2.0)


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (None, ""),
        ("configurable.user_id", "7"),
        ("configurable.nobody", ""),
        ("metadata.user_id.more", ""),
        (lambda config: config["metadata"]["user_id"].upper(), "ADA"),
        (lambda config: None, ""),
    ],
)
def test_a_run_has_the_key_that_its_config_names(source: Any, key: str) -> None:
    config = {"configurable": {"user_id": 7}, "metadata": {"user_id": "ada"}}
    assert request_run(CODEC, "graph", config=config, run_key=source).key == key
    assert request_run(CODEC, "graph", config=config, run_key=source, key="own").key == "own"


def test_a_run_that_is_enqueued_again_keeps_its_key_and_version() -> None:
    first = request_run(CODEC, "graph", key="k", version="2")
    again = RunRequest.again("t", "r", "default", json.dumps(first.options), first.data)
    assert (again.key, again.version) == ("k", "2")
