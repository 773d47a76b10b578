"""Streams of runs and threads as server-sent events, those of threads in both versions of the protocol.

A stream of a thread goes on from run to run until the client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from starlette.responses import Response

from langgraph_pgstate.errors import NotFoundError, PGStateError, UnavailableError
from langgraph_pgstate.heavy import beside, has_many_values
from langgraph_pgstate.runs.handles import AsyncRunHandle
from langgraph_pgstate.runs.types import StreamEvent, ThreadEvent
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server import pacing
from langgraph_pgstate.server.errors import ServerStoppingError, refuse, short_error
from langgraph_pgstate.server.json import to_json, to_json_in_parts
from langgraph_pgstate.server.pacing import ClosingResponse, batches_of, clean_up, pieces
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.threads import checkpoint_of
from langgraph_pgstate.server.translation import EventFilter, Translation, number_of

HEARTBEAT: Final = b": heartbeat\n\n"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# For each stream mode of the SDK, the modes of LangGraph whose events are needed.
_KEPT: Final[Mapping[str, Sequence[str]]] = {
    **{mode: (mode,) for mode in ("values", "updates", "custom", "tasks", "checkpoints", "debug", "tools", "events")},
    "messages-tuple": ("messages",),
    "messages": ("messages",),
}
# Characters that need no quoting in a segment of a path (RFC 3986).
_SAFE: Final = "!$&'()*+,;=:@"
_CONTROL: Final = ("metadata", "gap", "error")
# Sequence numbers are times. The last events of a run may have numbers up to this time after the run's end.
_PAST_THE_END: Final = timedelta(minutes=1)
# The greatest integer that JavaScript represents exactly: in microseconds, the year 2255.
_LAST_SEQ: Final = 2**53
_MODES: Final = ("run_modes", "lifecycle")
_LIFECYCLE: Final = ("metadata", "error", "end")


def kept_modes(modes: Sequence[str]) -> list[str]:
    """Return the LangGraph modes whose events must be stored for some modes of the SDK."""
    for mode in modes:
        if mode not in _KEPT:
            raise refuse(501, f"stream_mode {mode!r} is not implemented")
    return [*dict.fromkeys(kept for mode in modes for kept in _KEPT[mode])]


def stream(
    call: Call,
    handle: AsyncRunHandle,
    modes: Sequence[str],
    *,
    last_event_id: str | None = None,
    reader: Reader,
    cancels: bool = False,
    deletes: bool = False,
) -> Response:
    """Stream the events of a run.

    Args:
        modes: Modes of the SDK. Without modes, the events of all stored modes are sent.
        last_event_id: Id of the last event that the client has.
        cancels: Whether a disconnect of the client cancels the run.
        deletes: Whether the thread is deleted after the end.
    """
    kept_modes(modes)
    events, conversion = call.state.runs.join(handle, last_event_id=last_event_id), Conversion(modes)
    if last_event_id and "messages" in modes:
        events = _after_earlier(call, handle, conversion, events)
    path = location(handle)
    # A client that reconnects has only this address, so the address repeats the modes.
    query = f"?{urlencode({'stream_mode': list(modes)}, doseq=True)}" if modes else ""
    headers = {**HEADERS, "Content-Location": path, "Location": f"{path}/stream{query}"}
    chunks = _chunks(call, handle, events, conversion, reader, cancels, deletes)
    return ClosingResponse(chunks, 200, headers, "text/event-stream")


async def _after_earlier(
    call: Call, handle: AsyncRunHandle, conversion: Conversion, events: AsyncIterator[StreamEvent]
) -> AsyncIterator[StreamEvent]:
    """Yield events after the conversion has read the run's earlier events, which hold earlier parts of a message."""
    is_first = True
    given: Any = events
    async with aclosing(given) as later:
        async for event in later:
            if is_first:
                is_first = False
                joined: Any = call.state.runs.join(handle)
                async with aclosing(joined) as stored:
                    async for earlier in stored:
                        if number_of(earlier.id) >= number_of(event.id):
                            break
                        for _ in conversion.convert(earlier):
                            pass
            yield event


