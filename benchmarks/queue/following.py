"""Streams of runs, followed by another process."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import OURS, CaseResult, Plan
from benchmarks.server import Server

NAME = "streams"
TITLE = "Streams: 50 runs of 100 tokens per second, followed by another process"
WITHOUT = "no stream"


def run(server: Server, plan: Plan) -> CaseResult:
    """What `benchmarks.queue.streams` measures; skipped while runs have no streams."""
    result = CaseResult(NAME, TITLE)
    if find_spec("benchmarks.queue.streams") is None:
        result.notes.append("Not measured: runs have no streams yet.")
        return result
    streams: Any = import_module("benchmarks.queue.streams")
    with server.database("streams") as dsn:
        figures = asyncio.run(streams.measure(dsn, plan.rounds))
    for what, label, value in (
        ("p50", "token to reader, p50", figures.latency_p50 * 1000),
        ("p95", "token to reader, p95", figures.latency_p95 * 1000),
    ):
        result.metric(what, label, "ms").add(OURS, value)
    result.metric("commits", "commits of the worker for 50 streams", "commits/s").add(OURS, figures.commits_per_second)
    speed = result.metric("supersteps", "supersteps of a worker that streams", "supersteps/s", lower_is_better=False)
    speed.add(OURS, figures.supersteps_on)
    speed.add(WITHOUT, figures.supersteps_off)
    return result
