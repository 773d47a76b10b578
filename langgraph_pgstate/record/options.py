"""Settings of the recorder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langgraph_pgstate.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Contents and timing of what a recorder writes.

    Attributes:
        content: Whether inputs, outputs and payloads are written at all.
        limit: Bytes of JSON that an input or output may have; what is longer is cut, with its size and hash kept.
        redact: Called as `redact(kind, value)` with everything that came from the application before it is written,
            and what it returns is written instead. The kind is `input`, `output`, `error` or `payload`; the value is
            JSON (an error: a dict of `message` and `traceback`). It runs in the background, in another thread.
        interval: Seconds between two batches; what has begun is visible after that.
        queue_size: Spans and events that wait to be written; when there are more, the graph waits.
        timeout: Seconds that the end of a run, and a full queue, wait for the database. Nothing is dropped after it.
        ttl: Seconds a running run is taken to be alive after its process last said so; said every third of it.
        release: Release of the application, stored with its runs. A run with `release` in its metadata has that one.
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
