"""From the call that enqueues a job until it begins in another process, with nothing else to do."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack

from benchmarks.measure import OURS, CaseResult, Plan
from benchmarks.queue.contestants import CONTESTANTS, OTHERS, WITH_GRAPH
from benchmarks.queue.processes import next_time, worker_process
from benchmarks.server import Server

NAME = "start"
TITLE = "From the call that enqueues a job until it begins in an idle worker"


def run(server: Server, plan: Plan) -> CaseResult:
    """All contestants side by side, one job at a time."""
    result = CaseResult(NAME, TITLE)
    result.notes.append(
        "p50 of a round, each contestant with its defaults. Ours begins when the only node of a graph begins: the run "
        "is claimed and its first superstep runs."
    )
    metric = result.metric("p50", "enqueue to begin, p50", "ms")
    samples = plan.pick(20, 5)
    pauses = random.Random(7)
    with ExitStack() as stack:
        clients, begun = {}, {}
        for name in (WITH_GRAPH, *OTHERS):
            dsn = stack.enter_context(server.database("queue"))
            contestant = CONTESTANTS[name](dsn)
            contestant.install()
            clients[name] = stack.enter_context(contestant.client())
            begun[name] = stack.enter_context(worker_process(name, dsn, None))
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
                    metric.add(OURS if name == WITH_GRAPH else name, statistics.median(seconds) * 1000)
    return result
