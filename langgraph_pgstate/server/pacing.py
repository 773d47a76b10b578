"""Sending events to clients. Events are read as fast as the client takes them.

Clients that wait for the same event share its bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

import xxhash
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from langgraph_pgstate.db.finishing import finish
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.server import json
from langgraph_pgstate.server.errors import Budget, ServerBusyError, ServerStoppingError
from langgraph_pgstate.server.service import Call

# Seconds between heartbeats. Proxies and the JavaScript SDK close connections on which nothing is sent.
HEARTBEAT_SECONDS: Final = 5.0
# Maximum number of bytes that are read ahead of the client; at least one item is read.
_AHEAD: Final = 64 * 1024
# Maximum number of bytes that a connection gets at once. After these bytes, the connection waits for the client.
_PIECE: Final = 16 * 1024
# Maximum bytes of large items that wait for clients, per process. Without room for its item, a client gets a 503.
_waiting: Final = Budget(128 * 1024 * 1024)

_log = logging.getLogger("langgraph_pgstate.server")

T = TypeVar("T")
M = TypeVar("M")


class ClosingResponse(StreamingResponse):
    """A response that closes its source when the client disconnects, even while the source yields nothing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. If the server stops, close the connection before the end of the response."""
        try:
            await super().__call__(scope, receive, send)
        except ServerStoppingError:
            pass
        finally:
            closing = getattr(self.body_iterator, "aclose", None)
            if closing is not None:
                await clean_up(closing)


class _Content:
    """Bytes that several streams share."""

    __slots__ = ("__weakref__", "_claimed", "data")

    def __init__(self, data: bytes, claimed: int = 0) -> None:
        self.data, self._claimed = data, claimed

    def __del__(self) -> None:
        _waiting.release(self._claimed)


_contents: Final[WeakValueDictionary[bytes, _Content]] = WeakValueDictionary()


class Waiting(Generic[M]):
    """An item that a client has not taken yet.

    Streams share the bytes of a large item, because stalled clients of a run usually wait for the same item.

    Attributes:
        mark: Data that the stream keeps with the item.
    """

    __slots__ = ("_content", "mark")

    def __init__(self, mark: M, data: bytes) -> None:
        self.mark = mark
        if len(data) <= _PIECE:
            self._content = _Content(data)
            return
        digest = xxhash.xxh3_128_digest(data)
        found = _contents.get(digest)
        if found is None:
            _waiting.claim(len(data))
            found = _contents[digest] = _Content(data, len(data))
        self._content = found

    @property
    def data(self) -> bytes:
        """Bytes of the item."""
        return self._content.data


def pieces(batch: deque[Waiting[Any]]) -> Iterator[bytes]:
    """Yield the bytes of a batch: small items together, large items in pieces. Remove the items from the batch."""
    while batch:
        small: list[bytes] = []
        size = 0
        while batch and (size := size + len(batch[0].data)) <= _PIECE:
            small.append(batch.popleft().data)
        if small:
            yield b"".join(small)
        else:
            # Streams of the same item share its bytes. `large` keeps the bytes in memory until they are sent.
            large = batch.popleft()
            yield from _parts(large.data)
            del large


async def batches_of(
    call: Call, source: AsyncIterator[T], encode: Callable[[T], Awaitable[tuple[M, bytes]]]
) -> AsyncGenerator[deque[Waiting[M]], None]:
    """Yield the items of a generator as bytes, in batches, and close it. An empty batch means that a heartbeat is due.

    `encode` returns the mark and the bytes of an item. At most a few dozen kilobytes, or one item, are read before the
    caller asks for the next batch.
    """
    closing: Any = source
    found: deque[Waiting[M]] = deque()
    has_come, has_room = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        size = 0
        async with aclosing(closing) as items:
            async for item in items:
                found.append(Waiting(*await encode(item)))
                # Release the value before waiting for the client.
                del item
                has_come.set()
                size += len(found[-1].data)
                while size > _AHEAD:
                    has_room.clear()
                    await has_room.wait()
                    size = sum(len(one.data) for one in found)

    # One task for all items, because a task for each item would cost more than the item.
    reading = asyncio.ensure_future(read())
    stopping = asyncio.ensure_future(call.service.stopping.wait())
    coming: asyncio.Future[Any] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(has_come.wait())
            await asyncio.wait([coming, reading, stopping], timeout=HEARTBEAT_SECONDS, return_when="FIRST_COMPLETED")
            coming.cancel()
            has_come.clear()
            if found:
                batch = deque(found)
                found.clear()
                yield batch
                has_room.set()
            elif reading.done():
                reading.result()
                return
            elif stopping.done():
                raise ServerStoppingError("the server is stopping")
            else:
                yield deque()
    finally:
        for task in (coming, reading, stopping):
            if task is not None:
                task.cancel()
        with suppress(asyncio.CancelledError, PGStateError):
            await reading


class HeldResponse(StreamingResponse):
    """A response that is sent as fast as the client takes it. Its bytes count against the limit for large items."""

    def __init__(self, response: Response) -> None:
        batch = deque([Waiting(None, bytes(response.body))])
        # From here on, only `batch` refers to the body, so that its memory is freed while it is sent.
        super().__init__(_each(pieces(batch)), response.status_code, response.headers, response.media_type)


async def _each(found: Iterator[bytes]) -> AsyncIterator[bytes]:
    for one in found:
        yield one


def held(response: Response, is_read: bool) -> Response:
    """Return a large response as a `HeldResponse`, and other responses unchanged.

    If too little memory is left, a read is refused. A response to a change is sent, because the change is made already.
    """
    if isinstance(response, StreamingResponse) or len(response.body) <= _PIECE:
        return response
    try:
        return HeldResponse(response)
    except ServerBusyError:
        if is_read:
            raise
        return response


async def answer_list(values: AsyncGenerator[Any, None], headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a list of values. A short list is read before it is sent, a longer list while it is sent.

    An error before the first part of the list is raised. A later error ends the response early.
    """
    batches = _in_one_task(_batches(values))
    try:
        found, is_whole = await anext(batches)
    except BaseException:
        await batches.aclose()
        raise
    if is_whole and sum(len(one.data) for one in found) <= _PIECE:
        await batches.aclose()
        return Response(b"".join(one.data for one in found), 200, headers, "application/json")

    async def chunks() -> AsyncIterator[bytes]:
        batch = found
        try:
            for piece in pieces(batch):
                yield piece
            async for batch, _ in batches:
                for piece in pieces(batch):
                    yield piece
        except Exception:
            _log.exception("a list could not be read to its end")
            raise ServerStoppingError("the list ended early: a value could not be read") from None
        finally:
            await clean_up(batches.aclose)

    return ClosingResponse(chunks(), 200, headers, "application/json")


