"""When a run has answered, the record knows how it ended, whatever dies next."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import psycopg
import pytest
from langchain_core.tools import StructuredTool
from langgraph.prebuilt import ToolNode
from support import FORK, GUARD_SECONDS, RoundTrips, loop_graph, move_journal, spread, wait_until
from support.ledger import agent_graph, ask, calls, thread
from support.record import Record, at
from support.recorder import config, rows

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.options import PoolSettings
from langgraph_pgstate.record.dead_runs import settle_runs
from langgraph_pgstate.record.journal import renew_runs
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.schema.queries import queries

Connection = psycopg.Connection
# The writer does nothing by itself.
IDLE = RecorderSettings(interval=1_000_000.0)
LOCK = 4712
# Whoever notes something without a checkpoint waits for the lock, on the server.
HOLD = """
CREATE FUNCTION {schema}.wait_here() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared({lock}); RETURN NEW; END $$;
CREATE TRIGGER wait_here BEFORE INSERT ON {schema}.journal FOR EACH ROW WHEN (NEW.is_alone)
    EXECUTE FUNCTION {schema}.wait_here()
"""
LET_GO = "DROP TRIGGER wait_here ON {schema}.journal; DROP FUNCTION {schema}.wait_here()"


def start() -> dict[str, Any]:
    return {"items": [], "count": 0}


@contextmanager
def held(dsn: str, schema: str) -> Iterator[Callable[[], Any]]:
    """While notes without a checkpoint wait; what lets them go on."""
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute(HOLD.format(schema=schema, lock=LOCK).encode())
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        try:
            yield lambda: holder.execute("SELECT pg_advisory_unlock_all()")
        finally:
            holder.execute("SELECT pg_advisory_unlock_all()")
            holder.execute(LET_GO.format(schema=schema).encode())


def waiting(connection: Connection) -> list[int]:
    """The sessions whose note waits."""
    return [pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'")]


@pytest.fixture(params=[PGState, AsyncPGState])
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    if request.param is PGState:
        with PGState.open(dsn, schema=schema) as opened:
            yield opened
    else:
        async with AsyncPGState.open(dsn, schema=schema) as opened:
            yield opened


def recorded(state: Any, hook: Callable[[int], Any] = lambda count: None) -> Any:
    return state.record(loop_graph(2, hook).compile(checkpointer=state.saver))


def the_end(connection: Connection, schema: str, thread_id: str = "t") -> Any:
    """Return how the thread's only run ended, as another process finds it; `None` while nothing is stored of it."""
    move_journal(connection, schema)
    found = [run["status"] for run in rows(connection, schema, "runs", thread_id=thread_id)]
    assert len(found) <= 1
    return found[0] if found else None


async def test_a_run_answers_when_its_end_is_committed(
    state: Any, dsn: str, schema: str, connection: Connection
) -> None:
    graph = recorded(state)
    with held(dsn, schema) as let_go:
        if isinstance(state, PGState):
            running = asyncio.ensure_future(asyncio.to_thread(graph.invoke, start(), config()))
        else:
            running = asyncio.ensure_future(graph.ainvoke(start(), config()))
        await asyncio.to_thread(wait_until, lambda: bool(waiting(connection)), "a note that waits")
        assert not running.done()
        let_go()
        await running


def answer_and_die(dsn: str, schema: str, way: str, before: Callable[[], Any] = lambda: None) -> None:
    def die() -> None:
        before()
        os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        if way == "async":
            async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
                await recorded(state).ainvoke(start(), config())
                die()
        if way == "async in a thread":
            async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
                await asyncio.to_thread(recorded(state).invoke, start(), config())
                die()
        with PGState.open(dsn, schema=schema, recording=IDLE) as blocking:
            graph = recorded(blocking)
            if way == "blocking":
                await asyncio.to_thread(graph.invoke, start(), config())
            elif way == "blocking on a loop":
                graph.invoke(start(), config())
            else:
                await graph.ainvoke(start(), config())
            die()

    asyncio.run(run())


