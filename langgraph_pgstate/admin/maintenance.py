"""Regular maintenance: partitions, runs of dead processes, and expired rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from langgraph_pgstate.admin.types import MaintenanceReport
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.keep import retention
from langgraph_pgstate.keep.types import PolicyReport
from langgraph_pgstate.leases import guards
from langgraph_pgstate.memory import items
from langgraph_pgstate.memory.indexing import move_large_namespaces
from langgraph_pgstate.otlp import exports
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.record import budgets, dead_runs
from langgraph_pgstate.runs import tending
from langgraph_pgstate.schema import partitions
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads import prune

_LOCK_TIMEOUT: Final = "500ms"
_log = logging.getLogger("langgraph_pgstate.admin")


async def maintain(
    runner: Runner,
    queries: Queries,
    tenants: Sequence[Runner] | None,
    *,
    months: int,
    drop_older_than: int | None,
    stream_ttl: timedelta,
) -> MaintenanceReport:
    """Create partitions, end the runs of dead processes, and remove expired rows. Safe to repeat.

    Each part is its own transaction. Move journal entries of dead processes to the tables before.

    Args:
        runner: The database without a tenant.
        queries: The queries of the schema.
        tenants: The databases of the tenants; `None` if tenants are not kept apart.
        months: Number of months ahead for which partitions are made.
        drop_older_than: Number of months, before the current month, whose spans are kept; `None` to keep all spans.
        stream_ttl: Minimum time for which events of runs are kept. Events are dropped by days (UTC).
    """
    begun, run = time.monotonic(), runner.run
    made = await run(partitions.make_months, queries, months, strayed=True)
    await run(partitions.make_days, queries, strayed=True, lock_timeout=_LOCK_TIMEOUT)
    owners = [runner] if tenants is None else tenants
    old = [{*await one.run(partitions.list_old_days, queries, stream_ttl)} for one in owners]
    # A partition has one day's events of all tenants, so drop only days that every tenant may lose.
    days = await run(partitions.drop_days, queries, sorted(set.intersection(*old)) if old else [])
    gone: list[str] = []
    if drop_older_than is not None:
        # A partition has one month's spans of all tenants, so drop only months that every tenant may lose.
        months_of = [{*await one.run(partitions.list_old_months, queries, drop_older_than)} for one in owners]
        gone = sorted(set.intersection(*months_of)) if months_of else []
    dropped = await run(partitions.drop_months, queries, gone)
    report = MaintenanceReport(tuple(made), tuple(dropped), days_dropped=tuple(days))
    for one in owners:
        report += await maintain_rows(one, queries)
    await run(note, queries, time.monotonic() - begun, report)
    return report


async def maintain_rows(runner: Runner, queries: Queries) -> MaintenanceReport:
    """End the runs of dead processes, correct statuses, and remove expired rows, for one tenant or for all tenants."""
    run = runner.run
    settled = await _settle_dead_runs(runner, queries)
    await run(dead_runs.correct_statuses, queries)
    swept = await run(guards.sweep, queries)
    orphaned = await run(prune.sweep_orphans, queries)
    await run(exports.forget, queries)
    await run(budgets.forget_deleted_costs, queries)
    await run(tending.repair, queries)
    applied = await retention.apply_policies(runner, queries)
    forgotten = await run(items.sweep, queries)
    await items.sweep_vectors(runner, queries)
    await move_large_namespaces(runner, queries)
    return MaintenanceReport(
        runs_settled=settled,
        guards_swept=swept,
        orphan_writes=orphaned,
        memories_expired=forgotten,
        policies=tuple(applied),
    )


async def _settle_dead_runs(runner: Runner, queries: Queries) -> int:
    settled, after = 0, ("", "")
    while page := await runner.run(dead_runs.list_running, queries, after):
        after = page[-1][:2]
        for thread_id, dead in dead_runs.choose_dead(page, is_known_dead).items():
            try:
                settled += len(await runner.run(dead_runs.settle_runs, queries, thread_id, dead))
            except PGStateError as error:
                if error.retryable:
                    raise
                _log.error("runs of thread %r whose process died cannot be ended: %s", thread_id, error)
    return settled


async def note(db: Connection, queries: Queries, seconds: float, report: MaintenanceReport) -> None:
    """Store the results of maintenance and the current sizes of the tables. One statement.

    The stored results name no threads and policies, because all tenants can read them.
    """
    policies = sum(report.policies, PolicyReport(""))
    numbers = {name: value for name, value in asdict(policies).items() if type(value) is int}
    numbers |= {"held": len(policies.held), "failed": sum(bool(one.problems) for one in report.policies)}
    parameters = {
        "seconds": seconds,
        "report": json.dumps(asdict(report) | {"policies": numbers}),
        "schema": f'"{queries.schema}"',
    }
    await db.execute(queries.note_maintenance, parameters)
