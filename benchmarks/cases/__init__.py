"""The cases, in the order they run. Each has a `NAME`, a `TITLE` and `run(server, plan)`.

One whose sizes are measured in a process each has `sizes(plan)`, too.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import (
    chat,
    concurrency,
    history,
    imports,
    latest,
    lists,
    prune,
    recording,
    round_trips,
    threads,
    values,
)
from benchmarks.measure import CaseResult, Plan
from benchmarks.server import Server

Case = Callable[[Server, Plan], CaseResult]
SIZES: dict[str, Callable[[Plan], tuple[int, ...]]] = {module.NAME: module.sizes for module in (lists, values)}
CASES: dict[str, Case] = {
    module.NAME: module.run
    for module in (chat, threads, lists, values, history, latest, recording, concurrency, prune, round_trips, imports)
}
