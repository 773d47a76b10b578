"""The last note of a run is sent and not waited for: nothing is lost by it, and nobody else has to wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool
from support import FORK, GUARD_SECONDS, backends, loop_graph, move_journal, wait_until
from support_recorder import config, rows

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import PGStateError, UnavailableError
from langgraph_pgstate.operations.notes import Note
from langgraph_pgstate.recorder.tracker import Pending
from langgraph_pgstate.settings import RecorderSettings

Connection = psycopg.Connection
LOCK = 4711
# Whoever notes something without a checkpoint waits for the lock, on the server.
HOLD = """
CREATE FUNCTION {schema}.wait_here() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared({lock}); RETURN NEW; END $$;
CREATE TRIGGER wait_here BEFORE INSERT ON {schema}.journal FOR EACH ROW WHEN (NEW.is_alone)
    EXECUTE FUNCTION {schema}.wait_here()
"""
LET_GO = "DROP TRIGGER wait_here ON {schema}.journal; DROP FUNCTION {schema}.wait_here()"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost is replaced when the writer comes next."""
    monkeypatch.setattr("langgraph_pgstate.recorder.handler._RECONNECT_SECONDS", 0.0)


# The writer does nothing by itself.
IDLE = RecorderSettings(interval=1_000_000.0)


def start() -> dict[str, Any]:
    return {"items": [], "count": 0}


@contextmanager
def held(dsn: str, schema: str) -> Iterator[Callable[[], None]]:
    """While notes without a checkpoint wait; what lets them go on."""
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute(HOLD.format(schema=schema, lock=LOCK).encode())
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        try:
            yield lambda: holder.execute("SELECT pg_advisory_unlock(%s)", [LOCK]) and None
        finally:
            holder.execute("SELECT pg_advisory_unlock_all()")
            holder.execute(LET_GO.format(schema=schema).encode())


