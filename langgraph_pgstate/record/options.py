"""Settings of the recorder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langgraph_pgstate.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Settings of a recorder: which content it writes, and when.

    Attributes:
        content: Whether inputs, outputs and payloads are written at all.
        limit: Maximum size of an input or output, in bytes of JSON. A longer value is truncated, and its size and hash
            are stored.
        redact: Called as `redact(kind, value)` before a value of the application is written; the result is written
            instead. `kind` is `input`, `output`, `error` or `payload`. `value` is JSON, for an error a dict of
            `message` and `traceback`. The function may be called in any thread, including that of the event loop.
        interval: Seconds between two batches. Spans are visible about that long after their start.
        queue_size: Maximum number of spans and events that wait to be written. If there are more, the graph waits.
        timeout: Seconds that a graph waits for the database, at the end of a run or if the queue is full. After that,
            the graph continues, and the rows stay queued.
        ttl: Seconds after which a running run counts as dead. Its process renews this time every `ttl / 3` seconds.
        release: Release of the application, stored with its runs. `release` in a run's metadata takes precedence.
    """

    content: bool = True
    limit: int = 4096
    redact: Callable[[str, Any], Any] | None = None
    interval: float = 0.4
    queue_size: int = 10_000
    timeout: float = 10.0
    ttl: float = 15.0
    release: str | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "interval", "queue_size", "timeout", "ttl"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than 0, not {getattr(self, name)}")


DEFAULT_STREAM_TTL = timedelta(days=1)
