"""One action asked for several times at once is done once, and all who asked get the same answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode
from support.ledger import LEDGERS, Bench, Line, agent_graph, ask, calls, open_bench, open_on_line, thread, tool_of

from langgraph_pgstate import PGStateSaver, RetryPolicy
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.errors import ToolFailedError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent, Outcome
from tests.tools.test_ledger import CHARGE, Till, rows, run_and_lose

CALLS = 6


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("on_unknown", ["raise", "check"])
async def test_parallel_calls_of_one_action_have_one_effect(bench: Bench, on_unknown: str) -> None:
    till = Till()
    check: dict[str, Any] = {"check": lambda execution: None} if on_unknown == "check" else {}
    bench.ledger.policy("charge", key=lambda args: args["order"], on_unknown=on_unknown, **check)
    for number in range(8):
        order = f"o{number}"
        many = calls(*[(f"call_{number}_{index}", "charge", {"order": order}) for index in range(CALLS)])
        graph = bench.agent([tool_of(bench, "charge", till.charge)], many)
        state = await bench.invoke(graph, ask(), thread(f"t{number}"))
        answers = [message for message in state["messages"] if message.type == "tool"]
        assert till.charged.count(order) == 1
        assert {message.content for message in answers} == {f"charged {order}"}
        assert len({message.tool_call_id for message in answers}) == CALLS


@pytest.mark.slow
@pytest.mark.parametrize("api", LEDGERS)
async def test_an_intent_whose_confirmation_is_lost_is_under_way(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The same action asked for meanwhile, by another ledger of the process, waits for it."""
    till = Till()
    patient = RetryPolicy(attempts=6, base_delay=1.0, max_delay=1.0)
    async with open_on_line(api, dsn, schema, patient) as (slow, line), open_bench(api, dsn, schema) as bench:
        for one in (slow, bench):
            one.ledger.policy("charge", key=lambda args: args["order"])
        left = [1]

        def lose(data: bytes) -> str | None:
            return "lose" if b"charge:o1" in data and left and left.pop() else None

        line.fault = lose
        first = asyncio.create_task(
            slow.invoke(slow.agent([tool_of(slow, "charge", till.charge)], CHARGE), ask(), thread())
        )
        await until(lambda: rows(connection, schema, "status") == [("running",)])
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        second = asyncio.create_task(bench.invoke(graph, None, thread()))
        answers = await asyncio.gather(first, second)
    assert till.charged == ["o1"]
    assert {answer["messages"][2].content for answer in answers} == {"charged o1"}


