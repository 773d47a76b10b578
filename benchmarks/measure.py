"""Metrics, rounds and timing: what every case needs to measure fairly."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

OURS = "pgstate"
UPSTREAM = "upstream"
MEMORY = "memory"
RAW = "raw"
PLAIN = "plain"
LISTENER = "listener"


class MismatchError(Exception):
    """Two savers gave different answers: no speed is worth reporting."""


@dataclass(slots=True)
class Metric:
    """One measured quantity of several contestants.

    Attributes:
        key: Stable name, `case/what/size`.
        label: For people.
        unit: `ms`, `bytes`, `puts/s`, or empty for plain numbers.
        lower_is_better: Whether small values win.
        samples: Values by contestant, one for each round, in the order of the rounds.
    """

    key: str
    label: str
    unit: str
    lower_is_better: bool = True
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contestant: str, value: float) -> None:
        """Append one round's value."""
        self.samples.setdefault(contestant, []).append(value)

    def median(self, contestant: str) -> float | None:
        """Median over the rounds; `None` if the contestant did not take part."""
        values = self.samples.get(contestant)
        return statistics.median(values) if values else None

    def gain(self, other: str = UPSTREAM, ours: str = OURS) -> float | None:
        """How many times better our median is than the other's."""
        mine, theirs = self.median(ours), self.median(other)
        if not mine or not theirs:
            return None
        return theirs / mine if self.lower_is_better else mine / theirs

    def gain_range(self, other: str = UPSTREAM, ours: str = OURS) -> tuple[float, float] | None:
        """Least and greatest gain of the paired rounds."""
        pairs = list(zip(self.samples.get(ours, ()), self.samples.get(other, ()), strict=False))
        gains = [(b / a if self.lower_is_better else a / b) for a, b in pairs if a and b]
        return (min(gains), max(gains)) if gains else None


@dataclass(slots=True)
class CaseResult:
    """What one case measured.

    Attributes:
        name: The case's name on the command line.
        title: What was done, in one line.
        metrics: By key, in the order they were first touched.
        curves: Points for plots: curve name, contestant, list of `(x, y)`.
        notes: Facts a reader needs to judge the figures.
    """

    name: str
    title: str
    metrics: dict[str, Metric] = field(default_factory=dict)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def extend(self, other: CaseResult) -> None:
        """Add what the same case measured for another size."""
        self.metrics.update(other.metrics)
        self.notes += [note for note in other.notes if note not in self.notes]

    def metric(self, what: str, label: str, unit: str, *, lower_is_better: bool = True) -> Metric:
        """The metric of this name, made at first use."""
        key = f"{self.name}/{what}"
        if key not in self.metrics:
            self.metrics[key] = Metric(key, label, unit, lower_is_better)
        return self.metrics[key]


@dataclass(slots=True)
class Plan:
    """How much to measure, and in which order.

    Attributes:
        quick: Small sizes, two minutes in all.
        rounds: Paired rounds of every timed case.
        case: Which case it is for.
        size: Which of its sizes, of a case that measures each in a process of its own; `None` for all.
        rng: Shuffles the contestants; seeded by the case and the size, so that each is the same alone and after others.
    """

    quick: bool
    rounds: int
    case: str = ""
    size: int | None = None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"20260101/{self.case}/{self.size}")

    def shuffled(self, contestants: Sequence[T]) -> list[T]:
        """A random order: nobody always comes first, or right after the same one."""
        return self.rng.sample(list(contestants), len(contestants))

    def pick(self, full: Any, quick: Any) -> Any:
        """The value for this mode."""
        return quick if self.quick else full


@contextmanager
def quiet() -> Iterator[None]:
    """Collect garbage now and not again until the end of the block."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Seconds a call takes."""
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Growth exponent: least-squares slope of log y over log x."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    return statistics.linear_regression(xs, ys).slope


def require_equal(what: str, answers: dict[str, Any]) -> None:
    """Abort unless all contestants answered the same.

    Raises:
        MismatchError: Naming the contestants that differ.
    """
    (first, expected), *others = answers.items()
    for name, answer in others:
        if answer != expected:
            raise MismatchError(f"{what}: {name} and {first} differ")
