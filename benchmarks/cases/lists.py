"""A list of N messages: append, edit one, remove one, read, and a put by a saver that remembers nothing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from benchmarks.contestants import Session, open_session
from benchmarks.conversation import Chain, Put, message, messages
from benchmarks.measure import MEMORY, OURS, UPSTREAM, CaseResult, Metric, Plan, quiet, require_equal, timed
from benchmarks.server import Server

NAME = "lists"
TITLE = "Direct calls on a thread whose list has N messages"
# A conversation does not come in one piece: the list is laid down in this many puts before it is measured.
_PRELOAD_PUTS = 60
_SIZES, _QUICK_SIZES = (50, 200, 1000, 5000), (200, 1000)
_WARM_UP = 8
_CHANGES = ("append", "edit", "remove", "cold")
_LABELS = {
    "append": "append put",
    "edit": "edit-one put",
    "remove": "remove-one put",
    "get": "get_tuple",
    "cold get": "cold get_tuple",
    "cold": "cold put",
}


def sizes(plan: Plan) -> tuple[int, ...]:
    """Each is measured by itself: a thousand messages and their copies are a different heap from fifty."""
    return _QUICK_SIZES if plan.quick else _SIZES


def run(server: Server, plan: Plan) -> CaseResult:
    """Every contestant stores the same checkpoints; each put is a new checkpoint in which only `messages` is new."""
    result = CaseResult(NAME, TITLE)
    result.notes += [
        "Each put is the child of the one before it. Appends, edits, removals and cold puts have a thread each.",
        "cold put: an append by a new saver over the same connections, as after a restart of the process.",
        "get_tuple reads the latest checkpoint of the thread that appends; cold, by a new saver.",
    ]
    for size in sizes(plan) if plan.size is None else (plan.size,):
        with ExitStack() as stack:
            names = (OURS, UPSTREAM, MEMORY)
            sessions = [stack.enter_context(open_session(name, server, single=True)) for name in names]
            repeats = plan.pick(12 if size <= 1000 else 6, 6)
            threads = [_Thread(plan, result, sessions, what, size, repeats) for what in _CHANGES]
            for what in _LABELS:
                _metric(result, what, size)
            for _ in range(plan.rounds):
                for thread in plan.shuffled(threads):
                    thread.measure_puts()
                    if thread.what == "append":
                        thread.measure_reads()
                    thread.check()
    return result


class _Thread:
    """One kind of change to one list, stored by all contestants; the list has `size` messages before each round."""

    def __init__(
        self, plan: Plan, result: CaseResult, sessions: list[Session], what: str, size: int, repeats: int
    ) -> None:
        self.what = what
        self._plan, self._result, self._size, self._repeats = plan, result, size, repeats
        self._sessions = [one for one in sessions if what != "cold" or one.name != MEMORY]
        self._seed = f"lists-{what}-{size}"
        self._chain = Chain(self._seed)
        self._values: list[Any] = []
        self._made = size
        conversation = messages(self._seed, size)
        chunk = max(1, size // _PRELOAD_PUTS)
        for end in range(chunk, size + chunk, chunk):
            self._put_all(conversation[: min(end, size)])
        for _ in range(_WARM_UP):
            self._put_all(self._changed())
            for session in self._sessions:
                session.saver.get_tuple(self._chain.config)

    def measure_puts(self) -> None:
        """Time each contestant's put of each change."""
        self._resize()
        times: dict[str, list[float]] = defaultdict(list)
        with quiet():
            for _ in range(self._repeats):
                put = self._next(self._changed())
                for session in self._plan.shuffled(self._sessions):
                    saver = session.restarted() if self.what == "cold" else session.saver
                    times[session.name].append(timed(saver.put, *put.arguments()))
        self._add(self.what, times)

    def measure_reads(self) -> None:
        """Time each contestant's `get_tuple`."""
        for what in ("get", "cold get"):
            times: dict[str, list[float]] = defaultdict(list)
            with quiet():
                for _ in range(self._repeats):
                    for session in self._plan.shuffled(self._sessions):
                        saver = session.restarted() if what == "cold get" else session.saver
                        times[session.name].append(timed(saver.get_tuple, self._chain.config))
            self._add(what, times)

    def check(self) -> None:
        """Abort unless everybody returns what was put last."""
        found = {session.name: session.saver.get_tuple(self._chain.config) for session in self._sessions}
        where = f"lists: {self.what} at N = {self._size}"
        answers = {name: one and one.checkpoint["channel_values"].get("messages") for name, one in found.items()}
        require_equal(where, {"expected": self._values} | answers)
        require_equal(
            f"{where}, checkpoint",
            {name: one and (one.checkpoint["id"], one.checkpoint["channel_versions"]) for name, one in found.items()},
        )

    def _next(self, values: list[Any]) -> Put:
        self._values = values
        return self._chain.next("messages", values)

    def _put_all(self, values: list[Any]) -> None:
        put = self._next(values)
        for session in self._sessions:
            session.saver.put(*put.arguments())

    def _resize(self) -> None:
        missing = self._size - len(self._values)
        if missing < 0:
            self._put_all(self._values[: self._size])
        elif missing:
            self._put_all([*self._values, *(self._new_message() for _ in range(missing))])

    def _new_message(self) -> Any:
        self._made += 1
        return message(self._seed, self._made)

    def _changed(self) -> list[Any]:
        index = self._plan.rng.randrange(len(self._values))
        if self.what == "edit":
            edited = self._values[index].model_copy(update={"content": self._new_message().content})
            return [*self._values[:index], edited, *self._values[index + 1 :]]
        if self.what == "remove":
            return [*self._values[:index], *self._values[index + 1 :]]
        return [*self._values, self._new_message()]

    def _add(self, what: str, times: dict[str, list[float]]) -> None:
        for name, seconds in times.items():
            _metric(self._result, what, self._size).add(name, statistics.median(seconds) * 1000)


def _metric(result: CaseResult, what: str, size: int) -> Metric:
    return result.metric(f"{what}/{size}", f"{_LABELS[what]}, N = {size}", "ms")
