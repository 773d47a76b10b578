"""Settings of workers."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.runs.control import WorkerSettings


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"queues": "default"},
        {"queues": []},
        {"lease_ttl": 0},
        {"poll": "1"},
        {"drain_timeout": -1},
    ],
)
def test_unusable_options_are_refused(options: Any) -> None:
    with pytest.raises((ConfigurationError, ArgumentTypeError)):
        WorkerSettings.of(options)


def test_what_is_left_out_has_a_default() -> None:
    assert WorkerSettings.of({"queues": ["one"], "poll": 1}) == WorkerSettings(queues=("one",), poll=1)
