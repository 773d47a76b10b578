"""Messages and search hits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One row of `messages`: the addition of a chat message to a channel, its edit or its removal.

    Attributes:
        thread_id: The thread.
        message_id: The message's own id.
        checkpoint_id: The checkpoint that added, edited or removed the message.
        checkpoint_ns: That checkpoint's namespace.
        channel: The channel.
        position: Position in the channel at that checkpoint.
        change: `added`, `edited` or `removed`.
        created_at: Creation time by the database's clock.
        run_id: The run that made the change.
        role: `system`, `human`, `ai`, `tool` or another.
        agent: The message's `name`, if it has one.
        content: The text.
        tool_calls: The tool calls that the message requests.
        tool_call_id: The tool call that the message answers.
        input_tokens: Input tokens as the model reported them.
        output_tokens: Output tokens as the model reported them.
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
    """A message found by a search.

    Attributes:
        message: The message.
        snippet: Text around the matched words, each between `«` and `»`.
        score: Rank; greater is better. Scores are comparable within one search only.
    """

    message: Message
    snippet: str
    score: float
