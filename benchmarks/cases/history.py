"""Reading the past: the ten latest checkpoints, and all of them, of a 200-message conversation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from langchain_core.runnables import RunnableConfig

from benchmarks.contestants import open_session
from benchmarks.conversation import Dialogue, build_graph
from benchmarks.measure import MEMORY, OURS, UPSTREAM, CaseResult, Plan, quiet, require_equal, timed
from benchmarks.server import Server

NAME = "list"
TITLE = "list() of a conversation grown to N messages by the graph"


def run(server: Server, plan: Plan) -> CaseResult:
    """The savers' `list`, consumed to its end."""
    size = plan.pick(200, 100)
    result = CaseResult(NAME, TITLE)
    repeats = {10: plan.pick(10, 5), None: plan.pick(2, 1)}
    with ExitStack() as stack:
        names = (OURS, UPSTREAM, MEMORY)
        sessions = [stack.enter_context(open_session(name, server, single=True)) for name in names]
        dialogues = [Dialogue(build_graph(session.saver), "list") for session in sessions]
        for dialogue in dialogues:
            dialogue.take_until(size)
        config: RunnableConfig = {"configurable": {**dialogues[0].config["configurable"], "checkpoint_ns": ""}}
        histories = {session.name: [*session.saver.list(config)] for session in sessions}
        require_equal(
            "list: history",
            {
                name: [(one.checkpoint["channel_values"].get("messages"), one.metadata["step"]) for one in history]
                for name, history in histories.items()
            },
        )
        count = len(histories.pop(OURS))
        histories.clear()
        for limit, label in ((10, "list(limit=10)"), (None, f"full history of {count} checkpoints")):
            for session in sessions:
                for _ in range(6):
                    [*session.saver.list(config, limit=limit)]
            for _ in range(plan.rounds):
                times: dict[str, list[float]] = {session.name: [] for session in sessions}
                for _ in range(repeats[limit]):
                    for session in plan.shuffled(sessions):
                        with quiet():
                            times[session.name].append(timed(_consume, session.saver.list, config, limit=limit))
                metric = result.metric(f"{limit or 'all'}", f"{label}, {size} messages", "ms")
                for name, seconds in times.items():
                    metric.add(name, statistics.median(seconds) * 1000)
    return result


def _consume(listing: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> None:
    for _ in listing(*args, **kwargs):
        pass
