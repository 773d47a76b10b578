"""Streams of threads, in both versions of the protocol. They go on from run to run until the client disconnects."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from langgraph_pgstate.errors import PGStateError, UnavailableError
from langgraph_pgstate.server.errors import ServerStoppingError, refuse
from langgraph_pgstate.server.pacing import HEARTBEAT_SECONDS, ClosingResponse, batches_of, pieces
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.streams import (
    HEADERS,
    HEARTBEAT,
    Conversion,
    encoded,
)
from langgraph_pgstate.server.translation import EventFilter, Translation
from langgraph_pgstate.types import ThreadEvent

# Sequence numbers of a run's events may be this much later than its end.
_PAST_THE_END: Final = timedelta(minutes=1)
# The greatest integer that JavaScript represents exactly; as microseconds, in the year 2255.
_LAST_SEQ: Final = 2**53
_MODES: Final = ("run_modes", "lifecycle")
_LIFECYCLE: Final = ("metadata", "error", "end")


async def join_stream(call: Call) -> Response:
    """Answer the events of a thread's runs, in the first version of the protocol."""
    thread_id, is_allowed = await _opened(call)
    modes = call.names("stream_mode") or ["run_modes"]
    for mode in modes:
        if mode not in _MODES:
            raise refuse(501, f"stream_mode {mode!r} is not implemented")
    conversions: dict[str, Conversion] = {}

    def convert(found: ThreadEvent) -> Iterator[bytes]:
        if "run_modes" not in modes and found.event.event not in _LIFECYCLE:
            return
        conversion = conversions.setdefault(found.run_id, Conversion(()))
        for name, data in conversion.convert(found.event):
            yield encoded(f"{found.run_id}:{found.event.id}", name, data)
        if found.event.event == "end":
            del conversions[found.run_id]

    given = call.request.headers.get("last-event-id") or None
    events = call.state.runs.join_thread(thread_id, last_event_id=None if given == "-1" else given)
    return _answer(call, is_allowed, events, convert, lambda error: encoded("", "error", _error(error)))


async def events(call: Call) -> Response:
    """Answer the events of a thread's runs, in the second version of the protocol."""
    thread_id, is_allowed = await _opened(call)
    body = call.body
    translation = Translation(EventFilter(body.channels, body.namespaces, body.depth), body.since)

    def convert(found: ThreadEvent) -> Iterator[bytes]:
        for event in translation.translate(found):
            yield encoded(str(event["seq"]), event["method"], event)

    def fail(error: PGStateError) -> bytes:
        told = {"type": "error", "id": None, "error": "unknown_error", "message": _error(error)["message"]}
        return encoded("", "error", told)

    since = None
    if body.since:
        since = datetime.fromtimestamp(min(body.since, _LAST_SEQ) / 1_000_000, UTC)
        since = max(since - _PAST_THE_END, datetime.fromtimestamp(0, UTC))
    return _answer(call, is_allowed, call.state.runs.join_thread(thread_id, since=since), convert, fail)


async def _opened(call: Call) -> tuple[str, Callable[[], Awaitable[bool]]]:
    """Return a thread's id, and a function that returns whether it is still the thread that the caller may see."""
    thread_id = call.path("thread_id")
    scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    thread = await call.visible(thread_id, scope)

    async def is_allowed() -> bool:
        try:
            return (await call.visible(thread_id, scope)).created_at == thread.created_at
        except HTTPException:
            return False

    return thread_id, is_allowed


def _answer(
    call: Call,
    is_allowed: Callable[[], Awaitable[bool]],
    events: AsyncIterator[ThreadEvent],
    convert: Callable[[ThreadEvent], Iterator[bytes]],
    fail: Callable[[PGStateError], bytes],
) -> Response:
    return ClosingResponse(_chunks(call, is_allowed, events, convert, fail), 200, HEADERS, "text/event-stream")


async def _chunks(
    call: Call,
    is_allowed: Callable[[], Awaitable[bool]],
    events: AsyncIterator[ThreadEvent],
    convert: Callable[[ThreadEvent], Iterator[bytes]],
    fail: Callable[[PGStateError], bytes],
) -> AsyncIterator[bytes]:
    # Browsers resolve `fetch` with the first bytes.
    yield HEARTBEAT
    sent_at = checked_at = time.monotonic()
    run_id: str | None = None

    def encode(found: ThreadEvent) -> tuple[str, bytes]:
        return found.run_id, b"".join(convert(found))

    try:
        async for batch in batches_of(call, events, encode):
            # The thread may be somebody else's by now: checked after the events were read, before they are sent.
            is_due = time.monotonic() - checked_at >= HEARTBEAT_SECONDS
            if not batch or is_due or any(one.mark != run_id for one in batch):
                if not await is_allowed():
                    return
                checked_at = time.monotonic()
            run_id = batch[-1].mark if batch else run_id
            # Of events that the client does not want, nothing would be sent for long.
            is_silent = not any(one.data for one in batch)
            if is_silent and (not batch or time.monotonic() - sent_at >= HEARTBEAT_SECONDS):
                yield HEARTBEAT
                sent_at = time.monotonic()
            elif not is_silent:
                for piece in pieces(batch):
                    yield piece
                sent_at = time.monotonic()
    except (UnavailableError, ServerStoppingError):
        raise ServerStoppingError("the stream goes on elsewhere") from None
    except PGStateError as error:
        yield fail(error)


def _error(error: PGStateError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}
