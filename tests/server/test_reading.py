"""Bodies of requests: who is read from, how long, and how much of one is taken."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from support import examples
from support.http import serving

from langgraph_pgstate.server import AgentServer, reading
from langgraph_pgstate.server.errors import Budget, ServerBusyError
from tests.server.test_auth import owners

JSON = [(b"content-type", b"application/json")]
Receive = Callable[[], Awaitable[dict[str, Any]]]


def arriving(*parts: bytes, ends: bool = True) -> Receive:
    """A body that arrives in parts, and perhaps never ends."""
    left = [*parts]

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not ends}

    return receive


def request_of(receive: Receive) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": JSON}, receive)


async def parsed(body: bytes, most_values: int = 100_000) -> Any:
    return await reading.json_of(request_of(arriving(body)), most_values)


async def status_of(server: AgentServer, path: str, receive: Receive) -> int:
    """The status of a request without credentials."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await server({**scope, "headers": JSON, "client": ("127.0.0.1", 1), "app": server}, receive, send)
    return int(sent[0]["status"])


async def test_nothing_is_read_from_whoever_is_not_known(dsn: str, schema: str) -> None:
    async def refuse_to_read() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async with serving(dsn, schema, auth=owners()) as server:
        for path in ("/threads", "/threads/search", "/runs/wait", "/store/items/search", "/threads/t/commands"):
            assert await status_of(server, path, refuse_to_read) == 401


async def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it; a client that sends all may wait longer for the answer."""
    monkeypatch.setattr(reading, "_SECONDS", 0.05)

    async def read(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        assert await request.body()
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await receive()

    limited = reading.BodyLimit(read, 1000)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": JSON}
    await limited(scope, arriving(b'{"a":', b"1}"), None)  # type: ignore[arg-type]
    with pytest.raises(HTTPException) as refused:
        await limited(scope, arriving(b'{"a":', ends=False), None)  # type: ignore[arg-type]
    assert refused.value.status_code == 408


async def test_bodies_that_are_not_parsed_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_unparsed", budget := Budget(300_000))
    large = b'"' + b"a" * 250_000 + b'"'
    slow = asyncio.create_task(reading.json_of(request_of(arriving(b" " * 200_000, large, ends=False))))
    while not budget._held:
        await asyncio.sleep(0)
    assert await parsed(b"1") == 1
    with pytest.raises(ServerBusyError):
        await parsed(large)
    slow.cancel()
    await asyncio.wait([slow])
    assert budget._held == 0
    assert await parsed(large) == "a" * 250_000
    # One alone may have more.
    assert await parsed(large[:-1] + large[1:]) == "a" * 500_000
    assert budget._held == 0


async def test_a_body_that_breaks_off_is_no_error_of_the_server() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(HTTPException) as refused:
        await reading.json_of(request_of(receive))
    assert refused.value.status_code == 400


async def test_a_body_of_many_values_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    parse = reading._parsed

    def noting(*given: Any) -> Any:
        threads.add(threading.current_thread().name.partition("_")[0])
        return parse(*given)

    monkeypatch.setattr(reading, "_parsed", noting)
    value = [{"a": [1, 2.5, None, "x,[{"]}] * 10_000
    assert await parsed(json.dumps(value).encode()) == value
    assert threads == {"pgstate-parser"}
    assert await parsed(b'{"a": 1}') == {"a": 1}
    assert threads == {"pgstate-parser", "MainThread"}


async def test_a_body_has_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for few in (5, 20_000):
        monkeypatch.setattr(reading, "_FEW_VALUES", few)
        assert await parsed(b'["' + b"a,[{" * 1000 + b'"]', 20) == ["a,[{" * 1000]
        assert len(await parsed(b"[1" + b",1" * 19 + b"]", 20)) == 20
        for hostile in (b"[1" + b",1" * 30 + b"]", b"[" + b"[]," * 30 + b"1]", b"[" + b'{"a":1},' * 30 + b"1]"):
            with pytest.raises(HTTPException) as refused:
                await parsed(hostile, 20)
            assert refused.value.status_code == 413


async def test_integers_are_bounded() -> None:
    """A few thousand of the longest that Python takes stop the event loop for a second whenever they are written."""
    assert await parsed(b"[" + b"7" * 100 + b', "' + b"7" * 5000 + b'"]') == [int("7" * 100), "7" * 5000]
    for size in (101, 5000):
        with pytest.raises(HTTPException) as refused:
            await parsed(b'{"a": -' + b"7" * size + b"}")
        assert (refused.value.status_code, "100 digits" in refused.value.detail) == (422, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(value=VALUES)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_both_parsers_find_the_same(value: Any) -> None:
    for is_ascii in (True, False):
        raw = json.dumps(value, ensure_ascii=is_ascii)
        assert reading._Decoder().decode(raw) == json.loads(raw)


ESCAPES = st.lists(
    st.sampled_from(["\\n", '\\"', "\\\\", "\\ud83d", "\\uDE00", "\\u00e9", "\\u12", "\\x", "\\", "u", "\n", '"'])
)


@given(raw=ESCAPES.map("".join))
@settings(max_examples=examples(500), deadline=None)
def test_a_string_in_parts_is_the_same(raw: str) -> None:
    found = re.compile(reading._TEXT_PART.pattern.replace("10000", "2"), re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_TEXT_PART", found)
        given = f'"{raw}", 1]'
        try:
            expected = scanstring(given, 1, True)
        except ValueError:
            with pytest.raises(ValueError):
                reading._string(given, 1)
        else:
            assert reading._string(given, 1) == expected


@given(raw=st.binary(max_size=50).map(lambda raw: b'"' + raw) | st.text('",[{\\ a').map(str.encode))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_values_are_counted_in_whatever_is_no_json(raw: bytes) -> None:
    """Never more than the separators and strings that are there, and in one pass."""
    most = sum(map(raw.count, (b",", b"[", b"{", b'"')))
    assert not reading._has_more(raw, most)


async def test_a_large_body_of_few_values_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    parse = reading._parsed

    def noting(*given: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return parse(*given)

    monkeypatch.setattr(reading, "_parsed", noting)
    assert await parsed(b"[" + b",".join([b"7.0" + b"0" * 4300] * 40) + b"]") == [7.0] * 40
    assert threads == ["pgstate-parser"]


def test_strings_count_too() -> None:
    """Finding the end of each takes longer than a separator."""
    assert not reading._has_more(b'["a","b",{"c":"d"}]', 4)
    assert reading._has_more(b'""' * 12, 5)


def test_strings_of_many_parts_are_one_string() -> None:
    raw = b'["' + b"\\n,[" * 30_000 + b'",1,2]'
    assert not reading._has_more(raw, 3)
    assert reading._has_more(raw, 2)
