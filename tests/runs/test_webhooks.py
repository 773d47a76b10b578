"""Webhooks that are delivered over HTTP: signed, checked, tried again, by workers and by hand."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from support import loop_graph, wait_until
from support.queue import STATES, Queue, call, open_state
from support.worker import WORKERS, worker

from langgraph_pgstate import PGState, WebhookSettings
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs.webhooks import signed_headers

SECRET = "whsec_" + base64.b64encode(b"a secret of some bytes").decode()  # pragma: allowlist secret
HERE = ("127.0.0.0/8", "::1/128")


class Receiver:
    """An HTTP server that notes what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.seconds = 0.0
        noted = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                noted.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                time.sleep(noted.seconds)
                self.send_response(noted.answers.pop(0) if noted.answers else 204)
                self.send_header("location", f"{noted.url}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/done"


@contextmanager
def receiving() -> Iterator[Receiver]:
    found = Receiver()
    threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True).start()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def end_one(queue: Queue, url: str) -> str:
    """A run that has ended and whose webhook is due."""
    run_id = queue.add(webhook=url)
    queue.finish(queue.claim_one())
    return run_id


def settings(**options: Any) -> WebhookSettings:
    return WebhookSettings(**{"secret": SECRET, "allowed_networks": HERE, **options})


@pytest.mark.parametrize("api", STATES)
async def test_a_webhook_is_signed_and_delivered_once(
    api: type, dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    run_id = end_one(queue, receiver.url)
    async with open_state(api, dsn, schema, webhooks=settings()) as state:
        assert [await call(state.webhooks.deliver) for _ in range(2)] == [1, 0]
        assert (await call(state.webhooks.failed)).items == ()
    ((headers, body),) = receiver.got
    assert (json.loads(body)["run_id"], headers["content-type"]) == (run_id, "application/json")
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = hmac.new(b"a secret of some bytes", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"


@pytest.mark.parametrize("api", STATES)
async def test_what_fails_is_tried_again_under_its_id_and_then_listed(
    api: type, dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    receiver.answers = [500, 302, 200]
    end_one(queue, receiver.url)
    async with open_state(api, dsn, schema, webhooks=settings()) as state:
        for delivered in (0, 0, 1):
            assert await call(state.webhooks.deliver) == delivered
            queue.execute("UPDATE {}.webhooks SET deliver_after = now()")
        # The redirection was not followed.
        assert len(receiver.got) == 3
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
        receiver.server.socket.close()
        end_one(queue, receiver.url)
        queue.execute("UPDATE {}.webhooks SET attempts = 100")
        assert await call(state.webhooks.deliver) == 0
        (lost,) = (await call(state.webhooks.failed)).items
        assert "Error" in str(lost.last_error)
        assert [await call(state.webhooks.retry, lost) for _ in range(2)] == [True, False]
        assert [await call(state.webhooks.discard, lost) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"])
def test_addresses_that_are_not_public_are_refused_for_good(
    host: str, dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    end_one(queue, f"http://{host}:{receiver.port}/")
    with PGState.open(dsn, schema=schema, webhooks=WebhookSettings()) as state:
        assert state.webhooks.deliver() == 0
        (lost,) = state.webhooks.failed().items
    assert "not a public address" in str(lost.last_error)
    assert receiver.got == []


def test_a_name_is_resolved_once_and_what_was_checked_is_connected_to(
    dsn: str, schema: str, queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose address changes after the check would lead elsewhere."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def rebinding(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "rebinding.test":
            return resolve(host, *arguments, **options)
        asked.append(host)
        return resolve("127.0.0.1" if len(asked) == 1 else "127.0.0.2", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    end_one(queue, f"http://rebinding.test:{receiver.port}/done")
    with PGState.open(dsn, schema=schema, webhooks=settings(allowed_networks=["127.0.0.1/32"])) as state:
        assert state.webhooks.deliver() == 1
    assert asked == ["rebinding.test"]
    assert receiver.got[0][0]["host"] == f"rebinding.test:{receiver.port}"


def test_the_certificate_of_a_checked_address_must_be_that_of_the_name(
    dsn: str, schema: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to the address, and TLS asks for the name."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **options: resolve("127.0.0.1", *more, **options))
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: names.append(name)

    def greet() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        greeter = threading.Thread(target=greet)
        greeter.start()
        end_one(queue, f"https://receiver.test:{listener.getsockname()[1]}/done")
        with PGState.open(dsn, schema=schema, webhooks=settings()) as state:
            assert state.webhooks.deliver() == 0
        greeter.join()
    assert names == ["receiver.test"]


def test_a_slow_receiver_is_not_waited_for(dsn: str, schema: str, queue: Queue, receiver: Receiver) -> None:
    receiver.seconds = 3.0
    end_one(queue, receiver.url)
    with PGState.open(dsn, schema=schema, webhooks=settings(timeout=0.2)) as state:
        assert state.webhooks.deliver() == 0
    assert queue.execute("SELECT attempts, last_error LIKE 'TimeoutError%%' FROM {}.webhooks") == [(1, True)]


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_a_slow_receiver_keeps_none_of_another_host_waiting(
    api: type, dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    with receiving() as slow:
        slow.seconds = 2.0
        for url in [slow.url] * 25 + [receiver.url]:
            end_one(queue, url)
        async with open_state(api, dsn, schema, webhooks=settings()) as state:
            delivering = asyncio.create_task(asyncio.wait_for(call(state.webhooks.deliver), 60))
            await asyncio.to_thread(wait_until, lambda: receiver.got, "the webhook")
            assert 0 < len(slow.got) <= 4
            # What was delivered is noted, and what becomes due is taken, while others go on.
            end_one(queue, receiver.url)
            await asyncio.to_thread(wait_until, lambda: len(receiver.got) == 2, "the second one")
            assert len(slow.got) <= 8
            slow.seconds = 0.0
            assert await delivering == 27
    assert queue.execute("SELECT 1 FROM {}.webhooks") == []


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_a_slow_resolver_is_not_waited_for(
    api: type, dsn: str, schema: str, queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise claims expire while it is waited for, and others deliver again."""
    is_over = threading.Event()
    resolve = socket.getaddrinfo

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "slow.test":
            is_over.wait(30)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    end_one(queue, "http://slow.test/")
    end_one(queue, receiver.url)
    started = time.monotonic()
    async with open_state(api, dsn, schema, webhooks=settings(timeout=0.5)) as state:
        assert await call(state.webhooks.deliver) == 1
    assert time.monotonic() - started < 15
    assert queue.execute("SELECT attempts, last_error LIKE 'TimeoutError%%' FROM {}.webhooks") == [(1, True)]
    is_over.set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_delivers(kind: type, dsn: str, schema: str, queue: Queue, receiver: Receiver) -> None:
    opened = {"webhooks": settings()}
    with PGState.open(dsn, schema=schema) as state:
        handle = state.runs.enqueue("agent", {"items": [], "count": 0}, webhook=receiver.url)
    with worker(kind, dsn, schema, {"agent": loop_graph(2)}, "run_until_idle", opened=opened) as process:
        process.join(60)
    wait_until(lambda: receiver.got, "the webhook")
    assert json.loads(receiver.got[0][1])["status"] == "success"
    assert json.loads(receiver.got[0][1])["run_id"] == handle.run_id
    assert queue.execute("SELECT 1 FROM {}.webhooks") == []


async def test_deliveries_that_were_cancelled_are_delivered_by_another(
    dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    receiver.seconds = 2.0
    end_one(queue, receiver.url)
    async with open_state(STATES[1], dsn, schema, webhooks=settings()) as state:
        delivering = asyncio.create_task(state.webhooks.deliver())
        await asyncio.to_thread(wait_until, lambda: receiver.got, "the request")
        delivering.cancel()
        await asyncio.wait([delivering])
        assert delivering.cancelled()
        receiver.seconds = 0.0
        assert await state.webhooks.deliver() == 0
        queue.execute("UPDATE {}.webhooks SET deliver_after = now()")
        assert await state.webhooks.deliver() == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


def test_a_webhook_without_a_secret_is_not_signed() -> None:
    assert signed_headers(None, "id", 1, b"") == {"webhook-id": "id", "webhook-timestamp": "1"}
    one, other = (signed_headers(secret, "id", 1, b"")["webhook-signature"] for secret in ("plain", "whsec_plain?"))
    assert one != other


@pytest.mark.parametrize(
    "options",
    [
        {"secret": ""},
        {"allowed_networks": "10.0.0.0/8"},
        {"allowed_networks": ["10.0.0.1/8"]},
        {"timeout": 0},
        {"headers": {"x-key": "a\r\nhost: b"}},
        {"headers": {"x key": "a"}},
        {"headers": ["x-key"]},
        {"allowed_hosts": "example.com"},
        {"allowed_ports": ["443"]},
        {"require_https": "yes"},
    ],
)
def test_settings_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="WebhookSettings"):
        WebhookSettings(**options)
    named = {"PGSTATE_WEBHOOK_SECRET": "s", "PGSTATE_WEBHOOK_NETWORKS": "10.0.0.0/8, fd00::/8"}
    assert WebhookSettings.from_environment(named) == WebhookSettings("s", ("10.0.0.0/8", "fd00::/8"))
    assert WebhookSettings.from_environment({}) == WebhookSettings()
    assert "secret" not in repr(WebhookSettings("a secret", headers={"x-key": "secret"}))


def test_a_webhook_has_the_headers_that_are_given_and_keeps_its_own(
    dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    end_one(queue, receiver.url)
    given = settings(headers={"X-Key": "abc", "Webhook-Id": "forged", "Host": "example.com"})
    with PGState.open(dsn, schema=schema, webhooks=given) as state:
        assert state.webhooks.deliver() == 1
    ((headers, _),) = receiver.got
    assert (headers["x-key"], headers["host"]) == ("abc", f"127.0.0.1:{receiver.port}")
    assert headers["webhook-id"] != "forged"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"require_https": True}, "https://"),
        ({"allowed_hosts": ["example.com", "*.0.0.1"]}, None),
        ({"allowed_hosts": ["example.com", "*.example.com"]}, "127.0.0.1 is not allowed"),
        ({"allowed_ports": [443]}, "port"),
    ],
)
def test_a_url_that_is_not_allowed_is_not_connected_to(
    options: Any, reason: str | None, dsn: str, schema: str, queue: Queue, receiver: Receiver
) -> None:
    end_one(queue, receiver.url)
    with PGState.open(dsn, schema=schema, webhooks=settings(**options)) as state:
        assert state.webhooks.deliver() == (reason is None)
        failed = state.webhooks.failed().items
    assert len(receiver.got) == (reason is None)
    assert [reason in str(one.last_error) for one in failed if reason] == [True] * (reason is not None)
