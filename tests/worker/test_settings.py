"""Settings of a worker: checked, with defaults, and versions by graph."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.worker.settings import WorkerSettings, accepted_versions


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


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ("", {"a": (), "b": ()}),
        ("1", {"a": ("1",), "b": ("1",)}),
        ({"a": "1"}, {"a": ("1",)}),
        ({"a": ["1", "2", "1"], "b": ()}, {"a": ("1", "2"), "b": ()}),
    ],
)
def test_versions_are_of_all_graphs_or_by_graph(given: Any, accepted: Any) -> None:
    assert accepted_versions(given, ["a", "b"]) == accepted


@pytest.mark.parametrize("given", [{"c": "1"}, {"a": [1]}])
def test_unusable_versions_are_refused(given: Any) -> None:
    with pytest.raises((ConfigurationError, ArgumentTypeError)):
        accepted_versions(given, ["a", "b"])
