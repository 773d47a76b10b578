"""`python -m benchmarks`: measure, print, write results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.cases import CASES, Case
from benchmarks.contestants import SHORT_LABELS
from benchmarks.measure import CaseResult, MismatchError, Plan
from benchmarks.report import Environment, console, markdown, print_case, print_targets, write_json
from benchmarks.server import Server, open_server
from benchmarks.targets import outcomes
from benchmarks.workers import WorkerDiedError, run_apart

RESULTS = Path(__file__).parent / "results"
_TABLE_BEGINS = "<!-- make bench: begin -->"
_TABLE_ENDS = "<!-- make bench: end -->"
_README_ROWS = (
    "disk space of a thread of 1,000 messages",
    "WAL of a thread of 1,000 messages",
    "put after one new message, 1,000 in the list",
    "superstep of a graph, 1,000 messages",
    "get_tuple, 1,000 messages",
    "put of a state of 1 KB",
    "superstep with the record, compared with one without",
    "puts by 16 tasks on a pool, local server",
)


def arguments_of(program: str, description: str, cases: Collection[str]) -> argparse.Namespace:
    """The arguments of a program that measures some cases."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, two minutes; results go to a temporary directory"
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[*cases],
        metavar="NAME",
        help=f"only this one, repeatable: {', '.join(cases)}",
    )
    parser.add_argument("--rounds", type=int, help="paired rounds (default: 5; 2 with --quick)")
    parser.add_argument(
        "--dsn", help="an existing server, as it is set, on which nothing else may write; default: an embedded one"
    )
    parser.add_argument("--out", type=Path, help="directory of the results (default: benchmarks/results)")
    return parser.parse_args()


def directory_of(arguments: argparse.Namespace) -> Path:
    """The directory of the results, which exists."""
    default = Path(tempfile.mkdtemp(prefix="bench-results-")) if arguments.quick else RESULTS
    directory: Path = arguments.out or default
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def measure_cases(
    out: Console, server: Server, cases: Mapping[str, Case], plan: Plan, labels: Mapping[str, str]
) -> list[CaseResult] | None:
    """Run and print cases, each in a process of its own; `None` if one has failed.

    Args:
        out: Where results are printed.
        server: The server.
        cases: The cases by name.
        plan: How much to measure.
        labels: Names of the contestants, in the order of the columns.
    """
    results = []
    for name, case in cases.items():
        start = time.monotonic()
        try:
            result = run_apart(name, case, server.dsn, plan)
        except MismatchError as error:
            out.print(f"[red]The contestants disagree, so nothing is reported.[/] {error}")
            return None
        except WorkerDiedError as error:
            out.print(f"[red]Nothing is reported:[/] {error}.")
            return None
        results.append(result)
        print_case(out, result, labels)
        out.print(f"  {time.monotonic() - start:.0f} s", style="dim")
    return results


def main() -> int:
    """Run the chosen cases one after the other, each in a process of its own."""
    arguments = arguments_of("python -m benchmarks", "Measure against LangGraph's own saver.", CASES)
    plan = Plan(quick=arguments.quick, rounds=arguments.rounds or (2 if arguments.quick else 5))
    directory = directory_of(arguments)
    out = console()
    began = time.monotonic()
    with open_server(arguments.dsn) as server:
        environment = Environment.of(server, plan)
        out.print(environment.line())
        chosen = {name: CASES[name] for name in arguments.case or CASES}
        results = measure_cases(out, server, chosen, plan, SHORT_LABELS)
    if results is None:
        return 1
    compared = outcomes(results)
    print_targets(out, compared, "Targets, against upstream")
    write_json(directory / "results.json", environment, results, compared)
    table = markdown(environment, compared)
    (directory / "TABLE.md").write_text(table)
    # A worker imports this module, too, and measures best without a library of plots in its heap.
    from benchmarks.plots import plot_growth, plot_speed

    if directory == RESULTS and not arguments.case:
        root = RESULTS.parents[1]
        put_between_marks(root / "docs" / "performance.md", _TABLE_BEGINS, _TABLE_ENDS, table)
        put_between_marks(root / "README.md", _TABLE_BEGINS, _TABLE_ENDS, readme_table(table))
    for result in results:
        if result.name == "chat":
            plot_growth(directory / "growth.png", result)
    plot_speed(directory / "speed.png", compared)
    out.print(f"\n{time.monotonic() - began:.0f} s in all; results are in {directory}")
    return 0


def readme_table(table: str) -> str:
    """Return the rows of the whole table that the README has."""
    head, rule, *rows = table.splitlines()
    by_label = {row.split("|")[1].strip(): row for row in rows if row.startswith("|")}
    return "\n".join([head, rule, *(by_label[label] for label in _README_ROWS), ""])


def put_between_marks(page: Path, begins: str, ends: str, table: str) -> None:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.read_text().partition(begins)
    _, _, after = rest.partition(ends)
    page.write_text(f"{before}{begins}\n{table}{ends}{after}")


if __name__ == "__main__":
    sys.exit(main())
