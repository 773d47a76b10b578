"""Operations by which workers claim runs, and the search for tenants with work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.protocol import Connection, Row
from langgraph_pgstate.db.tenants import NO_TENANT
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.leases.types import Lease
from langgraph_pgstate.runs.cancelling import how_to_cancel
from langgraph_pgstate.runs.locking import bounded_waits
from langgraph_pgstate.runs.requests import options_of
from langgraph_pgstate.runs.types import ClaimedRun, Claims
from langgraph_pgstate.schema.queries import Queries, Statement
from langgraph_pgstate.schema.tenancy import tenant_queries

# Maximum number of statements of one claim. A claim repeats its statement if other processes hold leases of the found
# runs. The statement has put these runs off, so the repetition finds other runs.
_MOST_STATEMENTS: Final = 20
_SET_ASIDE: Final = 1000
# The same number as the `LIMIT` of `claim_runs`.
_MOST_RUNS: Final = 100
_LIMITED: Final = ("limits", "waiting")

_log = logging.getLogger("langgraph_pgstate.runs")


async def claim(
    db: Connection,
    queries: Queries,
    worker_id: str,
    queue: str,
    graphs: Sequence[str],
    limit: int,
    ttl: float,
    versions: Mapping[str, Sequence[str]] | None = None,
    *,
    has_limits: bool = False,
    ended: Sequence[str] = (),
    suspects: bool | None = None,
) -> Claims:
    """Claim runs of some graphs, by priority and by position in the queue, and take the leases of their threads.

    Usually one transaction in one round trip. If the response is lost, `tend` finds the claimed runs. The claim waits
    only a moment for a lock; see `runs/locking.py`.

    Args:
        ttl: Seconds until the leases expire.
        versions: For each graph, the accepted versions. Runs without a version are always accepted.
        has_limits: Whether the queue had limits at the last claim. A right guess saves a statement.
        ended: Keys of ended runs. Waiting runs of these keys become claimable, as far as the limits allow.
        suspects: True to claim only runs that must be alone in their worker, false to claim only other runs. All by
            default.
    """
    accepted = _accepted(graphs, versions)
    parameters: dict[str, Any] = {
        "worker_id": worker_id,
        "queue": queue,
        **accepted,
        "ttl": repr(ttl),
        "suspects": suspects,
    }
    claims = Claims([], has_limits=has_limits, has_waiting=False, is_busy=False, has_suspects=False)
    for _ in range(_MOST_STATEMENTS):
        statement = queries.claim_limited_runs if claims.has_limits else queries.claim_runs
        parameters["limit"] = asked = min(limit - len(claims.runs), _MOST_RUNS)
        given = {"queue": queue, "keys": [*ended], "page_size": _SET_ASIDE}
        opening: list[Statement] = [(queries.open_keys, {**given, **accepted})] if ended else []
        # Without limits, the commit does not wait for the disk. After a server crash, lost runs are claimed again. With
        # limits, the commit waits, because a lost count of started runs would let the queue exceed its rate.
        begin = bounded_waits(queries, is_synced=claims.has_limits)
        # If data keys of the claimed runs are not loaded, the claim is undone, and repeated after the keys are loaded.
        rows = await db.fetch_readable([begin, *opening, (statement, parameters)])
        ended = ()
        # The kinds of rows are described at `claim_runs`.
        kinds = {row[0] for row in rows}
        was_limited = claims.has_limits
        claims = Claims(
            claims.runs + [_claimed(worker_id, queue, row) for row in rows if row[0] == "claimed"],
            has_limits=not kinds.isdisjoint(_LIMITED),
            has_waiting="waiting" in kinds or "full" in kinds,
            is_busy="busy" in kinds,
            has_suspects="suspects" in kinds,
        )
        full = [row[1] for row in rows if row[0] == "full"]
        if full:
            await db.execute(queries.limit_keys, {"queue": queue, "keys": full, "page_size": _SET_ASIDE})
        claimed = sum(row[0] == "claimed" for row in rows)
        goes_on = full or claimed == asked or "held" in kinds or (claims.has_limits and not was_limited)
        is_done = claims.is_busy or not goes_on
        if is_done or len(claims.runs) == limit:
            break
    return claims


async def choose_isolated(
    db: Connection,
    queries: Queries,
    queue: str,
    graphs: Sequence[str],
    versions: Mapping[str, Sequence[str]] | None = None,
    is_dead: Callable[[str], bool] = lambda _: False,
) -> str | None:
    """Choose a worker for the queue's next run that must be alone: the worker with the fewest runs.

    Return `None` if no run of the given graphs must be alone. The chosen worker waits until its own runs have ended,
    and claims this run. One statement.
    """
    rows = await db.fetch(queries.list_isolated_workers, {"queue": queue, **_accepted(graphs, versions)})
    return next((row[0] for row in rows if not is_dead(row[0])), None)


async def open_keys(
    db: Connection,
    queries: Queries,
    queue: str,
    graphs: Sequence[str],
    versions: Mapping[str, Sequence[str]] | None = None,
    after: str = "",
    page_size: int = 200,
) -> str | None:
    """Make waiting runs claimable, if the limits of their keys allow more runs now.

    A call reads one page of keys, after the key `after`. Two statements; safe to repeat and in many processes.

    Returns:
        The last key of the page; `None` after the last page.
    """
    page = {"queue": queue, "cursor_key": after, "page_size": page_size}
    found = [row[0] for row in await db.fetch(queries.find_limited_keys, page)]
    if found:
        given = {"queue": queue, "keys": found, "page_size": _SET_ASIDE}
        await db.execute(queries.open_keys, {**given, **_accepted(graphs, versions)})
    return found[-1] if len(found) == page_size else None


def _accepted(graphs: Sequence[str], versions: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return the graphs and versions that a worker accepts, as parameters."""
    pairs = [(graph, version) for graph in graphs for version in ("", *(versions or {}).get(graph, ()))]
    return {"graphs": [graph for graph, _ in pairs], "versions": [version for _, version in pairs]}


