"""A TCP proxy in a process of its own that counts bytes and round trips, and may delay both directions.

Each chunk is delivered a fixed time after it came, however many are under way: latency without loss of throughput.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import selectors
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

_UP, _DOWN, _TURNS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy.

    Attributes:
        port: Where it listens on 127.0.0.1.
    """

    port: int
    _counters: Any

    def count(self) -> tuple[int, int]:
        """Bytes in both directions, and round trips (how often a client spoke after the server), so far."""
        # The last bytes are counted by the proxy before it passes them on, so what a client has read is in here.
        return self._counters[_UP] + self._counters[_DOWN], self._counters[_TURNS]


@contextmanager
def open_proxy(address: tuple[str, int], one_way_seconds: float = 0.0) -> Iterator[Proxy]:
    """Run a proxy in front of a server.

    Args:
        address: The server's socket directory or host, and its port.
        one_way_seconds: Delay of each direction.
    """
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 3, lock=False)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(address, one_way_seconds, counters, sender), daemon=True)
    process.start()
    try:
        if not receiver.poll(30):
            raise RuntimeError("the proxy did not start")
        yield Proxy(receiver.recv(), counters)
    finally:
        process.terminate()
        process.join()


class _Line:
    """Hands over chunks in order, each `delay` seconds after it came, and the ends of connections likewise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self._loop = loop
        self._delay = delay
        self._waiting: deque[tuple[float, asyncio.Transport, bytes | None]] = deque()

    def send(self, target: asyncio.Transport, data: bytes | None) -> None:
        if not self._delay:
            _deliver(target, data)
            return
        self._waiting.append((time.monotonic() + self._delay, target, data))
        if len(self._waiting) == 1:
            self._loop.call_later(self._delay, self._flush)

    def _flush(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, target, data = self._waiting.popleft()
            _deliver(target, data)
        if self._waiting:
            self._loop.call_later(self._waiting[0][0] - now, self._flush)


def _deliver(target: asyncio.Transport, data: bytes | None) -> None:
    if data is None:
        target.close()
    elif not target.is_closing():
        target.write(data)


class _Client(asyncio.Protocol):
    """An application's side of a connection; opens the server's side."""

    def __init__(self, address: tuple[str, int], line: _Line, counters: Any) -> None:
        self._address, self._line, self._counters = address, line, counters
        self._early: list[bytes] = []
        self._server: asyncio.Transport | None = None
        self.transport: asyncio.Transport | None = None
        self.spoke_last = False
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._address

        def make() -> _Upstream:
            return _Upstream(self, self._line, self._counters)

        if host.startswith("/"):
            transport, _ = await loop.create_unix_connection(make, f"{host}/.s.PGSQL.{port}")
        else:
            transport, _ = await loop.create_connection(make, host, port)
        self._server = transport
        for data in self._early:
            self._line.send(self._server, data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self._counters[_UP] += len(data)
        if not self.spoke_last:
            self.spoke_last = True
            self._counters[_TURNS] += 1
        if self._server is None:
            self._early.append(data)
        else:
            self._line.send(self._server, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._line.send(self._server, None)


class _Upstream(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, client: _Client, line: _Line, counters: Any) -> None:
        self._client, self._line, self._counters = client, line, counters

    def data_received(self, data: bytes) -> None:
        self._counters[_DOWN] += len(data)
        self._client.spoke_last = False
        assert self._client.transport is not None
        self._line.send(self._client.transport, data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._client.transport is not None
        self._line.send(self._client.transport, None)


def _serve(address: tuple[str, int], delay: float, counters: Any, ready: Any) -> None:
    # epoll counts whole milliseconds, select microseconds: a delay of 0.5 ms needs the latter.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    line = _Line(loop, delay)
    server = loop.run_until_complete(
        loop.create_server(lambda: _Client(address, line, counters), "127.0.0.1", 0, backlog=256)
    )
    ready.send(server.sockets[0].getsockname()[1])
    loop.run_forever()
