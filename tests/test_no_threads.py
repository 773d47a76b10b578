"""Every part where no thread can be started: the container's limit is reached, or the interpreter is about to exit.

What cannot be done raises and has changed nothing. When threads can be started again, everything works again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from langchain_core.tools import StructuredTool
from support import GUARD_SECONDS, config_of, loop_graph, put_arguments, wait_until
from support.ledger import ask, open_bench, thread, tool_of

from langgraph_pgstate import CallableMasterKey, Encryption, PGState, PGStateSaver, Worker
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.connecting import _BlockingPool, connect_async
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import UnavailableError
from langgraph_pgstate.heavy import beside, in_thread, in_thread_or_here
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.runs.notifying import Notifier
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger
from langgraph_pgstate.tools.executor import AsyncExecutor
from tests.record.recorder.test_recorders import hello, simple
from tests.support.recorder import config, recording
from tests.tools.test_ledger import CHARGE, Till, rows

Refusing = Callable[..., AbstractContextManager[list[str]]]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    """A context in which threads with these names cannot be started. It provides the names that were refused."""
    start = threading.Thread.start

    @contextmanager
    def refuse(*names: str) -> Iterator[list[str]]:
        refused = []

        def start_or_raise(thread: threading.Thread) -> None:
            if names and not any(f"{thread.name}-".startswith(f"{name}-") for name in names):
                return start(thread)
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_or_raise)
            yield refused

    return refuse


@pytest.mark.parametrize("call", [in_thread, in_thread_or_here, beside])
async def test_a_function_that_got_no_thread_does_not_run_later(
    call: Callable[..., Any], refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: an executor queues a function before it starts a thread, and another thread would run it later."""
    asyncio.get_running_loop().set_default_executor(executor := ThreadPoolExecutor(1))
    monkeypatch.setattr("langgraph_pgstate.heavy._executors", {})
    done: list[str] = []
    with refusing():
        if call is in_thread:
            with pytest.raises(UnavailableError, match="no thread can be started: can't start new thread"):
                await call(done.append, "first")
        else:
            await call(done.append, "first")
    await call(done.append, "second")
    executor.shutdown()
    assert done == (["second"] if call is in_thread else ["first", "second"])


async def test_a_function_that_another_thread_has_taken_is_waited_for(refusing: Refusing) -> None:
    executor = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(executor)
    begun, goes_on = threading.Event(), threading.Event()
    executor.submit(goes_on.wait)

    def start_later(thread: threading.Thread) -> None:
        goes_on.set()
        begun.wait(GUARD_SECONDS)
        raise RuntimeError("can't start new thread")

    def work() -> str:
        begun.set()
        return "done"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_later)
        assert await in_thread(work) == "done"


def test_workers_are_notified_again(dsn: str, schema: str, refusing: Refusing) -> None:
    with Database.open(dsn, schema=schema) as database, psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgstate_queue")
        notifier = Notifier(database, queries(schema))
        with refusing():
            for _ in range(2):
                notifier._next = time.monotonic() + 0.2
                run_blocking(notifier.notify())
        run_blocking(notifier.notify())
        assert len([*listener.notifies(timeout=GUARD_SECONDS, stop_after=3)]) == 3


def test_who_waits_for_a_run_polls(dsn: str, schema: str, refusing: Refusing) -> None:
    with PGState.open(dsn, schema=schema) as state:
        run = state.runs.enqueue("agent", {}, thread_id="t")
        with refusing(), pytest.raises(TimeoutError):
            run.wait(0.1)
        assert state.runs._end_listener._calls == {}


@pytest.mark.slow
def test_reads_of_memories_are_counted_later(dsn: str, schema: str, refusing: Refusing) -> None:
    with PGState.open(dsn, schema=schema, memory={"ttl": {"default_ttl": 60}}) as state:
        state.memory.setup()
        state.memory.put(("a",), "k", {"text": "x"})
        with refusing():
            assert state.memory.get(("a",), "k") is not None
        assert state.memory.get(("a",), "k") is not None
        wait_until(lambda: not state.memory._accesses._waiting, "the counts are written")


