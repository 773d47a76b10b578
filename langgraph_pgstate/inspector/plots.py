"""Plots as SVG: positions and sizes of the shapes that templates draw.

The pages' Content-Security-Policy forbids `style` attributes, so shapes get numbers as SVG attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 160
_GAP: Final = 0.25
_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plot, with its rectangle.

    Attributes:
        is_labelled: Whether the day is written below the column.
    """

    day: date
    value: float
    x: float
    width: float
    y: float
    height: float
    is_labelled: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """A column for each day, and horizontal lines.

    Attributes:
        lines: `y` and value of each line.
    """

    columns: tuple[Column, ...]
    lines: tuple[tuple[float, float], ...]
    width: int = WIDTH
    height: int = HEIGHT


def columns(values: Sequence[tuple[date, float]]) -> Plot:
    """Return a plot of a value for each day."""
    top = nice(max((value for _, value in values), default=0.0))
    step = WIDTH / max(1, len(values))
    every = max(1, math.ceil(len(values) / 8))
    drawn = []
    for number, (day, value) in enumerate(values):
        height = 0.0 if top == 0 else max(value / top * HEIGHT, 1.0 if value > 0 else 0.0)
        left, width = number * step + step * _GAP / 2, step * (1 - _GAP)
        is_labelled = (len(values) - 1 - number) % every == 0
        drawn.append(
            Column(
                day, value, round(left, 1), round(width, 1), round(HEIGHT - height, 1), round(height, 1), is_labelled
            )
        )
    marks = [top * part / _LINES for part in range(1, _LINES + 1)] if top else []
    return Plot(tuple(drawn), tuple((round(HEIGHT - mark / top * HEIGHT, 1), mark) for mark in marks))


def nice(value: float) -> float:
    """Round a value up to 1, 2, 4, 5 or 10 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 5, 10) if factor * power >= value * 0.999999)


def line(values: Sequence[float], width: int = 160, height: int = 32) -> str:
    """Return the points of a `<polyline>` through some values; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    least, most = min(values), max(values)
    extent = (most - least) or 1.0
    return " ".join(
        f"{number * width / (len(values) - 1):.1f},{height - 2 - (value - least) / extent * (height - 4):.1f}"
        for number, value in enumerate(values)
    )
