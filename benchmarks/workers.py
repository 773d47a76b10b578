"""A process of its own for each case, and for each size of some: none works in what those before it have left behind.

A heap in fragments, full caches and the states an in-memory saver still holds slow a process down, and not everybody
alike. Contestants are compared within a case, and so within one process.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context

from benchmarks.cases import SIZES, Case
from benchmarks.measure import CaseResult, Plan
from benchmarks.server import open_server


class WorkerDiedError(Exception):
    """The process of a case was killed, or ended without an answer."""


def run_apart(name: str, case: Case, dsn: str, plan: Plan) -> CaseResult:
    """Run a case in a new process, on a server that is running.

    Args:
        name: The case's name, which also decides the order of its contestants.
        case: A function that the new process can import.
        dsn: The server.
        plan: How much to measure.

    Raises:
        WorkerDiedError: If the process ended without an answer. What the case itself raises is raised here, too.
    """
    plan = replace(plan, case=name)
    first, *others = [replace(plan, size=size) for size in SIZES[name](plan)] if name in SIZES else [plan]
    result = _run_one(case, dsn, first)
    for one in others:
        result.extend(_run_one(case, dsn, one))
    return result


def _run_one(case: Case, dsn: str, plan: Plan) -> CaseResult:
    # On an interrupt the worker is interrupted, too; leaving the block waits until it has dropped its schemas.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as worker:
        try:
            return worker.submit(_run, case, dsn, plan).result()
        except BrokenProcessPool as error:
            raise WorkerDiedError(f"the process of {plan.case} was killed") from error


def _run(case: Case, dsn: str, plan: Plan) -> CaseResult:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with open_server(dsn) as server:
        # What the case before has left to be written is nobody's work here. Its dead catalog rows, autovacuum being
        # off, slow nothing down: tried with 120 schemas made and dropped.
        server.checkpoint()
        return case(server, plan)
