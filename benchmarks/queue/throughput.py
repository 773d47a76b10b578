"""Jobs that do nothing: enqueued in batches, then worked off by one process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg

from benchmarks.measure import OURS, CaseResult, MismatchError, Plan
from benchmarks.queue.contestants import CONTESTANTS, OTHERS, ask
from benchmarks.queue.processes import next_time, worker_process
from benchmarks.server import Server

NAME = "jobs"
TITLE = "Jobs that do nothing, per second: enqueued in batches of 100, then worked off by one process"
CONCURRENCY = 100
BATCH = 100


def run(server: Server, plan: Plan) -> CaseResult:
    """Each contestant in turn, with an empty database in each round."""
    return measure(server, plan, (OURS, *OTHERS), plan.pick(1000, 400), plan.pick(300, 60))


def measure(server: Server, plan: Plan, names: Sequence[str], jobs: int, graphs: int) -> CaseResult:
    """Measure some contestants with a number of jobs that do nothing, and a number that run a graph."""
    result = CaseResult(NAME, TITLE)
    result.notes += [
        f"{jobs:,} jobs a round, {CONCURRENCY} at a time, each queue in an empty database with statistics of its "
        "tables; from the begin of the first job until the last is stored as finished.",
        f"With a graph: {graphs:,} jobs, each of which runs a graph of one node on a thread of its own; ours with its "
        "checkpoints and its record, the others' in the job, with LangGraph's own saver.",
        *(f"{name}: {CONTESTANTS[name].settings}." for name in names),
    ]
    both = result.metric("both", "enqueued and worked off", "jobs/s", lower_is_better=False)
    enqueued = result.metric("enqueue", "enqueued", "jobs/s", lower_is_better=False)
    worked = result.metric("work", "worked off", "jobs/s", lower_is_better=False)
    run = result.metric("graph", "graphs of one node, enqueued and worked off", "jobs/s", lower_is_better=False)
    for _ in range(plan.rounds):
        for name in plan.shuffled(names):
            first, then = _measure_one(server, name, jobs)
            enqueued.add(name, jobs / first)
            worked.add(name, jobs / then)
            both.add(name, jobs / (first + then))
            run.add(name, graphs / sum(_measure_one(server, name, graphs, graph=True)))
    return result


def _measure_one(server: Server, name: str, jobs: int, *, graph: bool = False) -> tuple[float, float]:
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
        with worker_process(name, dsn, CONCURRENCY, jobs, graph=graph) as times:
            first = next_time(times)
            next_time(times)
            while ask(connection, contestant.unfinished):
                time.sleep(0.002)
            to_work = time.monotonic() - first
        if (finished := ask(connection, contestant.finished)) != jobs:
            raise MismatchError(f"{NAME}: {name} has finished {finished} of {jobs} jobs")
    return to_enqueue, to_work
