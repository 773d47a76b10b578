"""Jobs of twenty keys, with a limit for each key and without."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from benchmarks.measure import OURS, CaseResult, MismatchError, Plan
from benchmarks.queue.contestants import JOB, QUEUE, Runs, ask
from benchmarks.queue.processes import next_time, worker_process
from benchmarks.queue.throughput import BATCH, CONCURRENCY
from benchmarks.server import Server
from langgraph_pgstate import PGState
from langgraph_pgstate.runs import Runs as OurRuns

NAME = "limits"
TITLE = "Jobs that do nothing, of twenty keys: with a limit for each key, and without"
UNLIMITED = "no limits"
_KEYS = 20
_LIMIT = 10


def run(server: Server, plan: Plan) -> CaseResult:
    """Both by turns, with an empty database in each round; skipped while queues have no limits."""
    result = CaseResult(NAME, TITLE)
    if not hasattr(OurRuns, "limit"):
        result.notes.append("Not measured: queues have no limits yet.")
        return result
    result.notes.append(f"{CONCURRENCY} jobs at a time, at most {_LIMIT} of each of {_KEYS} keys.")
    metric = result.metric("claims", "jobs worked off", "jobs/s", lower_is_better=False)
    jobs = plan.pick(1000, 400)
    for _ in range(plan.rounds):
        for name in plan.shuffled([OURS, UNLIMITED]):
            metric.add(name, jobs / _seconds(server, jobs, has_limit=name == OURS))
    return result


def _seconds(server: Server, jobs: int, *, has_limit: bool) -> float:
    with server.database("limits") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        contestant = Runs(dsn)
        contestant.install()
        with PGState.open(dsn) as state:
            runs: Any = state.runs
            if has_limit:
                runs.limit(QUEUE, key="*", concurrency=_LIMIT)
            for start in range(0, jobs, BATCH):
                runs.enqueue_batch(
                    [
                        {"graph": JOB, "input": {"number": 0}, "queue": QUEUE, "key": f"key {number % _KEYS}"}
                        for number in range(start, min(start + BATCH, jobs))
                    ]
                )
        connection.execute("ANALYZE")
        server.checkpoint()
        with worker_process(OURS, dsn, CONCURRENCY, jobs) as times:
            first = next_time(times)
            next_time(times)
            while ask(connection, contestant.unfinished):
                time.sleep(0.002)
            taken = time.monotonic() - first
        if (finished := ask(connection, contestant.finished)) != jobs:
            raise MismatchError(f"{NAME}: {finished} of {jobs} jobs were finished")
    return taken
