"""Settings of the record."""

from __future__ import annotations

import pytest

from langgraph_pgstate import RecorderSettings
from langgraph_pgstate.errors import ConfigurationError


@pytest.mark.parametrize("name", ["limit", "interval", "queue_size", "timeout", "ttl"])
def test_a_setting_that_is_not_positive_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be more than 0"):
        RecorderSettings(**{name: 0})
