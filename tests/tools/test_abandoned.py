"""A tool whose caller has stopped waiting lives as long as its code runs: nobody else acts, and its outcome counts."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import psycopg
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode
from support import GUARD_SECONDS
from support.ledger import agent_graph, ask, open_async_ledger, open_bench, open_ledger, thread

from langgraph_pgstate.errors import ToolFailedError, ToolOutcomeUnknownError, ToolSetupError, ToolTimeoutError
from langgraph_pgstate.tools import AsyncToolLedger, Happened, ToolLedger, ToolSettings
from langgraph_pgstate.tools.executor import is_under_way
from tests.tools.test_ledger import CHARGE, rows

SETTINGS = ToolSettings(ttl_seconds=2.0, wait_seconds=GUARD_SECONDS)


class Machine:
    """A ledger for tools of a graph that runs on an event loop, and a card that they charge when they are told to.

    Attributes:
        graph: Its model charges order `o1`.
        charged: The orders that were charged.
    """

    def __init__(self, saver: Any, ledger: Any, schema: str, connection: psycopg.Connection) -> None:
        self.saver, self.ledger, self.schema, self.connection = saver, ledger, schema, connection
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.charged: list[str] = []
        self.error: Exception | None = None

    def charge(self, order: str) -> str:
        """Charge a card, slowly."""
        self.begun.set()
        self.go_on.wait(GUARD_SECONDS)
        if self.error is not None:
            raise self.error
        self.charged.append(order)
        return f"charged {order}"

    def check(self, execution: Any) -> Any:
        """Tell the truth."""
        return Happened("it was charged") if execution.arguments["order"] in self.charged else False

    def graph_of(self, charge: Any, **options: Any) -> Any:
        if not isinstance(charge, StructuredTool):
            which = "coroutine" if asyncio.iscoroutinefunction(charge) else "func"
            charge = StructuredTool.from_function(**{which: charge}, name="charge", description="charge")
        node = ToolNode([charge], awrap_tool_call=self.ledger.acall, **options)
        return agent_graph(node, CHARGE).compile(checkpointer=self.saver)

    @property
    def status(self) -> Any:
        return rows(self.connection, self.schema, "status, attempt")

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(GUARD_SECONDS):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def open_machine(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, settings: ToolSettings = SETTINGS
) -> AsyncIterator[Machine]:
    if api is AsyncToolLedger:
        async with open_async_ledger(dsn, schema, settings=settings) as pair:
            await pair[0].setup()
            yield Machine(*pair, schema, connection)
    else:
        async with open_async_ledger(dsn, schema) as (saver, _):
            await saver.setup()
            with open_ledger(dsn, schema, settings=settings) as (_, ledger):
                yield Machine(saver, ledger, schema, connection)


@pytest.fixture(params=[AsyncToolLedger, ToolLedger], ids=["async", "offloaded"])
async def machine(
    request: pytest.FixtureRequest, dsn: str, schema: str, connection: psycopg.Connection
) -> AsyncIterator[Machine]:
    async with open_machine(request.param, dsn, schema, connection) as machine:
        yield machine
        machine.go_on.set()


async def by_task(running: Awaitable[Any], machine: Machine) -> None:
    task = asyncio.ensure_future(running)
    await machine.until(machine.begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_anyio(running: Awaitable[Any], machine: Machine) -> None:
    """anyio cancels in each turn of the event loop."""

    async def cancel(scope: anyio.CancelScope) -> None:
        await machine.until(machine.begun.is_set)
        scope.cancel()

    with anyio.CancelScope() as scope:
        cancelling = asyncio.create_task(cancel(scope))
        await running
    assert scope.cancelled_caught
    await cancelling


async def by_timeout(running: Awaitable[Any], machine: Machine) -> None:
    with pytest.raises(ToolTimeoutError):
        await running


WAYS = [by_task, by_anyio, by_timeout]


async def stop(machine: Machine, graph: Any, way: Callable[..., Awaitable[None]] = by_task) -> None:
    """Run a graph until its tool has begun, and stop waiting for it."""
    await asyncio.wait_for(way(graph.ainvoke(ask(), thread()), machine), GUARD_SECONDS)
    assert machine.status == [("running", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_blocking_tool_that_was_abandoned_takes_effect_once(machine: Machine, way: Any) -> None:
    """Its check says truthfully that it has not taken effect yet."""
    timeout = 0.3 if way is by_timeout else None
    machine.ledger.policy(
        "charge", key=lambda args: args["order"], on_unknown="check", check=machine.check, timeout=timeout
    )
    graph = machine.graph_of(machine.charge)
    await stop(machine, graph, way)
    # Renewed beyond the time after which it would be taken for dead.
    (before,) = rows(machine.connection, machine.schema, "alive_until")
    again = asyncio.create_task(graph.ainvoke(None, thread()))
    await machine.until(lambda: rows(machine.connection, machine.schema, "alive_until") > [before])
    assert not again.done()
    machine.go_on.set()
    state = await again
    assert machine.charged == ["o1"]
    assert state["messages"][2].content == "charged o1"
    assert machine.status == [("success", 1)]


@pytest.mark.parametrize("way", WAYS)
async def test_the_late_outcome_needs_no_person(machine: Machine, way: Any) -> None:
    machine.ledger.policy("charge", timeout=0.3 if way is by_timeout else None)
    graph = machine.graph_of(machine.charge)
    await stop(machine, graph, way)
    machine.go_on.set()
    await machine.until(lambda: machine.status == [("success", 1)])
    state = await graph.ainvoke(None, thread())
    assert state["messages"][2].content == "charged o1"
    assert machine.charged == ["o1"]


@pytest.mark.parametrize("is_handled", [False, True])
async def test_the_late_error_counts(machine: Machine, is_handled: bool) -> None:
    machine.error = ValueError("no such card")
    graph = machine.graph_of(machine.charge, handle_tool_errors=is_handled)
    await stop(machine, graph)
    machine.go_on.set()
    await machine.until(lambda: machine.status == [("error", 1)])
    if is_handled:
        assert "no such card" in (await graph.ainvoke(None, thread()))["messages"][2].content
    else:
        with pytest.raises(ToolFailedError, match="no such card"):
            await graph.ainvoke(None, thread())


@pytest.mark.slow
async def test_another_process_finds_it_alive(machine: Machine) -> None:
    graph = machine.graph_of(machine.charge)
    await stop(machine, graph)
    # Only the row says so there.
    machine.connection.execute(f"UPDATE {machine.schema}.tool_executions SET holder_id = 'host:1:x'")
    (before,) = rows(machine.connection, machine.schema, "alive_until")
    again = asyncio.create_task(graph.ainvoke(None, thread()))
    await machine.until(lambda: rows(machine.connection, machine.schema, "alive_until") > [before])
    assert not again.done()
    machine.go_on.set()
    assert (await again)["messages"][2].content == "charged o1"
    assert machine.charged == ["o1"]


@pytest.mark.slow
async def test_a_thread_of_an_asynchronous_tool_is_waited_for(machine: Machine) -> None:
    """Nobody knows what the tool would have made of it, but its check can tell when it has ended."""
    machine.ledger.policy("charge", on_unknown="check", check=machine.check)

    async def charge(order: str) -> str:
        await asyncio.gather(asyncio.to_thread(machine.charge, order))
        await asyncio.sleep(GUARD_SECONDS)
        raise AssertionError("it must not go on")

    graph = machine.graph_of(charge)
    await stop(machine, graph)
    machine.go_on.set()
    await machine.until(lambda: machine.status == [("unknown", 1)])
    assert (await graph.ainvoke(None, thread()))["messages"][2].content == "it was charged"
    assert machine.charged == ["o1"]


@pytest.mark.slow
@pytest.mark.parametrize("is_shielded", [False, True])
async def test_an_asynchronous_tool_that_is_not_cancelled_is_waited_for(machine: Machine, is_shielded: bool) -> None:
    machine.ledger.policy("charge", on_unknown="check", check=machine.check)

    async def slowly(order: str) -> str:
        machine.begun.set()
        while not machine.go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)
        return machine.charge(order)

    async def shielded(order: str) -> str:
        return await asyncio.shield(asyncio.create_task(slowly(order)))

    graph = machine.graph_of(shielded if is_shielded else slowly)
    await stop(machine, graph)
    machine.go_on.set()
    await machine.until(lambda: machine.status != [("running", 1)])
    assert machine.status == [("unknown" if is_shielded else "success", 1)]
    await graph.ainvoke(None, thread())
    assert machine.charged == ["o1"]


async def test_a_blocking_tool_that_other_code_replaces_is_in_doubt_when_that_is_cancelled(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    charged: list[str] = []
    begun = asyncio.Event()

    async def act() -> str:
        charged.append("o1")
        begun.set()
        await asyncio.sleep(GUARD_SECONDS)
        return "charged"

    async def replaced(request: Any, execute: Any) -> Any:
        async def inner(request: Any) -> ToolMessage:
            return ToolMessage(await act(), tool_call_id=request.tool_call["id"])

        return await bench.ledger(request, inner)

    @tool
    def charge(order: str) -> str:
        """Charge a card."""
        return order

    async with open_bench(AsyncToolLedger, dsn, schema) as bench:
        node = ToolNode([charge], awrap_tool_call=replaced)
        graph = agent_graph(node, CHARGE).compile(checkpointer=bench.saver)
        running = asyncio.create_task(graph.ainvoke(ask(), thread()))
        await begun.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert rows(connection, schema, "status") == [("unknown",)]
        with pytest.raises(ToolOutcomeUnknownError):
            await graph.ainvoke(None, thread())
    assert charged == ["o1"]


async def test_what_no_thread_was_free_for_has_not_begun(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """It waits in the queue of the event loop's threads when it is cancelled."""
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    async with open_machine(AsyncToolLedger, dsn, schema, connection) as machine:
        others: list[asyncio.Task[Any]] = []

        async def without_threads(request: Any, execute: Any) -> Any:
            if not others:
                others.append(asyncio.create_task(asyncio.to_thread(machine.charge, "of another")))
                await machine.until(machine.begun.is_set)
            return await machine.ledger(request, execute)

        begun: list[str] = []
        charge = StructuredTool.from_function(
            lambda order: begun.append(order) or "charged", name="charge", description="c"
        )
        node = ToolNode([charge], awrap_tool_call=without_threads)
        graph = agent_graph(node, CHARGE).compile(checkpointer=machine.saver)
        running = asyncio.create_task(graph.ainvoke(ask(), thread()))
        await machine.until(lambda: machine.status == [("running", 1)] and pool._work_queue.qsize())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert machine.status == [("pending", 1)]
        machine.go_on.set()
        await others[0]
        assert begun == []
        await graph.ainvoke(None, thread())
        assert begun == ["o1"]


