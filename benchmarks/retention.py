"""How long puts take while policies of retention archive, prune and delete threads beside them.

    python -m benchmarks.retention [--pairs 5] [--seconds 30]

prints a table, and writes `benchmarks/results/retention.json`. One process puts checkpoints of chats, a hundred in a
second, each onto the thread of the last but twenty. Another one applies policies as workers do, to copies of a thread
of ten checkpoints that are old enough. Turns with and without it alternate; a ratio compares the 95th percentiles of
the two turns of a pair, and the table has the median of the ratios. The server and both processes share the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.__main__ import RESULTS
from benchmarks.archive import put_thread
from langgraph_pgstate import PGState
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.runners import BlockingRunner
from langgraph_pgstate.keep.retention import apply_policies
from langgraph_pgstate.keep.thread import Pace

RESULT: Final = RESULTS / "retention.json"
SCHEMA: Final = "retention"
THREADS: Final = 20
PAUSE: Final = 0.01
OLD: Final = timedelta(seconds=1)
ACTIONS: Final = ("nothing", "archive", "prune", "delete")


class Chats:
    """Threads that grow by a message at each put."""

    def __init__(self, state: PGState) -> None:
        self._state = state
        self._count = 0
        self._threads: list[tuple[Any, list[Any]]] = [
            ({"configurable": {"thread_id": f"live-{number}", "checkpoint_ns": "", "user_id": "adam"}}, [])
            for number in range(THREADS)
        ]

    def put(self) -> float:
        """Put a checkpoint, and return the seconds that it took."""
        place, self._count = self._count % THREADS, self._count + 1
        config, messages = self._threads[place]
        messages = [*messages, AIMessage(f"answer {self._count} " + "word " * 100, id=str(self._count))]
        versions = {"messages": f"{len(messages):032}.0"}
        values: Any = {"channel_values": {"messages": messages}, "channel_versions": versions}
        checkpoint: Any = {**empty_checkpoint(), "v": 4, **values}
        begun = time.perf_counter()
        config = self._state.saver.put(config, checkpoint, {"source": "loop", "step": len(messages)}, versions)  # type: ignore[arg-type]
        took = time.perf_counter() - begun
        # A chat of more than 100 messages begins again.
        fresh = {"configurable": {**config["configurable"], "thread_id": f"live-{self._count}", "checkpoint_id": None}}
        self._threads[place] = (config, messages) if len(messages) < 100 else (fresh, [])
        return took

    def turn(self, seconds: float) -> list[float]:
        """Put at a steady pace for a time."""
        found, due = [], time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(0.0, due - time.perf_counter()))
            found.append(self.put())
            due = max(due + PAUSE, time.perf_counter() - PAUSE)
        return found


def apply(dsn: str, given: Any) -> None:
    """Apply the policies that exist whenever asked, until told to stop. Runs as a process of its own."""
    with PGState.open(dsn, schema=SCHEMA, recover_journal=False) as state:
        while (seconds := given.recv()) is not None:
            until = time.monotonic() + seconds
            pace = Pace(threading.Event())
            applying = apply_policies(
                BlockingRunner(state._database),
                state._queries,
                goes_on=lambda until=until, pace=pace: pace.goes_on() and time.monotonic() < until,
            )
            given.send([(one.archived, one.checkpoints, one.deleted) for one in run_blocking(applying)])


def run(pairs: int, seconds: float, backlog: int, actions: Sequence[str] = ACTIONS) -> dict[str, Any]:
    """Measure, and return the figures."""
    found: dict[str, Any] = {"processors": os.cpu_count(), "pairs": pairs, "seconds": seconds, "actions": {}}
    with (
        tempfile.TemporaryDirectory(prefix="pgstate-retention-") as directory,
        embedded_server(Path(directory) / "data") as dsn,
        PGState.open(dsn, schema=SCHEMA) as state,
    ):
        state.setup()
        chats = Chats(state)
        here, there = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=apply, args=(dsn, there))
        worker.start()
        policies: dict[str, dict[str, Any]] = {
            "nothing": {"delete_after": timedelta(days=1)},
            "archive": {"archive_after": OLD, "archive_to": f"file://{directory}/objects"},
            "prune": {"prune_after": OLD},
            "delete": {"delete_after": OLD},
        }
        for action in actions:
            put_thread(state, action)
            for number in range(1, backlog):
                state.saver.copy_thread(action, f"{action}-{number}")
            time.sleep(OLD.total_seconds() * 1.5)
            state.retention.put("policy", user_id="eve", **policies[action])
            chats.turn(1.0)
            ratios, plain, beside, done = [], [], [], [0, 0, 0]
            for _ in range(pairs):
                alone = chats.turn(seconds)
                here.send(seconds)
                with_it = chats.turn(seconds)
                for report in here.recv():
                    done = [one + more for one, more in zip(done, report, strict=True)]
                plain.append(_p95(alone))
                beside.append(_p95(with_it))
                ratios.append(beside[-1] / plain[-1])
            found["actions"][action] = {
                "ratio": round(statistics.median(ratios), 3),
                "p95_ms": [round(statistics.median(one) * 1000, 2) for one in (plain, beside)],
                "done": dict(zip(("archived", "checkpoints", "deleted"), done, strict=True)),
            }
        here.send(None)
        worker.join()
    return found


def _p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--backlog", type=int, default=3000, help="old threads of each turn of the table")
    parser.add_argument("--actions", nargs="+", choices=ACTIONS, default=ACTIONS)
    options = parser.parse_args()
    found = run(options.pairs, options.seconds, options.backlog, options.actions)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print("| beside puts | 95th percentile, ms | beside it | ratio | done |\n|---|---|---|---|---|")
    for name, one in found["actions"].items():
        done = ", ".join(f"{number:,} {what}" for what, number in one["done"].items() if number)
        print(f"| {name} | {one['p95_ms'][0]} | {one['p95_ms'][1]} | {one['ratio']} | {done} |")


if __name__ == "__main__":
    main()
