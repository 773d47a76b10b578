"""What is refused without authentication; the process itself is in `tests/cli/test_serve.py`."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.routing import Route
from support_http import chat, http, serving

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.server import create_app
from langgraph_pgstate.server.serving import LocalOnly, _Server, listen, run


async def test_only_this_machine_and_studio_are_answered_without_auth(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, http(LocalOnly(server)) as client:
        for host, origin, status in (
            ("127.0.0.1:2024", None, 200),
            ("localhost", None, 200),
            ("[::1]:2024", None, 200),
            ("evil.example.com", None, 403),
            ("", None, 403),
            ("localhost", "https://smith.langchain.com", 200),
            ("localhost", "https://eu.smith.langchain.com", 200),
            ("localhost", "http://localhost:3000", 200),
            ("localhost", "https://example.com", 403),
            ("localhost", "https://smith.langchain.com.example.com", 403),
            ("localhost", "null", 403),
        ):
            headers = {"host": host} | ({} if origin is None else {"origin": origin})
            assert (await client.get("/info", headers=headers)).status_code == status, (host, origin)


def test_other_machines_are_not_served_without_auth() -> None:
    app = create_app(lambda: AsyncPGState.open(""), {"chat": chat()})
    with listen("0.0.0.0", 0) as listener, pytest.raises(ConfigurationError, match="without auth"):
        run(app, listener, is_open=False)


def test_a_port_is_shared_only_if_that_is_wanted() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(UnavailableError, match="cannot be listened on"):
        listen("127.0.0.1", first.getsockname()[1])
    with listen("127.0.0.1", 0, is_shared=True) as first:
        listen("127.0.0.1", first.getsockname()[1], is_shared=True).close()
        assert first.family is socket.AF_INET


def test_nothing_that_is_sent_waits_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_client_that_reads_nothing_does_not_keep_the_process(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: aborting its connection after a while. uvicorn waits for all."""
    monkeypatch.setattr("langgraph_pgstate.server.serving._GRACE_SECONDS", 0.3)

    async def big(_: Any) -> Response:
        return Response(bytes(50_000_000))

    async with serving(dsn, schema, worker=False) as app:
        app.router.routes.append(Route("/big", big))
        config = uvicorn.Config(app, lifespan="off", log_level="error", ws="none")
        server = _Server(config, app, None, asyncio.get_running_loop())
        with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
            # Without its handlers of signals, which are the test runner's.
            served = asyncio.create_task(server._serve([listener]))
            client.sendall(b"GET /big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while not server.server_state.total_requests:
                await asyncio.sleep(0.02)
            server._signalled(15)
            async with asyncio.timeout(20):
                await served
        assert server.exit_code == 0
