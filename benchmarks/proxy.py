"""A TCP proxy in a process of its own that counts bytes and round trips, delays both directions, and breaks lines.

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

_UP, _DOWN, _TURNS, _CUT, _LOST = range(5)
_READY = b"Z\0\0\0\x05"
"""How PostgreSQL's last message of an answer begins; the transaction's status follows."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy.

    Attributes:
        port: Where it listens on 127.0.0.1.
    """

    port: int
    _counters: Any
    _orders: Any

    def count(self) -> tuple[int, int]:
        """Bytes in both directions, and round trips (how often a client spoke after the server), so far."""
        # The last bytes are counted by the proxy before it passes them on, so what a client has read is in here.
        return self._counters[_UP] + self._counters[_DOWN], self._counters[_TURNS]

    def order(self, what: str, value: float = 1) -> None:
        """Have lines broken or delayed.

        Args:
            what: `cut`, pass half of a client's next message and close its line; `lose`, drop the answer that ends a
                client's next transaction and close its line; `sever`, close all lines; `delay`, deliver everything
                `value` seconds later from now on.
            value: For `cut` and `lose`, how often.
        """
        self._orders.send((what, value))

    def broken(self) -> tuple[int, int]:
        """How many lines were closed so far by `cut`, and by `lose`."""
        return self._counters[_CUT], self._counters[_LOST]


@contextmanager
def open_proxy(address: tuple[str, int], one_way_seconds: float = 0.0) -> Iterator[Proxy]:
    """Run a proxy in front of a server.

    Args:
        address: The server's socket directory or host, and its port.
        one_way_seconds: Delay of each direction.
    """
    context = multiprocessing.get_context("spawn")
    counters = context.Array("q", 5, lock=False)
    receiver, sender = context.Pipe()
    process = context.Process(target=_serve, args=(address, one_way_seconds, counters, sender), daemon=True)
    process.start()
    try:
        if not receiver.poll(30):
            raise RuntimeError("the proxy did not start")
        yield Proxy(receiver.recv(), counters, receiver)
    finally:
        process.terminate()
        process.join()


class _Line:
    """Hands over chunks in order, each `delay` seconds after it came, and the ends of connections likewise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self._loop = loop
        self.delay = delay
        self._waiting: deque[tuple[float, asyncio.Transport, bytes | None]] = deque()

    def send(self, target: asyncio.Transport, data: bytes | None) -> None:
        if not self.delay and not self._waiting:
            _deliver(target, data)
            return
        self._waiting.append((time.monotonic() + self.delay, target, data))
        if len(self._waiting) == 1:
            self._loop.call_later(self.delay, self._flush)

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


class _Orders:
    """Which lines are still to be broken, and all that are open."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.left = {"cut": 0, "lose": 0}
        self.open: set[_Client] = set()

    def take(self, what: str, value: float) -> None:
        if what == "delay":
            self._line.delay = value
        elif what == "sever":
            for client in list(self.open):
                client.close()
        else:
            self.left[what] += int(value)

    def is_due(self, what: str) -> bool:
        if not self.left[what]:
            return False
        self.left[what] -= 1
        return True


class _Client(asyncio.Protocol):
    """An application's side of a connection; opens the server's side."""

    def __init__(self, address: tuple[str, int], line: _Line, counters: Any, orders: _Orders) -> None:
        self._address, self._line, self._counters, self._orders = address, line, counters, orders
        self._early: list[bytes] = []
        self._server: asyncio.Transport | None = None
        self.transport: asyncio.Transport | None = None
        self.spoke_last = False
        self.is_ready = self.is_losing = False
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._orders.open.add(self)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._address

        def make() -> _Upstream:
            return _Upstream(self, self._line, self._counters)

        if host.startswith("/"):
            connecting = loop.create_unix_connection(make, f"{host}/.s.PGSQL.{port}")
        else:
            connecting = loop.create_connection(make, host, port)
        try:
            self._server, _ = await connecting
        except OSError:
            # A server that is down refuses its clients at once; so does this.
            self.close()
            return
        for data in self._early:
            self._line.send(self._server, data)
        self._early.clear()
        if self not in self._orders.open:
            self._line.send(self._server, None)

    def data_received(self, data: bytes) -> None:
        self._counters[_UP] += len(data)
        if not self.spoke_last:
            self.spoke_last = True
            self._counters[_TURNS] += 1
        if self._server is None:
            self._early.append(data)
        elif self.is_ready and self._orders.is_due("cut"):
            self._counters[_CUT] += 1
            self._line.send(self._server, data[: len(data) // 2])
            self.close()
        else:
            self.is_losing = self.is_losing or (self.is_ready and self._orders.is_due("lose"))
            self._line.send(self._server, data)

    def answered(self, data: bytes) -> None:
        """Pass on what the server says, unless it is to be lost."""
        ready = data[-6:-1] == _READY
        self.is_ready = self.is_ready or ready
        assert self.transport is not None
        if self.is_losing and ready and data.endswith(b"I"):
            self._counters[_LOST] += 1
            self.close()
        else:
            self._line.send(self.transport, data)

    def close(self) -> None:
        """Close the line at once, with what is still on its way to the client."""
        assert self.transport is not None
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._orders.open.discard(self)
        if self._server is not None:
            self._line.send(self._server, None)


class _Upstream(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, client: _Client, line: _Line, counters: Any) -> None:
        self._client, self._line, self._counters = client, line, counters

    def data_received(self, data: bytes) -> None:
        self._counters[_DOWN] += len(data)
        self._client.spoke_last = False
        self._client.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._client.transport is not None
        self._line.send(self._client.transport, None)


def _serve(address: tuple[str, int], delay: float, counters: Any, ready: Any) -> None:
    # epoll counts whole milliseconds, select microseconds: a delay of 0.5 ms needs the latter.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    line = _Line(loop, delay)
    orders = _Orders(line)
    server = loop.run_until_complete(
        loop.create_server(lambda: _Client(address, line, counters, orders), "127.0.0.1", 0, backlog=256)
    )

    def take_order() -> None:
        try:
            orders.take(*ready.recv())
        except EOFError:
            loop.stop()

    loop.add_reader(ready.fileno(), take_order)
    ready.send(server.sockets[0].getsockname()[1])
    loop.run_forever()
