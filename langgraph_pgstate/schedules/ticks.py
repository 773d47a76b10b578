"""The ticks of cron expressions, which are the times at which schedules enqueue runs. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

MISSED: Final = ("skip", "once", "all")
MISSED_AFTER: Final = timedelta(minutes=1)
MOST_MISSED: Final = 100
_LONGEST: Final = 1000


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        ConfigurationError: If there is no time zone of this name.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"timezone must be a name like 'Europe/Prague', not {type(name).__name__}")
    # Do not call `ZoneInfo` with an unknown name, because it would look for a file and import a module of this name.
    if name not in _zones():
        raise ConfigurationError(f"the time zone must be a known name like 'Europe/Prague', not {name!r}")
    return ZoneInfo(name)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def ticks_after(cron: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks of a cron expression after a moment, in UTC.

    If clocks skip an hour, fixed times in this hour come once, right after the hour. If clocks repeat an hour, fixed
    times come in the first of the two hours. An expression with `*` for minutes or hours ticks in both hours.

    Raises:
        ConfigurationError: If the expression is not usable.
    """
    if not isinstance(cron, str):
        raise ArgumentTypeError(f"cron must be an expression like '0 9 * * 1-5', not {type(cron).__name__}")
    last = moment
    if len(cron) > _LONGEST:
        raise ConfigurationError(f"cron must have at most {_LONGEST:,} characters, got {len(cron):,}")
    if len(cron.split()) != 5:
        raise _refusal(cron, f"it has {len(cron.split())} fields")
    try:
        for local in CronSim(cron, moment.astimezone(zone)):
            tick = local.astimezone(UTC)
            # If clocks repeat an hour, CronSim yields ticks of the first hour even if it starts in the second.
            if tick > last:
                last = tick
                yield tick
    except CronSimError as error:
        raise _refusal(cron, str(error).lower()) from None


def _refusal(cron: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"cron must have 5 valid fields (minute, hour, day of month, month, day of week), got {cron!r}: {reason}"
    )


def due_ticks(
    cron: str, zone: ZoneInfo, next_at: datetime, now: datetime, missed: str, end_at: datetime | None = None
) -> list[datetime]:
    """Return the ticks for which a run is enqueued now, oldest first.

    Args:
        cron: The cron expression.
        zone: Time zone of the expression.
        next_at: The first tick that no process has handled.
        now: The time.
        missed: Which of the ticks up to `now` are left out: with `skip`, ticks that are a minute late; with `once`, all
            ticks but the newest; with `all`, ticks before the newest hundred.
        end_at: Time after which there are no ticks.
    """
    until = now if end_at is None else min(now, end_at)
    most = MOST_MISSED if missed == "all" else 1
    window = MISSED_AFTER
    while True:
        # The search begins near the end, because ticks of many years may have been missed.
        start = now - window
        is_first = start < next_at
        found = [next_at] * is_first + [*ticks_until(cron, zone, max(start, next_at), until)]
        if len(found) >= most or is_first or missed == "skip":
            return found[-most:]
        window *= 2


def ticks_until(cron: str, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the ticks after one moment and up to another."""
    for tick in ticks_after(cron, zone, after):
        if tick > until:
            return
        yield tick


def first_tick(cron: str, zone: ZoneInfo, moment: datetime, end_at: datetime | None = None) -> datetime | None:
    """Return the first tick after a moment; `None` if there is none within 50 years or until `end_at`."""
    tick = next(ticks_after(cron, zone, moment), None)
    return None if tick is None or (end_at is not None and tick > end_at) else tick


def next_ticks(cron: str, zone: ZoneInfo, next_at: datetime, count: int) -> tuple[datetime, ...]:
    """Return `count` ticks: the tick `next_at`, and the ticks after it. There may be fewer."""
    return (next_at, *islice(ticks_after(cron, zone, next_at), count - 1))