def _claimed(worker_id: str, queue: str, row: Row) -> ClaimedRun:
    _, key, thread_id, run_id, graph, attempt, crashes, token = row[:8]
    *times, how, timeout_at, head_id, options, data, own_id, is_suspect = row[8:18]
    lease = Lease(thread_id, worker_id, token, *times)
    given: dict[str, Any] = {}
    unreadable = None
    try:
        if options is not None:
            given = options_of(options, f"run {run_id!r} of thread {thread_id!r}")
    except CorruptStateError as error:
        # The run fails with this error when it begins. The other claimed runs are not affected.
        _log.error("%s", error)
        unreadable = error
    return ClaimedRun(
        thread_id,
        run_id,
        queue,
        graph,
        key,
        attempt,
        crashes,
        lease,
        data or b"",
        given,
        own_id,
        head_id,
        how_to_cancel(how),
        timeout_at,
        is_suspect,
        unreadable,
    )


class TenantWork(NamedTuple):
    """The work that a tenant has in the queue.

    Attributes:
        tenant: Name of the tenant.
        is_ready: Whether runs can be claimed, or wait for limits.
        seconds: Seconds until other work is due: lost or delayed runs, schedules, default answers, runs that have
            deleted their threads.
        webhook_seconds: Seconds until a webhook is due.
        worker_ids: The workers that execute runs of the tenant.
    """

    tenant: str
    is_ready: bool
    seconds: float | None
    webhook_seconds: float | None
    worker_ids: Sequence[str]


async def find_work(
    db: Connection,
    queries: Queries,
    tenants: Sequence[str],
    names: Sequence[str],
    graphs: Sequence[str],
    *,
    adopts: bool = False,
) -> list[TenantWork]:
    """Return the tenants that have work in some queues and for some graphs. One statement.

    Row-level security stays on: the statement sets each tenant in turn, and reads only the rows of this tenant.
    """
    db.tenant = NO_TENANT
    parameters = {"tenants": [*tenants], "queues": [*names], "graphs": [*graphs], "adopts": adopts}
    return [TenantWork(*row) for row in await db.fetch(tenant_queries(queries.schema).find_work, parameters)]
