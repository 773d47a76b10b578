"""Jobs that do nothing: enqueued in batches, then worked off by one process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg

from benchmarks.measure import OURS, CaseResult, MismatchError, Plan
from benchmarks.queue.contestants import CONTESTANTS, OTHERS, WITH_GRAPH, ask
from benchmarks.queue.processes import next_time, worker_process
from benchmarks.server import Server

NAME = "jobs"
TITLE = "Jobs that do nothing, per second: enqueued in batches of 100, then worked off by one process"
CONCURRENCY = 100
BATCH = 100


def run(server: Server, plan: Plan) -> CaseResult:
    """Each contestant in turn, with an empty database in each round."""
    return measure(server, plan, (OURS, WITH_GRAPH, *OTHERS), plan.pick(1000, 400))


def measure(server: Server, plan: Plan, names: Sequence[str], jobs: int) -> CaseResult:
    """Measure some contestants with a number of jobs."""
    result = CaseResult(NAME, TITLE)
    result.notes += [
        f"{jobs:,} jobs a round, {CONCURRENCY} at a time, each queue in an empty database with statistics of its "
        "tables; from the begin of the first job until the last is stored as finished.",
        "Ours is the queue and the worker with nothing to run; with a graph, a run has one node, its checkpoints and "
        "its record.",
        *(f"{name}: {CONTESTANTS[name].settings}." for name in names if name != WITH_GRAPH),
    ]
    both = result.metric("both", "enqueued and worked off", "jobs/s", lower_is_better=False)
    enqueued = result.metric("enqueue", "enqueued", "jobs/s", lower_is_better=False)
    worked = result.metric("work", "worked off", "jobs/s", lower_is_better=False)
    for _ in range(plan.rounds):
        for name in plan.shuffled(names):
            first, then = _measure_one(server, name, jobs)
            enqueued.add(name, jobs / first)
            worked.add(name, jobs / then)
            both.add(name, jobs / (first + then))
    return result


def _measure_one(server: Server, name: str, jobs: int) -> tuple[float, float]:
    """Seconds to enqueue jobs, and to work them off."""
    with server.database("queue") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        contestant = CONTESTANTS[name](dsn)
        contestant.install()
        with contestant.client() as enqueue:
            enqueue(1)
            start = time.monotonic()
            for done in range(0, jobs - 1, BATCH):
                enqueue(min(BATCH, jobs - 1 - done))
            to_enqueue = time.monotonic() - start
        connection.execute("ANALYZE")
        server.checkpoint()
        with worker_process(name, dsn, CONCURRENCY, jobs) as times:
            first = next_time(times)
            next_time(times)
            while ask(connection, contestant.unfinished):
                time.sleep(0.002)
            to_work = time.monotonic() - first
        if (finished := ask(connection, contestant.finished)) != jobs:
            raise MismatchError(f"{NAME}: {name} has finished {finished} of {jobs} jobs")
    return to_enqueue, to_work
