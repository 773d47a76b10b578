"""The ticks of cron expressions: the times at which schedules enqueue runs. No I/O."""

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
    """Return the time zone of a name."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"timezone must be a name like 'Europe/Prague', not {type(name).__name__}")
    # Refuse unknown names, because `ZoneInfo` would look for a file and import a module of this name.
    if name not in _zones():
        raise ConfigurationError(f"timezone must be a known name like 'Europe/Prague', not {name!r}")
    return ZoneInfo(name)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def ticks_after(cron: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks of a cron expression after a moment, in UTC.

    If clocks skip an hour, fixed times in this hour come once, right after the hour. If clocks repeat an hour, fixed
    times come in the first of the two hours. An expression with `*` for minutes or hours ticks in both hours.
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
            # If clocks repeat an hour and `moment` is in the second hour, CronSim also yields ticks of the first hour.
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
        missed: Which ticks up to `now` are returned. `skip`: the newest tick, if less than a minute late. `once`: the
            newest tick. `all`: the newest hundred ticks.
        end_at: Time after which there are no ticks.
    """
    until = now if end_at is None else min(now, end_at)
    most = MOST_MISSED if missed == "all" else 1
    window = MISSED_AFTER
    while True:
        # Search backwards from `now`, because ticks of many years may have been missed.
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
    """Return the first tick after a moment; `None` without a tick within 50 years or until `end_at`."""
    tick = next(ticks_after(cron, zone, moment), None)
    return None if tick is None or (end_at is not None and tick > end_at) else tick


def next_ticks(cron: str, zone: ZoneInfo, next_at: datetime, count: int) -> tuple[datetime, ...]:
    """Return the tick `next_at` and the following ticks, at most `count` ticks."""
    return (next_at, *islice(ticks_after(cron, zone, next_at), count - 1))
