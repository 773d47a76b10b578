"""Interrupts that ask a person for the outcome of a tool.

LangGraph gives the answers of a task to the task's interrupts in order, but a task may run several tools. Therefore
each interrupt has its own id, which an answer may name. An answer without an id is accepted only if a single interrupt
is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from langgraph.config import get_config
from langgraph.types import interrupt

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.langgraph_compat import RESUME, SEND, interrupt_counter
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.tools.intents import scratchpad_of

DECISIONS = ("done", "retry", "fail")
_EXPLAINED = {
    "done": 'it took effect; {"decision": "done", "result": ...} also gives its result',
    "retry": "it did not take effect; run it",
    "fail": "do not run it again",
}
# Tools of one task may run in several OS threads, and must not read the task's answers at the same time.
_turns = threading.Lock()
_skipping = threading.Lock()


def ask(execution: ToolExecution, used: int, open_ids: Sequence[str]) -> tuple[str, Any, int]:
    """Raise an interrupt, or return the answer that was given to it.

    Args:
        execution: The execution of unknown outcome.
        used: Number of the task's answers that are used up.
        open_ids: Ids of all the task's executions without outcome. This execution's id is `key#attempt`.

    Returns:
        The decision, the result that it names, if any, and the number of the task's used answers, including this one.

    Raises:
        GraphInterrupt: If there is no answer yet.
    """
    own = f"{execution.idempotency_key}#{execution.attempt}"
    payload = {
        "type": "tool_outcome_unknown",
        "id": own,
        "question": f"{execution.tool} was started and has no recorded outcome. Did it take effect?",
        "tool": execution.tool,
        "arguments": execution.arguments,
        "key": execution.idempotency_key,
        "attempt": execution.attempt,
        "started_at": execution.started_at.isoformat(),
        "answers": _EXPLAINED,
    }
    if len(open_ids) > 1:
        payload["open"] = list(open_ids)
        payload["hint"] = 'several are open: answer {"<id>": "done" | "retry" | "fail", ...}'
    with _turns:
        pad = scratchpad_of(get_config())
        known = list(pad.resume) if pad is not None else []
        for index, answer in enumerate(known):
            if (found := _read(answer, own, index >= used and len(open_ids) <= 1)) is not None:
                skip_answers(index + 1)
                return (*found, index + 1)
        count = 0
        while True:
            answer = interrupt(payload)
            count += 1
            now = list(pad.resume) if pad is not None else []
            index = max(len(now), count) - 1
            # After a crash, LangGraph can hand out used answers again, so accept an answer without an id only if the
            # answer is new. Otherwise a used answer could be taken for the answer to this interrupt.
            may_be_plain = index >= used and len(open_ids) <= 1
            if index >= len(known) and (found := _read(answer, own, may_be_plain)) is not None:
                return (*found, index + 1)


def skip_answers(count: int) -> None:
    """Skip the task's first answers, which belong to recorded actions, so that its next interrupts do not get them."""
    try:
        config = get_config()
    except RuntimeError:
        return
    pad = scratchpad_of(config)
    if pad is None or not count or (counter := interrupt_counter(pad, _Counter)) is None:
        return
    with _skipping:
        while len(pad.resume) < count:
            # Take the latest answer from LangGraph. If LangGraph has lost the answer in a crash, this appends `None`.
            pad.resume.append(pad.get_null_resume(True))
        reached = counter.advance_to(count)
        # Send the answers as `interrupt()` does. Otherwise the answers would be lost at the end of this run.
        configurable_of(config)[SEND]([(RESUME, pad.resume[:reached])])


def answers_given() -> int:
    """Return the number of the task's answers, including one not yet handed out by LangGraph; 0 outside a task."""
    try:
        pad = scratchpad_of(get_config())
    except RuntimeError:
        return 0
    return len(pad.resume) + (pad.get_null_resume() is not None) if pad is not None else 0


@contextmanager
def counting_answers() -> Iterator[None]:
    """Count the task's answers that are used up by the calls in this block."""
    with suppress(RuntimeError):
        interrupt_counter(scratchpad_of(get_config()), _Counter)
    reached: list[int] = []
    token = _reached.set(reached)
    try:
        yield
    finally:
        _reached.reset(token)


def answers_used() -> int:
    """Return the number of the task's answers used up in the current block; 0 if no interrupt was raised there."""
    return max(_reached.get() or (), default=0)


class _Counter:
    """A replacement of LangGraph's counter of a task's interrupts. It also reports its value to `counting_answers`."""

    def __init__(self, value: int) -> None:
        self._value = value
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            number = self._value
            self._value += 1
        if (reached := _reached.get()) is not None:
            reached.append(number + 1)
        return number

    def advance_to(self, value: int) -> int:
        with self._lock:
            self._value = max(self._value, value)
            return self._value


_reached: ContextVar[list[int] | None] = ContextVar("pgstate_reached", default=None)


def _read(answer: Any, own: str, may_be_plain: bool) -> tuple[str, Any] | None:
    """Return the decision in an answer, if the answer belongs to the interrupt `own`."""
    if isinstance(answer, Mapping) and own in answer:
        return _decision(answer[own])
    return _decision(answer) if may_be_plain else None


def _decision(answer: Any) -> tuple[str, Any] | None:
    if isinstance(answer, Mapping):
        decision, result = answer.get("decision"), answer.get("result", "done")
    else:
        decision, result = answer, "done"
    return (decision, result) if isinstance(decision, str) and decision in DECISIONS else None
