"""Which leases this process holds, and for which run."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import RunControl
from support import APIS, GUARD_SECONDS, config_of, crossed, invoke, loop_graph, open_saver

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import LeaseHeldError
from langgraph_pgstate.leases import registry, taking
from langgraph_pgstate.process_identity import holder_id
from tests.leases.test_api import hold, invoke_here, leases, maybe
from tests.leases.test_guards import INPUT, is_linear


async def update_here(graph: Any, saver: Any, *arguments: Any) -> Any:
    blocking = isinstance(saver, PGStateSaver)
    return graph.update_state(*arguments) if blocking else await graph.aupdate_state(*arguments)


def stream_of(graph: Any, saver: Any, config: dict[str, Any]) -> Any:
    return (graph.stream if isinstance(saver, PGStateSaver) else graph.astream)(INPUT, config, stream_mode="values")


async def piece_of(stream: Any) -> Any:
    return await anext(stream) if hasattr(stream, "__anext__") else next(stream)


async def rest_of(stream: Any) -> list[Any]:
    return [piece async for piece in stream] if hasattr(stream, "__anext__") else list(stream)


@pytest.mark.slow
@pytest.mark.parametrize(("on_busy", "api"), crossed(["raise", "wait"], APIS))
async def test_a_suspended_stream_keeps_its_lease_from_its_own_thread(
    api: type,
    on_busy: str,
    dsn: str,
    schema: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (registry, taking):
        monkeypatch.setattr(module, "CLOSING_SECONDS", 0.3)
    async with open_saver(api, dsn, schema, guard="lease", on_busy=on_busy, wait_timeout=0.2) as saver:
        graph = loop_graph(3).compile(checkpointer=saver)
        stream = stream_of(graph, saver, config_of("t"))
        await piece_of(stream)
        before = leases(connection, schema)
        with pytest.raises(LeaseHeldError, match="this same process, started by this same thread or task") as refused:
            await invoke_here(graph, saver, INPUT, config_of("t"))
        assert refused.value.holder_id.startswith(holder_id())
        with pytest.raises(LeaseHeldError, match="close the stream"):
            await update_here(graph, saver, config_of("t"), {"count": 7})
        with pytest.raises(LeaseHeldError):
            async with hold(saver.lease_manager, "t"):
                pass
        assert leases(connection, schema) == before == [("t", True)]
        assert (await rest_of(stream))[-1]["count"] == 3
        assert leases(connection, schema) == [("t", False)]
        assert is_linear(connection, schema)
        await invoke_here(graph, saver, INPUT, config_of("t"))


@pytest.mark.parametrize("api", APIS)
async def test_a_run_within_a_node_does_not_take_its_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="lease") as saver:
        inner = loop_graph(1).compile(checkpointer=saver)
        refused = []

        async def nest(state: dict[str, Any]) -> dict[str, Any]:
            try:
                await inner.ainvoke(INPUT, config_of("t"))
            except LeaseHeldError as error:
                refused.append(error)
            return {"count": 5}

        def nest_blocking(state: dict[str, Any]) -> dict[str, Any]:
            try:
                inner.invoke(INPUT, config_of("t"))
            except LeaseHeldError as error:
                refused.append(error)
            return {"count": 5}

        builder = StateGraph(inner.builder.state_schema)
        builder.add_node("nest", nest_blocking if api is PGStateSaver else nest)
        outer = builder.add_edge(START, "nest").compile(checkpointer=saver)
        assert (await invoke(outer, saver, INPUT, config_of("t")))["count"] == 5
        assert len(refused) == 1
        assert is_linear(connection, schema)


@pytest.mark.slow
async def test_a_stream_outlives_the_thread_and_the_task_that_started_it(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease", lease_ttl=1.5) as saver:
        saver.setup()
        graph = loop_graph(3).compile(checkpointer=saver)
        stream = graph.stream(INPUT, config_of("t"))
        starter = threading.Thread(target=next, args=(stream,))
        starter.start()
        starter.join(GUARD_SECONDS)
        time.sleep(0.7)  # the manager has looked around
        with pytest.raises(LeaseHeldError):
            graph.invoke(INPUT, config_of("t"))
        list(stream)
        assert leases(connection, schema) == [("t", False)]
    async with open_saver(APIS[1], dsn, schema, guard="lease", lease_ttl=1.5) as suspending:
        graph = loop_graph(3).compile(checkpointer=suspending)
        pieces = graph.astream(INPUT, config_of("u"))
        await asyncio.create_task(piece_of(pieces))
        await asyncio.sleep(0.7)
        with pytest.raises(LeaseHeldError):
            await graph.ainvoke(INPUT, config_of("u"))
        await rest_of(pieces)
        assert leases(connection, schema) == [("t", False), ("u", False)]


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_was_left_frees_its_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="lease", lease_ttl=3600) as saver:
        graph = loop_graph(3).compile(checkpointer=saver)
        for how in ("close", "forget", "break"):
            stream = stream_of(graph, saver, config_of(how))
            if how == "break" and api is PGStateSaver:
                for _ in stream:
                    break
            elif how == "break":
                async for _ in stream:
                    break
            else:
                await piece_of(stream)
            if how == "close":
                await maybe(stream.close() if api is PGStateSaver else stream.aclose())
            # An event loop closes what was left only after this.
            del stream
            assert (await invoke_here(graph, saver, INPUT, config_of(how)))["count"] == 3
        assert {is_held for _, is_held in leases(connection, schema)} == {False}


async def test_one_control_object_may_serve_many_runs(dsn: str, schema: str) -> None:
    """By it a run is told from others; here it outlives the first one."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease") as saver:
        saver.setup()
        graph = loop_graph(3).compile(checkpointer=saver)
        control = RunControl()
        graph.invoke(INPUT, config_of("t"), control=control)
        stream = graph.stream(INPUT, config_of("t"), control=control)
        next(stream)
        with pytest.raises(LeaseHeldError):
            await asyncio.to_thread(graph.invoke, INPUT, config_of("t"))
        list(stream)
