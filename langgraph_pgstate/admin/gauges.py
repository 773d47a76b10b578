"""Numbers for monitoring: queue, runs, interrupts, unknown effects, journal, cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from langgraph_pgstate.admin.types import Gauge
from langgraph_pgstate.db.protocol import Connection, Rows
from langgraph_pgstate.record.feedback import MOST_ROWS
from langgraph_pgstate.schema.queries import Queries

GAUGES: Final = {
    "queue_runs": "Runs in the queue: pending, delayed (not due yet) or running.",
    "queue_oldest_run_seconds": "Longest time for which a run has been pending (since it was due) or running.",
    "queue_unaccepted_runs": "Pending runs that no living worker accepts.",
    "queue_workers": "Living workers that serve the queue.",
    "queue_worker_slots": "Maximum number of runs that the living workers of the queue run at once.",
    "running_runs": "Running runs, of the queue and of graphs that were invoked directly.",
    "oldest_running_run_seconds": "Time since the oldest running run began.",
    "stuck_runs": "Running runs whose process has died, and that are not ended yet.",
    "recent_runs": "Runs that began in the last hour, by status.",
    "recent_refused_runs": "Runs that were refused in the last hour because of another run on the thread.",
    "recent_model_calls": "Model calls that began in the last hour.",
    "recent_model_tokens": "Tokens of the model calls that began in the last hour.",
    "recent_model_cost": "Cost of the model calls that began in the last hour, in the currency of the table of prices.",
    "recent_unpriced_model_calls": "Model calls that began in the last hour and have no price.",
    "interrupted_threads": "Threads that wait for an answer.",
    "oldest_interrupt_seconds": "Time since the last activity of the thread that waits longest for an answer.",
    "unknown_effects": "Actions of tools with an unknown outcome: a person must settle them.",
    "oldest_unknown_effect_seconds": "Time since the oldest action with an unknown outcome began.",
    "journal_entries": "Recorded entries that are not in the tables yet.",
    "oldest_journal_entry_seconds": "Age of the oldest entry that is not in the tables yet.",
    "pending_webhooks": "Webhooks that are to be delivered, at once or again.",
    "oldest_pending_webhook_seconds": "Time since the end of the run whose webhook has waited longest.",
    "recent_failed_webhooks": "Webhooks of runs of the last day that could not be delivered.",
    "pending_span_exports": "Batches of ended spans that the exporter of traces has not sent yet.",
    "oldest_pending_span_export_seconds": "Age of the oldest batch of ended spans that is not exported yet.",
    "expired_threads": "Threads that have expired and are not deleted yet.",
    "oldest_expired_thread_seconds": "Time since the first expiry of a thread that is not deleted yet.",
}
"""The numbers that `read_gauges` returns, with their meaning."""


async def read_gauges(db: Connection, queries: Queries, within: timedelta) -> list[Gauge]:
    """Return the numbers of `GAUGES`. One transaction; each statement reads at most `MOST_ROWS` rows.

    `within` is the maximum time of a statement.
    """
    most = {"most": MOST_ROWS}
    found: list[Gauge] = []
    async with db.transaction():
        await db.fetch(queries.set_statement_timeout, {"timeout": f"{within // timedelta(milliseconds=1)}ms"})
        found += _queue(await db.fetch(queries.measure_queue, most))
        for queue, workers, slots in await db.fetch(queries.count_workers, {}):
            found.append(Gauge("queue_workers", {"queue": queue}, workers))
            found.append(Gauge("queue_worker_slots", {"queue": queue}, slots))
        running, stuck, age = (await db.fetch(queries.measure_running, most))[0]
        found.append(Gauge("running_runs", {}, running))
        found.append(Gauge("oldest_running_run_seconds", {}, age))
        found.append(Gauge("stuck_runs", {}, stuck))
        for agent, status, runs in await db.fetch(queries.count_recent_runs, most):
            found.append(Gauge("recent_runs", {"agent": agent, "status": status}, runs))
        for error, runs in await db.fetch(queries.count_recent_refusals, most):
            found.append(Gauge("recent_refused_runs", {"error": error}, runs))
        found += _calls(await db.fetch(queries.measure_recent_calls, most))
        threads, age = (await db.fetch(queries.measure_interrupts, most))[0]
        found.append(Gauge("interrupted_threads", {}, threads))
        found.append(Gauge("oldest_interrupt_seconds", {}, age))
        for tool, effects, age in await db.fetch(queries.measure_unknown_effects, most):
            found.append(Gauge("unknown_effects", {"tool": tool}, effects))
            found.append(Gauge("oldest_unknown_effect_seconds", {"tool": tool}, age))
        entries, age = (await db.fetch(queries.measure_journal, most))[0]
        found.append(Gauge("journal_entries", {}, entries))
        found.append(Gauge("oldest_journal_entry_seconds", {}, age))
        webhooks, age, failed = (await db.fetch(queries.measure_webhooks, most))[0]
        found.append(Gauge("pending_webhooks", {}, webhooks))
        found.append(Gauge("oldest_pending_webhook_seconds", {}, age))
        found.append(Gauge("recent_failed_webhooks", {}, failed))
        exports, age = (await db.fetch(queries.measure_exports, most))[0]
        found.append(Gauge("pending_span_exports", {}, exports))
        found.append(Gauge("oldest_pending_span_export_seconds", {}, age))
        threads, age = (await db.fetch(queries.measure_expired, most))[0]
        found.append(Gauge("expired_threads", {}, threads))
        found.append(Gauge("oldest_expired_thread_seconds", {}, age))
    return found


def _queue(rows: Rows) -> Iterator[Gauge]:
    """Yield the numbers of the queue, summed over the versions of a graph."""
    runs: dict[tuple[str, str], int] = defaultdict(int)
    ages: dict[tuple[str, str], float] = defaultdict(float)
    unaccepted: dict[tuple[str, str], int] = defaultdict(int)
    for queue, graph, status, number, seconds, is_accepted in rows:
        runs[queue, status] += number
        if status != "delayed":
            ages[queue, status] = max(ages[queue, status], seconds)
        if status == "pending":
            unaccepted[queue, graph] += 0 if is_accepted else number
    for (queue, status), number in runs.items():
        yield Gauge("queue_runs", {"queue": queue, "status": status}, number)
    for (queue, status), seconds in ages.items():
        yield Gauge("queue_oldest_run_seconds", {"queue": queue, "status": status}, seconds)
    for (queue, graph), number in unaccepted.items():
        yield Gauge("queue_unaccepted_runs", {"queue": queue, "graph": graph}, number)


def _calls(rows: Rows) -> Iterator[Gauge]:
    for agent, model, calls, cost, tokens_read, tokens_written, unpriced in rows:
        labels = {"agent": agent, "model": model}
        yield Gauge("recent_model_calls", labels, calls)
        yield Gauge("recent_model_tokens", {**labels, "direction": "input"}, tokens_read)
        yield Gauge("recent_model_tokens", {**labels, "direction": "output"}, tokens_written)
        yield Gauge("recent_model_cost", labels, cost)
        yield Gauge("recent_unpriced_model_calls", labels, unpriced)
