"""Calls that are cancelled at any await: their connections come back, in order, and nobody waits for them in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from support import APIS, GUARD_SECONDS, config_of, examples, open_saver, put_arguments, put_chain, wait_until

from langgraph_pgstate import AsyncPGStateSaver
from langgraph_pgstate.db.database import AsyncDatabase
from langgraph_pgstate.errors import PGStateError
from tests.leases.test_api import maybe
from tests.leases.test_manager import ROUNDS, after, stop_by_anyio, wait_until_free


async def all_come_back(pool: Any) -> None:
    def have_come() -> bool:
        stats = pool.get_stats()
        return bool(stats["pool_available"] == stats["pool_size"] and not stats.get("requests_waiting"))

    await asyncio.to_thread(wait_until, have_come, "all connections of the pool")


@pytest.mark.slow
@pytest.mark.parametrize("switches", [False, True])
async def test_a_cancelled_call_gives_its_connection_back(switches: bool, dsn: str, schema: str) -> None:
    """More calls than connections, so that giving one back waits for the pool's lock and for who gets it next."""
    options = {"autocommit": not switches}
    async with AsyncConnectionPool(dsn, min_size=2, max_size=2, timeout=60, kwargs=options) as pool:
        saver = AsyncPGStateSaver(pool, schema=schema)
        (head,) = await put_chain(saver, "t", 1)

        async def call(number: int) -> None:
            while True:
                await saver.aget_tuple(head)
                await saver.aput_writes(head, [("messages", number)], f"task {number}")

        async def calls() -> None:
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(call, number)

        for rounds in ROUNDS:
            for _ in range(3):
                await stop_by_anyio(rounds, calls)
        await all_come_back(pool)
        for connection in (await pool.getconn(), await pool.getconn()):
            assert connection.autocommit is not switches
            await pool.putconn(connection)


@pytest.mark.parametrize("pool", [False, 1])
async def test_what_is_stored_after_a_cancelled_transaction_is_committed(
    pool: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A connection is not used again with somebody's transaction, or half an answer, still on it."""
    async with open_saver(AsyncPGStateSaver, dsn, schema, pool=pool) as saver:
        database = saver._database

        async def transact() -> None:
            async with database.lend() as (own, _):
                while True:
                    await own.execute("SELECT 1")

        for rounds in ROUNDS:
            await stop_by_anyio(rounds, transact)
            await saver.aput(*put_arguments(config_of(f"t{rounds}"), 0))
        query = f"SELECT count(*) FROM {schema}.checkpoints"
        assert connection.execute(query.encode()).fetchone() == (len(ROUNDS),)


async def test_a_single_connection_that_was_left_in_a_statement_is_made_anew(dsn: str, schema: str) -> None:
    async with open_saver(AsyncPGStateSaver, dsn, schema, pool=False) as saver:
        for rounds in ROUNDS:

            async def put() -> None:
                while True:
                    await saver.aput(*put_arguments(config_of("t"), 0))

            await stop_by_anyio(rounds, put)
            assert await saver.aget_tuple(config_of("t")) or rounds < 50


@pytest.mark.parametrize("api", APIS)
async def test_a_single_connection_is_not_used_with_a_transaction_that_a_call_has_left(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async def leave_open(db: Any) -> None:
        await db.script("BEGIN")

    async with open_saver(api, dsn, schema, pool=False) as saver:
        await maybe(saver._database.run(leave_open))
        await saver.aput(*put_arguments(config_of("after"), 0))
        query = f"SELECT count(*) FROM {schema}.checkpoints WHERE thread_id = 'after'"
        assert connection.execute(query.encode()).fetchone() == (1,)


async def end_lent(database: Any, operation: Any) -> None:
    async with database.lend() as (_, db):
        await operation(db)


@pytest.mark.parametrize("call", [end_lent, AsyncDatabase.run, AsyncDatabase.run_once])
@pytest.mark.parametrize("pool", [False, 1])
async def test_a_connection_is_not_used_after_its_call_was_cancelled(pool: Any, call: Any, dsn: str) -> None:
    used = []

    async def end(db: Any) -> None:
        used.append(db.connection)
        raise asyncio.CancelledError

    async with AsyncDatabase.open(dsn, schema="public", pool=pool) as database:
        with pytest.raises(asyncio.CancelledError):
            await call(database, end)
        assert used[0].closed
        async with database.lend() as (connection, _):
            await connection.execute("SELECT 1")


async def test_a_lent_connection_stays_its_callers(dsn: str, schema: str) -> None:
    """Whoever cancels a call on it has it back as it was."""
    async with await psycopg.AsyncConnection.connect(dsn) as own:
        saver = AsyncPGStateSaver(own, schema=schema)
        for rounds in ROUNDS:
            task = asyncio.ensure_future(saver.aput(*put_arguments(config_of("t"), 0)))
            after(rounds, task.cancel)
            with suppress(asyncio.CancelledError, PGStateError):
                await task
            assert not own.closed
            assert not own.autocommit
            assert own.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def cancel_once(seconds: float, work: Callable[[], Awaitable[Any]]) -> None:
    task = asyncio.ensure_future(work())
    await asyncio.sleep(seconds)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def cancel_by_anyio(seconds: float, work: Callable[[], Awaitable[Any]]) -> None:
    with anyio.move_on_after(seconds):
        await work()


async def cancel_in_each_iteration(seconds: float, work: Callable[[], Awaitable[Any]]) -> None:
    task = asyncio.ensure_future(work())
    await asyncio.sleep(seconds)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("cancel", [cancel_once, cancel_by_anyio, cancel_in_each_iteration])
@pytest.mark.parametrize("pool", [1, 3])
async def test_forty_clients_that_are_cancelled_at_random_lose_no_connection(
    cancel: Any, pool: int, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    random = Random(pool)
    async with open_saver(AsyncPGStateSaver, dsn, schema, pool=pool, guard="lease") as saver:
        database, before = saver._database, asyncio.all_tasks()

        async def transact() -> None:
            async with database.lend() as (own, _):
                await own.execute("SELECT 1")

        async def client(number: int) -> None:
            thread = config_of(f"t{number}")
            works = (
                lambda: saver.aput(*put_arguments(thread, 0)),
                lambda: saver.aget_tuple(thread),
                lambda: anext(saver.alist(thread), None),
                transact,
            )
            for round in range(examples(100)):
                await cancel(random.random() * 0.02, works[(number + round) % len(works)])

        await asyncio.gather(*(client(number) for number in range(40)))
        await all_come_back(database._pool)
        taken = [await database._pool.getconn() for _ in range(pool)]
        for one in taken:
            assert (await (await one.execute("SELECT 1")).fetchone()) == (1,)
            assert one.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
            await database._pool.putconn(one)
        await wait_until_free(connection, schema)
        left = {task for task in asyncio.all_tasks() - before if task.get_name() != "pgstate-leases"}
        if left:
            _, left = await asyncio.wait(left, timeout=GUARD_SECONDS)
        assert not left
