"""Settings of enqueued runs: delays between attempts, errors after which there is another, default answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from langgraph_pgstate import Backoff, DefaultAnswer
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError


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


def test_a_backoff_is_stored_as_json() -> None:
    named = Backoff(retry_on=["OSError", TimeoutError])
    assert named.retry_on == ("OSError", "builtins.TimeoutError")
    assert Backoff(**named.as_json()) == named


@pytest.mark.parametrize(
    ("value", "after", "why"), [(None, timedelta(1), "None"), (1, timedelta(0), "after"), (1, 5, "after")]
)
def test_a_default_answer_is_a_value_after_a_time(value: Any, after: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DefaultAnswer(value, after)
