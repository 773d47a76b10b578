"""The commands `cost`, `prices` and `price`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.cli import Run, lines
from support.record import Record

pytestmark = pytest.mark.smoke


@pytest.fixture
def run(terminal: Run, travels: Record) -> Run:
    return terminal


def test_cost_is_summed_up(run: Run) -> None:
    shown = run("cost")
    assert "travel claude-sonnet-4-5 2 5,210 2,000 90 0 0.0089 1" in lines(shown, "claude")[0]
    assert "prices" in shown
    by_day = run("cost", "--by", "day,user")
    assert f"{datetime.now(UTC):%Y-}" in by_day
    assert "eve" in by_day
    assert "no model was called" in run("cost", "--since", "1s")
    assert "'api' is not one of" in run("cost", "--by", "agent,api", code=2)


def test_prices_are_set_and_listed(run: Run) -> None:
    assert run("prices") == "no prices\n"
    said = run("price", "claude-sonnet-4-5", "--input", "3", "--output", "15", "--cache-read", "0.30")
    assert said == "a million tokens of claude-sonnet-4-5: 3 read, 15 written\n"
    later = ("--from", "2027-01-01", "--provider", "[bedrock]", "--reasoning", "16")
    assert "at [bedrock], from 2027-01-01 on" in run(
        "price", "claude-sonnet-4-5", "--input", "2.5", "--output", "12", *later
    )
    shown = run("prices")
    assert lines(shown, "any") == ["claude-sonnet-4-5 any 3 15 0.30"]
    [line] = lines(shown, "[bedrock]")
    assert line.endswith("2.5 12 16")
    assert run("prices", "--model", "gpt") == "no prices\n"
    assert "--input must be a price" in run("price", "gpt", "--input", "much", "--output", "1", code=1)
    assert "price of 0 or more" in run("price", "gpt", "--input", "1", "--output", "-1", code=1)
