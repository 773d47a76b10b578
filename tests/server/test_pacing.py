"""What a server holds of a stream or a list for a client that takes nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import anyio
import orjson
import pytest
from starlette.responses import Response

from langgraph_pgstate.server import pacing
from langgraph_pgstate.server.errors import Budget, ServerBusyError, ServerStoppingError
from langgraph_pgstate.server.pacing import (
    ClosingResponse,
    HeldResponse,
    Waiting,
    answer_list,
    batches_of,
    held,
    pieces,
)
from langgraph_pgstate.server.service import Call


def call() -> Call:
    return cast("Call", SimpleNamespace(service=SimpleNamespace(stopping=asyncio.Event())))


@pytest.mark.parametrize(("size", "most"), [(100_000, 1), (30_000, 3), (100, 660)])
async def test_a_client_that_takes_nothing_stops_what_is_read(size: int, most: int) -> None:
    read: list[int] = []

    async def source() -> AsyncIterator[int]:
        for number in range(1000):
            read.append(number)
            yield number
            await asyncio.sleep(0)

    async def encode(number: int) -> tuple[int, bytes]:
        return number, bytes([number % 256]) * size

    batches = batches_of(call(), source(), encode)
    async with aclosing(cast("AsyncGenerator[Any, None]", batches)) as running:
        first = await anext(running)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(read) <= most
        # And all of it comes, in order.
        marks = [one.mark for one in first]
        async for batch in running:
            marks += [one.mark for one in batch]
        assert marks == [*range(1000)]


def test_large_events_are_held_once_by_all_who_wait_for_them() -> None:
    one, other = (Waiting(n, b"x" * 100_000 + str(0).encode()) for n in (1, 2))
    assert one.data is other.data
    assert Waiting(3, b"y" * 100_000).data != one.data


async def test_large_answers_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_waiting", budget := Budget(250_000))

    def large(number: int) -> Response:
        return Response(bytes([number]) * 100_000, 201, {"X-A": "b"}, "application/json")

    one, same, other = held(large(1), True), held(large(1), True), held(large(2), True)
    assert budget._held == 200_000
    with pytest.raises(ServerBusyError):
        held(large(3), True)
    # What has changed something is answered.
    assert not isinstance(held(large(3), False), HeldResponse)
    assert not isinstance(held(Response(b"small"), True), HeldResponse)
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await one({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert b"".join(part.get("body", b"") for part in sent) == bytes([1]) * 100_000
    assert sent[0]["status"] == 201
    assert dict(sent[0]["headers"])[b"x-a"] == b"b"
    assert dict(sent[0]["headers"])[b"content-length"] == b"100000"
    assert max(len(part.get("body", b"")) for part in sent) <= 16 * 1024
    del one, same, other
    assert budget._held == 0


def test_bytes_are_sent_in_pieces() -> None:
    given = [b"a" * 10, b"b" * 10_000, b"c" * 100_000, b"", b"d"]
    batch = deque(Waiting(None, data) for data in given)
    sent = [*pieces(batch)]
    assert b"".join(sent) == b"".join(given)
    assert max(map(len, sent)) <= 16 * 1024
    assert sent[0] == b"a" * 10 + b"b" * 10_000
    assert not batch


async def listed(size: int, count: int, fails_at: int | None = None) -> tuple[bytes, int]:
    """A list of values of some size, and how many were read before the first bytes were taken."""
    read: list[int] = []
    closed: list[bool] = []
    before = 0

    async def values() -> AsyncGenerator[str, None]:
        try:
            for number in range(count):
                if number == fails_at:
                    raise ValueError("damaged")
                read.append(number)
                yield "x" * size
        finally:
            closed.append(True)

    response = await answer_list(values())
    if not isinstance(response, ClosingResponse):
        assert closed == [True]
        return bytes(response.body), len(read)
    parts: list[bytes] = []
    try:
        async for part in cast("AsyncIterator[bytes]", response.body_iterator):
            before = before or len(read)
            parts.append(part)
    finally:
        assert closed == [True]
        assert all(len(part) <= 16 * 1024 for part in parts)
    return b"".join(parts), before


async def test_a_list_is_read_as_it_is_sent() -> None:
    body, _ = await listed(10, 5000)
    assert orjson.loads(body) == ["x" * 10] * 5000
    body, before = await listed(1_000_000, 7)
    assert len(orjson.loads(body)) == 7
    assert before == 1
    assert await listed(10_000, 1) == (b'["' + b"x" * 10_000 + b'"]', 1)
    assert await listed(1, 0) == (b"[]", 0)


async def test_a_list_that_fails_is_an_error_or_breaks_off() -> None:
    with pytest.raises(ValueError, match="damaged"):
        await listed(10, 5, fails_at=4)
    with pytest.raises(ServerStoppingError):
        await listed(10_000, 50, fails_at=4)


async def test_a_list_is_read_in_one_task() -> None:
    """Scopes of anyio raise an error otherwise. The first values are read before the response begins."""

    async def values() -> AsyncGenerator[str, None]:
        async with anyio.create_task_group():
            for _ in range(3):
                yield "x" * 20_000

    response = await answer_list(values())
    parts: list[bytes] = []

    async def send() -> None:
        async for part in cast("AsyncIterator[bytes]", response.body_iterator):  # type: ignore[attr-defined]
            parts.append(part)

    await asyncio.create_task(send())
    assert orjson.loads(b"".join(parts)) == ["x" * 20_000] * 3
    # Closed by another task before its end.
    response = await answer_list(values())
    await response.body_iterator.aclose()  # type: ignore[attr-defined]


async def test_a_closed_stream_closes_its_source_at_once() -> None:
    closed: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("source")

    async def encode(number: int) -> tuple[int, bytes]:
        if number == 2:
            await asyncio.Event().wait()
        return number, b"1"

    async with aclosing(batches_of(call(), source(), encode)) as batches:
        await anext(batches)
        await asyncio.sleep(0.01)
    assert closed == ["source"]
