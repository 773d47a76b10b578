"""State that is no list and changes whole at every put: 1 KB, 200 KB, 2 MB."""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks.contestants import RawInsert, open_raw, open_session
from benchmarks.conversation import Chain, text
from benchmarks.measure import MEMORY, OURS, RAW, UPSTREAM, CaseResult, Plan, quiet, require_equal, timed
from benchmarks.server import Server

NAME = "values"
TITLE = "A dict channel that changes completely at every put"
SIZES = {"1 KB": 1_000, "200 KB": 200_000, "2 MB": 2_000_000}
_WARM_UP = 8
_CHANNEL = "document"
_WHATS = ("put", "get", "cold get")


def sizes(plan: Plan) -> tuple[int, ...]:
    """Each is measured by itself, so that 2 MB are not in the way of 1 KB."""
    return tuple(SIZES.values())


def run(server: Server, plan: Plan) -> CaseResult:
    """Put and get_tuple, in turns; for 1 KB also the floor, an INSERT of the same bytes."""
    result = CaseResult(NAME, TITLE)
    result.notes.append(
        "raw INSERT: one prepared single-row statement in autocommit with the serialized value's bytes."
    )
    result.notes.append("cold get: by a new saver over the same connections, as after a restart of the process.")
    serde = JsonPlusSerializer()
    for label, size in SIZES.items():
        if plan.size not in (None, size):
            continue
        repeats = {1_000: plan.pick(100, 60), 200_000: plan.pick(12, 6), 2_000_000: plan.pick(5, 2)}[size]
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(open_session(name, server, single=True)) for name in (OURS, UPSTREAM, MEMORY)
            ]
            raw = stack.enter_context(open_raw(server)) if size == 1_000 else None
            contestants: list[Any] = [*sessions, raw] if raw else sessions
            chain = Chain(f"values-{size}")
            number = 0
            for index in range(plan.rounds + 1):
                is_warm_up = index == 0
                times: dict[str, dict[str, list[float]]] = {what: defaultdict(list) for what in _WHATS}
                with quiet():
                    for _ in range(_WARM_UP if is_warm_up else repeats):
                        number += 1
                        value = _document(size, number)
                        data = serde.dumps_typed(value)[1]
                        put = chain.next(_CHANNEL, value)
                        for one in plan.shuffled(contestants):
                            if isinstance(one, RawInsert):
                                times["put"][RAW].append(timed(one.insert, "values", put.checkpoint["id"], data))
                            else:
                                times["put"][one.name].append(timed(one.saver.put, *put.arguments()))
                        for one in plan.shuffled(sessions):
                            times["get"][one.name].append(timed(one.saver.get_tuple, chain.config))
                        for one in plan.shuffled(sessions):
                            times["cold get"][one.name].append(timed(one.restarted().get_tuple, chain.config))
                if is_warm_up:
                    continue
                for what, by_name in times.items():
                    for name, seconds in by_name.items():
                        metric = result.metric(f"{what}/{label}", f"{what} of {label}", "ms")
                        metric.add(name, statistics.median(seconds) * 1000)
                found = {one.name: one.saver.get_tuple(chain.config) for one in sessions}
                require_equal(
                    f"values: {label}",
                    {"expected": value}
                    | {name: one and one.checkpoint["channel_values"][_CHANNEL] for name, one in found.items()},
                )
    return result


def _document(size: int, number: int) -> dict[str, Any]:
    """A document of about `size` bytes: sections of a few paragraphs, all new."""
    part = min(size, 2_000)
    return {
        "title": text(f"title-{size}", number, 60),
        "revision": number,
        "sections": [
            {"heading": text(f"heading-{size}-{number}", index, 30), "body": text(f"body-{size}-{number}", index, part)}
            for index in range(size // part)
        ],
    }
