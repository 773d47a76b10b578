"""What is refused without authentication; the process itself is in `tests/cli/test_serve.py`."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from support.http import chat, http, serving

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.server import create_app
from langgraph_pgstate.server import serving as serving_module
from langgraph_pgstate.server.serving import LocalOnly, listen, run


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
    with listen("127.0.0.1", 0) as first, pytest.raises(UnavailableError, match=r"cannot listen on.*--port"):
        listen("127.0.0.1", first.getsockname()[1])
    with listen("127.0.0.1", 0, is_shared=True) as first:
        listen("127.0.0.1", first.getsockname()[1], is_shared=True).close()
        assert first.family is socket.AF_INET


def test_nothing_that_is_sent_waits_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.slow
async def test_connections_that_stall_are_closed(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends no whole head, one between two requests, and one that takes nothing of a response."""
    monkeypatch.setattr(serving_module, "_HEAD_SECONDS", 0.5)
    monkeypatch.setattr(serving_module, "_TAKING_SECONDS", 0.5)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})

    async with serving(dsn, schema) as app:
        config = uvicorn.Config(large, lifespan="off", log_level="error", ws="none", http="h11")
        server = serving_module._Server(config, app, None, asyncio.get_running_loop())
        listener = listen("127.0.0.1", 0)
        running = asyncio.create_task(server._serve([listener]))
        address = listener.getsockname()
        try:
            (head, slow), (body, taking), (alive, live) = [await asyncio.open_connection(*address) for _ in range(3)]
            slow.write(b"GET / HTTP/1.1\r\nHost: ")
            for writer in (taking, live):
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # It takes what the other one does not.
            whole = asyncio.create_task(alive.readexactly(100_000_000))
            async with asyncio.timeout(100):
                assert await head.read() == b""
                assert len(await whole) == 100_000_000
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await body.readexactly(100_000_000)
        finally:
            for writer in (slow, taking, live):
                writer.close()
            server.should_exit = True
            await running


async def test_a_connection_too_many_is_closed(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the files of the process are the database's and its own. One that ends makes room."""
    monkeypatch.setattr(serving_module.resource, "getrlimit", lambda _: (6, 6))

    async def asked() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionError):
            return await reader.readline(), writer
        return b"", writer

    async with serving(dsn, schema) as app:
        config = uvicorn.Config(app, lifespan="off", log_level="error", ws="none", http=serving_module._Connection)
        server = serving_module._Server(config, app, None, asyncio.get_running_loop())
        listener = listen("127.0.0.1", 0)
        running = asyncio.create_task(server._serve([listener]))
        address = listener.getsockname()
        writers: list[asyncio.StreamWriter] = []
        try:
            answers = []
            for _ in range(4):
                line, writer = await asked()
                answers.append(line)
                writers.append(writer)
            assert answers == [b"HTTP/1.1 200 OK\r\n"] * 3 + [b""]
            writers[0].close()
            await writers[0].wait_closed()
            async with asyncio.timeout(60):
                while (await asked())[0] != b"HTTP/1.1 200 OK\r\n":
                    await asyncio.sleep(0.05)
        finally:
            for writer in writers:
                writer.close()
            server.should_exit = True
            await running


@pytest.mark.slow
async def test_what_a_server_starts_with_is_not_collected_again(dsn: str, schema: str) -> None:
    """A whole collection would go through all modules, and stop the event loop for a fifth of a second."""
    app = create_app(lambda: AsyncPGState.open(dsn, schema=schema), {"chat": chat()}, worker=False)
    config = uvicorn.Config(app, lifespan="off", log_level="error", ws="none")
    server = serving_module._Server(config, app, None, asyncio.get_running_loop())
    before = gc.get_freeze_count()
    gc.unfreeze()
    running = asyncio.create_task(serving_module._serve(app, server, listen("127.0.0.1", 0), None))
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.02)
        assert gc.get_freeze_count() > 100_000
    finally:
        server.should_exit = True
        await running
        gc.unfreeze()
        if before:
            # The tests themselves run so.
            gc.collect()
            gc.freeze()
