"""The object that hands out the parts: from a DSN, on a caller's pool, embedded, in both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from support import config_of, invoke, spread

from langgraph_pgstate import AsyncPGState, PGState, ThreadKeys, Worker
from langgraph_pgstate.errors import ConfigurationError, PGStateError
from langgraph_pgstate.runs.options import EnqueueOptions, WorkerOptions
from langgraph_pgstate.state import OpenStateOptions
from tests.architecture.test_architecture import methods, parameters

pytestmark = pytest.mark.smoke

APIS = [PGState, AsyncPGState]


class Unknown:
    """A value of no type that an option has."""


HOSTILE = ({1: 2}, "x", -1, Unknown(), None)


class Trip(MessagesState):
    """A conversation about a trip."""

    booking: dict[str, Any]


def trip_graph() -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(Trip)
    builder.add_node("book", lambda state: {"booking": {"city": state["messages"][-1].content}})
    builder.add_edge(START, "book")
    builder.add_edge("book", END)
    return builder


@asynccontextmanager
async def open_state(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    if api is PGState:
        with PGState.open(dsn, schema=schema, **options) as state:
            state.setup()
            yield state
        return
    async with AsyncPGState.open(dsn, schema=schema, **options) as async_state:
        await async_state.setup()
        yield async_state


def found(connection: psycopg.Connection, schema: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Messages, projections and owners."""
    queries = (
        f"SELECT content FROM {schema}.messages ORDER BY checkpoint_id, position",
        f"SELECT state FROM {schema}.projections",
        f"SELECT tenant_id FROM {schema}.threads",
    )
    messages, states, tenants = ([row[0] for row in connection.execute(query).fetchall()] for query in queries)
    return messages, states, tenants


async def use(state: Any) -> None:
    graph = state.record(trip_graph().compile(checkpointer=state.saver))
    config: Any = {"configurable": {**config_of("t")["configurable"], "org": "acme"}}
    for city in ("Rome", "Oslo"):
        await invoke(graph, state.saver, {"messages": [HumanMessage(city)]}, config)


EXPECTED = (["Rome", "Oslo"], [{"booking": {"city": "Oslo"}}], ["acme"])
OPTIONS: dict[str, Any] = {"project": ("booking",), "thread_keys": ThreadKeys(tenant=("org",))}


@pytest.mark.parametrize("api", APIS)
async def test_one_object_keeps_it_all(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    async with open_state(api, dsn, schema, **OPTIONS) as state:
        assert state.schema == schema
        assert state.saver is state.saver
        await use(state)
    assert found(connection, schema) == EXPECTED


async def test_on_a_pool_of_the_callers(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with ConnectionPool(dsn, open=True, min_size=1) as pool:
        state = PGState(pool, schema=schema, **OPTIONS)
        state.setup()
        await use(state)
        state.close()
        with pool.connection() as own:
            assert own.execute("SELECT 1").fetchone() == (1,)
    assert found(connection, schema) == EXPECTED


async def test_on_an_async_pool_of_the_callers(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    async with AsyncConnectionPool(dsn, open=False, min_size=1) as pool:
        state = AsyncPGState(pool, schema=schema, **OPTIONS)
        await state.setup()
        await use(state)
        await state.close()
    assert found(connection, schema) == EXPECTED


@pytest.mark.slow
async def test_embedded(tmp_path: Path) -> None:
    with PGState.embedded(tmp_path / "data", **OPTIONS) as state:
        await use(state)
        async with AsyncPGState.embedded(tmp_path / "data", **OPTIONS) as other:
            assert (await other.saver.aget_tuple(config_of("t"))).checkpoint["channel_values"]["booking"]


@pytest.mark.parametrize("api", APIS)
async def test_what_is_encrypted_has_no_copy_in_clear_text(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Unless a channel is named."""

    class Cipher:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "xor", bytes(byte ^ 85 for byte in plaintext)

        def decrypt(self, name: str, ciphertext: bytes) -> bytes:
            return bytes(byte ^ 85 for byte in ciphertext)

    async with open_state(api, dsn, schema, serde=EncryptedSerializer(Cipher()), **OPTIONS) as state:
        await use(state)
    assert found(connection, schema) == ([], *EXPECTED[1:])
    for table in ("runs", "spans", "events"):
        rows = connection.execute(f"SELECT to_jsonb(t)::text FROM {schema}.{table} t").fetchall()
        assert rows, table
        assert [row for row in rows if "Rome" in row[0]] == [], table


@pytest.mark.parametrize("api", APIS)
async def test_a_projection_that_cannot_be_is_refused_at_start_up(api: type, dsn: str, schema: str) -> None:
    class Raw(TypedDict):
        raw: bytes

    builder = StateGraph(Raw)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    async with open_state(api, dsn, schema, project=("raw",)) as state:
        with pytest.raises(ConfigurationError, match="'raw' is declared with bytes"):
            state.record(builder.compile(checkpointer=state.saver))
    with pytest.raises(ConfigurationError, match="project"):
        async with open_state(api, dsn, schema, project="raw"):
            pass


def test_both_states_have_the_same_methods_and_arguments() -> None:
    one, other = methods(PGState), methods(AsyncPGState)
    assert one.keys() == other.keys()
    for name, blocking in one.items():
        if callable(getattr(blocking, "__func__", blocking)):
            assert parameters(blocking) == parameters(other[name]), name


async def test_an_async_state_and_a_blocking_one_share_a_thread(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    for api in (*APIS, *APIS):
        async with open_state(api, dsn, schema, **OPTIONS) as state:
            await asyncio.wait_for(use(state), 60)
    assert found(connection, schema)[0] == ["Rome", "Oslo"] * 4


@pytest.mark.parametrize("value", spread(HOSTILE), ids=["mapping", "text", "number", "unknown", "none"])
def test_an_option_of_another_type_is_refused_with_an_error_of_this_package(value: Any, dsn: str, schema: str) -> None:
    """Or it is used: some accept much."""

    def opened(**options: Any) -> None:
        with PGState.open(dsn, **{"schema": schema, **options}):
            pass

    with PGState.open(dsn, schema=schema) as state:
        calls: list[tuple[Any, Callable[..., Any]]] = [
            (OpenStateOptions, opened),
            (EnqueueOptions, partial(state.runs.enqueue, "agent")),
            (WorkerOptions, partial(Worker, state, {"agent": trip_graph().compile()})),
        ]
        for options, call in calls:
            for name in sorted(options.__optional_keys__ | options.__required_keys__):
                with suppress(PGStateError):
                    call(**{name: value})


def test_settings_of_another_kind_are_named(dsn: str) -> None:
    for name, expected in (("pool", "PoolSettings or bool or int"), ("retry", "RetryPolicy or None")):
        with (
            pytest.raises(ConfigurationError, match=f"^{name} must be {expected}, not dict$"),
            PGState.open(dsn, **{name: {}}),
        ):
            pass
