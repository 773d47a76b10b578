"""Seconds that a new process takes to import a saver."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.measure import OURS, UPSTREAM, CaseResult, Plan
from benchmarks.server import Server

NAME = "imports"
TITLE = "Import of the blocking saver in a new process"
_STATEMENTS = {
    OURS: "from langgraph_pgstate import PGStateSaver",
    UPSTREAM: "from langgraph.checkpoint.postgres import PostgresSaver",
}
_TURNS = 5


def run(server: Server, plan: Plan) -> CaseResult:
    """Let the contestants import in turn."""
    result = CaseResult(NAME, TITLE)
    result.notes.append("From the start of Python to its end, with cached bytecode; 5 processes of each in a round.")
    metric = result.metric("saver", "import", "ms")
    for name in _STATEMENTS:
        _import(name)
    for _ in range(plan.rounds * _TURNS):
        for name in plan.shuffled((OURS, UPSTREAM)):
            metric.add(name, 1000 * _import(name))
    return result


def _import(name: str) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _STATEMENTS[name]], env=environment, check=True)
    return time.perf_counter() - began