@pytest.mark.parametrize("kind", ["replaced", "overridden"])
async def test_code_that_waits_for_a_thread_in_its_middle_has_begun(
    dsn: str, schema: str, connection: psycopg.Connection, kind: str
) -> None:
    """No thread is free for its second part when it is cancelled."""
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    charged: list[str] = []

    async def act() -> str:
        await asyncio.sleep(0)
        charged.append("o1")
        return await asyncio.to_thread(lambda: "charged")

    class Overridden(StructuredTool):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> ToolMessage:
            return ToolMessage(await act(), tool_call_id=input["id"])

    async with open_machine(AsyncToolLedger, dsn, schema, connection) as machine:
        others: list[asyncio.Task[Any]] = []

        async def without_threads(request: Any, execute: Any) -> Any:
            async def inner(request: Any) -> ToolMessage:
                return ToolMessage(await act(), tool_call_id=request.tool_call["id"])

            if not others:
                others.append(asyncio.create_task(asyncio.to_thread(machine.charge, "of another")))
                await machine.until(machine.begun.is_set)
            return await machine.ledger(request, inner if kind == "replaced" else execute)

        kinds = {"replaced": StructuredTool, "overridden": Overridden}
        charge = kinds[kind].from_function(lambda order: "local", name="charge", description="c")
        node = ToolNode([charge], awrap_tool_call=without_threads)
        graph = agent_graph(node, CHARGE).compile(checkpointer=machine.saver)
        running = asyncio.create_task(graph.ainvoke(ask(), thread()))
        await machine.until(lambda: machine.status == [("running", 1)] and pool._work_queue.qsize())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        machine.go_on.set()
        await others[0]
        assert machine.status == [("unknown", 1)]
        with pytest.raises(ToolOutcomeUnknownError):
            await graph.ainvoke(None, thread())
    assert charged == ["o1"]