async def _chunks(
    call: Call,
    handle: AsyncRunHandle,
    events: AsyncIterator[StreamEvent],
    conversion: Conversion,
    reader: Reader,
    cancels: bool,
    deletes: bool,
) -> AsyncIterator[bytes]:
    async with with_client(call, handle, reader, cancels=cancels, deletes=deletes) as ended:
        yield HEARTBEAT

        async def encode(event: StreamEvent) -> tuple[str, bytes]:
            def convert(write: Callable[[Any], bytes]) -> bytes:
                parts = [*conversion.convert(event)]
                # Only the last part has the id, because a client that comes back with the id lacks none of the parts.
                return b"".join(encoded(event.id if part is parts[-1] else "", *part, write) for part in parts)

            return event.event, await written(event.data, convert)

        try:
            async with aclosing(batches_of(call, events, encode)) as batches:
                async for batch in batches:
                    if await reader.is_gone():
                        return
                    if not batch:
                        yield HEARTBEAT
                        continue
                    is_end = batch[-1].mark == "end"
                    for piece in pieces(batch):
                        if piece:
                            yield piece
                    if is_end:
                        ended.set()
        except (UnavailableError, ServerStoppingError):
            raise ServerStoppingError("the stream ends before its run: reconnect to go on with it") from None
        except PGStateError as error:
            yield encoded("", "error", {"error": type(error).__name__, "message": str(error)})


class Reader:
    """A repeated check whether a client may still read a thread. Without a scope, the client may always read it."""

    def __init__(self, call: Call, scope: Alternatives | None, thread_id: str) -> None:
        self._call, self._scope, self._thread_id = call, scope, thread_id
        self._checked_at = time.monotonic()

    async def is_gone(self, *, now: bool = False) -> bool:
        """Return whether the client may no longer read the thread.

        Without `now`, a result of the last few seconds is used again. For a deleted thread, return false, because the
        run and the response end anyway.
        """
        is_known = not now and time.monotonic() - self._checked_at < pacing.HEARTBEAT_SECONDS
        if self._scope is None or is_known:
            return False
        threads = self._call.state.threads
        if await threads.get(self._thread_id, scope=self._scope) is None and await threads.get(self._thread_id):
            return True
        self._checked_at = time.monotonic()
        return False


@asynccontextmanager
async def with_client(
    call: Call, handle: AsyncRunHandle, reader: Reader, *, cancels: bool, deletes: bool
) -> AsyncIterator[asyncio.Event]:
    """Run a block that responds to a client, and then cancel the run or delete its thread, if the client asked for it.

    Yield an event that must be set when the client has received the run's end.

    Args:
        cancels: Whether the run is cancelled if the client disconnects before the end. The run is not cancelled if the
            server stops, or if the client may no longer read the thread.
        deletes: Whether the thread is deleted after the end.
    """
    ended = asyncio.Event()
    try:
        yield ended
    except (asyncio.CancelledError, GeneratorExit):
        # Do not cancel the run if this server closes the connection because it stops.
        if cancels and not ended.is_set() and not call.service.stopping.is_set():
            await clean_up(partial(_cancel, call, handle, reader))
        raise
    finally:
        if deletes and ended.is_set():
            await clean_up(partial(_delete_thread, call, handle))


async def _cancel(call: Call, handle: AsyncRunHandle, reader: Reader) -> None:
    if not await reader.is_gone(now=True):
        await call.state.runs.cancel(handle.thread_id, handle.run_id, "interrupt")


async def _delete_thread(call: Call, handle: AsyncRunHandle) -> None:
    """Delete the thread of a run, if the run exists.

    Without the run, the thread may be a new thread of another user under the same id.
    """
    if await call.state.runs.get(handle.thread_id, handle.run_id) is not None:
        await call.state.saver.adelete_thread(handle.thread_id)


