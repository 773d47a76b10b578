"""Drawings as SVG: positions and sizes of the shapes that templates draw.

A tree of checkpoints has circles in columns that are called lanes, and lines to the parents. The pages'
Content-Security-Policy forbids `style` attributes, so shapes get numbers as SVG attributes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from langgraph_pgstate.threads.types import CheckpointTree, TreeNode

ROW: Final = 36
"""Height of a row in pixels."""

_LANE: Final = 16
_MOST_LANES: Final = 8
WIDTH: Final = 960
HEIGHT: Final = 160
_GAP: Final = 0.25
_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A checkpoint in the drawing.

    Attributes:
        title: The nodes or the source that made the checkpoint.
        x: Horizontal middle of the circle.
        y: Vertical middle of the circle.
        waits: Whether the thread waits for an answer at this checkpoint.
    """

    node: TreeNode
    title: str
    x: int
    y: int
    waits: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn tree of checkpoints, the newest at the top. All sizes are in pixels.

    Attributes:
        lines: Paths of the lines from each checkpoint to its parent.
    """

    nodes: tuple[DrawnNode, ...]
    lines: tuple[str, ...]
    width: int
    height: int


def draw(tree: CheckpointTree) -> Drawing:
    """Return the drawing of a tree. Each branch has a lane; branches beyond `_MOST_LANES` share the last lane."""
    lanes: list[str | None] = []
    places: dict[str, tuple[int, int]] = {}
    shown = {node.checkpoint_id for node in tree.nodes}
    for row, node in enumerate(tree.nodes):
        if node.checkpoint_id not in lanes:
            _take(lanes, node.checkpoint_id)
        lane = lanes.index(node.checkpoint_id)
        places[node.checkpoint_id] = (_x(lane), row * ROW + ROW // 2)
        # The branches that start from this checkpoint end here, so other branches may use their lanes.
        lanes = [None if id == node.checkpoint_id else id for id in lanes]
        parent = node.parent_checkpoint_id
        if parent is not None and (parent not in lanes or lanes.index(parent) > lane):
            lanes[lane] = parent
        elif parent is not None:
            lanes[lane] = None
    height = len(tree.nodes) * ROW
    lines = []
    for node in tree.nodes:
        parent = node.parent_checkpoint_id
        if parent in shown:
            lines.append(_line(*places[node.checkpoint_id], *places[str(parent)]))
        elif parent is not None:
            x, y = places[node.checkpoint_id]
            lines.append(f"M{x} {y}V{min(height, y + ROW)}")
    known = {node.checkpoint_id: node for node in tree.nodes}
    nodes = tuple(
        DrawnNode(node, _title(node, known.get(node.parent_checkpoint_id or "")), *places[id], waits(tree, node))
        for id, node in known.items()
    )
    return Drawing(nodes, tuple(lines), max((x for x, _ in places.values()), default=0) + _LANE, height)


def waits(tree: CheckpointTree, node: TreeNode) -> bool:
    """Return whether a checkpoint waits for answers. A checkpoint with a child has been resumed."""
    return node.pending > 0 and all(other.parent_checkpoint_id != node.checkpoint_id for other in tree.nodes)


def _take(lanes: list[str | None], id: str) -> None:
    if None in lanes:
        lanes[lanes.index(None)] = id
    else:
        lanes.append(id)


def _x(lane: int) -> int:
    return min(lane, _MOST_LANES - 1) * _LANE + _LANE


def _line(x: int, y: int, parent_x: int, parent_y: int) -> str:
    """Return the path from a checkpoint: straight down, then across to its parent's lane."""
    if x == parent_x:
        return f"M{x} {y}V{parent_y}"
    return f"M{x} {y}V{parent_y - ROW // 2}C{x} {parent_y},{parent_x} {parent_y - ROW // 2},{parent_x} {parent_y}"


def _title(node: TreeNode, parent: TreeNode | None) -> str:
    """Return the origin of a checkpoint: the nodes of its superstep, or its source."""
    if node.source != "loop" or parent is None:
        return node.source or "checkpoint"
    counts = Counter(parent.tasks)
    sent = counts.pop("", 0)
    names = [name.strip("_") if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
    if sent:
        names.append(f"{sent} sent")
    return ", ".join(names) or "step"


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
