"""Connections without a `with` block: closed by a call or when the process exits, and left alone by a forked child."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool.pool_async import AddConnection, ShrinkPool
from support import FORK, GUARD_SECONDS, config_of, put_arguments

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.errors import ConfigurationError, PGStateError
from langgraph_pgstate.schema.queries import NamedQuery

PID = NamedQuery("pid", "", b"SELECT pg_backend_pid()", ())
# Records are written when they are flushed, and not before.
PROGRAM = """
import asyncio, sys
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver, RecorderSettings

dsn, schema, *kinds = sys.argv[1:]
later = RecorderSettings(interval=3600)
builder = StateGraph(MessagesState).add_node("a", lambda _: {"messages": [("ai", "x")]}).add_edge(START, "a")
given = {"messages": [("user", "hi")]}
opened = []

async def main(config):
    state = await AsyncPGState.open(dsn, schema=schema, recording=later)
    state.recorder()._write_end = lambda run: asyncio.sleep(0)
    await state.record(builder.compile(checkpointer=state.saver)).ainvoke(given, config)
    assert state.recorder()._queue.has_news
    opened.append(state)

for kind in kinds:
    config = {"configurable": {"thread_id": kind}}
    if kind == "saver":
        saver = PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease", lease_ttl=3600)
        saver.lease_manager.hold("saver").__enter__()
    elif kind == "async":
        asyncio.run(main(config))
    elif kind == "loop":
        import threading
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(main(config), loop).result()
    else:
        opened.append(PGState.open(dsn, schema=schema, recording=later))
        state = opened[-1].__enter__() if kind == "with" else opened[-1]
        state.recorder()._write_end = lambda run: None
        state.record(builder.compile(checkpointer=state.saver)).invoke(given, config)
        assert state.recorder()._queue.has_news
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [("state", "async"), *(pytest.param((one,), marks=pytest.mark.slow) for one in ("with", "saver", "loop"))]
)
def test_a_process_that_closes_nothing_ends_and_has_written_its_records(
    kinds: tuple[str, ...], dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    command = [sys.executable, "-c", PROGRAM, dsn, schema, *kinds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    if kinds == ("saver",):
        query = f"SELECT count(*) FROM {schema}.leases WHERE expires_at > now()"
        assert connection.execute(query.encode()).fetchone() == (0,)
        return
    for kind in kinds:
        query = f"SELECT status FROM {schema}.runs WHERE thread_id = '{kind}'"
        assert connection.execute(query.encode()).fetchall() == [("success",)]
        query = f"SELECT count(*) FROM {schema}.spans WHERE thread_id = '{kind}'"
        assert connection.execute(query.encode()).fetchone() == (2,)


@pytest.mark.parametrize("rounds", range(4))
def test_an_event_loop_ends_while_its_pool_wakes_up(rounds: int, dsn: str, schema: str) -> None:
    """A task that is cancelled in the moment in which it is woken must not go on for ever."""

    async def main() -> None:
        pool = (await AsyncPGState.open(dsn, schema=schema, pool=1))._database._pool
        assert pool is not None
        await asyncio.sleep(0.05)
        await pool.schedule_task(ShrinkPool(pool), 60)
        for _ in range(rounds):
            await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()


def test_an_event_loop_ends_while_its_pool_opens_a_connection(dsn: str, schema: str) -> None:
    """`asyncio.run` cancels the task that opens it once, and waits for its end."""

    async def main() -> None:
        pool = (await AsyncPGState.open(dsn, schema=schema, pool=1))._database._pool
        assert pool is not None
        began = asyncio.Event()

        class Opening(AddConnection):
            async def _run(self, pool: Any) -> None:
                began.set()
                await super()._run(pool)

        pool.run_task(Opening(pool))
        await began.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()


async def open_each(dsn: str, schema: str) -> list[tuple[Any, Callable[[], Any]]]:
    saver = PGStateSaver.from_conn_string(dsn, schema=schema)
    state = PGState.open(dsn, schema=schema)
    asaver = await AsyncPGStateSaver.from_conn_string(dsn, schema=schema)
    astate = await AsyncPGState.open(dsn, schema=schema)
    return [(saver, saver.close), (state.saver, state.close), (asaver, asaver.aclose), (astate.saver, astate.close)]


async def test_what_is_opened_without_a_block_works_until_it_is_closed(
    dsn: str, schema: str, saver: PGStateSaver
) -> None:
    before = {*threading.enumerate()}
    for one, close in await open_each(dsn, schema):
        await one.aput(*put_arguments(config_of("t"), 0))
        for _ in range(2):
            closing = close()
            if closing is not None:
                await closing
        with pytest.raises(PGStateError):
            await one.aget_tuple(config_of("t"))
    assert not [one for one in {*threading.enumerate()} - before if one.name.startswith("pgstate")]


async def test_what_a_state_gave_away_works_when_nothing_else_keeps_the_state(
    dsn: str, schema: str, saver: PGStateSaver
) -> None:
    """A function that makes a state and returns a graph of it, as a web application may have one."""
    kept = [PGState.open(dsn, schema=schema).saver, (await AsyncPGState.open(dsn, schema=schema)).saver]
    gc.collect()
    await asyncio.sleep(0)
    for one in kept:
        await one.aput(*put_arguments(config_of("t"), 0))
        owner = one._database.owner
        assert isinstance(owner, PGState | AsyncPGState)
        closing = owner.close()
        if closing is not None:
            await closing


async def test_an_async_saver_is_closed_from_another_thread(dsn: str, schema: str, saver: PGStateSaver) -> None:
    one = await AsyncPGStateSaver.from_conn_string(dsn, schema=schema)
    await asyncio.to_thread(one.close)
    with pytest.raises(PGStateError):
        await one.aget_tuple(config_of("t"))


def in_child(work: Callable[[], Any]) -> Any:
    """What a forked child returns or raises."""
    receiving, sending = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            sending.send(work())
        except BaseException as error:
            sending.send(error)

    child = FORK.Process(target=run)
    child.start()
    try:
        assert receiving.poll(GUARD_SECONDS), "the child hangs"
        return receiving.recv()
    finally:
        child.kill()
        child.join()


async def test_a_blocking_call_in_a_forked_child_is_refused(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """The event loop of the parent says there that it runs."""
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as one:
        calls = (
            lambda: one.get_tuple(config_of("t")),
            lambda: list(one.list(config_of("t"))),
            lambda: one.put(*put_arguments(config_of("t"), 0)),
            lambda: saver.get_tuple(config_of("t")),
        )
        for call in calls:
            error = await asyncio.to_thread(in_child, call)
            assert isinstance(error, ConfigurationError)
            assert "fork" in str(error)


@pytest.mark.parametrize("pool", [False, 2])
async def test_a_forked_child_that_closes_leaves_the_sessions_to_its_parent(
    pool: Any, dsn: str, schema: str, saver: PGStateSaver
) -> None:
    with PGState.open(dsn, schema=schema, pool=pool) as state:
        async with AsyncPGState.open(dsn, schema=schema, pool=pool) as suspended:

            async def pid(db: Any) -> int:
                (row,) = await db.fetch(PID, {})
                return int(row[0])

            before = state._database.run(pid), await suspended._database.run(pid)

            def close() -> str:
                state.close()
                asyncio.new_event_loop().run_until_complete(suspended.close())
                return "closed"

            assert await asyncio.to_thread(in_child, close) == "closed"
            assert (state._database.run(pid), await suspended._database.run(pid)) == before


@pytest.mark.parametrize("kind", [AsyncPGState, AsyncPGStateSaver])
def test_a_plain_with_of_an_async_class_says_what_to_write(kind: Any, dsn: str, schema: str) -> None:
    opening = kind.open if kind is AsyncPGState else kind.from_conn_string
    with pytest.raises(TypeError, match="must be opened by `async with`, not `with`"), opening(dsn, schema=schema):
        pass
