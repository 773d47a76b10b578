"""Interrupts of threads, and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """What a graph asked with `interrupt()` and waits to be told.

    Attributes:
        interrupt_id: LangGraph's id of it; what an answer names when several wait.
        value: What was asked; types that may not be built come as plain data.
        asked_at: Since when it waits, by the database's clock.
        response_schema: JSON Schema of the answer, if the graph gave one.
        task_id: The task that waits.
        run_id: The run that asked, if it is known.
        error: Why the interrupt cannot be read; its id is empty then, and its value `None`.
    """

    interrupt_id: str
    value: Any
    asked_at: datetime
    response_schema: Any
    task_id: str
    run_id: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody has answered to an interrupt.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint at which it waited.
        interrupt_id: The interrupt.
        value: The answer.
        answered_by: Who, if they said so.
        answered_at: When, by the database's clock.
    """

    thread_id: str
    checkpoint_id: str
    interrupt_id: str
    value: Any
    answered_by: str | None
    answered_at: datetime


@dataclass(frozen=True, slots=True)
class InterruptedThread:
    """A thread that waits for answers.

    Attributes:
        thread_id: The thread.
        checkpoint_id: The checkpoint it waits at.
        since: When the oldest of its open interrupts was asked.
        interrupts: What has no answer yet, oldest first.
        answers: What is answered already and not yet picked up.
        user_id: Whose it is, if the config told.
        tenant_id: Its tenant, if the config told.
        agent: The agent that asked, if the config told.
        title: What a person calls it.
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
