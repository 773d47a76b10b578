"""Settings of enqueued runs: delays between attempts, errors after which there is another, default answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from langgraph_pgstate import Backoff, DefaultAnswer
from langgraph_pgstate.errors import ConfigurationError


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    backoff = Backoff(initial=2.0, factor=3.0, maximum=50.0, jitter=0.5)
    assert [backoff.delay(attempt, 0.0) for attempt in (1, 2, 3, 4, 5_000)] == [2.0, 6.0, 18.0, 50.0, 50.0]
    assert backoff.delay(4, 1.0) == 25.0


def test_an_error_is_found_by_its_class_its_name_and_those_of_its_bases() -> None:
    named = Backoff(retry_on=["OSError", TimeoutError])
    assert named.retry_on == ("OSError", "builtins.TimeoutError")
    assert [named.retries(error) for error in (ConnectionError(), TimeoutError(), ValueError())] == [True, True, False]
    assert Backoff(retry_on=[]).retries(ConnectionError()) is False
    assert [Backoff().retries(error) for error in (ConnectionError(), ValueError())] == [True, False]
    assert Backoff(**named.as_json()) == named


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial": -1},
        {"factor": True},
        {"maximum": float("inf")},
        {"jitter": 1.5},
        {"retry_on": "OSError"},
        {"retry_on": [3]},
    ],
)
def test_a_wrong_backoff_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"Backoff.{next(iter(wrong))}"):
        Backoff(**wrong)


@pytest.mark.parametrize(
    ("value", "after", "why"), [(None, timedelta(1), "None"), (1, timedelta(0), "after"), (1, 5, "after")]
)
def test_a_default_answer_is_a_value_after_a_time(value: Any, after: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DefaultAnswer(value, after)
