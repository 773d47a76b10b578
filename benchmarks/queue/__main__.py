"""`python -m benchmarks.queue`: measure durable runs, print, write results."""

from __future__ import annotations

import sys
import time

from benchmarks.__main__ import RESULTS, arguments_of, directory_of, measure_cases, put_between_marks
from benchmarks.cases import Case
from benchmarks.measure import Plan
from benchmarks.queue import claims, following, graphs, latency, limits, throughput
from benchmarks.queue.contestants import LABELS
from benchmarks.queue.report import markdown, plot
from benchmarks.queue.targets import outcomes
from benchmarks.report import Environment, console, print_targets, write_json
from benchmarks.server import open_server

CASES: dict[str, Case] = {
    throughput.NAME: throughput.run,
    latency.NAME: latency.run,
    claims.NAME: claims.run,
    limits.NAME: limits.run,
    "graph": graphs.run_through,
    "kill": graphs.run_killed,
    following.NAME: following.run,
}
BEGINS = "<!-- make bench-queue: begin -->"
ENDS = "<!-- make bench-queue: end -->"


def main() -> int:
    """Run the chosen cases one after the other, each in a process of its own."""
    arguments = arguments_of("python -m benchmarks.queue", "Measure durable runs beside other job queues.", CASES)
    plan = Plan(quick=arguments.quick, rounds=arguments.rounds or (2 if arguments.quick else 5))
    directory = directory_of(arguments)
    out = console()
    began = time.monotonic()
    with open_server(arguments.dsn) as server:
        environment = Environment.of(server, plan)
        out.print(environment.line("langgraph", "procrastinate", "pgqueuer", "dbos"))
        chosen = {name: CASES[name] for name in arguments.case or CASES}
        results = measure_cases(out, server, chosen, plan, LABELS)
    if results is None:
        return 1
    compared = outcomes(results)
    print_targets(out, compared, "Targets")
    write_json(directory / "queue.json", environment, results, compared)
    named = {result.name: result for result in results}
    table = markdown(environment, named)
    (directory / "QUEUE_TABLE.md").write_text(table)
    plot(directory / "queue.png", named)
    if directory == RESULTS and not arguments.case:
        put_between_marks(RESULTS.parents[1] / "docs" / "runs.md", BEGINS, ENDS, table)
    out.print(f"\n{time.monotonic() - began:.0f} s in all; results are in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
