"""Limits of requests: who is counted, what is, and that processes count together."""

from __future__ import annotations

import multiprocessing
import time

import pytest
from langgraph_sdk import Auth
from langgraph_sdk.errors import RateLimitError
from starlette.requests import Request
from support.http import HELLO, http, sdk, serving

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server import RateLimit, create_app
from langgraph_pgstate.server.rates import _address


def named() -> Auth:
    """Everybody is who they say."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> dict[str, object]:
        if authorization is None:
            raise Auth.exceptions.HTTPException(401)
        return {"identity": authorization, "permissions": ["metrics:read", "pages:read"]}

    return auth


def test_a_minutes_requests_may_come_at_once_and_then_one_by_one() -> None:
    limit, now = RateLimit(60), 1000.0
    assert [limit.count("eve", now) for _ in range(60)] == [0.0] * 60
    assert limit.count("eve", now) == pytest.approx(1)
    # What is refused is not counted.
    assert limit.count("eve", now + 0.25) == pytest.approx(0.75)
    assert [limit.count("eve", now + 1.0) for _ in range(2)] == [0.0, pytest.approx(1)]
    assert limit.count("bob", now) == 0.0
    assert sum(limit.count("eve", now + 600) == 0 for _ in range(100)) == 60


@pytest.mark.slow
def test_more_users_than_are_known_take_no_more_memory_and_do_not_limit_each_other() -> None:
    limit, now = RateLimit(2), 1000.0
    refused = sum(limit.count(f"user {number}", now) > 0 for number in range(200_000))
    assert refused == 0
    assert limit._users.nbytes + limit._times.nbytes == 2**20
    # Those of a minute ago make way for others.
    assert [limit.count("eve", now + 120) > 0 for _ in range(3)] == [False, False, True]
    for number in range(30_000):
        limit.count(f"other {number}", now + 120)
    assert limit.count("eve", now + 120) > 0


def test_processes_that_are_forked_count_together() -> None:
    limit, now = RateLimit(90), time.monotonic()

    def send() -> None:
        for _ in range(40):
            limit.count("eve", now)

    context = multiprocessing.get_context("fork")
    for _ in range(2):
        process = context.Process(target=send)
        process.start()
        process.join(60)
        assert process.exitcode == 0
    assert sum(limit.count("eve", now) == 0 for _ in range(40)) == 10


@pytest.mark.slow
async def test_each_user_has_requests_of_their_own(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, auth=named(), rate_limit=RateLimit(2), inspector=True, cors={}) as server:
        async with http(server, {"authorization": "eve"}) as eve, http(server, {"authorization": "bob"}) as bob:
            for client in (eve, bob):
                statuses = [(await client.post("/threads/search", json={})).status_code for _ in range(3)]
                assert statuses == [200, 200, 429]
            refused = await eve.post("/threads/count", json={}, headers={"origin": "https://example.com"})
            assert refused.json() == {"detail": "too many requests: 2 may be sent in a minute"}
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert "Retry-After" in refused.headers["access-control-expose-headers"]
            page = await eve.get("/ui/threads")
            assert (page.status_code, "retry-after" in page.headers) == (429, True)
            for path in ("/ok", "/info", "/metrics", "/openapi.json", "/ui/static/pages.js"):
                assert {(await eve.get(path)).status_code for _ in range(3)} == {200}, path
        async with http(server) as nobody:
            assert {(await nobody.post("/threads/search", json={})).status_code for _ in range(4)} == {401}


@pytest.mark.slow
async def test_a_stream_is_one_request_and_the_sdk_knows_the_refusal(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, rate_limit=RateLimit(3)) as server, sdk(server) as client:
        # The SDK asks for the run when its stream ends.
        parts = [part async for part in client.runs.stream(None, "slow", input={"count": 5}, stream_mode="values")]
        assert parts[-1].data["count"] == 0
        await client.runs.wait(None, "chat", input=HELLO)
        with pytest.raises(RateLimitError, match="too many requests"):
            await client.threads.search()


def test_an_address_is_that_of_the_network_if_it_is_ipv6() -> None:
    def address(host: str | None) -> str:
        return _address(Request({"type": "http", "client": None if host is None else (host, 1)}))

    assert address("192.0.2.1") == address("::ffff:192.0.2.1") != address("192.0.2.2")
    assert address("2001:db8::1") == address("2001:db8::2") != address("2001:db8:0:1::1")
    assert address("fe80::1%eth0")
    assert address("a:socket") == "a:socket"
    assert address(None) == ""


def test_what_is_no_limit_is_refused() -> None:
    for given in (0, -1, True, 1.5, "60", 10**7):
        with pytest.raises(ConfigurationError, match="per_minute"):
            RateLimit(given)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="rate_limit must be a RateLimit"):
        create_app(lambda: AsyncPGState.open(""), {}, inspector=True, rate_limit=60)  # type: ignore[arg-type]
