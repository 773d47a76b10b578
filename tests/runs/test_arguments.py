"""Arguments of a run, which are checked before anything is written."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from langgraph.types import Command
from support.queue import CODEC

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.tools import ToolRetry

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
    "years 2 to 9998": {"run_after": datetime.fromisoformat("9999-12-31T23:59:59-14:00")},
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
    "must not have 'prio'": {"prio": 1},
    "NUL": {"thread_id": "a\0b"},
    "bytes together": {"thread_id": "t" * 3000},
}


@pytest.mark.parametrize("message", BAD)
def test_a_wrong_argument_is_named(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        request_run(CODEC, "graph", **BAD[message])


def test_the_retries_of_a_tool_are_refused_by_their_module() -> None:
    with pytest.raises(ArgumentTypeError, match=r"langgraph_pgstate\.Backoff\), not langgraph_pgstate\.tools"):
        request_run(CODEC, "graph", retry=ToolRetry())


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
