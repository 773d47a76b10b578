"""Any request is answered: no operation fails, hangs, or writes half of something, whatever it is given."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import quote, unquote, urlencode

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from psycopg import sql
from support import examples
from support.http import serving

from langgraph_pgstate.server import AgentServer, commands
from langgraph_pgstate.server.bodies import Body
from langgraph_pgstate.server.routes import OPERATIONS, Operation

_TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "e\u0301",
        "日本🙂",
        "%",
        "_",
        "\\",
        "'",
        '"',
        "-1",
        "0",
        "\n",
        "x" * 5000,
        "1e400",
    ),
    *(
        "9" * 5000,
        "²",
        "/",
        "..",
        "a.b",
        "a|b",
        "a:b",
        "__x",
        "[0]",
        str(2**31),
        str(2**63),
        "9999-12-31T23:59:59+14:00",
    ),
)
_NUMBERS = (-1, 0, 1, 2**31, 2**53, 2**63, 10**400, -0.0, 1e-320, 1e308, float("nan"), float("inf"))
# Values that most requests of a field have: a refusal of one would hide what the others do.
_USUAL: dict[str, tuple[str, ...]] = {
    "assistant_id": ("chat", "own"),
    "graph_id": ("chat", "asking"),
    "thread_id": ("t",),
    "schedule": ("* * * * *",),
    "timezone": ("UTC",),
    "end_time": ("2099-01-01T00:00:00Z",),
    "key": ("k",),
    "webhook": ("https://example.com/a",),
    "if_not_exists": ("create",),
    "method": ("run.start", "input.respond", "input.inject", "state.get", "state.listCheckpoints", "agent.getTree"),
}
_QUERY = (
    *(
        "limit",
        "offset",
        "status",
        "select",
        "stream_mode",
        "cursor",
        "name",
        "xray",
        "recurse",
        "wait",
        "action",
        "by",
    ),
    *(
        "before",
        "days",
        "agent",
        "user_id",
        "namespace",
        "key",
        "refresh_ttl",
        "include",
        "subgraphs",
        "delete_threads",
    ),
)
_HEADERS = ("last-event-id", "traceparent", "accept", "prefer")
_PARAMETERS: tuple[type[Body], ...] = (
    *(commands.RunStart, commands.InputRespond, commands.InputInject, commands.StateGet, commands.StateList),
    *(commands.StateFork, commands.AgentTree),
)
# Without those of the record, to which another connection moves what was journalled before.
_TABLES = (
    *("threads", "checkpoints", "writes", "segments", "queue", "runs", "assistants", "assistant_versions", "schedules"),
    *("feedback", "webhooks", "leases", "tombstones"),
)

_texts = st.sampled_from(_TEXTS) | st.text(max_size=20)
_levels = st.sampled_from((50, 190, 199, 300, 950, 3000)).map(lambda levels: {"levels": levels})
_anything = st.recursive(
    st.none() | st.booleans() | st.sampled_from(_NUMBERS) | _texts | _levels,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=4,
)


def _schema(model: type[Body]) -> st.SearchStrategy[Any]:
    schema = model.model_json_schema()
    return _values(schema, schema.get("$defs", {}))


def _values(schema: Any, others: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Return values as a schema describes them."""
    if name in _USUAL:
        return st.integers(0, 7).flatmap(lambda n: st.sampled_from(_USUAL[name]) if n else _values(schema, others))
    if name == "params":
        return st.one_of(*map(_schema, _PARAMETERS))
    if "$ref" in schema:
        return st.deferred(lambda: _values(others[schema["$ref"].rpartition("/")[2]], others))
    if "anyOf" in schema:
        return st.one_of(*(_values(one, others) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if schema.get("properties"):
        fields = {name: _values(one, others, name) for name, one in schema["properties"].items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ())}
        some = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True) if fields else st.just([])
        return some.flatmap(lambda names: st.fixed_dictionaries({**needed, **{name: fields[name] for name in names}}))
    known: dict[Any, Any] = {
        "string": _texts,
        "integer": st.integers(0, 2000),
        "number": st.floats(0, 1e10),
        "boolean": st.booleans(),
        "array": st.lists(st.deferred(lambda: _values(schema.get("items", {}), others)), max_size=3),
        "object": st.dictionaries(_texts, _anything, max_size=3),
    }
    found: st.SearchStrategy[Any] = known.get(schema.get("type"), _anything)
    return found


