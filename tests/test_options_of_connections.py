"""Settings of pools and retries."""

from __future__ import annotations

import pytest

from langgraph_pgstate import PoolSettings, RetryPolicy
from langgraph_pgstate.errors import ConfigurationError


def test_pool_is_read_as_settings_a_size_or_a_switch() -> None:
    own = PoolSettings(max_size=2)
    assert [PoolSettings.of(given) for given in (own, True, False, 3)] == [
        own,
        PoolSettings(),
        None,
        PoolSettings(max_size=3),
    ]
    with pytest.raises(ConfigurationError, match="at least 1 connection, not 0"):
        PoolSettings.of(0)


def test_delays_double_up_to_the_longest_and_vary_by_half() -> None:
    policy = RetryPolicy(base_delay=1.0, max_delay=5.0)
    assert [policy.delay(attempt, 0.0) for attempt in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 2.5]
    assert policy.delay(4, 0.5) == 3.75
