"""The application as a process: uvicorn, signals and, without `auth`, the refusal of other machines' requests."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
import resource
import signal
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.server.app import AgentServer
from langgraph_pgstate.server.auth import is_local, is_loopback
from langgraph_pgstate.server.json import answer
from langgraph_pgstate.server.supervising import Membership

# Origins whose pages may call a server on the same machine: LangGraph Studio, and any site on that machine.
_ORIGINS: Final = r"https://([\w-]+\.)*smith\.langchain\.com|https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
DEFAULT_CORS: Final[Mapping[str, Any]] = {
    "allow_origin_regex": _ORIGINS,
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "allow_private_network": True,
}
_BACKLOG: Final = 2048
# Seconds that a client has to send the head of a request, and to take more bytes of a response.
_HEAD_SECONDS: Final = 15.0
_TAKING_SECONDS: Final = 60.0
# Seconds for requests to end when the server stops. Without a limit, a client that reads nothing could prevent the
# stop.
_GRACE_SECONDS: Final = 10
# A parameter of glibc: blocks of at least this size are returned to the system when they are freed. By default, glibc
# raises this size after the first large block, and then keeps freed memory.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 1024 * 1024
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens, on any free port if `port` is 0.

    Args:
        is_shared: Whether other processes listen on the same port, too.

    Raises:
        UnavailableError: If the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=is_shared)
    except OSError as error:
        raise UnavailableError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    # Connections inherit TCP_NODELAY from the listener. asyncio sets this option only on sockets that it made. Without
    # the option, a response's body waits 40 ms until the client has acknowledged the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class LocalOnly:
    """An application that responds only to programs and pages of the same machine, and to pages that CORS allows.

    A page of any other site can make a browser send requests to a local server. So the `Origin` of each request is
    checked. The `Host` is also checked, because a site can make one of its own host names resolve to this machine.
    """

    def __init__(self, app: AgentServer) -> None:
        self._app: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if not is_local(f"//{headers.get('host', '')}") or (origin is not None and not _may_call(origin)):
                await answer({"detail": "without auth only this machine is served"}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def run(
    app: AgentServer,
    listener: socket.socket,
    *,
    is_open: bool,
    threads: int = 64,
    member: Membership | None = None,
) -> int:
    """Serve an application until SIGTERM or SIGINT, then drain it. A second signal stops it at once.

    Args:
        is_open: Whether other machines may call the application.
        threads: Number of threads in which blocking nodes run.
        member: The membership of this process if a supervisor runs several processes. The process also drains when the
            supervisor stops or dies. Only the supervisor handles a second signal.

    Returns:
        The exit code: 0 after a drain, 143 or 130 after a second signal.

    Raises:
        ConfigurationError: If `is_open` is false and other machines could reach the listener.
    """
    if not is_open and not is_loopback(listener.getsockname()[0]):
        raise ConfigurationError(
            "without auth the server must listen on this machine only: name an Auth object in langgraph.json "
            '("auth": {"path": "./auth.py:auth"}), or mount create_app in an application that authenticates'
        )
    served: Any = app if is_open else LocalOnly(app)
    # `_serve` enters the lifespan, so that the caller gets its errors. uvicorn would only log these errors.
    config = uvicorn.Config(
        served,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
        http=_Connection,
    )
    _give_back_memory()
    loop = asyncio.new_event_loop()
    server = _Server(config, app, member, loop)
    # Install the handlers before uvicorn does. uvicorn restores them when it ends, and the worker then still drains.
    before = {number: signal.signal(number, server.handle_exit) for number in _SIGNALS}
    executor = ThreadPoolExecutor(threads)
    loop.set_default_executor(executor)
    try:
        loop.run_until_complete(_serve(app, server, listener, member))
        return server.exit_code
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_back_memory() -> None:
    # Some systems have no `mallopt`.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


async def _serve(app: AgentServer, server: _Server, listener: socket.socket, member: Membership | None) -> None:
    async with app.lifespan():
        # Exempt the objects of all modules from later collections. Otherwise each full collection would go through
        # these objects, and stop the event loop for a fifth of a second.
        gc.collect()
        gc.freeze()
        if member is not None:
            server.follow_supervisor(member)
        await server.serve([listener])


class _Connection(H11Protocol):
    """A connection that buffers few bytes. Unlike httptools, h11 bounds the head of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or close it if there are too many."""
        super().connection_made(transport)
        # Buffer only the last bytes of the application. It then waits until the client has taken these bytes.
        transport.set_write_buffer_limits(0)
        if len(self.connections) > _most_connections():
            transport.abort()


def _most_connections() -> int:
    """Return the maximum number of connections: half of the process's file limit. The database needs files, too."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