async def test_a_transactional_tool_cannot_use_the_connection_that_it_lost(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_machine(AsyncToolLedger, dsn, schema, connection) as machine:
        loop, failed = asyncio.get_running_loop(), threading.Event()
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")

        def late(lent: psycopg.AsyncConnection) -> None:
            machine.begun.set()
            machine.go_on.wait(GUARD_SECONDS)
            insert = lent.execute(f"INSERT INTO {schema}.bookings VALUES ('late')".encode())
            try:
                asyncio.run_coroutine_threadsafe(insert, loop).result(GUARD_SECONDS)
            except psycopg.Error:
                failed.set()

        @tool
        @machine.ledger.transactional
        async def charge(order: str, connection: psycopg.AsyncConnection) -> str:
            """Charge a card."""
            await connection.execute(f"INSERT INTO {schema}.bookings VALUES ('early')".encode())
            await asyncio.to_thread(late, connection)
            return "done"

        graph = machine.graph_of(charge)
        await stop(machine, graph)
        assert connection.execute(f"SELECT FROM {schema}.bookings").fetchall() == []
        machine.go_on.set()
        await machine.until(failed.is_set)
        await machine.until(lambda: machine.status == [("pending", 1)])
        await graph.ainvoke(None, thread())
        assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == [("early",), ("late",)]


@pytest.mark.slow
async def test_a_blocking_ledger_keeps_what_took_too_long_alive(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_bench(ToolLedger, dsn, schema, settings=SETTINGS) as bench:
        machine = Machine(bench.saver, bench.ledger, schema, connection)
        bench.ledger.policy(
            "charge", key=lambda args: args["order"], on_unknown="check", check=machine.check, timeout=0.2
        )
        graph = bench.agent([StructuredTool.from_function(machine.charge, name="charge", description="c")], CHARGE)
        with pytest.raises(ToolTimeoutError):
            await bench.invoke(graph, ask(), thread())
        assert machine.status == [("running", 1)]
        again = asyncio.create_task(bench.invoke(graph, None, thread()))
        (before,) = rows(connection, schema, "alive_until")
        await machine.until(lambda: rows(connection, schema, "alive_until") > [before])
        machine.go_on.set()
        assert (await again)["messages"][2].content == "charged o1"
        assert machine.charged == ["o1"]


async def test_what_may_be_repeated_is_repeated_after_its_time(machine: Machine) -> None:
    """A tool that hangs must not keep its action from being done."""
    machine.ledger.policy("charge", on_unknown="retry", timeout=0.3)
    hangs = [machine.charge]
    graph = machine.graph_of(lambda order: hangs.pop()(order) if hangs else f"charged {order}")
    with pytest.raises(ToolTimeoutError):
        await graph.ainvoke(ask(), thread())
    assert machine.status == [("timeout", 1)]
    assert (await graph.ainvoke(None, thread()))["messages"][2].content == "charged o1"
    machine.go_on.set()
    await machine.until(lambda: machine.charged)
    assert machine.status == [("success", 2)]


# At the end of the ledger, or of its event loop


async def test_a_ledger_is_closed_after_what_was_abandoned(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_machine(AsyncToolLedger, dsn, schema, connection) as machine:
        await stop(machine, machine.graph_of(machine.charge))
        closing = asyncio.create_task(machine.ledger.close())
        await asyncio.wait({closing}, timeout=0.1)
        assert not closing.done()
        machine.go_on.set()
        await closing
        assert machine.status == [("success", 1)]


def test_a_blocking_ledger_is_closed_after_what_was_abandoned(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with open_ledger(dsn, schema, settings=SETTINGS) as (saver, ledger):
        machine = Machine(saver, ledger, schema, connection)
        ledger.policy("charge", timeout=0.2)
        charge = StructuredTool.from_function(machine.charge, name="charge", description="charge")
        graph = agent_graph(ToolNode([charge], wrap_tool_call=ledger), CHARGE).compile(checkpointer=saver)
        with pytest.raises(ToolTimeoutError):
            graph.invoke(ask(), thread())
        threading.Timer(0.2, machine.go_on.set).start()
        ledger.close()
        assert machine.status == [("success", 1)]


def test_what_outlives_its_event_loop_keeps_others_of_the_process_from_beginning(
    dsn: str, schema: str, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    machines: list[Machine] = []

    async def run_and_leave() -> None:
        impatient = ToolSettings(ttl_seconds=1.0, wait_seconds=0.0)
        async with open_machine(AsyncToolLedger, dsn, schema, connection, impatient) as machine:
            machines.append(machine)
            await stop(machine, machine.graph_of(machine.charge))

    caplog.set_level(logging.WARNING)
    # `asyncio.run` waits for its threads.
    running = threading.Thread(target=asyncio.run, args=[run_and_leave()])
    running.start()
    while "the event loop of charge ('call_1') is closed" not in caplog.text:
        running.join(0.01)
        assert running.is_alive()
    assert "the ledger is closed while tools run" in caplog.text
    (intent_id,) = rows(connection, schema, "intent_id")[0]
    assert is_under_way(intent_id)
    machines[0].go_on.set()
    running.join()
    assert not is_under_way(intent_id)


async def test_what_is_abandoned_leaves_nothing_behind(machine: Machine) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    machine.error = ValueError("no such card")
    await stop(machine, machine.graph_of(machine.charge))
    machine.go_on.set()
    await machine.until(lambda: machine.status == [("error", 1)])
    executor = getattr(machine.ledger, "_offloading", machine.ledger._runner).executor
    await machine.until(lambda: not executor._background)
    assert executor._pulse.attempts() == {}
    assert executor._pulse.abandoned() == []
    gc.collect()
    assert complaints == []


# On the thread of an event loop


async def test_a_blocking_ledger_refuses_to_block_an_event_loop(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with open_ledger(dsn, schema) as (_, ledger):

        @tool
        def charge(order: str) -> str:
            """Charge a card."""
            raise AssertionError("it must not run")

        node = ToolNode([charge], wrap_tool_call=ledger, handle_tool_errors=True)
        graph = agent_graph(node, CHARGE).compile(checkpointer=InMemorySaver())
        with pytest.raises(ToolSetupError, match=r"awrap_tool_call=state\.tools\.acall"):
            await graph.ainvoke(ask(), thread())