def test_a_lease_that_is_not_renewed_now_is_renewed_or_released(
    dsn: str, schema: str, connection: psycopg.Connection, refusing: Refusing
) -> None:
    def leases() -> list[Any]:
        return connection.execute(f"SELECT expires_at FROM {schema}.leases WHERE expires_at > now()").fetchall()

    with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease", lease_ttl=3600) as saver:
        with refusing():
            saver.put(*put_arguments(config_of("alone"), 0))
            assert leases() == []
            with saver.lease_manager.hold("t"):
                assert saver.lease_manager._thread is None
            assert leases() == []
        with saver.lease_manager.hold("t"):
            pass
        with refusing():
            holding = saver.lease_manager.hold("t")
            holding.__enter__()
        saver.put(*put_arguments(config_of("t"), 0))
        assert saver.lease_manager._thread is not None
        holding.__exit__(None, None, None)
        assert leases() == []


def test_a_data_key_is_loaded_later(refusing: Refusing) -> None:
    ring = KeyRing(Encryption(CallableMasterKey("service", lambda key, _: key, lambda key, _: key)), None)
    loaded: list[str] = []
    with refusing(), pytest.raises(UnavailableError):
        ring.load_beside(lambda: loaded.append("first"), [("key", "a")], GUARD_SECONDS)
    ring.load_beside(lambda: loaded.append("second"), [("key", "a")], GUARD_SECONDS)
    assert loaded == ["second"]


def test_a_pool_protects_the_main_thread_again(dsn: str, refusing: Refusing) -> None:
    with _BlockingPool(dsn, min_size=1, max_size=1, open=True) as pool:
        connection = pool.getconn()
        with refusing(), pytest.raises(psycopg.OperationalError):
            pool.getconn(0.05)
        assert pool._starts_threads
        pool.putconn(connection)


def test_records_are_written_in_the_callers_thread(
    dsn: str, schema: str, connection: psycopg.Connection, refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(dsn, schema, RecorderSettings(interval=3600)) as (saver, recorder):
        with refusing("pgstate-recorder"):
            recorder.record(simple(saver, lambda state: {})).invoke(hello(), config())
            recorder.flush()
        assert connection.execute(f"SELECT status FROM {schema}.runs").fetchall() == [("success",)]
        recorder.record(simple(saver, lambda state: {})).invoke(hello(), config())
        assert recorder._thread is not None
    assert "Error in Recorder" not in caplog.text


@pytest.mark.parametrize(
    ("timeout", "name", "found"), [(None, "pgstate-tools-alive", []), (60.0, "pgstate-tool", ["pending"])]
)
async def test_a_tool_that_did_not_begin_begins_later(
    timeout: float | None,
    name: str,
    found: list[str],
    dsn: str,
    schema: str,
    connection: psycopg.Connection,
    refusing: Refusing,
) -> None:
    """With a timeout, the tool itself needs a thread. Without one, only the renewal of its attempt does."""
    till = Till()
    async with open_bench(ToolLedger, dsn, schema) as bench:
        bench.ledger.policy("charge", timeout=timeout)
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
        with refusing(name), pytest.raises(UnavailableError, match="no thread can be started"):
            await bench.invoke(graph, ask(), thread())
        assert rows(connection, schema, "status") == [(one,) for one in found]
        answer = await bench.invoke(graph, None, thread())
    assert answer["messages"][2].content == "charged o1"
    assert till.charged == ["o1"]


@pytest.mark.slow
def test_a_worker_requeues_a_run_that_cannot_begin(
    dsn: str, schema: str, connection: psycopg.Connection, refusing: Refusing
) -> None:
    with (
        PGState.open(dsn, schema=schema) as state,
        Worker(state, {"loop": loop_graph(1).compile()}, poll=0.2) as worker,
    ):
        with refusing("pgstate-run") as refused:
            run = state.runs.enqueue("loop", {"items": [], "count": 0}, thread_id="t")
            wait_until(lambda: bool(refused), "the worker has claimed the run")
            time.sleep(1.0)
            # The worker does not claim the run again and again.
            assert len(refused) < 8
        run.wait(GUARD_SECONDS)
        assert not worker._control._duties.has_runs
        assert connection.execute(f"SELECT attempt, crashes FROM {schema}.queue").fetchall() in ([], [(1, 0)])


async def test_a_blocking_tool_that_the_event_loop_cannot_run_begins_later(
    dsn: str, schema: str, connection: psycopg.Connection, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    till, act = Till(), AsyncExecutor.act

    async def act_without_idle_threads(*args: Any, **options: Any) -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, "fresh"))
        return await act(*args, **options)

    monkeypatch.setattr(AsyncExecutor, "act", act_without_idle_threads)
    async with open_bench(AsyncToolLedger, dsn, schema) as bench:
        blocking = StructuredTool.from_function(till.charge, name="charge", description="Charge a card.")
        graph = bench.agent([blocking], CHARGE, handle_tool_errors=True)
        with refusing("fresh_0"), pytest.raises(UnavailableError, match="no thread can be started"):
            await bench.invoke(graph, ask(), thread())
        assert rows(connection, schema, "status") == [("pending",)]
        answer = await bench.invoke(graph, None, thread())
    assert answer["messages"][2].content == "charged o1"
    assert till.charged == ["o1"]


