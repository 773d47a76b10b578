"""Claims of ten runs, with a million waiting and with none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from benchmarks.contestants import OUR_OPTIONS
from benchmarks.measure import OURS, CaseResult, Plan
from benchmarks.server import Server
from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.runs import claiming, ending, enqueue
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.schema.queries import queries

NAME = "claims"
TITLE = "Claims of ten runs, with many runs waiting"
EMPTY = "empty queue"
_BATCH = 10
# Ids of a thread and of its run, from the number of a run.
_IDS = {
    "in order": "'0' || lpad(i::text, 12, '0'), '0' || lpad(i::text, 12, '0')",
    "scattered": "md5(i::text)::uuid::text, md5('run' || i)::uuid::text",
}


class Queue:
    """A queue of its own, on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        PGStateSaver(connection, schema=schema).setup()
        self._run = Database(connection, schema=schema).run
        self._queries, self._codec = queries(schema), ValueCodec()
        self._connection, self.schema = connection, schema

    def fill(self, ids: str, number: int) -> None:
        """Have so many runs wait, and collect statistics."""
        given = f"SELECT {ids}, i FROM generate_series(1, {number}) AS i"
        self._connection.execute(
            f"CREATE TEMP TABLE waiting (thread_id, run_id, i) AS {given}; "
            f"INSERT INTO {self.schema}.threads (thread_id, status) SELECT thread_id, 'busy' FROM waiting; "
            f"INSERT INTO {self.schema}.runs (thread_id, run_id, attempt, status, started_at, queue) "
            # One after the other: an index by time would be as scattered as the ids.
            "SELECT thread_id, run_id, 0, 'pending', now() - interval '1 hour' + i * interval '1 ms', 'default' "
            "FROM waiting; "
            f"INSERT INTO {self.schema}.run_requests (thread_id, run_id, options, data) "
            """SELECT thread_id, run_id, '{"graph": "noop"}', '\\x00' FROM waiting; """
            f"INSERT INTO {self.schema}.queue (thread_id, run_id, queue, graph, is_ready, number, position) "
            "SELECT thread_id, run_id, 'default', 'noop', true, 0, i FROM waiting; "
            "DROP TABLE waiting".encode()
        )
        for table in ("threads", "runs", "run_requests", "queue", "leases"):
            self._connection.execute(f"VACUUM (ANALYZE, FREEZE) {self.schema}.{table}")

    def turn(self) -> float:
        """Enqueue ten runs, claim ten and end them; the seconds of the claim."""
        requests = [request_run(self._codec, "noop", {"number": 0}) for _ in range(_BATCH)]
        self._run(enqueue.enqueue, self._queries, requests)
        start = time.perf_counter()
        claimed = self._run(claiming.claim, self._queries, "worker", "default", ["noop"], _BATCH, 12.0)
        taken = time.perf_counter() - start
        keys = [one.key for one in claimed.runs]
        assert len(keys) == _BATCH
        self._run(ending.finish_together, self._queries, keys, "success")
        return taken


def run(server: Server, plan: Plan) -> CaseResult:
    """Both queues on one connection each, by turns."""
    waiting = plan.pick(1_000_000, 20_000)
    result = CaseResult(NAME, TITLE)
    result.notes.append(
        f"{waiting:,} runs of as many threads wait; those that have waited longest are claimed. Ids of threads and "
        "runs in the order of enqueueing, as UUIDs of version 7 are, or scattered, as those of version 4 are. "
        "Autovacuum is off."
    )
    for what, ids in _IDS.items():
        metric = result.metric(what, f"claim of ten runs, {waiting:,} waiting, ids {what}", "ms")
        with ExitStack() as stack:
            found: dict[str, Callable[[], float]] = {}
            for name in (OURS, EMPTY):
                schema = stack.enter_context(server.schema("claims"))
                connection = stack.enter_context(psycopg.connect(server.dsn, **OUR_OPTIONS))
                queue = Queue(connection, schema)
                if name == OURS:
                    queue.fill(ids, waiting)
                found[name] = queue.turn
            server.checkpoint()
            for number in range(plan.rounds + 1):
                taken: dict[str, list[float]] = {name: [] for name in found}
                for _ in range(plan.pick(20, 5)):
                    for name in plan.shuffled([*found]):
                        taken[name].append(found[name]())
                if number:
                    for name, seconds in taken.items():
                        metric.add(name, statistics.median(seconds) * 1000)
    return result
