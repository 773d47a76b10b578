"""Streams of threads, in both versions of the protocol.

A stream goes on from run to run until the client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from langgraph_pgstate.errors import NotFoundError, PGStateError, UnavailableError
from langgraph_pgstate.runs.types import ThreadEvent
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server import pacing
from langgraph_pgstate.server.errors import ServerStoppingError, refuse
from langgraph_pgstate.server.pacing import ClosingResponse, batches_of, pieces
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.streams import HEADERS, HEARTBEAT, Conversion, encoded, written
from langgraph_pgstate.server.translation import EventFilter, Translation

# Sequence numbers are times. The last events of a run may have numbers up to this time after the run's end.
_PAST_THE_END: Final = timedelta(minutes=1)
# The greatest integer that JavaScript represents exactly: in microseconds, the year 2255.
_LAST_SEQ: Final = 2**53
_MODES: Final = ("run_modes", "lifecycle")
_LIFECYCLE: Final = ("metadata", "error", "end")


async def join_stream(call: Call) -> Response:
    """Stream the events of a thread's runs, in the first version of the protocol.

    The modes are `run_modes` and `lifecycle`. The stream begins after the event that `Last-Event-ID` names. Without
    this header, it begins with the unfinished runs, or with the last run if all have ended. The stream waits until
    the thread exists.
    """
    thread = await _opened(call)
    modes = call.names("stream_mode") or ["run_modes"]
    for mode in modes:
        if mode not in _MODES:
            raise refuse(501, f"stream_mode {mode!r} is not implemented")
    conversions: dict[str, Conversion] = {}

    def convert(found: ThreadEvent, write: Callable[[Any], bytes]) -> Iterator[bytes]:
        if "run_modes" not in modes and found.event.event not in _LIFECYCLE:
            return
        id, conversion = f"{found.run_id}:{found.event.id}", conversions.setdefault(found.run_id, Conversion(()))
        for name, data in conversion.convert(found.event):
            yield encoded(id, name, data, write)
        if found.event.event == "end":
            del conversions[found.run_id]
            yield encoded(id, "metadata", {"status": "run_done", "run_id": found.run_id})

    given = call.request.headers.get("last-event-id") or None
    events = call.state.runs.join_thread(thread.thread_id, last_event_id=None if given == "-1" else given)
    return _answer(call, thread, events, convert, lambda error: encoded("", "error", _error(error)))


async def events(call: Call) -> Response:
    """Stream the events of a thread's runs as server-sent events, in the second version of the protocol."""
    thread = await _opened(call)
    body = call.body
    translation = Translation(EventFilter(body.channels, body.namespaces, body.depth), body.since)

    def convert(found: ThreadEvent, write: Callable[[Any], bytes]) -> Iterator[bytes]:
        for event in translation.translate(found):
            yield encoded(str(event["seq"]), event["method"], event, write)

    def fail(error: PGStateError) -> bytes:
        told = {"type": "error", "id": None, "error": "unknown_error", "message": _error(error)["message"]}
        return encoded("", "error", told)

    since = None
    if body.since:
        since = datetime.fromtimestamp(min(body.since, _LAST_SEQ) / 1_000_000, UTC)
        since = max(since - _PAST_THE_END, datetime.fromtimestamp(0, UTC))
    return _answer(call, thread, call.state.runs.join_thread(thread.thread_id, since=since), convert, fail)


