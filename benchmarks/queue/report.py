"""What was measured of durable runs, as a table for the documentation and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import OURS, CaseResult
from benchmarks.queue.claims import EMPTY
from benchmarks.queue.contestants import LABELS, OTHERS
from benchmarks.queue.graphs import INVOKED
from benchmarks.report import Environment, number

_PLOTTED = (("jobs", "jobs/both"), ("start", "start/superstep"))
_TITLES = {
    "jobs": "No-op jobs per second (more is better; log scale)",
    "start": "Enqueue to first superstep (less is better; log scale)",
}
_BESIDES = {EMPTY: "an empty queue", INVOKED: "`graph.invoke` in place"}


def markdown(environment: Environment, results: Mapping[str, CaseResult]) -> str:
    """The tables of docs/runs.md: beside other queues, and by itself."""
    metrics = {key: metric for result in results.values() for key, metric in result.metrics.items()}
    compared = [metric for metric in metrics.values() if any(name in metric.samples for name in OTHERS)]
    lines = []
    if compared:
        names = (OURS, *OTHERS)
        lines += ["| measure | " + " | ".join(LABELS[name] for name in names) + " |", "|---|" + "---:|" * len(names)]
        for metric in compared:
            cells = [number(metric.median(name), metric.unit) for name in names]
            lines.append(f"| {_label(metric.key, metric.label)} | {' | '.join(cells)} |")
        lines.append("")
    others = [metric for metric in metrics.values() if metric not in compared]
    if others:
        lines += ["| measure | median | beside |", "|---|---:|---:|"]
        for metric in others:
            beside = [
                f"{number(metric.median(name), metric.unit)} ({_BESIDES.get(name, name)})"
                for name in metric.samples
                if name != OURS
            ]
            lines.append(
                f"| {metric.label} | {number(metric.median(OURS), metric.unit)} | {', '.join(beside) or '–'} |"
            )
        lines.append("")
    return "\n".join([*lines, environment.line("langgraph", *OTHERS), ""])


def _label(key: str, label: str) -> str:
    return f"no-op jobs, {label}" if key in ("jobs/both", "jobs/enqueue", "jobs/work") else label


def plot(path: Path, results: Mapping[str, CaseResult]) -> bool:
    """Jobs per second and time to begin of all queues; false if either was not measured."""
    # Not at the module's top: processes that measure import this package, too.
    from benchmarks.plots import INK, OUR_INK, STYLE, plt

    shown = [(case, results[case].metrics.get(key)) for case, key in _PLOTTED if case in results]
    if len(shown) < len(_PLOTTED):
        return False
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 2.6))
        for axis, (case, metric) in zip(axes, shown, strict=True):
            if metric is None:
                return False
            names = [name for name in (*reversed(OTHERS), OURS) if name in metric.samples]
            values = [metric.median(name) or 0 for name in names]
            axis.barh(range(len(names)), values, color=[OUR_INK if name == OURS else "#b8b8b8" for name in names])
            axis.set_yticks(range(len(names)), [LABELS[name] for name in names])
            axis.set_xscale("log")
            axis.set_xlim(min(values) / 3, max(values) * 4)
            for row, value in enumerate(values):
                axis.text(value * 1.1, row, number(value, metric.unit), va="center", color=INK)
            axis.set_title(_TITLES[case], fontsize=10)
            axis.spines["left"].set_visible(False)
            axis.tick_params(axis="y", length=0)
            axis.xaxis.set_visible(False)
            axis.spines["bottom"].set_visible(False)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)
    return True
