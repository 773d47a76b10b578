"""The README's plots: how WAL and disk grow, and how much faster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.contestants import LABELS
from benchmarks.measure import OURS, UPSTREAM, CaseResult
from benchmarks.report import number
from benchmarks.targets import Outcome

OUR_INK = "#1f6f8b"
_STYLES = {OURS: OUR_INK, UPSTREAM: "#c8553d"}
INK = "#333333"
STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.dpi": 150,
}


def plot_growth(path: Path, chat: CaseResult) -> None:
    """WAL and disk of one conversation as it grows, both axes logarithmic."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
        exponents = chat.metrics["chat/exponent/wal"]
        titles = {"WAL": "write-ahead log written", "disk": "disk: tables, indexes and TOAST"}
        for axis, (what, title) in zip(axes, titles.items(), strict=True):
            for name in (UPSTREAM, OURS):
                _draw_curve(axis, name, chat.curves[what][name], exponents.median(name) if what == "WAL" else None)
            axis.set(xscale="log", yscale="log", title=title, xlabel="messages in the thread")
            ticks = [x for x, _ in chat.curves[what][OURS]]
            axis.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_xlim(ticks[0] * 0.85, ticks[-1] * 2.4)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: number(y, "bytes")))
            axis.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.minorticks_off()
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].legend(handles, labels, frameon=False, loc="upper left")
        figure.suptitle("One conversation as it grows, messages of about 600 bytes", fontsize=12)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def _draw_curve(axis: Axes, name: str, points: list[tuple[float, float]], exponent: float | None) -> None:
    xs, ys = zip(*points, strict=True)
    axis.plot(xs, ys, marker="o", markersize=4, linewidth=2, color=_STYLES[name], label=LABELS[name])
    axis.annotate(
        number(ys[-1], "bytes") + (f"\nexponent {exponent:.2f}" if exponent is not None else ""),
        (xs[-1], ys[-1]),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        color=_STYLES[name],
        fontweight="bold",
    )


def plot_speed(path: Path, outcomes: Iterable[Outcome]) -> None:
    """How many times faster, or less, than upstream."""
    shown = [
        one for one in outcomes if one.target.base == UPSTREAM and not one.target.at_most and one.value is not None
    ]
    shown.reverse()
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(10, 1.4 + 0.38 * len(shown)))
        rows = range(len(shown))
        values = [one.value or 0 for one in shown]
        axis.barh(rows, [value - 1 for value in values], left=1, height=0.6, color=_STYLES[OURS], zorder=2)
        for row, one, value in zip(rows, shown, values, strict=True):
            axis.text(max(value, 1) * 1.06, row, one.text(), va="center", fontweight="bold")
        axis.set_yticks(rows, [one.target.label for one in shown])
        axis.set_xscale("log")
        axis.set_xlim(min([*values, 0.9]) * 0.9, max([*values, 60]) * 1.8)
        ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 50, 100, 200) if tick < axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{tick}×" for tick in ticks])
        axis.minorticks_off()
        axis.axvline(1, color=_STYLES[UPSTREAM], linewidth=1.5, zorder=3)
        axis.grid(True, axis="x", color="#e6e6e6", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
        figure.suptitle("Times faster or smaller than langgraph-checkpoint-postgres (red line: the same)", fontsize=12)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)