@pytest.mark.parametrize("is_first", [True, False])
def test_an_intent_confirmed_after_its_time_is_alive_again(
    is_first: bool, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """An intent that is sent again was stored the first time: others could take it over before its tool is run."""
    db, named, schema = BlockingConnection(connection), queries(saver.schema), saver.schema
    intent = Intent("t", "key", None, "mine", "charge", "{}")

    def send() -> int:
        if is_first:
            return run_blocking(tool_executions.begin(db, named, intent, "me", 15.0))[0]
        return run_blocking(tool_executions.take_over(db, named, intent, seen, "me", 15.0, is_gone=True, answers=0))

    if not is_first:
        other = replace(intent, intent_id="other")
        run_blocking(tool_executions.begin(db, named, other, "other", 15.0))
        found = run_blocking(tool_executions.get(db, named, "t", "key"))
        assert found is not None
        seen = found
    attempt = send()
    connection.execute(f"UPDATE {schema}.tool_executions SET alive_until = now() - interval '1 s'")
    assert send() == attempt == (1 if is_first else 2)
    assert rows(connection, schema, "alive_until > now()") == [(True,)]
    connection.execute(f"UPDATE {schema}.tool_executions SET intent_id = 'theirs', alive_until = now()")
    assert send() == 0
    assert run_blocking(tool_executions.renew(db, named, "t", {"mine": "key"}, 15.0)) == 0


# Between reading what is on record and deciding about it


@pytest.mark.parametrize(
    "change", ["status = 'success'", "intent_id = 'theirs'", "alive_until = now() + interval '1 hour'"]
)
def test_what_has_changed_since_it_was_read_is_neither_taken_over_nor_settled(
    change: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    db, named, schema = BlockingConnection(connection), queries(saver.schema), saver.schema
    intent = Intent("t", "key", None, "lost", "charge", "{}")
    run_blocking(tool_executions.begin(db, named, intent, "me", 15.0))
    connection.execute(f"UPDATE {schema}.tool_executions SET alive_until = now()")
    seen = run_blocking(tool_executions.get(db, named, "t", "key"))
    assert seen is not None
    connection.execute(f"UPDATE {schema}.tool_executions SET {change}".encode())
    before, mine = rows(connection, schema, "status, intent_id, attempt"), replace(intent, intent_id="mine")
    taking = tool_executions.take_over(db, named, mine, seen, "me", 15.0, is_gone=False, answers=0)
    assert run_blocking(taking) == 0
    settling = tool_executions.settle(db, named, seen, Outcome("error"), "mine", is_gone=False, answers=0)
    assert not run_blocking(settling)
    assert rows(connection, schema, "status, intent_id, attempt") == before


def after_reading(patch: pytest.MonkeyPatch, change: Callable[[], Any]) -> None:
    """Have something change right after the next time that an execution is read."""
    get, changes = tool_executions.get, [change]

    async def reading(*args: Any, **kwargs: Any) -> Any:
        recorded = await get(*args, **kwargs)
        if changes:
            changes.pop()()
        return recorded

    patch.setattr(tool_executions, "get", reading)


@pytest.mark.parametrize("on_unknown", ["raise", "retry", "check", "ask"])
async def test_what_ends_after_it_was_read_is_not_in_doubt(
    bench: Bench, connection: psycopg.Connection, on_unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process writes the outcome, and is gone: what was read before still says that it runs."""
    till, schema = Till(), bench.saver.schema
    check: dict[str, Any] = {"check": lambda execution: None} if on_unknown == "check" else {}
    bench.ledger.policy("charge", on_unknown=on_unknown, **check)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    names = "status, ended_at, result_type, result, preview"
    (outcome,) = rows(connection, schema, names)
    await run_and_lose(bench, graph, connection)
    till.charged.clear()

    def end() -> None:
        connection.execute(f"UPDATE {schema}.tool_executions SET ({names}) = (%s, %s, %s, %s, %s)", outcome)

    after_reading(monkeypatch, end)
    state = await bench.invoke(graph, None, thread())
    assert state["messages"][2].content == "charged o1"
    assert till.charged == []


@pytest.mark.parametrize("on_unknown", ["raise", "retry"])
async def test_what_is_renewed_after_it_was_read_is_alive(
    bench: Bench, connection: psycopg.Connection, on_unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    till, schema = Till(), bench.saver.schema
    bench.ledger.policy("charge", on_unknown=on_unknown)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    till.charged.clear()
    renewed = asyncio.Event()

    def renew() -> None:
        connection.execute(f"UPDATE {schema}.tool_executions SET alive_until = now() + interval '1 hour'")
        loop.call_soon_threadsafe(renewed.set)

    loop = asyncio.get_running_loop()
    after_reading(monkeypatch, renew)
    again = asyncio.create_task(bench.invoke(graph, None, thread()))
    await asyncio.wait({again, asyncio.create_task(renewed.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({again}, timeout=0.3)
    assert not again.done()
    assert till.charged == []
    assert rows(connection, schema, "status, attempt") == [("running", 1)]
    connection.execute(f"UPDATE {schema}.tool_executions SET status = 'error', error_type = 'x', error_message = 'y'")
    with pytest.raises(ToolFailedError, match="failed with x"):
        await again


# Cancelled


class HeldLease:
    """Holds the intent of an action back on its way to the server."""

    def __init__(self, line: Line) -> None:
        self.is_sent = threading.Event()
        self.go_on = threading.Event()
        line.fault = self._hold

    def _hold(self, data: bytes) -> str | None:
        if b"call_1" in data and not self.is_sent.is_set():
            self.is_sent.set()
            self.go_on.wait(60)
        return None


async def test_what_anyio_cancels_while_its_intent_is_written_has_not_begun(dsn: str, schema: str) -> None:
    """anyio cancels in each turn of the event loop: nothing that is being written may be left to itself."""
    till = Till()
    async with open_on_line(LEDGERS[1], dsn, schema) as (bench, line):
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        held = HeldLease(line)

        async def cancel(scope: anyio.CancelScope) -> None:
            await until(held.is_sent.is_set)
            scope.cancel()
            # Longer than it takes to write on another connection that nothing was begun.
            await asyncio.sleep(0.3)
            held.go_on.set()

        with anyio.CancelScope() as scope:
            cancelling = asyncio.create_task(cancel(scope))
            await graph.ainvoke(ask(), thread())
        assert scope.cancelled_caught
        await cancelling
        state = await graph.ainvoke(None, thread())
        assert state["messages"][2].content == "charged o1"
        assert till.charged == ["o1"]


@pytest.mark.parametrize("seconds", [None, 30.0])
async def test_what_anyio_cancels_has_its_outcome_recorded(
    dsn: str, schema: str, connection: psycopg.Connection, seconds: float | None
) -> None:
    begun = asyncio.Event()
    undone: list[str] = []

    @tool
    async def charge(order: str) -> str:
        """Charge a card, slowly."""
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            # Cleaning up takes several turns of the event loop.
            for _ in range(5):
                await asyncio.sleep(0)
            undone.append(order)
        return "charged"

    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        bench.ledger.policy("charge", timeout=seconds)
        graph = bench.agent([charge], CHARGE)
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                await begun.wait()
                scope.cancel()

            cancelling = asyncio.create_task(cancel())
            await graph.ainvoke(ask(), thread())
        await cancelling
        await until(lambda: rows(connection, schema, "status") != [("running",)])
        assert rows(connection, schema, "status") == [("unknown",)]
        assert undone == ["o1"]


async def test_a_call_that_swallows_its_cancellation_before_its_tool_does_not_run_it(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may do so when its answer arrives in the same moment."""
    till = Till()
    begin = tool_executions.begin
    begun = asyncio.Event()

    async def swallowing(*args: Any, **kwargs: Any) -> Any:
        answer = await begin(*args, **kwargs)
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return answer

    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        with monkeypatch.context() as patch:
            patch.setattr(tool_executions, "begin", swallowing)
            running = asyncio.create_task(graph.ainvoke(ask(), thread()))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert till.charged == []
        assert rows(connection, schema, "status") == [("pending",)]
        await graph.ainvoke(None, thread())
        assert till.charged == ["o1"]


async def test_a_blocking_ledger_cancelled_on_a_loop_has_not_begun(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Its statement goes on in a thread, which nobody can cancel."""

    charged: list[str] = []

    @tool
    async def charge(order: str) -> str:
        """Charge a card."""
        charged.append(order)
        return f"charged {order}"

    async with open_on_line(LEDGERS[0], dsn, schema) as (bench, line):
        node = ToolNode([charge], awrap_tool_call=bench.ledger.acall)
        graph = agent_graph(node, CHARGE).compile(checkpointer=InMemorySaver())
        # The checkpoint of another saver never comes.
        bench.ledger._offloading._unsaved.add("")
        held = HeldLease(line)
        running = asyncio.create_task(graph.ainvoke(ask(), thread()))
        await until(held.is_sent.is_set)
        running.cancel()
        await asyncio.sleep(0.3)
        held.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: rows(connection, schema, "status") not in ([], [("running",)]))
        assert rows(connection, schema, "status") == [("pending",)]
        await graph.ainvoke(None, thread())
        assert charged == ["o1"]