_OPERATIONS = [one for one in OPERATIONS if one.handler is not None and one.name not in ("ok", "info", "openapi")]
_BODIES = {one.body: _schema(one.body) for one in _OPERATIONS if one.body is not None}


@st.composite
def _requests(draw: st.DrawFn) -> tuple[Operation, str, dict[str, str], str]:
    """Return an operation, the path with its query, headers, and the body."""
    one, path = draw(st.sampled_from(_OPERATIONS)), ""
    for part in one.path.strip("/").split("/"):
        name = part.strip("{}")
        usual = st.sampled_from(_USUAL.get(name, ("own",)))
        id = part if name == part else draw(usual if draw(st.integers(0, 5)) else _texts)
        path += "/" + quote(id, safe="", errors="replace")
    query = draw(st.dictionaries(st.sampled_from(_QUERY), _texts | st.sampled_from(("1", "true")), max_size=3))
    headers = draw(st.dictionaries(st.sampled_from(_HEADERS), _texts, max_size=1))
    if one.body is None:
        return one, f"{path}?{urlencode(query, errors='replace')}", headers, ""
    body = draw(_BODIES[one.body])
    if isinstance(body, dict) and body and draw(st.integers(0, 5)) == 0:
        body[draw(st.sampled_from(sorted(body)))] = draw(_anything)
    if one.name == "runs.create_batch":
        body = body.get("runs", body)
    return one, f"{path}?{urlencode(query, errors='replace')}", headers, _written(body)


def _written(value: Any) -> str:
    """Return JSON, also of levels and numbers that Python's own does not write."""
    if isinstance(value, dict) and isinstance(value.get("levels"), int):
        half: int = value["levels"] // 2
        return '{"a":' * half + "[" * half + "]" * half + "}" * half
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


async def _status(app: AgentServer, method: str, target: str, headers: dict[str, str], body: str) -> int:
    """Return the status of the answer. The client disconnects after the first part of a stream."""
    path, _, query = target.partition("?")
    given = {"host": "test", **headers, **({"content-type": "application/json"} if body else {})}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode(errors="replace")) for name, text in given.items()],
        "client": ("127.0.0.1", 1),
    }
    status, is_sent, goes = 0, False, asyncio.Event()

    async def receive() -> Any:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body.encode()}
        await goes.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        # A run that nobody executes says nothing.
        asyncio.get_running_loop().call_later(0.02, goes.set)

    async with asyncio.timeout(60):
        await app(scope, receive, send)
    return status


async def _prepare(app: AgentServer) -> None:
    """Make what the requests name: a thread with a state, an assistant."""
    for path, body in (
        ("/threads", {"thread_id": "t", "metadata": {"graph_id": "chat"}, "if_exists": "do_nothing"}),
        ("/threads/t/state", {"values": {"messages": "Hello"}, "as_node": "__start__"}),
        ("/assistants", {"assistant_id": "own", "graph_id": "asking", "if_exists": "do_nothing"}),
    ):
        assert await _status(app, "POST", path, {}, json.dumps(body)) in (200, 409)


def _fuzz(dsn: str, schema: str, connection: psycopg.Connection, number: int) -> None:
    counts = [sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(schema, name)) for name in _TABLES]
    rows = sql.SQL("SELECT {}").format(sql.SQL(", ").join(counts))
    statuses: Counter[int] = Counter()
    with asyncio.Runner() as runner:
        opened = serving(dsn, schema, worker=False, store=InMemoryStore())
        app = runner.run(opened.__aenter__())
        before: Any = None

        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            derandomize=number < 100,
        )
        @given(_requests())
        def answer(request: tuple[Operation, str, dict[str, str], str]) -> None:
            nonlocal before
            operation, target, headers, body = request
            if before is None:
                runner.run(_prepare(app))
                before = connection.execute(rows).fetchone()
            status = runner.run(_status(app, operation.method, target, headers, body))
            assert status < 500 or status == 501
            if status >= 400:
                assert operation.is_read or connection.execute(rows).fetchone() == before
            elif not operation.is_read:
                before = None
            statuses[status] += 1

        try:
            answer()
        finally:
            runner.run(opened.__aexit__(None, None, None))
    assert statuses[200] > number / 5


def test_some_requests_are_answered(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    _fuzz(dsn, schema, connection, 60)


@pytest.mark.slow
def test_any_request_is_answered(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    _fuzz(dsn, schema, connection, examples(5000))