class _Stall(NamedTuple):
    """A wait of a connection for its client.

    Attributes:
        cycle: uvicorn's object for the last request.
        is_between: Whether the connection waits for the head of the next request.
        pending: Bytes that the client has not taken.
        since: Start of the wait, or time at which the client last took bytes, by the monotonic clock.
    """

    cycle: Any
    is_between: bool
    pending: int
    since: float

    @classmethod
    def of(cls, connection: Any, known: _Stall | None, now: float) -> _Stall:
        """Return the stall of a uvicorn connection. If nothing has changed since `known`, the stall keeps its start."""
        cycle, pending = connection.cycle, connection.transport.get_write_buffer_size()
        is_between = cycle is None or (cycle.response_complete and not pending)
        if known is not None and known.cycle is cycle and known.is_between == is_between:
            # Heartbeats add pending bytes. So only a decrease shows that the client has taken bytes.
            has_taken = not is_between and (pending == 0 or pending < known.pending)
            return cls(cycle, is_between, pending, now if has_taken else known.since)
        return cls(cycle, is_between, pending, now)

    def is_over(self, now: float) -> bool:
        """Return whether the stall has lasted too long."""
        return now - self.since > (_HEAD_SECONDS if self.is_between else _TAKING_SECONDS)


class _Server(uvicorn.Server):
    """A server that reports a signal to its application at once, so that open streams end."""

    def __init__(
        self, config: uvicorn.Config, app: AgentServer, member: Membership | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config)
        self._app, self._member, self._loop = app, member, loop
        self._stalls: dict[Any, _Stall] = {}
        self.exit_code = 0

    async def on_tick(self, counter: int) -> bool:
        """Close the stalled connections every second. uvicorn itself does not close them."""
        if counter % 10 == 0:
            now = time.monotonic()
            self._stalls = {one: _Stall.of(one, self._stalls.get(one), now) for one in self.server_state.connections}
            for connection, stall in self._stalls.items():
                if stall.is_over(now):
                    connection.transport.abort()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop accepting requests, and end streams. At the second signal, end requests and runs at once."""
        # Call `_signalled` later, because the interrupted code may hold a lock.
        self._loop.call_soon_threadsafe(self._signalled, sig)

    def follow_supervisor(self, member: Membership) -> None:
        """Report to the supervisor. When the supervisor stops or dies, drain as at SIGTERM."""

        def leave() -> None:
            self._loop.remove_reader(member.supervisor)
            self._end()

        self._loop.add_reader(member.supervisor, leave)
        member.report()

    def _signalled(self, number: int) -> None:
        if not self.should_exit:
            self._end()
        elif self._member is None and not self.exit_code:
            self.exit_code = 128 + number
            self.force_exit = True
            self._app.stop()
            # Close all connections at once, because a client that reads nothing would keep its connection open.
            for connection in [*self.server_state.connections]:
                connection.transport.abort()

    def _end(self) -> None:
        if not self.should_exit:
            self.should_exit = True
            self._app.stop()


def _may_call(origin: str) -> bool:
    return re.fullmatch(_ORIGINS, origin) is not None