def waiting(connection: Connection) -> list[int]:
    """The sessions whose note waits."""
    return [pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'")]


async def until(condition: Callable[[], Any], what: str) -> None:
    """`wait_until`, while an event loop goes on."""
    await asyncio.to_thread(wait_until, lambda: bool(condition()), what)


@pytest.fixture(params=[PGState, AsyncPGState])
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    named = make_conninfo(dsn, application_name=f"courier {schema}")
    if request.param is PGState:
        with PGState.open(named, schema=schema) as opened:
            opened.setup()
            yield opened
    else:
        async with AsyncPGState.open(named, schema=schema) as opened:
            await opened.setup()
            yield opened


def equipped(state: Any) -> Callable[[int], None]:
    """A node's hook: it goes on when the courier has a connection."""
    return lambda count: wait_until(lambda: state._recorder._courier.is_ready, "a courier with a connection")


async def invoke(state: Any, thread_id: str = "t", **options: Any) -> None:
    graph = state.record(loop_graph(2, equipped(state)).compile(checkpointer=state.saver))
    if isinstance(state, PGState):
        await asyncio.to_thread(graph.invoke, start(), config(thread_id), **options)
    else:
        await graph.ainvoke(start(), config(thread_id), **options)


async def flush(state: Any) -> None:
    await (asyncio.to_thread(state.flush) if isinstance(state, PGState) else state.flush())


def the_run(connection: Connection, schema: str) -> Any:
    (run,) = rows(connection, schema, "runs")
    return run


async def test_a_run_answers_before_its_end_is_committed(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    """And who asks for it, or closes, waits for the rest."""
    with held(dsn, schema) as let_go:
        await asyncio.wait_for(invoke(state), GUARD_SECONDS)
        await until(lambda: waiting(connection), "a note that waits")
        flushing = asyncio.ensure_future(flush(state))
        assert not (await asyncio.wait([flushing], timeout=0.05))[0]
        let_go()
        await flushing
    assert (the_run(connection, schema)["status"], the_run(connection, schema)["steps"]) == ("success", 2)
    assert rows(connection, schema, "journal") == []
    statuses = [event["payload"]["status"] for event in rows(connection, schema, "events")]
    assert statuses == ["running", "success"]
    assert state._recorder._tracker.waiting == 0
    assert not state._recorder._tracker.is_busy


def answer_and_die(dsn: str, schema: str, colour: type) -> None:
    async def run() -> None:
        if colour is PGState:
            with PGState.open(dsn, schema=schema, recording=IDLE) as state:
                await invoke(state)
                os.kill(os.getpid(), signal.SIGKILL)
        async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
            await invoke(state)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run())


@pytest.mark.parametrize("colour", [PGState, AsyncPGState])
def test_a_run_that_has_answered_is_safe_though_its_process_is_killed(
    colour: type, dsn: str, schema: str, connection: Connection
) -> None:
    """The server does what it was sent, whoever has gone meanwhile."""
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    application = f"killed {schema}"
    with held(dsn, schema) as let_go:
        named = make_conninfo(dsn, application_name=application)
        process = FORK.Process(target=answer_and_die, args=(named, schema, colour), daemon=True)
        process.start()
        process.join(GUARD_SECONDS)
        assert process.exitcode == -signal.SIGKILL
        assert len(waiting(connection)) == 1
        let_go()
        wait_until(lambda: backends(connection, application) == [], "the end of its sessions")
    assert move_journal(connection, schema) > 0
    assert (the_run(connection, schema)["status"], the_run(connection, schema)["steps"]) == ("success", 2)


async def test_what_a_lost_connection_had_is_written_again(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    with held(dsn, schema) as let_go:
        await invoke(state)
        await until(lambda: waiting(connection), "a note that waits")
        (pid,) = waiting(connection)
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        await until(lambda: not waiting(connection), "its end")
        let_go()
    assert rows(connection, schema, "journal", is_alone=True) == []
    await flush(state)
    assert the_run(connection, schema)["status"] == "success"
    assert len(rows(connection, schema, "events")) == 2
    # And it has another one for the next.
    await invoke(state)
    await flush(state)
    assert [run["status"] for run in rows(connection, schema, "runs")] == ["success"] * 2


async def test_what_the_server_refused_is_written_again(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    connection.execute(f"ALTER TABLE {schema}.journal ADD CONSTRAINT never CHECK (NOT is_alone) NOT VALID".encode())
    try:
        await invoke(state)
        await flush(state)
        assert the_run(connection, schema)["status"] == "success"
    finally:
        connection.execute(f"ALTER TABLE {schema}.journal DROP CONSTRAINT never".encode())


async def test_who_finds_it_at_work_does_without(state: Any, dsn: str, schema: str, connection: Connection) -> None:
    """Runs that end while it waits for an answer put their notes themselves, and wait for them."""
    with held(dsn, schema) as let_go:
        await invoke(state, "first")
        await until(lambda: len(waiting(connection)) == 1, "a note that waits")
        others = [asyncio.ensure_future(invoke(state, f"t{number}")) for number in range(3)]
        await until(lambda: len(waiting(connection)) == 4, "four that wait")
        assert not any(other.done() for other in others)
        let_go()
        await asyncio.gather(*others)
    await flush(state)
    assert [run["status"] for run in rows(connection, schema, "runs")] == ["success"] * 4


async def test_a_run_of_which_nothing_is_known_is_waited_for(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    """Its note would make the thread's row, after somebody was told that all is done and deleted the thread."""
    await invoke(state, "other")
    graph = state.record(loop_graph(0, equipped(state)).compile())
    with held(dsn, schema) as let_go:
        if isinstance(state, PGState):
            running = asyncio.ensure_future(asyncio.to_thread(graph.invoke, start(), config()))
        else:
            running = asyncio.ensure_future(graph.ainvoke(start(), config()))
        await until(lambda: waiting(connection), "a note that waits")
        assert not (await asyncio.wait([running], timeout=0.05))[0]
        let_go()
        await running


async def test_a_flush_that_gave_up_loses_nothing(state: Any, dsn: str, schema: str, connection: Connection) -> None:
    with held(dsn, schema) as let_go:
        await invoke(state)
        await until(lambda: waiting(connection), "a note that waits")
        flush_now = state._recorder.flush
        given_up = asyncio.to_thread(flush_now, 0.05) if isinstance(state, PGState) else flush_now(0.05)
        with pytest.raises(PGStateError, match="slow"):
            await given_up
        let_go()
    await flush(state)
    assert the_run(connection, schema)["status"] == "success"
    assert state._recorder._tracker.waiting == 0


async def test_a_session_that_has_ended_is_noticed_before_anything_is_sent(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    """Else the run would answer, and nobody have its end."""

    def end_session(count: int) -> None:
        if count == 0:
            wait_until(lambda: state._recorder._courier.is_ready, "a courier with a connection")
            pid = state._recorder._aside.connection.info.backend_pid
            assert connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)

    state._recorder._settings = IDLE
    graph = state.record(loop_graph(1, end_session).compile(checkpointer=state.saver))
    if isinstance(state, PGState):
        await asyncio.to_thread(graph.invoke, start(), config())
    else:
        await graph.ainvoke(start(), config())
    # Nobody has come to move it yet, but it is there.
    assert connection.execute(f"SELECT count(*) FROM {schema}.journal WHERE is_alone".encode()).fetchone() == (1,)


async def test_who_gives_up_waiting_does_not_cancel_it(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    """A reader whose client has gone, a recorder that is closed: the server goes on with what it was sent."""
    with held(dsn, schema) as let_go:
        await invoke(state)
        await until(lambda: waiting(connection), "a note that waits")
        pids = waiting(connection)
        if isinstance(state, PGState):
            with pytest.raises(PGStateError, match="slow"):
                await asyncio.to_thread(state._recorder.flush, 0.05)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(state.runs.list(), 0.1)
        assert waiting(connection) == pids
        state._recorder._settings = RecorderSettings(patience=0.05)
        with pytest.raises(PGStateError, match="slow"):
            await (asyncio.to_thread(state._recorder.close) if isinstance(state, PGState) else state._recorder.close())
        assert waiting(connection) == pids
        let_go()
        await until(lambda: not waiting(connection), "its end")
    await until(
        lambda: move_journal(connection, schema) >= 0 and the_run(connection, schema)["status"] == "success", "its end"
    )


async def test_a_server_that_is_stuck_with_it_keeps_nobody_waiting(
    state: Any, dsn: str, schema: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer gives it up after a while, and writes it itself; that it comes true later changes nothing."""
    monkeypatch.setattr("langgraph_pgstate.db.ports._PATIENCE", 0.05)
    with held(dsn, schema) as let_go:
        await invoke(state)
        await until(lambda: waiting(connection), "a note that waits")
        await flush(state)
        assert the_run(connection, schema)["status"] == "success"
        assert waiting(connection)
        let_go()
        await until(lambda: not waiting(connection), "its end")
    before = rows(connection, schema, "runs"), rows(connection, schema, "events")
    move_journal(connection, schema)
    assert (rows(connection, schema, "runs"), rows(connection, schema, "events")) == before


async def test_its_connection_lives_no_longer_than_the_pools(
    state: Any, schema: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover or new credentials are noticed."""
    state._database._pool.max_lifetime = 0.0
    seen: set[int] = set()

    def was_replaced() -> bool:
        if (aside := state._recorder._aside) is not None:
            seen.add(aside.connection.info.backend_pid)
        return len(seen) > 1

    def hook(count: int) -> None:
        wait_until(was_replaced, "another connection")

    graph = state.record(loop_graph(1, hook).compile(checkpointer=state.saver))
    if isinstance(state, PGState):
        await asyncio.to_thread(graph.invoke, start(), config())
    else:
        await graph.ainvoke(start(), config())
    await flush(state)
    assert the_run(connection, schema)["status"] == "success"


async def test_its_connection_is_closed_with_it(dsn: str, schema: str, connection: Connection) -> None:
    """One beside the pool's, which is the caller's and stays open."""
    named = make_conninfo(dsn, application_name=f"courier {schema}")
    with ConnectionPool(named, min_size=4, max_size=4, open=True) as pool:
        pool.wait()
        state = PGState(pool, schema=schema)
        state.setup()
        await invoke(state)
        assert len(backends(connection, f"courier {schema}")) == 5
        state.close()
        wait_until(lambda: len(backends(connection, f"courier {schema}")) == 4, "the end of its session")


def configure(connection: Connection) -> None:
    """What only the pool can do."""


@pytest.mark.parametrize(
    "options",
    [
        {"min_size": 1, "max_size": 3},
        {"min_size": 1, "max_size": 9, "configure": configure},
        {"min_size": 0, "max_size": 9},
    ],
    ids=["small", "configured", "none kept"],
)
def test_there_is_no_connection_beside_a_pool_that_would_not_like_it(
    options: dict[str, Any], dsn: str, schema: str, connection: Connection
) -> None:
    settings = RecorderSettings(interval=0.02)
    with (
        ConnectionPool(dsn, **{"min_size": 1, **options}, open=True) as pool,
        closing(PGState(pool, schema=schema, recording=settings)) as state,
    ):
        state.setup()

        def hook(count: int) -> None:
            # By then the writer has come by.
            wait_until(lambda: bool(rows(connection, schema, "runs")), "the run's row")
            assert not state._recorder._courier.is_ready

        state.record(loop_graph(2, hook).compile(checkpointer=state.saver)).invoke(start(), config())
        assert [run.status for run in state.runs.list().items] == ["success"]


def test_a_server_that_takes_no_more_connections_makes_the_run_wait(
    dsn: str, schema: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Database) -> None:
        raise UnavailableError("too many connections")

    monkeypatch.setattr(Database, "connect_aside", refuse)
    with PGState.open(dsn, schema=schema, recording=RecorderSettings(interval=0.02)) as state:
        state.setup()
        for number in range(3):
            state.record(loop_graph(2).compile(checkpointer=state.saver)).invoke(start(), config(str(number)))
        assert [run.status for run in state.runs.list().items] == ["success"] * 3


def in_child(state: PGState, answers: Any) -> None:
    courier = state._recorder._courier
    sent = courier.send({"thread_id": "t", "run_id": "r", "entry_id": "e", "entry": b""}, Pending(Note()))
    graph = state.record(loop_graph(1).compile())
    graph.invoke(start(), config("child"))
    with pytest.raises(PGStateError):
        state.flush()
    answers.put((courier.is_ready, sent))


def test_a_fork_leaves_the_connection_to_the_parent(dsn: str, schema: str, connection: Connection) -> None:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        state.setup()
        answers = FORK.SimpleQueue()
        with held(dsn, schema) as let_go:
            asyncio.run(invoke(state))
            wait_until(lambda: bool(waiting(connection)), "a note that waits")
            process = FORK.Process(target=in_child, args=(state, answers), daemon=True)
            process.start()
            process.join(GUARD_SECONDS)
            assert answers.get() == (False, False)
            # Its writer has come and gone, and left the parent's sessions alone.
            assert len(waiting(connection)) == 1
            let_go()
        state.flush()
        assert the_run(connection, schema)["status"] == "success"


@pytest.mark.parametrize("colour", [PGState, AsyncPGState])
def test_many_at_once_are_each_recorded_once(colour: type, dsn: str, schema: str, connection: Connection) -> None:
    """Threads, or tasks, that end runs while the writer settles, moves and comes and goes."""
    settings = RecorderSettings(interval=0.005)

    def work(graph: Any, worker: int) -> None:
        for number in range(15):
            graph.invoke(start(), config(f"{worker}-{number}"))

    async def work_async(graph: Any, worker: int) -> None:
        for number in range(15):
            await graph.ainvoke(start(), config(f"{worker}-{number}"))

    async def run_async() -> None:
        async with AsyncPGState.open(dsn, schema=schema, recording=settings) as state:
            await state.setup()
            graph = state.record(loop_graph(1).compile(checkpointer=state.saver))
            await asyncio.gather(*(work_async(graph, worker) for worker in range(6)))

    if colour is PGState:
        with PGState.open(dsn, schema=schema, recording=settings) as state:
            state.setup()
            graph = state.record(loop_graph(1).compile(checkpointer=state.saver))
            workers = [threading.Thread(target=work, args=(graph, worker)) for worker in range(6)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    else:
        asyncio.run(run_async())
    assert [run["status"] for run in rows(connection, schema, "runs")] == ["success"] * 90
    assert len(rows(connection, schema, "events")) == 180
    assert rows(connection, schema, "journal") == []
    assert {thread["status"] for thread in rows(connection, schema, "threads")} == {"idle"}
