"""Messages, and those that a search found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One row of `messages`: a chat message where it was added to its channel, its edit, or its removal.

    Attributes:
        thread_id: The thread.
        message_id: The message's own id.
        checkpoint_id: The checkpoint it appeared (was edited, was removed) in.
        checkpoint_ns: That checkpoint's namespace.
        channel: The channel it is in.
        position: Its place in the channel at that checkpoint.
        change: `added`, `edited` or `removed`.
        created_at: By the database's clock.
        run_id: The run that made it.
        role: `system`, `human`, `ai`, `tool` or another.
        agent: Who said it, if it has a name.
        content: Its text.
        tool_calls: What it asks tools to do.
        tool_call_id: The tool call it answers.
        input_tokens: As the model counted them.
        output_tokens: Likewise.
    """

    thread_id: str
    message_id: str
    checkpoint_id: str
    checkpoint_ns: str
    channel: str
    position: int
    change: str
    created_at: datetime
    run_id: str | None
    role: str | None
    agent: str | None
    content: str | None
    tool_calls: Any
    tool_call_id: str | None
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message that a search found.

    Attributes:
        message: The message.
        snippet: Its text around the words that were found, each between `«` and `»`.
        score: How well it fits; greater is better. Only to be compared within one search.
    """

    message: Message
    snippet: str
    score: float
