"""Types of interrupts and answers, and the filters of their lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.paging import OwnerFilter
from langgraph_pgstate.scopes import Scope

_QUESTIONS: Final = ("question", "description", "message", "prompt")


class InterruptFilter(OwnerFilter, total=False):
    """Filters of interrupted threads.

    Attributes:
        answered: Return threads with unused answers instead of threads with unanswered interrupts.
        scope: Only threads whose metadata contain this. It restricts what a user may see.
        scan: Maximum number of interrupts to read, from 1 to 1,000, including answered interrupts. All are read at
            once. By default, a page reads up to 5,000 interrupts, 200 at a time.
    """

    answered: bool
    scope: Scope | None
    scan: int | None


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """An interrupt that has no answer yet.

    Attributes:
        interrupt_id: LangGraph's id of the interrupt.
        value: The argument of `interrupt()`. Objects of types that the serializer may not build are plain data.
        asked_at: Time of the interrupt, by the database's clock.
        response_schema: JSON Schema of the answer, if the graph gave one.
        task_id: The interrupted task.
        run_id: The run, if it is known.
        error: Why the interrupt cannot be read. If set, `interrupt_id` is empty, and `value` is `None`.
    """

    interrupt_id: str
    value: Any
    asked_at: datetime
    response_schema: Any
    task_id: str
    run_id: str | None
    error: str | None = None

    @property
    def question(self) -> str | None:
        """The beginning of the question, if the value has a field `question`, `description`, `message` or `prompt`."""
        return question_of(self.value)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to an interrupt.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The interrupted checkpoint.
        interrupt_id: The interrupt.
        value: The answer.
        answered_by: Name of the answerer, if known.
        answered_at: Time of the answer, by the database's clock.
        is_default: Whether this is the run's default answer.
        run_id: The run that resumes the thread with the answer; `None` if the interrupted run was not enqueued.
    """

    thread_id: str
    checkpoint_id: str
    interrupt_id: str
    value: Any
    answered_by: str | None
    answered_at: datetime
    is_default: bool = False
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class AnsweredInterrupt:
    """An interrupt that was answered.

    Attributes:
        answer: The answer.
        interrupt: The interrupt; `None` if the task has raised another interrupt since.
    """

    answer: Answer
    interrupt: PendingInterrupt | None


@dataclass(frozen=True, slots=True)
class InterruptedThread:
    """A thread with unanswered interrupts.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The interrupted checkpoint.
        since: Time of the oldest unanswered interrupt.
        interrupts: The unanswered interrupts, oldest first.
        answers: Answers that no run has used yet.
        user_id: The thread's user, if the config named one.
        tenant_id: The thread's tenant, if the config named one.
        agent: The interrupted agent, if the config named one.
        title: The thread's title.
    """

    thread_id: str
    checkpoint_id: str
    since: datetime
    interrupts: tuple[PendingInterrupt, ...]
    answers: tuple[Answer, ...]
    user_id: str | None
    tenant_id: str | None
    agent: str | None
    title: str | None


def question_of(value: Any) -> str | None:
    """Return the beginning of the question in an interrupt's value, or `None`."""
    return split_question(value)[0][:1000] or None


def split_question(value: Any) -> tuple[str, Any]:
    """Return the question in an interrupt's value, or an empty text, and the value without the question."""
    if not isinstance(value, Mapping):
        return "", value
    name = next((one for one in _QUESTIONS if isinstance(value.get(one), str) and value[one]), None)
    if name is None:
        return "", value
    return value[name], {key: item for key, item in value.items() if key != name}
