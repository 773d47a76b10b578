"""Claims with a limit per key, and without."""

from __future__ import annotations

from benchmarks.measure import CaseResult, Plan
from benchmarks.server import Server
from langgraph_pgstate.runs import Runs

NAME = "limits"
TITLE = "Claims per second with a limit for each key"


def run(server: Server, plan: Plan) -> CaseResult:
    """Skipped until queues have limits."""
    result = CaseResult(NAME, TITLE)
    if not hasattr(Runs, "limit"):
        result.notes.append("Not measured: queues have no limits yet.")
    return result
