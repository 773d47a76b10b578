"""Queries for runs, failed runs and runaway threads."""

from __future__ import annotations

from typing import Any, Unpack

from langgraph_pgstate.arguments import Moment, request_scope, since_of, text_of, texts_of, thread_id_of, times_of
from langgraph_pgstate.db.protocol import Connection, Read, Rows
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import LAST, Page, check_filters, decode_cursor, offset_of, page_of, page_size, read_page
from langgraph_pgstate.record.filters import FailedRunFilter, RunFilter
from langgraph_pgstate.record.types import OwnerCosts, Run, RunawayThread, RunSums
from langgraph_pgstate.schema.queries import Queries

_KIND, _RUNAWAY_KIND = "runs", "runaway threads"
STATUSES = ("pending", "running", "interrupted", "success", "error", "cancelled", "timeout")
LEAST_STEPS = 25
"""Minimum `steps` of a search. Runs of fewer supersteps are not indexed. 25 was LangGraph's recursion limit."""

_MOST_STEPS = 2**31 - 1
_HIGHEST = 1e300
ORDERS = ("started_at", "cost", "duration", "tokens")
RANKED = 10_000
"""Maximum number of runs that are sorted by cost, duration or tokens, which have no index."""

_RANKED_WITH_MODEL = 2000
SUMMED = 1000
"""Maximum number of runs whose model calls are summed: the newest."""


def list_runs(*, only_failed: bool = False, **filters: Unpack[RunFilter]) -> Read[Page[Run]]:
    """Return a `Read` of a page of runs, newest first, or by cost, duration or tokens, the greatest first.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, FailedRunFilter if only_failed else RunFilter)
    status, thread_id = filters.get("status"), filters.get("thread_id")
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    by, model = filters.get("by") or ORDERS[0], text_of("model", filters.get("model"))
    if by not in ORDERS:
        raise ConfigurationError(f"by must be one of {', '.join(ORDERS)}, not {by!r}")
    is_ranked = by != ORDERS[0]
    if model is not None and not is_ranked:
        raise ConfigurationError(f"by must be one of {', '.join(ORDERS[1:])} if model is given, not {by!r}")
    kind, first = f"{_KIND} by {by}" if is_ranked else _KIND, ((_HIGHEST,) if is_ranked else ()) + (LAST, "", "")
    *value, at, cursor_thread, cursor_run = decode_cursor(kind, filters.get("cursor"), first)
    size, offset = page_size(filters.get("limit", 20)), offset_of(filters.get("offset", 0))
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "status": status,
        **since_of(filters.get("since")),
        **times_of(filters, "until"),
        **texts_of(filters, "user_id", "tenant_id", "agent"),
        "min_steps": filters.get("min_steps"),
        "scope": request_scope(filters.get("scope")),
        "cursor_thread": cursor_thread,
        "cursor_run": cursor_run,
        "offset": offset,
        "only_failed": only_failed,
    }
    if is_ranked:
        most = size + 1 + offset if model is None else _RANKED_WITH_MODEL
        parameters |= {"by": by, "model": model, "cursor_value": value[0], "measured_at": at}
        parameters |= {"newest": RANKED, "most": most, "page_size": size + 1}
        return Read("rank_runs", parameters, lambda rows: _ranked(rows, size, kind))
    parameters["cursor_started_at"] = at
    return read_page("list_runs", parameters, size, Run, kind, lambda run: (run.started_at, run.thread_id, run.run_id))


def _ranked(rows: Rows, size: int, kind: str) -> Page[Run]:
    values = {(row[0], row[1]): row[-2:] for row in rows}

    def position(item: Run) -> tuple[Any, ...]:
        return *values[item.thread_id, item.run_id], item.thread_id, item.run_id

    return page_of(rows, size, lambda row: Run(*row[:-2]), kind, position)


def sum_runs(*, only_failed: bool = False, **filters: Unpack[RunFilter]) -> Read[RunSums]:
    """Return a `Read` of the sums of the newest runs that pass filters, by thread and by model.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    given: RunFilter = {"limit": 5, **filters, "by": "cost", "cursor": None}
    parameters = list_runs(only_failed=only_failed, **given).parameters
    return Read("sum_runs", {**parameters, "newest": SUMMED, "page_size": parameters["page_size"] - 1}, _sums_of)


def _sums_of(rows: Rows) -> RunSums:
    parts: dict[str, list[OwnerCosts]] = {}
    count = 0
    for part, name, runs, input_tokens, output_tokens, cost, count in rows:  # noqa: B007
        parts.setdefault(part, []).append(OwnerCosts(name, runs, input_tokens, output_tokens, cost))
    (total,) = parts["all"]
    by = tuple(tuple(parts.get(part, ())) for part in ("thread", "model"))
    return RunSums(count, count < SUMMED, total, *by)


async def get_run(
    db: Connection, queries: Queries, thread_id: str, run_id: str, scope: list[str] | None = None
) -> Run | None:
    """Return one run, or `None` if it does not exist or its thread is not in `scope`. One round trip."""
    rows = await db.fetch(queries.get_run, {"thread_id": thread_id, "run_id": run_id, "scope": scope})
    return Run(*rows[0]) if rows else None


def list_runaway_threads(steps: int, since: Moment | None, limit: int, cursor: str | None) -> Read[Page[RunawayThread]]:
    """Return a `Read` of a page of threads with runs of too many supersteps, the longest first.

    Raises:
        ConfigurationError: If `steps` is less than `LEAST_STEPS`, or another argument is invalid.
    """
    if steps < LEAST_STEPS:
        raise ConfigurationError(f"steps must be {LEAST_STEPS} or more, not {steps}")
    cursor_steps, cursor_thread = decode_cursor(_RUNAWAY_KIND, cursor, (_MOST_STEPS, ""))
    return read_page(
        "list_runaway_threads",
        {"steps": steps, **since_of(since), "cursor_steps": cursor_steps, "cursor_thread": cursor_thread},
        limit,
        RunawayThread,
        _RUNAWAY_KIND,
        lambda item: (item.most_steps, item.thread_id),
    )
