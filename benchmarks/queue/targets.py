"""The figures that durable runs promise, and how a run compares with them."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.measure import CaseResult, Metric
from benchmarks.queue.claims import EMPTY
from benchmarks.queue.contestants import OTHERS
from benchmarks.queue.following import WITHOUT
from benchmarks.queue.graphs import INVOKED
from benchmarks.queue.limits import UNLIMITED
from benchmarks.targets import Outcome, Target


def fastest(metric: Metric | None) -> str | None:
    """The best of the other queues by its median."""
    medians = {name: metric.median(name) for name in OTHERS} if metric else {}
    found = {name: median for name, median in medians.items() if median is not None}
    if metric is None or not found:
        return None
    return (min if metric.lower_is_better else max)(found, key=lambda name: found[name])


def outcomes(results: Iterable[CaseResult]) -> list[Outcome]:
    """Compare a run with all targets; for those against other queues, with the fastest of them."""
    metrics = {key: metric for result in results for key, metric in result.metrics.items()}
    targets = (
        *(
            Target(f"no-op jobs, {what}", key, 0.5, 1.0, fastest(metrics.get(key)))
            for what, key in (("enqueued and worked off", "jobs/both"), ("worked off", "jobs/work"))
        ),
        Target(
            "enqueue to the first superstep, idle, p50",
            "start/superstep",
            1.0,
            None,
            fastest(metrics.get("start/superstep")),
        ),
        Target("enqueue to the first superstep, idle, p50, in ms", "start/superstep", None, 15, None, at_most=True),
        *(
            Target(f"claim with many runs waiting, ids {ids}", f"claims/{ids}", 1.5, 1.1, EMPTY, at_most=True)
            for ids in ("in order", "scattered")
        ),
        Target("claims per second with limits per key", "limits/claims", 0.8, 0.95, UNLIMITED),
        Target("token to reader, p95, in ms", "streams/p95", 150, None, None, at_most=True),
        Target("commits per second of a worker for 50 streams", "streams/commits", 20, None, None, at_most=True),
        Target("supersteps of a worker kept with streams", "streams/supersteps", 0.9, None, WITHOUT),
        Target("three-node graph through the queue", "graph/time", 2, 1.3, INVOKED, at_most=True),
        *(
            Target(f"SIGKILL to the next superstep elsewhere, {how}", f"kill/{how}", 15, None, None, at_most=True)
            for how in ("not reaped", "reaped")
        ),
    )
    return [Outcome(target, metrics.get(target.metric)) for target in targets]