@pytest.mark.parametrize(
    "way", spread(["blocking", "blocking on a loop", "blocking, awaited", "async in a thread", "async"])
)
def test_a_run_that_has_answered_is_known_though_its_process_is_killed_at_once(
    way: str, dsn: str, schema: str, connection: Connection
) -> None:
    process = FORK.Process(target=answer_and_die, args=(dsn, schema, way), daemon=True)
    process.start()
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert the_end(connection, schema) == "success"
    with PGState.open(dsn, schema=schema) as state:
        assert state.runs.failed().items == ()
        thread = state.threads.get("t")
        assert thread is not None
        assert thread.status == "idle"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["blocking", "async"])
def test_a_run_that_has_answered_is_known_though_the_server_stops_at_once(way: str, tmp_path: Any) -> None:
    """With the server's own settings: what it has committed is on its disk."""
    # Comes with the embedded server.
    import psutil

    path = tmp_path / "data"

    def stop_at_once() -> None:
        pid = int((path / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        wait_until(lambda: not (path / "postmaster.pid").exists() or is_gone(pid), "the server's end")

    # The server may end while the library is about to stop it.
    with suppress(subprocess.CalledProcessError, psutil.NoSuchProcess), embedded_server(path) as dsn:
        with PGState.open(dsn) as state:
            state.setup()
        # In a process of its own, for a state waits for a server that is gone.
        process = FORK.Process(target=answer_and_die, args=(dsn, "pgstate", way, stop_at_once), daemon=True)
        process.start()
        process.join(GUARD_SECONDS)
        assert process.exitcode == -signal.SIGKILL
    with embedded_server(path) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        assert the_end(connection, "pgstate") == "success"


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with suppress(OSError):
        return b") Z " in open(f"/proc/{pid}/stat", "rb").read()
    return False


async def cancelled_by_asyncio(graph: Any, reached: asyncio.Event) -> None:
    running = asyncio.ensure_future(graph.ainvoke(start(), config()))
    await reached.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def cancelled_by_anyio(graph: Any, reached: asyncio.Event) -> None:
    """Every wait is cancelled from then on, as Starlette does when a client goes."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await reached.wait()
                scope.cancel()

            group.start_soon(cancel)
            await graph.ainvoke(start(), config())


async def abandoned(graph: Any, reached: asyncio.Event) -> None:
    stream = graph.astream(start(), config())
    reached.set()
    await anext(stream)
    await stream.aclose()


@pytest.mark.parametrize("way", [cancelled_by_asyncio, cancelled_by_anyio, abandoned])
@pytest.mark.parametrize("api", [PGState, AsyncPGState])
async def test_a_run_that_is_cancelled_has_an_end(
    api: type, way: Any, dsn: str, schema: str, connection: Connection
) -> None:
    reached = asyncio.Event()
    is_endless = way is not abandoned

    async def step(state: Any) -> dict[str, Any]:
        reached.set()
        while is_endless:
            await asyncio.sleep(0.01)
        return {"items": ["x"], "count": state["count"] + 1}

    builder = loop_graph(3)
    builder.nodes.pop("step")
    builder.add_node("step", step)
    if api is PGState:
        with PGState.open(dsn, schema=schema, recording=IDLE) as state:
            await way(state.record(builder.compile(checkpointer=state.saver)), reached)
            await asyncio.to_thread(wait_until, lambda: the_end(connection, schema) == "cancelled", "its end")
    else:
        async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
            await way(state.record(builder.compile(checkpointer=state.saver)), reached)
            await asyncio.to_thread(wait_until, lambda: the_end(connection, schema) == "cancelled", "its end")


def test_a_run_that_was_interrupted_by_the_keyboard_has_an_end(dsn: str, schema: str, connection: Connection) -> None:
    def interrupt(count: int) -> None:
        if count == 1:
            raise KeyboardInterrupt

    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        with pytest.raises(KeyboardInterrupt):
            recorded(state, interrupt).invoke(start(), config())
        assert the_end(connection, schema) == "cancelled"


@pytest.mark.parametrize("api", [PGState, AsyncPGState])
async def test_a_run_whose_end_the_server_does_not_take_answers_all_the_same(
    api: type, dsn: str, schema: str, connection: Connection
) -> None:
    """A server that stands still keeps it no longer than the settings say, and the writer comes again."""
    settings = RecorderSettings(timeout=0.1, interval=0.05)
    if api is PGState:
        with PGState.open(dsn, schema=schema, recording=settings) as state:
            with held(dsn, schema):
                await asyncio.to_thread(recorded(state).invoke, start(), config())
                wait_until(
                    lambda: [row["status"] for row in rows(connection, schema, "runs")] == ["success"], "its end"
                )
            # Closing the state would wait for the rest no longer than the settings say, too.
            state._recorder.flush(GUARD_SECONDS)
    else:
        async with AsyncPGState.open(dsn, schema=schema, recording=settings) as state:
            with held(dsn, schema):
                await recorded(state).ainvoke(start(), config())
                await asyncio.to_thread(
                    wait_until,
                    lambda: [row["status"] for row in rows(connection, schema, "runs")] == ["success"],
                    "its end",
                )
            await state._recorder.flush(GUARD_SECONDS)


class Gone(RoundTrips):
    """A server that can be away."""

    def __init__(self, dsn: str) -> None:
        self.is_away = False
        super().__init__(dsn)

    def _forward(self, client: Any) -> None:
        if self.is_away:
            client.close()
            return
        super()._forward(client)


@pytest.mark.slow
@pytest.mark.parametrize("api", [PGState, AsyncPGState])
async def test_a_run_whose_database_is_gone_when_it_ends_answers_and_is_recorded_later(
    api: type, dsn: str, schema: str, connection: Connection
) -> None:
    """Without a checkpoint of its own to put then, which would have to fail."""
    proxy = Gone(dsn)
    settings = RecorderSettings(timeout=0.5, interval=0.05)
    options: Any = {"recording": settings, "pool": PoolSettings(min_size=1, max_size=4, timeout=30.0)}

    def leave(count: int) -> None:
        if count == 1:
            proxy.is_away = True
            pids = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({pids}) AS s".encode(), [f"gone {schema}"])

    named = psycopg.conninfo.make_conninfo(proxy.dsn, application_name=f"gone {schema}")
    try:
        if api is PGState:
            with PGState.open(named, schema=schema, **options) as state:
                graph = state.record(loop_graph(2, leave).compile())
                answered = await asyncio.to_thread(graph.invoke, start(), config())
                proxy.is_away = False
                wait_until(lambda: [row["status"] for row in rows(connection, schema, "runs")] == ["success"], "it")
        else:
            async with AsyncPGState.open(named, schema=schema, **options) as state:
                graph = state.record(loop_graph(2, leave).compile())
                answered = await graph.ainvoke(start(), config())
                proxy.is_away = False
                await asyncio.to_thread(
                    wait_until,
                    lambda: [row["status"] for row in rows(connection, schema, "runs")] == ["success"],
                    "it",
                )
        assert answered["count"] == 2
    finally:
        proxy.close()


def test_what_waits_in_the_journal_is_not_taken_for_a_crash(dsn: str, schema: str, connection: Connection) -> None:
    """Neither by the view nor by who settles what dead processes left."""
    process = FORK.Process(target=answer_and_die, args=(dsn, schema, "blocking"), daemon=True)
    process.start()
    process.join(GUARD_SECONDS)
    # Its beginning is in the tables, as if the process had lived a while, and its end is not.
    connection.execute(
        f"CREATE TABLE {schema}.aside AS WITH gone AS (DELETE FROM {schema}.journal WHERE is_alone RETURNING *) "
        "SELECT * FROM gone".encode()
    )
    move_journal(connection, schema)
    connection.execute(f"UPDATE {schema}.runs SET alive_until = now() - interval '1 hour'".encode())
    failed = f"SELECT is_crashed FROM {schema}.failed_runs".encode()
    assert connection.execute(failed).fetchall() == [(True,)]
    connection.execute(f"INSERT INTO {schema}.journal SELECT * FROM {schema}.aside".encode())
    connection.execute(f"DROP TABLE {schema}.aside".encode())
    assert connection.execute(failed).fetchall() == []
    with PGState.open(dsn, schema=schema) as state:
        # As if it had come after the journal was moved.
        state._recorder.recover = lambda seconds=0.0: 0  # type: ignore[method-assign]
        assert state.maintain().runs_settled == 0
    assert the_end(connection, schema) == "success"
    assert [event["payload"]["status"] for event in rows(connection, schema, "events")] == ["running", "success"]


@pytest.mark.slow
@pytest.mark.parametrize("api", [PGState, AsyncPGState])
def test_many_at_once_are_each_recorded_once(api: type, dsn: str, schema: str, connection: Connection) -> None:
    """Threads, or tasks, that end runs while the writer moves."""
    settings = RecorderSettings(interval=0.005)

    def work(graph: Any, worker: int) -> None:
        for number in range(10):
            graph.invoke(start(), config(f"{worker}-{number}"))

    async def work_async(graph: Any, worker: int) -> None:
        for number in range(10):
            await graph.ainvoke(start(), config(f"{worker}-{number}"))

    async def run_async() -> None:
        async with AsyncPGState.open(dsn, schema=schema, recording=settings) as state:
            await asyncio.gather(*(work_async(recorded(state), worker) for worker in range(6)))

    if api is PGState:
        with PGState.open(dsn, schema=schema, recording=settings) as state:
            workers = [threading.Thread(target=work, args=(recorded(state), worker)) for worker in range(6)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    else:
        asyncio.run(run_async())
    assert [run["status"] for run in rows(connection, schema, "runs")] == ["success"] * 60
    assert len(rows(connection, schema, "events")) == 120
    assert rows(connection, schema, "journal") == []
    assert {thread["status"] for thread in rows(connection, schema, "threads")} == {"idle"}


@pytest.mark.slow
async def test_a_tool_that_outlives_its_cancelled_run_has_its_real_end(
    dsn: str, schema: str, connection: Connection
) -> None:
    """On an event loop it runs in a thread, which no cancellation ends."""
    begun, go_on = threading.Event(), threading.Event()

    def charge(order: str) -> str:
        begun.set()
        go_on.wait(GUARD_SECONDS)
        return f"charged {order}"

    tool = StructuredTool.from_function(charge, name="charge", description="charge")
    asked = calls(("call_1", "charge", {"order": "o1"}))

    def span_of_tool() -> list[Any]:
        return [
            (row["status"], (row["output"] or {}).get("content"))
            for row in rows(connection, schema, "spans")
            if row["kind"] == "tool"
        ]

    async with AsyncPGState.open(dsn, schema=schema, recording=RecorderSettings(interval=0.05)) as state:
        await state.setup()
        node = ToolNode([tool], awrap_tool_call=state.tools)
        graph = state.record(agent_graph(node, asked).compile(checkpointer=state.saver))
        running = asyncio.create_task(graph.ainvoke(ask(), thread()))
        await asyncio.to_thread(begun.wait, GUARD_SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(wait_until, lambda: span_of_tool() == [("cancelled", None)], "the end of its run")
        go_on.set()
        await asyncio.to_thread(wait_until, lambda: span_of_tool() == [("success", "charged o1")], "its own end")
        assert the_end(connection, schema) == "cancelled"


def test_a_run_that_another_process_has_begun_again_is_neither_ended_nor_renewed(record: Record) -> None:
    database, named = Database(record.connection, schema=record.schema), queries(record.schema)
    record.run("r", status="running", holder_id="new", alive_until=at(0))
    assert database.run(settle_runs, named, "t", [("t", "r", "old", True)]) == []
    database.run(renew_runs, named, [("t", "r")], "old", 60.0)
    assert record.rows("SELECT status, alive_until FROM runs") == [("running", at(0))]
    database.run(renew_runs, named, [("t", "r")], "new", 60.0)
    assert record.rows("SELECT alive_until > now() FROM runs") == [(True,)]
