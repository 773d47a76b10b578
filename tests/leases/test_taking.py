"""Leases that are taken for a run that is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context
from typing import Any

import psycopg
import pytest
from support import APIS, GUARD_SECONDS, config_of, counted, holding, loop_graph, open_saver, put_arguments, wait_until

from langgraph_pgstate.errors import UnavailableError
from langgraph_pgstate.options import RetryPolicy
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
