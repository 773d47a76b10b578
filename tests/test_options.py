"""Checks that several settings share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.options import age, check_schema_name, check_ttl


def test_ages_are_a_number_and_a_unit() -> None:
    assert [age(text) for text in ("90m", " 1.5 H ", "2w")] == [
        timedelta(minutes=90),
        timedelta(hours=1.5),
        timedelta(14),
    ]
    for text in ("soon", "3", "-1d", "1y"):
        with pytest.raises(ConfigurationError, match="must be a number and s, m"):
            age(text)
    with pytest.raises(ConfigurationError, match="must be less than"):
        age("1" * 12 + "w")


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(days=-1), timedelta(days=400_000), 5, None])
def test_a_time_to_live_is_a_timedelta_that_the_calendar_has(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="ttl must be a timedelta"):
        check_ttl("ttl", wrong)
    assert check_ttl("ttl", timedelta(seconds=1)) == timedelta(seconds=1)


@pytest.mark.parametrize("wrong", ["", "Upper", "a b", 'a"b', "1a", "a" * 64, None])
def test_a_schema_needs_no_quotes(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="lower-case PostgreSQL identifier"):
        check_schema_name(wrong)
    for own in ("pg_catalog", "pg_toast", "pg_temp_3", "information_schema"):
        with pytest.raises(ConfigurationError, match="PostgreSQL's own"):
            check_schema_name(own)
    assert check_schema_name("tenant_a$1") == "tenant_a$1"
