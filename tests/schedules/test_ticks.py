"""Ticks over changes of clocks, and which of them are due: none is lost or comes twice, whenever somebody looks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.schedules import ticks
from langgraph_pgstate.schedules.ticks import (
    MOST_MISSED,
    due_ticks,
    first_tick,
    next_ticks,
    ticks_after,
    ticks_until,
    zone_of,
)

PRAGUE = ZoneInfo("Europe/Prague")
# Clocks go from 2:00 to 3:00, and from 3:00 to 2:00.
SPRING, AUTUMN = datetime(2027, 3, 28, tzinfo=PRAGUE), datetime(2027, 10, 31, tzinfo=PRAGUE)
CRONS = ["30 2 * * *", "0 */2 * * *", "*/20 * * * *", "15 * * * *", "0 1-4 * * *", "*/7 2,3 * * 0", "59 23 31 * *"]
ZONES = ["UTC", "Europe/Prague", "America/New_York", "Asia/Kathmandu", "America/Santiago", "Africa/Cairo"]


def local(cron: str, day: datetime, hours: int = 24) -> list[str]:
    """The ticks of a day and the next ones, as clocks show them."""
    start = day.astimezone(UTC) - timedelta(seconds=1)
    found = ticks_until(cron, PRAGUE, start, start + timedelta(hours=hours))
    return [tick.astimezone(PRAGUE).strftime("%H:%M%z") for tick in found]


def test_a_time_in_an_hour_that_is_skipped_comes_right_after_it_once() -> None:
    assert local("30 2 * * *", SPRING) == ["03:00+0200"]
    assert local("0 2,3 * * *", SPRING) == ["03:00+0200"]
    assert local("30 1-4 * * *", SPRING) == ["01:30+0100", "03:00+0200", "03:30+0200", "04:30+0200"]


def test_a_time_in_an_hour_that_is_repeated_comes_once() -> None:
    assert local("30 2 * * *", AUTUMN) == ["02:30+0200"]
    assert local("0,30 2 * * *", AUTUMN) == ["02:00+0200", "02:30+0200"]


def test_what_ticks_in_each_hour_ticks_in_real_time() -> None:
    assert local("30 * * * *", SPRING, 4) == ["00:30+0100", "01:30+0100", "03:30+0200", "04:30+0200"]
    assert local("30 * * * *", AUTUMN, 4) == ["00:30+0200", "01:30+0200", "02:30+0200", "02:30+0100"]


def test_a_time_does_not_come_again_for_who_looks_in_the_repeated_hour() -> None:
    """CronSim alone returns a time that has passed."""
    repeated = datetime(2027, 10, 31, 1, 10, tzinfo=UTC)
    assert repeated.astimezone(PRAGUE).strftime("%H:%M%z") == "02:10+0100"
    following = first_tick("30 2 * * *", PRAGUE, repeated)
    assert following == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


def test_next_ticks_begin_with_the_given_one() -> None:
    first = datetime(2027, 3, 26, 8, tzinfo=UTC)
    shown = [tick.astimezone(PRAGUE).strftime("%a %H:%M") for tick in next_ticks("0 9 * * 1-5", PRAGUE, first, 3)]
    assert shown == ["Fri 09:00", "Mon 09:00", "Tue 09:00"]


@pytest.mark.parametrize("cron", ["", "* * * *", "* * * * * *", "61 * * * *", "0 9 * * MOO", "0 0 31 2 *", "@daily"])
def test_an_expression_that_is_none_is_refused(cron: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cron must have 5 valid fields .*: (bad|it has . fields)"):
        first_tick(cron, PRAGUE, SPRING)


def test_an_expression_without_ticks_has_no_first() -> None:
    # A fifth Monday that is the 29th of February comes, a 30th of February does not.
    assert first_tick("0 0 29 2 *", PRAGUE, SPRING) is not None
    with pytest.raises(ArgumentTypeError):
        first_tick(5, PRAGUE, SPRING)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Europe/Pragu", "../etc/passwd", "Europe", "\0"])
def test_a_time_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="timezone must be"):
        zone_of(name)
    with pytest.raises(ArgumentTypeError):
        zone_of(PRAGUE)  # type: ignore[arg-type]


def test_a_name_that_is_not_known_is_not_looked_for() -> None:
    """Guard: `ZoneInfo` imports a module of this name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ticks, "ZoneInfo", None)
        with pytest.raises(ConfigurationError, match="timezone must be"):
            zone_of("nowhere/nothing")


moments = st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))
edges = st.builds(
    lambda day, minutes: day.astimezone(UTC) + timedelta(minutes=minutes),
    st.sampled_from([SPRING, AUTUMN]),
    st.integers(-120, 360),
)
pauses = st.lists(st.one_of(st.integers(1, 90), st.integers(1, 200_000)), min_size=1, max_size=30)


@pytest.mark.slow
@settings(deadline=None)
@given(st.sampled_from(CRONS), st.sampled_from(ZONES), st.one_of(moments, edges), pauses)
def test_whenever_somebody_looks_each_tick_is_due_once(
    cron: str, name: str, start: datetime, seconds: list[int]
) -> None:
    zone = zone_of(name)
    now, found = start, []
    following = first_tick(cron, zone, now)
    for pause in seconds:
        now += timedelta(seconds=pause)
        assert following is not None
        if following <= now:
            due = due_ticks(cron, zone, following, now, "all")
            found += due
            if len(due) == MOST_MISSED:
                # The older ones are left out.
                found = due
                start = due[0] - timedelta(seconds=1)
            following = first_tick(cron, zone, now)
    assert found == [*ticks_until(cron, zone, start, now)]


@pytest.mark.slow
@settings(deadline=None)
@given(st.sampled_from(CRONS), st.sampled_from(ZONES), st.one_of(moments, edges), st.integers(0, 2_000_000))
def test_missed_ticks_are_skipped_or_become_one(cron: str, name: str, start: datetime, late: int) -> None:
    zone = zone_of(name)
    (following,) = islice(ticks_after(cron, zone, start), 1)
    now = following + timedelta(seconds=late)
    everything = [following, *ticks_until(cron, zone, following, now)]
    fresh = [tick for tick in everything if now - tick < timedelta(minutes=1)]
    assert due_ticks(cron, zone, following, now, "skip") == fresh
    assert due_ticks(cron, zone, following, now, "once") == everything[-1:]
    assert due_ticks(cron, zone, following, now, "all") == everything[-MOST_MISSED:]
    assert len(fresh) <= 1


def test_years_without_anybody_take_no_time() -> None:
    """The control thread of a worker must not be busy with them."""
    now = datetime(2027, 1, 1, tzinfo=UTC)
    began = time.process_time()
    for missed, most in (("skip", 1), ("once", 1), ("all", MOST_MISSED)):
        assert len(due_ticks("* * * * *", PRAGUE, now - timedelta(days=3650), now, missed)) == most
    assert time.process_time() - began < 1