class _Readable:
    """The thread of a stream, with checks whether the caller may read it."""

    def __init__(self, call: Call, scope: Alternatives | None) -> None:
        self.thread_id = call.path("thread_id")
        self._call, self._scope = call, scope
        self._created_at: datetime | None = None

    async def is_there(self) -> bool:
        """Return whether the caller may read the thread, and the thread is not a new one under the same id."""
        thread = await self._call.state.threads.get(self.thread_id, scope=self._scope)
        if thread is None:
            return False
        self._created_at = self._created_at or thread.created_at
        return thread.created_at == self._created_at

    async def until_there(self) -> AsyncIterator[bytes]:
        """Yield heartbeats until `is_there`.

        Threads of other callers do not change the times of heartbeats, so the times do not reveal such threads.
        """
        due_at = time.monotonic() + pacing.HEARTBEAT_SECONDS
        stopping = asyncio.ensure_future(self._call.service.stopping.wait())
        listens = True
        try:
            while not await self.is_there():
                joined: Any = self._call.state.runs.join_thread(self.thread_id)
                async with aclosing(joined) as events:
                    # An event of the thread also ends the wait, because it shows that the thread exists now.
                    first = [asyncio.ensure_future(anext(events))] if listens else []
                    try:
                        seconds = max(0.0, due_at - time.monotonic())
                        await asyncio.wait([*first, stopping], timeout=seconds, return_when="FIRST_COMPLETED")
                        listens = not any(one.done() for one in first)
                        # The run may have been deleted meanwhile.
                        with suppress(NotFoundError):
                            _ = [one.result() for one in first if one.done()]
                    finally:
                        for one in first:
                            one.cancel()
                        await asyncio.gather(*first, return_exceptions=True)
                if stopping.done():
                    raise ServerStoppingError("the server is stopping")
                if time.monotonic() >= due_at:
                    listens, due_at = True, time.monotonic() + pacing.HEARTBEAT_SECONDS
                    yield HEARTBEAT
        finally:
            stopping.cancel()


async def _opened(call: Call) -> _Readable:
    """Return the thread that the path names. The thread need not exist yet."""
    return _Readable(call, await call.authorize("threads", "read", {"thread_id": call.path("thread_id")}))


def _answer(
    call: Call,
    thread: _Readable,
    events: AsyncIterator[ThreadEvent],
    convert: Callable[[ThreadEvent, Callable[[Any], bytes]], Iterator[bytes]],
    fail: Callable[[PGStateError], bytes],
) -> Response:
    return ClosingResponse(_chunks(call, thread, events, convert, fail), 200, HEADERS, "text/event-stream")


async def _chunks(
    call: Call,
    thread: _Readable,
    events: AsyncIterator[ThreadEvent],
    convert: Callable[[ThreadEvent, Callable[[Any], bytes]], Iterator[bytes]],
    fail: Callable[[PGStateError], bytes],
) -> AsyncIterator[bytes]:
    # Send some bytes at once, because `fetch` in browsers does not resolve before the first bytes.
    yield HEARTBEAT
    sent_at = checked_at = time.monotonic()
    run_id: str | None = None

    async def encode(found: ThreadEvent) -> tuple[str, bytes]:
        return found.run_id, await written(found.event.data, lambda write: b"".join(convert(found, write)))

    try:
        async for heartbeat in thread.until_there():
            yield heartbeat
        async for batch in batches_of(call, events, encode):
            # The thread may have a new owner now, so check after reading the events and before sending them.
            is_due = time.monotonic() - checked_at >= pacing.HEARTBEAT_SECONDS
            if not batch or is_due or any(one.mark != run_id for one in batch):
                if not await thread.is_there():
                    return
                checked_at = time.monotonic()
            run_id = batch[-1].mark if batch else run_id
            # While the client wants none of the events, heartbeats keep the connection alive.
            is_silent = not any(one.data for one in batch)
            if is_silent and (not batch or time.monotonic() - sent_at >= pacing.HEARTBEAT_SECONDS):
                yield HEARTBEAT
                sent_at = time.monotonic()
            elif not is_silent:
                for piece in pieces(batch):
                    yield piece
                sent_at = time.monotonic()
    except (UnavailableError, ServerStoppingError):
        raise ServerStoppingError("the stream ends early: reconnect to go on with it") from None
    except PGStateError as error:
        yield fail(error)


def _error(error: PGStateError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}