def location(handle: AsyncRunHandle) -> str:
    """Return the path of a run for a header, relative to the server's address as the client sees it."""
    thread_id, run_id = (quote(id, safe=_SAFE) for id in (handle.thread_id, handle.run_id))
    return f"/threads/{thread_id}/runs/{run_id}"


class Conversion:
    """A converter of the events of one stream to the SDK's form. Without modes, all stored modes are converted."""

    def __init__(self, modes: Sequence[str]) -> None:
        self._modes = {*modes}
        self._is_whole = not modes
        # For each message id, the parts that have arrived, joined to one message.
        self._parts: dict[str, BaseMessageChunk] = {}

    def convert(self, event: StreamEvent) -> Iterator[tuple[str, Any]]:
        """Yield the names and the data of the SDK's events for one event."""
        mode, data = event.event, event.data
        if mode == "end":
            # Clients get no event of the run's end: the stream just ends, as on LangGraph's own server.
            return
        if mode in _CONTROL:
            yield mode, short_error(data) if mode == "error" else data
            return
        namespace = "".join(f"|{part}" for part in event.namespace)
        if mode == "messages":
            if self._is_whole or "messages-tuple" in self._modes:
                yield f"messages{namespace}", data
            if "messages" in self._modes:
                yield from self._message(*data)
            return
        if self._is_whole or mode in self._modes:
            yield f"{mode}{namespace}", _with_checkpoints(mode, data)

    def _message(self, message: Any, metadata: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(message, BaseMessage) or not message.id:
            return
        known = self._parts.get(message.id)
        if known is None:
            yield "messages/metadata", {message.id: {"metadata": metadata}}
        if not isinstance(message, BaseMessageChunk):
            yield "messages/complete", [message]
            return
        whole = message if known is None else known + message
        assert isinstance(whole, BaseMessageChunk)
        self._parts[message.id] = whole
        yield "messages/partial", [message_chunk_to_message(whole)]


def _with_checkpoints(mode: str, data: Any) -> Any:
    """Return an event's data with checkpoints in place of its configs, as on LangGraph's own server."""
    payload = data.get("payload") if mode == "debug" and isinstance(data, Mapping) else None
    if not isinstance(payload, Mapping) or "parent_config" not in payload:
        return data
    return {
        **data,
        "payload": {
            **payload,
            "checkpoint": checkpoint_of(payload.get("config")),
            "parent_checkpoint": checkpoint_of(payload["parent_config"]),
            "tasks": [_task(task) for task in payload.get("tasks", ())],
        },
    }


def _task(task: Any) -> Any:
    """Return a task with its subgraph's checkpoint in place of a config."""
    place = checkpoint_of(task.get("state")) if isinstance(task, Mapping) else None
    if place is None:
        return task
    return {**{name: value for name, value in task.items() if name != "state"}, "checkpoint": place}


def encoded(id: str, name: str, data: Any, write: Callable[[Any], bytes] = to_json) -> bytes:
    """Return a server-sent event. `write` converts `data` to JSON."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + write(data) + b"\n\n"


async def written(weighed: Any, convert: Callable[[Callable[[Any], bytes]], bytes]) -> bytes:
    """Call `convert` with a JSON encoder, and return its result. With many values, the call runs in an OS thread.

    Data of few values are encoded on the event loop, because streams that wait for an OS thread keep events in memory.
    """
    return await beside(convert, to_json_in_parts) if has_many_values(weighed) else convert(to_json)


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


async def stream_events(call: Call) -> Response:
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

    async def until_there(self) -> AsyncGenerator[bytes, None]:
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
    return ClosingResponse(_chunks_of_thread(call, thread, events, convert, fail), 200, HEADERS, "text/event-stream")


async def _chunks_of_thread(
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
        async with aclosing(thread.until_there()) as heartbeats:
            async for heartbeat in heartbeats:
                yield heartbeat
        async with aclosing(batches_of(call, events, encode)) as batches:
            async for batch in batches:
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
