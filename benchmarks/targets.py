"""The figures this package promises, and how a run compares with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.measure import OURS, PLAIN, RAW, UPSTREAM, CaseResult, Metric


@dataclass(frozen=True, slots=True)
class Target:
    """One promise.

    Attributes:
        label: What is measured.
        metric: Key of the metric.
        must: What has to be reached.
        stretch: What we would like to reach.
        base: Whom we are compared with; `None` if our own value is what counts.
        at_most: Whether the goal is an upper bound.
    """

    label: str
    metric: str
    must: float | None
    stretch: float | None
    base: str | None = UPSTREAM
    at_most: bool = False


TARGETS = (
    Target("disk space of a thread of 1,000 messages", "chat/disk/1000", 35, 60),
    Target("WAL of a thread of 1,000 messages", "chat/wal/1000", 35, 60),
    Target("WAL of many threads of 50 messages, full-page images included", "threads/wal", 5, 8),
    Target("growth of WAL with n messages, exponent of n", "chat/exponent/wal", 1.1, 1.0, base=None, at_most=True),
    Target("put after one new message, 200 in the list", "lists/append/200", 4.5, 7),
    Target("put after one new message, 1,000 in the list", "lists/append/1000", 10, 18),
    Target("superstep of a graph, 200 messages", "chat/step/200", 2.5, 3.5),
    Target("superstep of a graph, 1,000 messages", "chat/step/1000", 3.5, 5),
    Target("get_tuple, 1,000 messages", "lists/get/1000", 2, 3),
    Target("get_tuple by a new process, 1,000 messages", "lists/cold get/1000", None, None),
    Target("put of a changing value, 200 KB", "values/put/200 KB", 2.5, 4),
    Target("put of a changing value, 2 MB", "values/put/2 MB", 3, 4),
    Target("get_tuple of a value, 200 KB", "values/get/200 KB", 2.5, 3),
    Target("get_tuple of a value, 2 MB", "values/get/2 MB", 2.5, 3),
    Target("get_tuple of a value by a new process, 200 KB", "values/cold get/200 KB", None, None),
    Target("get_tuple of a value by a new process, 2 MB", "values/cold get/2 MB", None, None),
    Target("put of a state of 1 KB", "values/put/1 KB", 0.95, 1.4),
    Target(
        "put of a state of 1 KB, compared with an INSERT of the same bytes",
        "values/put/1 KB",
        2.5,
        None,
        base=RAW,
        at_most=True,
    ),
    Target(
        "superstep with the record, compared with one without", "recording/step/200", 1.25, None, PLAIN, at_most=True
    ),
    Target("list the latest 20 threads of a user, among 100,000", "latest/first", 10, 1, base=None, at_most=True),
    Target("list the next 20, 95th percentile", "latest/next-p95", 10, 2, base=None, at_most=True),
    Target("puts by 16 threads on a pool, local server", "concurrency/local/threads/16", 2.5, 3.5),
    Target("puts by 16 tasks on a pool, local server", "concurrency/local/tasks/16", 2.5, 3.5),
    Target("puts by 16 threads on a pool, 1 ms away", "concurrency/1 ms/threads/16", 6, 10),
    Target("puts by 16 tasks on a pool, 1 ms away", "concurrency/1 ms/tasks/16", 6, 10),
    *(
        Target(f"round trips of {call}, pool with {mode}", f"round_trips/{mode}/{call}", 1, None, None, at_most=True)
        for mode in ("autocommit", "no autocommit")
        for call in ("put", "put_writes", "get_tuple")
    ),
    Target("import of the saver, compared with the official saver", "imports/saver", 1.1, None, at_most=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target and what was measured; the metric is `None` if it was not."""

    target: Target
    metric: Metric | None

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return self.metric.unit if self.metric else ""

    @property
    def our_value(self) -> float | None:
        """Our median."""
        return self.metric.median(OURS) if self.metric else None

    @property
    def base_value(self) -> float | None:
        """The median of whom we are compared with, or, when nobody, upstream's for information."""
        return self.metric.median(self.target.base or UPSTREAM) if self.metric else None

    @property
    def is_ratio(self) -> bool:
        """Whether the value is one against somebody else's."""
        return self.target.base is not None

    @property
    def value(self) -> float | None:
        """What is compared with the goals: how many times better than the base, how many of the base, or our value."""
        if self.metric is None or self.our_value is None:
            return None
        if not self.is_ratio:
            return self.our_value
        gain = self.metric.gain(self.target.base or UPSTREAM)
        return 1 / gain if gain and self.target.at_most else gain

    @property
    def meets_must(self) -> bool | None:
        """Whether the promise is kept; `None` if it was not measured."""
        return self._meets(self.target.must)

    @property
    def meets_stretch(self) -> bool | None:
        """Whether the wish is reached; `None` if it was not measured or there is none."""
        return self._meets(self.target.stretch)

    def _meets(self, goal: float | None) -> bool | None:
        if goal is None or self.value is None:
            return None
        # Goals are given with two digits: an exponent of 1.004 is 1.0.
        return round(self.value, 2) <= goal if self.target.at_most else round(self.value, 2) >= goal

    def goal(self, goal: float | None) -> str:
        """A goal, as it is written in the table."""
        if goal is None:
            return ""
        sign, unit = ("≤ " if self.target.at_most else "≥ "), ("×" if self.is_ratio else "")
        return f"{sign}{goal:g}{unit}"

    def text(self) -> str:
        """The measured value, as it is written in the table."""
        if self.value is None:
            return "–"
        if not self.is_ratio:
            return f"{self.value:.3g}"
        found = f"{self.value:.1f}×" if self.value >= 10 else f"{self.value:.2f}×"
        is_even = not self.target.at_most and 0.9 <= self.value <= 1.1
        return f"as fast ({found})" if is_even else found


def outcomes(results: Iterable[CaseResult]) -> list[Outcome]:
    """Compare a run with all targets."""
    metrics = {key: metric for result in results for key, metric in result.metrics.items()}
    return [Outcome(target, metrics.get(target.metric)) for target in TARGETS]
