"""Limits of the runs of a queue and of its keys."""

from __future__ import annotations

from typing import Any, Final

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.runs.types import QueueLimit, Rate
from langgraph_pgstate.schema.queries import Queries

_INT4_MAX: Final = 2**31 - 1


def request_limit(queue: str, key: str | None, concurrency: int | None, rate: Rate | None) -> dict[str, Any]:
    """Return the row of a validated limit."""
    if not identifier("queue", queue):
        raise ConfigurationError("queue must not be empty")
    if key == "":
        raise ConfigurationError("key must not be empty. Without a key, the whole queue is limited")
    is_number = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency is not None and not (is_number and 0 <= concurrency <= _INT4_MAX):
        raise ConfigurationError(f"concurrency must be a whole number, 0 or more, not {concurrency!r}")
    if rate is not None and not isinstance(rate, Rate):
        raise ArgumentTypeError(f"rate must be a Rate, not {type(rate).__name__}")
    return {
        "queue": queue,
        "key": "" if key is None else identifier("key", key),
        "concurrency": concurrency,
        "rate": None if rate is None else rate.count,
        "rate_seconds": None if rate is None else repr(rate.seconds),
    }


async def put_limit(db: Connection, queries: Queries, limit: dict[str, Any]) -> None:
    """Store a limit. A limit with neither a concurrency nor a rate is deleted. One statement; safe to repeat."""
    if limit["concurrency"] is None and limit["rate"] is None:
        await db.execute(queries.delete_limit, {"queue": limit["queue"], "key": limit["key"]})
    else:
        await db.execute(queries.put_limit, limit)


async def list_limits(db: Connection, queries: Queries) -> list[QueueLimit]:
    """Return all limits, each with the numbers of running and waiting runs. One statement."""
    found = []
    for queue, key, concurrency, count, seconds, running, waiting in await db.fetch(queries.list_limits, {}):
        rate = None if count is None else Rate(count, seconds)
        found.append(QueueLimit(queue, key or None, concurrency, rate, running, waiting))
    return found
