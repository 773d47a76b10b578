"""`python -m benchmarks`: measure, print, write results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.measure import CaseResult, MismatchError, Plan
from benchmarks.report import Environment, console, markdown, print_case, print_targets, write_json
from benchmarks.server import open_server
from benchmarks.targets import outcomes
from benchmarks.workers import WorkerDiedError, run_apart

RESULTS = Path(__file__).parent / "results"
_TABLE_BEGINS = "<!-- make bench: begin -->"
_TABLE_ENDS = "<!-- make bench: end -->"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure against LangGraph's own saver.")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, two minutes; results go to a temporary directory"
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[*CASES],
        metavar="NAME",
        help=f"only this one, repeatable: {', '.join(CASES)}",
    )
    parser.add_argument("--rounds", type=int, help="paired rounds (default: 5; 2 with --quick)")
    parser.add_argument(
        "--dsn", help="an existing server, as it is set, on which nothing else may write; default: an embedded one"
    )
    parser.add_argument("--out", type=Path, help="directory of the results (default: benchmarks/results)")
    return parser.parse_args()


def main() -> int:
    """Run the chosen cases one after the other, each in a process of its own."""
    arguments = _arguments()
    plan = Plan(quick=arguments.quick, rounds=arguments.rounds or (2 if arguments.quick else 5))
    directory = arguments.out or (Path(tempfile.mkdtemp(prefix="bench-results-")) if arguments.quick else RESULTS)
    directory.mkdir(parents=True, exist_ok=True)
    out = console()
    results: list[CaseResult] = []
    began = time.monotonic()
    with open_server(arguments.dsn) as server:
        environment = Environment.of(server, plan)
        out.print(environment.line())
        for name in arguments.case or CASES:
            start = time.monotonic()
            try:
                result = run_apart(name, CASES[name], server.dsn, plan)
            except MismatchError as error:
                out.print(f"[red]The savers disagree, so nothing is reported.[/] {error}")
                return 1
            except WorkerDiedError as error:
                out.print(f"[red]Nothing is reported:[/] {error}.")
                return 1
            results.append(result)
            print_case(out, result)
            out.print(f"  {time.monotonic() - start:.0f} s", style="dim")
    compared = outcomes(results)
    print_targets(out, compared)
    write_json(directory / "results.json", environment, results, compared)
    table = markdown(environment, compared)
    (directory / "README_TABLE.md").write_text(table)
    # A worker imports this module, too, and measures best without a library of plots in its heap.
    from benchmarks.plots import plot_growth, plot_speed

    if directory == RESULTS and not arguments.case:
        _put_into_readme(table)
    for result in results:
        if result.name == "chat":
            plot_growth(directory / "growth.png", result)
    plot_speed(directory / "speed.png", compared)
    out.print(f"\n{time.monotonic() - began:.0f} s in all; results are in {directory}")
    return 0


def _put_into_readme(table: str) -> None:
    """Replace what stands between the README's two marks."""
    readme = RESULTS.parents[1] / "README.md"
    before, _, rest = readme.read_text().partition(_TABLE_BEGINS)
    _, _, after = rest.partition(_TABLE_ENDS)
    readme.write_text(f"{before}{_TABLE_BEGINS}\n{table}{_TABLE_ENDS}{after}")


if __name__ == "__main__":
    sys.exit(main())
