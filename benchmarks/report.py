"""What was measured, for a terminal, for a README and for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from benchmarks.contestants import SHORT_LABELS
from benchmarks.measure import UPSTREAM, CaseResult, Metric, Plan
from benchmarks.server import Server
from benchmarks.targets import Outcome

_PACKAGES = (
    "langgraph-pgstate",
    "langgraph-checkpoint-postgres",
    "langgraph",
    "langgraph-checkpoint",
    "langchain-core",
    "psycopg",
    "psycopg-pool",
    "ormsgpack",
    "zstandard",
    "procrastinate",
    "pgqueuer",
    "asyncpg",
    "dbos",
)
_WIDTH = 160
_VERDICTS = {True: "met", False: "not met", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the figures depend on; nothing that names a machine."""

    mode: str
    rounds: int
    postgresql: str
    settings: dict[str, str]
    python: str
    cpus: int
    architecture: str
    packages: dict[str, str]

    @classmethod
    def of(cls, server: Server, plan: Plan) -> Environment:
        """Look at this run's."""
        packages = {}
        for name in _PACKAGES:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                continue
        return cls(
            mode="quick" if plan.quick else "full",
            rounds=plan.rounds,
            postgresql=server.version(),
            settings=server.settings(),
            python=platform.python_version(),
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            architecture=platform.machine(),
            packages=packages,
        )

    def line(self, *packages: str) -> str:
        """The essence in one sentence, with the versions of some packages."""
        named = packages or ("langgraph", "langgraph-checkpoint-postgres")
        return (
            f"PostgreSQL {self.postgresql}, Python {self.python}, {self.cpus} CPUs, "
            f"{', '.join(f'{name} {self.packages.get(name)}' for name in named)}; "
            f"{self.rounds} interleaved rounds, medians; autovacuum {self.settings.get('autovacuum')}, "
            f"fsync {self.settings.get('fsync')}, full_page_writes {self.settings.get('full_page_writes')}."
        )


def console() -> Console:
    """A console that is wide enough for the tables, also into a file."""
    found = Console(highlight=False)
    return found if found.width >= _WIDTH else Console(highlight=False, width=_WIDTH)


def number(value: float | None, unit: str = "") -> str:
    """A figure with the digits it deserves and its unit."""
    if value is None:
        return "–"
    if unit == "bytes":
        for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if value >= size:
                return f"{value / size:.3g} {name}" if value < 999.5 * size else f"{value / size:.0f} {name}"
        return f"{value:.0f} B"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def times(gain: float | None) -> str:
    """A ratio for people."""
    return "–" if gain is None else f"{gain:.1f}×" if gain >= 10 else f"{gain:.2f}×"


def print_case(out: Console, result: CaseResult, labels: Mapping[str, str]) -> None:
    """One case as a table: medians, ranges, and how many times better ours is than upstream's if that took part."""
    present = {name for metric in result.metrics.values() for name in metric.samples}
    names = [*(name for name in labels if name in present), *sorted(present - labels.keys())]
    table = Table()
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(labels.get(name, name), justify="right", no_wrap=True)
    if UPSTREAM in names:
        table.add_column("gain over upstream", justify="right", no_wrap=True)
    for metric in result.metrics.values():
        label = metric.label if metric.unit in ("", "bytes") else f"{metric.label}, {metric.unit}"
        gain = [_gain_cell(metric)] if UPSTREAM in names else []
        table.add_row(label, *(_cell(metric, name) for name in names), *gain)
    out.print(f"\n[bold]{result.name}: {result.title}[/]")
    if names:
        out.print(table)
    for note in result.notes:
        out.print(Padding(f"[dim]{note}[/]", (0, 2)))


def _cell(metric: Metric, name: str) -> str:
    values = metric.samples.get(name)
    if not values:
        return "–"
    unit = "bytes" if metric.unit == "bytes" else ""
    median, low, high = (number(value, unit) for value in (metric.median(name), min(values), max(values)))
    return median if low == high else f"{median} ({low}–{high})"


def _gain_cell(metric: Metric) -> str:
    if not metric.unit:
        return ""
    span = metric.gain_range()
    if span is None or span[0] == span[1]:
        return times(metric.gain())
    return f"{times(metric.gain())} ({times(span[0])}–{times(span[1])})"


def print_targets(out: Console, outcomes: Iterable[Outcome], title: str) -> None:
    """The targets beside what was measured."""
    table = Table()
    for column in ("measure", "must", "stretch", "measured", "must", "stretch"):
        table.add_column(column, justify="left" if column == "measure" else "right", no_wrap=True)
    styles = {True: "green", False: "red", None: "dim"}
    for one in outcomes:
        verdicts = [
            "" if goal is None else f"[{styles[met]}]{_VERDICTS[met]}[/]"
            for goal, met in ((one.target.must, one.meets_must), (one.target.stretch, one.meets_stretch))
        ]
        table.add_row(one.target.label, one.goal(one.target.must), one.goal(one.target.stretch), one.text(), *verdicts)
    out.print(f"\n[bold]{title}[/]")
    out.print(table)


def markdown(environment: Environment, outcomes: Iterable[Outcome]) -> str:
    """The README's table."""
    lines = ["| measure | langgraph-checkpoint-postgres | this package | ratio |", "|---|---:|---:|---:|"]
    for one in outcomes:
        base = number(one.base_value, one.unit)
        if one.target.base not in (UPSTREAM, None):
            base += f" ({SHORT_LABELS[one.target.base]})"
        ours = number(one.our_value, one.unit)
        lines.append(f"| {one.target.label} | {base} | {ours} | {one.text() if one.is_ratio else '–'} |")
    return "\n".join([*lines, "", environment.line(), ""])


def write_json(
    path: Path, environment: Environment, results: Iterable[CaseResult], outcomes: Iterable[Outcome]
) -> None:
    """Everything, with each round's value."""
    data: dict[str, Any] = {
        "environment": {name: getattr(environment, name) for name in Environment.__slots__},
        "cases": {
            result.name: {
                "title": result.title,
                "notes": result.notes,
                "metrics": {
                    key: {
                        "label": metric.label,
                        "unit": metric.unit,
                        "lower_is_better": metric.lower_is_better,
                        "medians": {name: metric.median(name) for name in metric.samples},
                        "gain_over_upstream": metric.gain(),
                        "samples": metric.samples,
                    }
                    for key, metric in result.metrics.items()
                },
                "curves": result.curves,
            }
            for result in results
        },
        "targets": [
            {
                "measure": one.target.label,
                "must": one.target.must,
                "stretch": one.target.stretch,
                "measured": one.value,
                "meets_must": one.meets_must,
                "meets_stretch": one.meets_stretch,
            }
            for one in outcomes
        ],
    }
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
