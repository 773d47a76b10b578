"""Asking a person what became of a tool whose outcome is unknown, through LangGraph's interrupts.

An interrupt's answers are counted per task, and a task may run several tools: so each question has an id of its own,
and an answer may name it. An answer that names none is only taken when there is one question it can be meant for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.config import get_config
from langgraph.types import interrupt

from langgraph_pgstate.tools.calls import scratchpad_of
from langgraph_pgstate.types import ToolExecution

DECISIONS = ("done", "retry", "fail")
_EXPLAINED = {
    "done": 'it did take effect; {"decision": "done", "result": ...} also says what it answered',
    "retry": "it did not; run it",
    "fail": "give it up",
}
# Tools of one task may run in several threads, and take its answers in turns.
_turns = threading.Lock()


def ask(execution: ToolExecution, used: int, open_ids: Sequence[str]) -> tuple[str, Any, int]:
    """Ask, or read the answer that was given.

    Args:
        execution: What nobody knows the outcome of.
        used: How many of the task's answers are used up already.
        open_ids: Ids of all the task's executions without outcome; this one's is `key#attempt`.

    Returns:
        The decision; the result it names, if it does; and how many of the task's answers are used up with it.

    Raises:
        GraphInterrupt: If there is no answer yet.
    """
    own = f"{execution.idempotency_key}#{execution.attempt}"
    question = {
        "type": "tool_outcome_unknown",
        "id": own,
        "question": f"{execution.tool} was begun and never finished. Did it take effect?",
        "tool": execution.tool,
        "arguments": execution.arguments,
        "key": execution.idempotency_key,
        "attempt": execution.attempt,
        "started_at": execution.started_at.isoformat(),
        "answers": _EXPLAINED,
    }
    if len(open_ids) > 1:
        question["open"] = list(open_ids)
        question["hint"] = 'several are open: answer {"<id>": "done" | "retry" | "fail", ...}'
    with _turns:
        pad = scratchpad_of(get_config())
        known = list(pad.resume) if pad is not None else []
        for index, answer in enumerate(known):
            if (found := _read(answer, own, index >= used and len(open_ids) <= 1)) is not None:
                skip_answers(index + 1)
                return (*found, index + 1)
        count = 0
        while True:
            answer = interrupt(question)
            count += 1
            now = list(pad.resume) if pad is not None else []
            index = max(len(now), count) - 1
            # LangGraph hands out an answer again when the process died that was given it.
            may_be_plain = index >= used and len(open_ids) <= 1
            if index >= len(known) and (found := _read(answer, own, may_be_plain)) is not None:
                return (*found, index + 1)


def skip_answers(count: int) -> None:
    """Leave answers that were given to questions of the ledger out of what the task's own interrupts are told."""
    try:
        pad = scratchpad_of(get_config())
    except RuntimeError:
        return
    for _ in range(min(count, len(pad.resume)) if pad is not None else 0):
        pad.interrupt_counter()


def _read(answer: Any, own: str, may_be_plain: bool) -> tuple[str, Any] | None:
    """The decision in an answer, if it is meant for the question `own`."""
    if isinstance(answer, Mapping) and own in answer:
        return _decision(answer[own])
    return _decision(answer) if may_be_plain else None


def _decision(answer: Any) -> tuple[str, Any] | None:
    if isinstance(answer, Mapping):
        decision, result = answer.get("decision"), answer.get("result", "done")
    else:
        decision, result = answer, "done"
    return (decision, result) if isinstance(decision, str) and decision in DECISIONS else None
