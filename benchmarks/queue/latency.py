"""From the call that enqueues a job until it begins in another process, with nothing else to do."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack

from benchmarks.measure import OURS, CaseResult, Plan
from benchmarks.queue.contestants import CONTESTANTS, OTHERS
from benchmarks.queue.processes import next_time, worker_process
from benchmarks.server import Server

NAME = "start"
TITLE = "From the call that enqueues a job until it begins in an idle worker"


def run(server: Server, plan: Plan) -> CaseResult:
    """All contestants side by side, one job at a time: jobs that run a graph, then jobs that do nothing."""
    result = CaseResult(NAME, TITLE)
    result.notes.append(
        "p50 of a round, each contestant with its defaults. A superstep begins when the only node of a graph does: "
        "ours in a run of the worker, the others' in a job that runs the graph on a new thread with LangGraph's own "
        "saver."
    )
    _measure(server, plan, result, "superstep", "enqueue to the first superstep, p50", graph=True)
    _measure(server, plan, result, "job", "enqueue to the begin of a job that does nothing, p50", graph=False)
    return result


def _measure(server: Server, plan: Plan, result: CaseResult, key: str, label: str, *, graph: bool) -> None:
    metric = result.metric(key, label, "ms")
    samples = plan.pick(20, 5)
    pauses = random.Random(7)
    with ExitStack() as stack:
        clients, begun = {}, {}
        for name in (OURS, *OTHERS):
            dsn = stack.enter_context(server.database("queue"))
            contestant = CONTESTANTS[name](dsn)
            contestant.install()
            clients[name] = stack.enter_context(contestant.client())
            begun[name] = stack.enter_context(worker_process(name, dsn, None, graph=graph))
        for number in range(plan.rounds + 1):
            taken: dict[str, list[float]] = {name: [] for name in clients}
            for _ in range(samples if number else 2):
                for name in plan.shuffled([*clients]):
                    # Not in step with anybody's polls.
                    time.sleep(pauses.uniform(0.05, 0.15))
                    start = time.monotonic()
                    clients[name](1)
                    taken[name].append(next_time(begun[name]) - start)
            if number:
                for name, seconds in taken.items():
                    metric.add(name, statistics.median(seconds) * 1000)
