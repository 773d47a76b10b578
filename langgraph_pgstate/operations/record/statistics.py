"""Sums over many threads: how tools did, what models cost. Bounded by time, which an index knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.threads.paging import Moment, page_size, since_of, text_of, time_of
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import ToolStatistics, Usage

USAGE_KEYS = ("agent", "model", "tenant", "user", "day")


def request_statistics(since: Moment | None, until: datetime | None, agent: str | None, limit: int) -> dict[str, Any]:
    """Check a question for statistics of tools, as parameters.

    Raises:
        ConfigurationError: If an argument cannot be searched for.
    """
    times = {**since_of(since), "until": time_of("until", until)}
    return {**times, "agent": text_of("agent", agent), "page_size": page_size(limit)}


async def measure_tools(db: Connection, queries: Queries, parameters: dict[str, Any]) -> tuple[ToolStatistics, ...]:
    """Calls, errors and seconds of each tool by its spans; the most called first. One round trip."""
    return tuple(ToolStatistics(*row) for row in await db.fetch(queries.measure_tools, parameters))


async def measure_executions(
    db: Connection, queries: Queries, parameters: dict[str, Any]
) -> tuple[ToolStatistics, ...]:
    """Actions, errors, unknown outcomes and seconds of each tool by the ledger. One round trip."""
    return tuple(ToolStatistics(*row) for row in await db.fetch(queries.measure_executions, parameters))


def request_usage(by: str | Sequence[str], since: Moment | None, until: datetime | None, limit: int) -> dict[str, Any]:
    """Check a question for tokens and money, as parameters.

    Raises:
        ConfigurationError: If a key is none of `USAGE_KEYS`, or another argument cannot be searched for.
    """
    keys = [by] if isinstance(by, str) else list(by)
    if unknown := [key for key in keys if key not in USAGE_KEYS]:
        raise ConfigurationError(f"usage cannot be summed up by {unknown[0]!r}: {', '.join(USAGE_KEYS)}")
    return {"by": keys, **since_of(since), "until": time_of("until", until), "page_size": page_size(limit)}


async def sum_usage(db: Connection, queries: Queries, parameters: dict[str, Any]) -> tuple[Usage, ...]:
    """Tokens and money by some keys, the most expensive first. One round trip."""
    return tuple(Usage(*row) for row in await db.fetch(queries.sum_usage, parameters))
