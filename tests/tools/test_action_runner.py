"""What a suspicious reader tried against the ledger's promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from support import holding
from support.ledger import LEDGERS, Bench, ask, open_bench, thread, tool_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.errors import ToolFailedError, UnavailableError
from langgraph_pgstate.process_identity import holder_id, lease_clock
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import AsyncThreads, Threads
from langgraph_pgstate.tools import ToolSettings, action_runner
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent
from tests.tools.test_ledger import CHARGE, Till, leave_behind, rows
from tests.tools.test_ledger_more import of_api, one_node


async def past_of(graph: Any) -> Any:
    """The checkpoint from which the first tool was called."""
    states = [state async for state in graph.aget_state_history(thread())]
    return [state for state in states if state.next == ("tools",)][-1].config


# Cancelled at the wrong moment


async def test_one_cancelled_while_it_takes_over_has_not_begun(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till()
    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        await bench.invoke(graph, ask(), thread())
        leave_behind(connection, schema)
        await bench.ledger.settle("t", "call_1", "retry")
        taken = asyncio.Event()
        take_over = tool_executions.take_over

        async def slow(*args: Any, **kwargs: Any) -> int:
            await take_over(*args, **kwargs)
            taken.set()
            await asyncio.sleep(60)
            return 0

        past = await past_of(graph)
        with monkeypatch.context() as patch:
            patch.setattr(tool_executions, "take_over", slow)
            running = asyncio.create_task(graph.ainvoke(None, past))
            await taken.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert rows(connection, schema, "status") == [("pending",)]
        await graph.ainvoke(None, past)
        assert till.charged == ["o1", "o1"]


# Late


class Late:
    """An intent whose confirmation comes after its liveness has expired, and what others have done meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch, change: Callable[[], Any]) -> None:
        self._begin, self._change = tool_executions.begin, change
        self._now = lease_clock()
        patch.setattr(tool_executions, "begin", self.begin)
        patch.setattr(action_runner, "lease_clock", lambda: self._now)

    async def begin(self, *args: Any, **kwargs: Any) -> Any:
        """Record the intent, and return late, the first time."""
        begun = await self._begin(*args, **kwargs)
        self._change()
        self._change = lambda: None
        self._now += 60
        return begun


async def test_an_intent_that_is_confirmed_late_does_not_begin_beside_its_successor(
    bench: Bench, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till()
    table = f"{bench.saver.schema}.tool_executions"
    taken_over = f"UPDATE {table} SET intent_id = 'x', status = 'error', error_type = 'x', error_message = 'y'"
    Late(monkeypatch, lambda: connection.execute(taken_over))
    with pytest.raises(ToolFailedError, match="failed with x"):
        await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), ask(), thread())
    assert till.charged == []


@pytest.mark.parametrize("status", ["running", "unknown"])
async def test_an_intent_that_is_confirmed_late_begins_if_nobody_has_acted(
    bench: Bench, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Its status was set to unknown by another process, which has raised."""
    till = Till()
    change = f"UPDATE {bench.saver.schema}.tool_executions SET status = '{status}', alive_until = now()"
    Late(monkeypatch, lambda: connection.execute(change))
    async with asyncio.timeout(60):
        await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), ask(), thread())
    assert till.charged == ["o1"]
    assert rows(connection, bench.saver.schema, "status") == [("success",)]


async def test_an_intent_is_recorded_again_whose_confirmation_is_lost_and_that_others_take_for_dead(
    connection: psycopg.Connection, saver: PGStateSaver
) -> None:
    intent = Intent("t", "call_1", None, "intent", "charge", "{}")
    statements = BlockingConnection(connection)
    begin = partial(tool_executions.begin, statements, queries(saver.schema), intent, holder_id(), 15.0)
    assert run_blocking(begin()) == (1, None)
    connection.execute(f"UPDATE {saver.schema}.tool_executions SET status = 'unknown'")
    for _ in range(2):
        attempt, recorded = run_blocking(begin())
        assert attempt == 0
        assert recorded is not None
        assert (recorded.execution.status, recorded.intent_id) == ("pending", "intent")


# Called before its checkpoint is stored


async def act_ahead(bench: Bench, dsn: str, graph: Any, done: Callable[[], Any], thread_id: str) -> None:
    """Run a graph whose checkpoints are stored late; assert that it has not acted before."""
    with holding(dsn, f"LOCK TABLE {bench.saver.schema}.checkpoints IN SHARE MODE"):
        running = asyncio.create_task(bench.invoke(graph, ask(), thread(thread_id)))
        await asyncio.wait({running}, timeout=0.5)
        assert not done()
    await running
    assert done()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is waited for a tenth of a second if it is not certain that it will be stored."""
    monkeypatch.setattr(action_runner, "_LONGEST_CATCH_UP", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
async def test_no_tool_runs_before_its_checkpoint_however_late_that_is_stored(bench: Bench, dsn: str) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    for number in range(1, 3):
        await act_ahead(bench, dsn, graph, lambda number=number: len(till.charged) == number, f"t{number}")


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
async def test_no_function_without_a_key_runs_before_its_checkpoint(bench: Bench, dsn: str) -> None:
    """A task that is run again from an earlier checkpoint is another one."""
    till = Till()
    pay = bench.ledger.once(of_api(bench, till.charge), name="pay")

    def body(state: Any) -> Iterator[Any]:
        yield pay("o1")

    await act_ahead(bench, dsn, one_node(bench, body), lambda: till.charged == ["o1"], "t")


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("api", LEDGERS)
async def test_a_tool_whose_checkpoint_is_not_stored_in_time_is_not_started(api: type, dsn: str, schema: str) -> None:
    till = Till()
    async with open_bench(api, dsn, schema, settings=ToolSettings(wait_seconds=0.2)) as bench:
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
        with holding(dsn, f"LOCK TABLE {schema}.checkpoints IN SHARE MODE"):
            running = asyncio.create_task(bench.invoke(graph, ask(), thread()))
            await asyncio.wait({running}, timeout=0.7)
        with pytest.raises(UnavailableError, match=r"charge.* was not started, it had no effect: checkpoint"):
            await running
        assert till.charged == []
        await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


@pytest.mark.usefixtures("_impatient")
async def test_a_namespace_that_was_taken_for_unsaved_is_waited_for_again(bench: Bench, dsn: str) -> None:
    """Its checkpoints may only have been late for a while."""
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    runner = bench.ledger._runner
    runner._unsaved.add("")
    await bench.invoke(graph, ask(), thread())
    assert runner._unsaved == set()


async def divide(bench: Bench, how: str) -> None:
    """Make thread `u` of `t`."""
    if how == "fork":
        part = (AsyncThreads if bench.is_async else Threads)(bench.saver._database, queries(bench.saver.schema))
        await bench.do(part.fork, "t", to="u")
    elif bench.is_async:
        await bench.saver.acopy_thread("t", "u")
    else:
        await bench.do(bench.saver.copy_thread, "t", "u")