async def test_a_host_that_cannot_be_looked_up_is_tried_again(refusing: Refusing) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with refusing(), pytest.raises(psycopg.OperationalError, match="cannot be looked up: can't start new thread"):
        await connect_async("host=localhost.localdomain connect_timeout=2")


async def test_another_error_of_the_event_loop_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be tried again until the time for an outage is over."""

    async def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("Task got Future attached to a different loop")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", fail)
    with pytest.raises(RuntimeError, match="different loop"):
        await connect_async("host=localhost")


@pytest.mark.parametrize("name", ["pgstate-worker", "pgstate-webhooks", "pgstate-retention", "pgstate-index"])
def test_a_worker_that_cannot_start_says_so_and_claims_nothing(
    name: str, dsn: str, schema: str, refusing: Refusing
) -> None:
    graphs, memory = (
        {"loop": loop_graph(1).compile()},
        {"index": {"dims": 2, "embed": lambda texts: [[0, 1]] * len(texts)}},
    )
    with PGState.open(dsn, schema=schema, memory=memory) as state:
        state.memory.setup()
        with refusing(name), pytest.raises(UnavailableError, match="no thread can be started: can't start new thread"):
            Worker(state, graphs, poll=0.05).run_until_idle()
        run = state.runs.enqueue("loop", {"items": [], "count": 0}, thread_id="t")
        Worker(state, graphs, poll=0.05).run_until_idle()
        assert run.wait(GUARD_SECONDS)["count"] == 1


@pytest.mark.slow
def test_a_run_whose_events_no_thread_can_store_begins_later(dsn: str, schema: str, refusing: Refusing) -> None:
    with PGState.open(dsn, schema=schema) as state:
        run = state.runs.enqueue("loop", {"items": [], "count": 0}, thread_id="t", stream_mode="values")
        with Worker(state, {"loop": loop_graph(1).compile()}, poll=0.2):
            assert run.wait(GUARD_SECONDS)["count"] == 1
        again = state.runs.enqueue("loop", {"items": [], "count": 0}, thread_id="t", stream_mode="values")
        with refusing("pgstate-streams") as refused, Worker(state, {"loop": loop_graph(1).compile()}, poll=0.2):
            wait_until(lambda: bool(refused), "the worker has begun the run")
            assert again.status() in ("pending", "running")
        with Worker(state, {"loop": loop_graph(1).compile()}, poll=0.2):
            assert again.wait(GUARD_SECONDS)["count"] == 1
