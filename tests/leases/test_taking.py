"""Leases that are taken for a run that is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from typing import Any

import psycopg
import pytest
from support import APIS, GUARD_SECONDS, config_of, counted, holding, loop_graph, open_saver, put_arguments, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ThreadDeletedError, UnavailableError
from langgraph_pgstate.leases.guards import sweep
from langgraph_pgstate.leases.holding import take
from langgraph_pgstate.options import RetryPolicy
from langgraph_pgstate.schema.queries import queries
from tests.leases.test_api import hold, leases
from tests.leases.test_guards import INPUT
from tests.leases.test_manager import (
    FOREVER,
    all_free,
    config_without_end,
    endless,
    is_blocked,
    is_busy,
    stop_by_anyio,
    stop_by_task,
    wait_until_free,
)


@pytest.mark.parametrize("stop", [stop_by_anyio, stop_by_task])
@pytest.mark.parametrize("api", APIS)
async def test_a_lease_that_is_taken_after_its_run_was_cancelled_is_given_back(
    api: type, stop: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The statement waits for a lock of another session, on the server, while nobody waits for its answer."""
    async with open_saver(api, dsn, schema, **FOREVER) as saver:
        graph = endless(saver)
        async with hold(saver.lease_manager, "t"):
            pass
        with holding(dsn, f"SELECT FROM {schema}.leases FOR UPDATE"):
            running = asyncio.create_task(stop(10**9, lambda: graph.ainvoke(INPUT, config_without_end("t"))))
            await asyncio.to_thread(wait_until, lambda: is_blocked(connection), "a statement that waits")
            running.cancel()
            if stop is stop_by_anyio:
                # Again at every await, as anyio does.
                while not running.done():
                    running.cancel()
                    await asyncio.sleep(0)
            with suppress(asyncio.CancelledError):
                await running
        await asyncio.to_thread(wait_until, lambda: not is_blocked(connection), "its end")
        await wait_until_free(connection, schema)
        await asyncio.sleep(0.1)
        assert all_free(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_a_lease_whose_taking_was_not_answered_is_given_back(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        options: dict[str, Any] = {**FOREVER, "pool": 1, "retry": RetryPolicy(attempts=1)}
        async with open_saver(api, proxy.dsn, schema, **options) as saver:
            await saver.aput(*put_arguments(config_of("u"), 0))
            graph = loop_graph(1).compile(checkpointer=saver)
            proxy.answers_to_lose = 1
            with pytest.raises(UnavailableError):
                await graph.ainvoke(INPUT, config_of("t"))
            assert connection.execute(f"SELECT count(*) FROM {schema}.leases").fetchone() == (2,)
            await wait_until_free(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_is_cancelled_while_it_waits_for_a_connection_takes_no_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, **FOREVER, pool=1) as saver:
        graph = endless(saver)
        await saver.aput(*put_arguments(config_of("u"), 0))
        with holding(dsn, f"LOCK TABLE {schema}.checkpoints"):
            reading = asyncio.create_task(saver.aget_tuple(config_of("u")))
            await asyncio.to_thread(wait_until, lambda: is_blocked(connection), "a statement that waits")
            for _ in range(3):
                await stop_by_anyio(20, lambda: graph.ainvoke(INPUT, config_without_end("t")))
        await reading
        await saver.aget_tuple(config_of("u"))
        assert leases(connection, schema) == [("u", False)]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_takes_no_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, **FOREVER, on_busy="wait", wait_timeout=GUARD_SECONDS) as saver:
        graph = endless(saver)
        async with hold(saver.lease_manager, "t") as held:
            token = (held.lease if hasattr(held, "lease") else held).fencing_token
            # From outside: its runs know the block around them.
            for rounds in (200, 400, 800):
                work = asyncio.get_running_loop().create_task(
                    stop_by_anyio(rounds, lambda: graph.ainvoke(INPUT, config_without_end("t"))),
                    context=Context(),
                )
                await work
                # A statement that was on its way when the run was cancelled finds the lease held.
                await asyncio.to_thread(wait_until, lambda: not is_busy(connection, schema), "the end of its statement")
            # Nor has a thread that was between two statements only now begun to send one.
            await asyncio.sleep(0.6)
        await wait_until_free(connection, schema)
        await asyncio.sleep(0.6)  # longer than between two attempts to take it
        [(last,)] = connection.execute(f"SELECT fencing_token FROM {schema}.leases").fetchall()
        assert last == token
        assert all_free(connection, schema)


def test_a_deleted_thread_has_no_lease_until_its_tombstone_expires(
    connection: psycopg.Connection, saver: PGStateSaver
) -> None:
    values = "('deleted', now() + interval '1 hour'), ('expired', now())"
    connection.execute(f"INSERT INTO {saver.schema}.tombstones (thread_id, expires_at) VALUES {values}".encode())
    database = Database(connection, schema=saver.schema)
    with pytest.raises(ThreadDeletedError):
        database.run(take, queries(saver.schema), "deleted", "somebody", 60.0)
    assert database.run(take, queries(saver.schema), "expired", "somebody", 60.0).holder_id == "somebody"
    assert leases(connection, saver.schema) == [("expired", True)]


@pytest.mark.parametrize(("table", "columns"), [("leases", "fencing_token, "), ("tombstones", "")])
def test_a_sweep_leaves_what_is_renewed_meanwhile(
    table: str, columns: str, dsn: str, connection: psycopg.Connection, saver: PGStateSaver
) -> None:
    """The sweep has found the row expired, and waits for it."""
    rows, token = f"{saver.schema}.{table}", "1, " if columns else ""
    values = f"('t', {token}now() - interval '2 days')"
    connection.execute(f"INSERT INTO {rows} (thread_id, {columns}expires_at) VALUES {values}".encode())
    waiting, pid = "SELECT FROM pg_locks WHERE NOT granted AND pid = %s", connection.info.backend_pid
    database = Database(connection, schema=saver.schema)
    renewing = f"UPDATE {rows} SET expires_at = now() + interval '1 hour'"
    with ThreadPoolExecutor(1) as other, holding(dsn, renewing) as somebody:
        swept = other.submit(database.run, sweep, queries(saver.schema))
        wait_until(lambda: bool(somebody.execute(waiting, [pid]).fetchall()), "the sweep's wait")
        somebody.commit()
        assert swept.result() == 0
