"""How many threads of ten checkpoints are archived and restored in a second.

    python -m benchmarks.archive [--threads 2000] [--rounds 3]

prints a table, and writes `benchmarks/results/archive.json`. A thread is a chat of ten checkpoints with an answer of
600 bytes each, and a pending write for each; the archive is a folder, whose files are flushed to the disk. The server,
this process and the disk share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.__main__ import RESULTS
from langgraph_pgstate import PGState
from langgraph_pgstate.db.embedded import embedded_server

RESULT: Final = RESULTS / "archive.json"
CHECKPOINTS: Final = 10
ANSWER: Final = 600
NOW: Final = timedelta(0)


def put_thread(state: PGState, thread_id: str) -> None:
    """Store a thread of ten checkpoints."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "user_id": "eve"}}
    messages: list[Any] = []
    for step in range(CHECKPOINTS):
        text = f"{thread_id} says {step}: " + " ".join(f"word{(step * 31 + n * 7) % 997}" for n in range(ANSWER // 8))
        messages = [*messages, (HumanMessage if step % 2 == 0 else AIMessage)(text[:ANSWER], id=f"{thread_id}-{step}")]
        versions = {"messages": f"{step + 1:032}.0"}
        checkpoint: Any = {
            **empty_checkpoint(),
            "v": 4,
            "channel_values": {"messages": messages},
            "channel_versions": versions,
        }
        config = state.saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)  # type: ignore[arg-type]
        state.saver.put_writes(config, [("messages", [AIMessage(f"answer {step}")])], f"task-{step}")


def run(threads: int, rounds: int) -> dict[str, Any]:
    """Measure, and return the figures."""
    rates: dict[str, list[float]] = {"archive": [], "restore": []}
    with (
        tempfile.TemporaryDirectory(prefix="pgstate-archive-") as directory,
        embedded_server(Path(directory) / "data") as dsn,
        PGState.open(dsn, schema="archive") as state,
    ):
        state.setup()
        ids = [f"thread-{number}" for number in range(threads)]
        for thread_id in ids:
            put_thread(state, thread_id)
        state.flush()
        for number in range(rounds):
            begun = time.perf_counter()
            report = state.archive.put(ids, to=f"file://{directory}/objects-{number}", idle_for=NOW)
            rates["archive"].append(threads / (time.perf_counter() - begun))
            assert report.threads == threads, report.left[:3]
            begun = time.perf_counter()
            restored = state.archive.restore(ids)
            rates["restore"].append(threads / (time.perf_counter() - begun))
            assert restored.threads == threads
    return {
        "threads": threads,
        "checkpoints": CHECKPOINTS,
        "rows": report.rows // threads,
        "bytes": report.bytes // threads,
        "archives": len(report.archives),
        "processors": os.cpu_count(),
        "per_second": {name: round(statistics.median(found)) for name, found in rates.items()},
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = run(options.threads, options.rounds)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print("| threads of ten checkpoints | in a second |\n|---|---|")
    for name, rate in found["per_second"].items():
        print(f"| {name} | {rate:,} |")
    print(f"\n{found['rows']} rows and {found['bytes']:,} stored bytes for each; {found['archives']} archives")


if __name__ == "__main__":
    main()