async def _batches(values: AsyncGenerator[Any, None]) -> AsyncGenerator[tuple[deque[Waiting[None]], bool], None]:
    """Yield the JSON of a list in parts (a few kilobytes, or one large value), and whether each part is the last."""
    found: deque[Waiting[None]] = deque()
    size, mark = 0, b"["
    async with aclosing(values):
        async for value in values:
            found.append(Waiting(None, mark))
            found.append(Waiting(None, await json.encode(value)))
            # Release the value before waiting for the client.
            del value
            size, mark = size + len(found[-1].data), b","
            if size > _PIECE:
                yield found, False
                found, size = deque(), 0
    found.append(Waiting(None, b"[]" if mark == b"[" else b"]"))
    yield found, True


async def _in_one_task(values: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the values of a generator that runs in one task, even if several tasks ask for the values.

    The task that enters a cancel scope of anyio, as in a graph's factory, must also leave it.
    """
    wanted: asyncio.Queue[None] = asyncio.Queue()
    found: asyncio.Queue[tuple[list[T], BaseException | None]] = asyncio.Queue()

    async def read() -> None:
        try:
            async with aclosing(values):
                await wanted.get()
                async for value in values:
                    found.put_nowait(([value], None))
                    del value
                    await wanted.get()
            found.put_nowait(([], None))
        except BaseException as error:
            found.put_nowait(([], error))

    reading = asyncio.create_task(read())
    try:
        while True:
            wanted.put_nowait(None)
            come, error = await found.get()
            if error is not None:
                raise error
            if not come:
                return
            yield come.pop()
    finally:
        reading.cancel()
        await asyncio.wait([reading])


def _parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


async def clean_up(do: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Clean up after a request, even if the request is cancelled. Errors are ignored.

    For example, an undeleted thread of a stateless run does no harm, because the thread expires later.
    """
    with suppress(Exception):
        await finish(do())
