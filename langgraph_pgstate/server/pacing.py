"""Events on their way to a client: read as fast as the client takes them, and held once for all who wait for them."""

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

# A proxy closes a connection on which nothing is sent; the JavaScript SDK finds half-open ones by it.
HEARTBEAT_SECONDS: Final = 5.0
# Bytes that are read before the client has taken those before them; at least one item.
_AHEAD: Final = 64 * 1024
# Bytes that are given to a connection at once: it waits for the client before it takes more.
_PIECE: Final = 16 * 1024
# Bytes of large items that wait for all clients of a process. A client whose item has no room gets a 503 and asks
# again.
_waiting: Final = Budget(128 * 1024 * 1024)

_log = logging.getLogger("langgraph_pgstate.server")

T = TypeVar("T")
M = TypeVar("M")


class ClosingResponse(StreamingResponse):
    """A response whose source is closed when the client disconnects, also while it waits."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; without its end if the server stops, which closes the connection."""
        try:
            await super().__call__(scope, receive, send)
        except ServerStoppingError:
            pass
        finally:
            closing = getattr(self.body_iterator, "aclose", None)
            if closing is not None:
                await clean_up(closing)


class _Content:
    """Bytes that several streams hold."""

    __slots__ = ("__weakref__", "_claimed", "data")

    def __init__(self, data: bytes, claimed: int = 0) -> None:
        self.data, self._claimed = data, claimed

    def __del__(self) -> None:
        _waiting.release(self._claimed)


_contents: Final[WeakValueDictionary[bytes, _Content]] = WeakValueDictionary()


class Waiting(Generic[M]):
    """An item that a client has not taken yet.

    Large ones are held once in a process: the readers of one run that take nothing mostly wait at the same place.

    Attributes:
        mark: What the stream needs to know of the item.

    Args:
        mark: The same.
        data: Its bytes.

    Raises:
        ServerBusyError: If the large ones of other clients take too many bytes.
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
        """Its bytes."""
        return self._content.data


def pieces(batch: deque[Waiting[Any]]) -> Iterator[bytes]:
    """Yield the bytes of a batch, small items together and large ones in pieces, and empty it meanwhile."""
    while batch:
        small: list[bytes] = []
        size = 0
        while batch and (size := size + len(batch[0].data)) <= _PIECE:
            small.append(batch.popleft().data)
        if small:
            yield b"".join(small)
        else:
            # Kept until it is sent, so that others who wait for the same bytes find them.
            large = batch.popleft()
            yield from _parts(large.data)
            del large


async def batches_of(
    call: Call, source: AsyncIterator[T], encode: Callable[[T], Awaitable[tuple[M, bytes]]]
) -> AsyncIterator[deque[Waiting[M]]]:
    """Yield the items of an iterator as bytes, in batches: all that have come, or none when a heartbeat is due.

    No more is read ahead than a few dozen kilobytes, or one item, before the caller asks for the next batch.

    Args:
        call: The request.
        source: The items.
        encode: Returns what the stream needs to know of an item, and its bytes.

    Raises:
        ServerStoppingError: If the server stops.
    """
    found: deque[Waiting[M]] = deque()
    has_come, has_room = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        size = 0
        async for item in source:
            found.append(Waiting(*await encode(item)))
            # Let go of the value before waiting for the client.
            del item
            has_come.set()
            size += len(found[-1].data)
            while size > _AHEAD:
                has_room.clear()
                await has_room.wait()
                size = sum(len(one.data) for one in found)

    # One task for all that comes: one for each item would cost more than the item.
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
    """A response whose body is sent as the client takes it, and counts as bytes that wait.

    Args:
        response: The response.

    Raises:
        ServerBusyError: If the large ones of other clients take too many bytes.
    """

    def __init__(self, response: Response) -> None:
        batch = deque([Waiting(None, bytes(response.body))])
        # Only `batch` has the body from here on.
        super().__init__(_each(pieces(batch)), response.status_code, response.headers, response.media_type)


async def _each(found: Iterator[bytes]) -> AsyncIterator[bytes]:
    for one in found:
        yield one


def held(response: Response, is_read: bool) -> Response:
    """Return a response that holds no more of the process's memory than there is.

    Args:
        response: A response.
        is_read: Whether its request changes nothing, and may be refused.

    Raises:
        ServerBusyError: If it may be, and the large answers of other clients take too many bytes.
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
    """Respond with a list of values that are read while it is sent, one by one; with a short one when it is whole.

    Args:
        values: The values.
        headers: Headers of the response.

    Raises:
        Exception: What `values` raises before they have a few kilobytes, or one value. If it raises later, the
            response breaks off.
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
            raise ServerStoppingError("the list breaks off") from None
        finally:
            await clean_up(batches.aclose)

    return ClosingResponse(chunks(), 200, headers, "application/json")


async def _batches(values: AsyncGenerator[Any, None]) -> AsyncGenerator[tuple[deque[Waiting[None]], bool], None]:
    """Yield a list of values as JSON, some kilobytes or one value at once, and whether it is the end."""
    found: deque[Waiting[None]] = deque()
    size, mark = 0, b"["
    async with aclosing(values):
        async for value in values:
            found.append(Waiting(None, mark))
            found.append(Waiting(None, await json.encode(value)))
            # Let go of the value before waiting for the client.
            del value
            size, mark = size + len(found[-1].data), b","
            if size > _PIECE:
                yield found, False
                found, size = deque(), 0
    found.append(Waiting(None, b"[]" if mark == b"[" else b"]"))
    yield found, True


async def _in_one_task(values: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield what a generator yields, and run it in one task, whoever asks for its values.

    A scope of anyio, as that of a graph's factory, has to be left by the task that entered it.
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
    """Clean up after a request, even if it is cancelled; what fails is mended by the sweep of expired threads."""
    with suppress(Exception):
        await finish(do())
