"""Tool executions: an action is done once; what is in doubt follows its policy."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.errors import ParentCommand
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support import GUARD_SECONDS
from support.ledger import LEDGERS, Bench, ask, calls, open_bench, open_ledger, thread, tool_of

from langgraph_pgstate.errors import ConfigurationError, ToolFailedError, ToolOutcomeUnknownError, ToolTimeoutError
from langgraph_pgstate.tools import Happened, ToolPolicy, ToolSettings, action_runner, current_execution

pytestmark = pytest.mark.smoke


class Till:
    """An outside world: what was charged, and how often."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.tokens: list[str] = []
        self.errors: list[BaseException] = []

    def charge(self, order: str) -> str:
        """Charge a card."""
        self.tokens.append(current_execution().token)
        if self.errors:
            raise self.errors.pop(0)
        self.charged.append(order)
        return f"charged {order}"


def rows(connection: psycopg.Connection, schema: str, columns: str) -> list[Any]:
    return connection.execute(f"SELECT {columns} FROM {schema}.tool_executions ORDER BY idempotency_key").fetchall()


def leave_behind(connection: psycopg.Connection, schema: str, **changes: Any) -> None:
    """Make every execution look like one whose process died in the middle."""
    connection.execute(
        f"""UPDATE {schema}.tool_executions SET status = 'running', ended_at = NULL, result = NULL, result_type = NULL,
        preview = NULL, alive_until = now() - interval '1 s', holder_id = 'elsewhere/-/-/1/-/x'"""
    )


CHARGE = calls(("call_1", "charge", {"order": "o1"}))


async def run_and_lose(bench: Bench, graph: Any, connection: psycopg.Connection) -> Any:
    """Run a graph up to the tool, and lose both the tool's receipt and the checkpoint after it."""
    await bench.invoke(graph, ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    before = next(state for state in states if state.next == ("tools",))
    # What came after is gone, as if the process had died right after the effect.
    for table in ("checkpoints", "writes"):
        compare = ">" if table == "checkpoints" else ">="
        connection.execute(
            f"DELETE FROM {bench.saver.schema}.{table} WHERE checkpoint_id {compare} %s",
            [before.config["configurable"]["checkpoint_id"]],
        )
    bench.saver._saver_cache.cache.discard_thread("t")
    leave_behind(connection, bench.saver.schema)


async def test_intent_and_outcome_are_recorded(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    seen: list[Any] = []

    def charge(order: str) -> str:
        """Charge a card."""
        seen.extend(rows(connection, bench.saver.schema, "status, attempt, arguments, ended_at IS NULL"))
        return till.charge(order)

    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    answer = await bench.invoke(graph, ask(), {**thread(), "metadata": {"run_id": "run-1"}})
    assert answer["messages"][2].content == "charged o1"
    assert seen == [("running", 1, {"order": "o1"}, True)]
    found = await bench.do(bench.ledger.get, "t", "call_1")
    assert (found.tool, found.status, found.attempt, found.preview) == ("charge", "success", 1, "charged o1")
    assert (found.tool_call_id, found.run_id, found.step, found.checkpoint_ns) == ("call_1", "run-1", 2, "")
    assert found.ended_at >= found.started_at
    states = [state async for state in graph.aget_state_history(thread())]
    before = next(state for state in states if state.next == ("tools",))
    assert found.checkpoint_id == before.config["configurable"]["checkpoint_id"]
    assert found.task_id == before.tasks[0].id
    assert await bench.do(bench.ledger.list, "t") == [found]


async def test_a_recorded_success_is_answered_without_running(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    answer = await bench.invoke(graph, None, past)
    assert answer["messages"][2].content == "charged o1"
    assert till.charged == ["o1"]


async def test_an_unknown_outcome_stops_by_default(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    for _ in range(2):
        with pytest.raises(ToolOutcomeUnknownError, match="may or may not have taken effect"):
            await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]
    assert rows(connection, bench.saver.schema, "status") == [("unknown",)]
    await bench.do(bench.ledger.settle, "t", "call_1", "done", "charged o1, as the bank says")
    answer = await bench.invoke(graph, None, thread())
    assert answer["messages"][2].content == "charged o1, as the bank says"
    assert till.charged == ["o1"]


async def test_an_unknown_outcome_is_not_for_the_model_to_deal_with(
    bench: Bench, connection: psycopg.Connection
) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
    await run_and_lose(bench, graph, connection)
    with pytest.raises(ToolOutcomeUnknownError):
        await bench.invoke(graph, None, thread())


@pytest.mark.parametrize(("decision", "charged"), [("done", 1), ("retry", 2), ("fail", 1)])
async def test_a_person_settles_it(bench: Bench, connection: psycopg.Connection, decision: str, charged: int) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await bench.do(bench.ledger.settle, "t", "call_1", decision)
    if decision == "fail":
        with pytest.raises(ToolFailedError, match="settled it as failed"):
            await bench.invoke(graph, None, thread())
    else:
        await bench.invoke(graph, None, thread())
    assert len(till.charged) == charged
    # How long the tool took is known if it ran again.
    assert rows(connection, bench.saver.schema, "alive_until IS NOT NULL") == [(decision == "retry",)]


@pytest.mark.parametrize(
    ("answer", "charged", "content"),
    [(Happened("the bank has it"), 1, "the bank has it"), (True, 1, "done"), (False, 2, "charged o1"), (None, 1, None)],
)
async def test_a_check_asks_the_outside_world(
    bench: Bench, connection: psycopg.Connection, answer: Any, charged: int, content: str | None
) -> None:
    till = Till()
    asked: list[Any] = []

    def was_charged(execution: Any) -> Any:
        asked.append((execution.arguments, execution.token))
        return answer

    bench.ledger.policy("charge", on_unknown="check", check=was_charged)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    if content is None:
        with pytest.raises(ToolOutcomeUnknownError, match="cannot tell"):
            await bench.invoke(graph, None, thread())
    else:
        state = await bench.invoke(graph, None, thread())
        assert state["messages"][2].content == content
        assert rows(connection, bench.saver.schema, "status") == [("success",)]
    # The token that the tool gave to the bank.
    assert asked == [({"order": "o1"}, till.tokens[0])]
    assert len(till.charged) == charged


async def test_an_action_has_its_token_on_a_copy_of_its_thread(bench: Bench) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    await (bench.saver.acopy_thread("t", "u") if bench.is_async else bench.do(bench.saver.copy_thread, "t", "u"))
    [copied] = await bench.do(bench.ledger.list, "u")
    assert [copied.token] == till.tokens


async def test_a_recorded_error_is_raised_again(bench: Bench) -> None:
    till = Till()
    till.errors = [OSError("the bank is closed")]
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    with pytest.raises(OSError, match="closed"):
        await bench.invoke(graph, ask(), thread())
    with pytest.raises(ToolFailedError, match="closed") as raised:
        await bench.invoke(graph, None, thread())
    assert raised.value.error_type == "OSError"
    assert till.charged == []
    await bench.do(bench.ledger.settle, "t", "call_1", "retry")
    await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


async def test_an_error_message_is_recorded_as_an_error(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    till.errors = [OSError("the bank is closed")]
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
    state = await bench.invoke(graph, ask(), thread())
    assert state["messages"][2].status == "error"
    assert rows(connection, bench.saver.schema, "status") == [("error",)]
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    replayed = await bench.invoke(graph, None, past)
    assert replayed["messages"][2].content == state["messages"][2].content
    assert till.charged == []


async def test_a_tool_that_asks_is_begun_anew_with_its_answer(bench: Bench) -> None:
    till = Till()

    def charge(order: str) -> str:
        """Charge a card if somebody agrees."""
        return till.charge(order) if interrupt("may I?") == "yes" else "no"

    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    stopped = await bench.invoke(graph, ask(), thread())
    assert stopped["__interrupt__"][0].value == "may I?"
    assert (await bench.do(bench.ledger.get, "t", "call_1")).status == "pending"
    await bench.invoke(graph, Command(resume="yes"), thread())
    assert till.charged == ["o1"]
    assert (await bench.do(bench.ledger.get, "t", "call_1")).status == "success"


async def test_a_tool_that_takes_too_long_has_an_unknown_outcome(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """An asynchronous one ends when it is cancelled; for blocking ones see `test_abandoned`."""

    @tool
    async def charge(order: str) -> str:
        """Charge a card, slowly."""
        await asyncio.sleep(30)
        return "late"

    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        bench.ledger.policy("charge", timeout=0.2)
        graph = bench.agent([charge], CHARGE, handle_tool_errors=True)
        with pytest.raises(ToolTimeoutError):
            await bench.invoke(graph, ask(), thread())
        assert rows(connection, bench.saver.schema, "status") == [("timeout",)]
        with pytest.raises(ToolOutcomeUnknownError):
            await bench.invoke(graph, None, thread())


async def test_a_call_waits_for_one_that_is_under_way(bench: Bench) -> None:
    till = Till()
    begun, go_on = threading.Event(), threading.Event()

    def blocking(order: str) -> str:
        """Charge a card, slowly."""
        begun.set()
        go_on.wait(GUARD_SECONDS)
        return till.charge(order)

    async def suspending(order: str) -> str:
        """Charge a card, slowly."""
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return till.charge(order)

    bench.ledger.policy("charge", key=lambda args: args["order"])
    function: Any = suspending if bench.is_async else blocking
    function.__name__ = "charge"
    graph = bench.agent([tool(function)], CHARGE)
    first = asyncio.create_task(bench.invoke(graph, ask(), thread()))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    second = asyncio.create_task(bench.invoke(graph, None, thread()))
    await asyncio.sleep(0.2)
    go_on.set()
    answers = await asyncio.gather(first, second)
    assert till.charged == ["o1"]
    assert {answer["messages"][2].content for answer in answers} == {"charged o1"}


@pytest.mark.slow
async def test_a_running_tool_is_kept_alive(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    for api in LEDGERS:
        async with open_bench(api, dsn, schema, settings=ToolSettings(ttl_seconds=0.6)) as bench:

            def renewed() -> bool:
                found = rows(connection, schema, "alive_until - started_at > interval '0.8 s'")
                return bool(found and found[-1][0])

            def blocking(order: str) -> str:
                """Wait until this was renewed."""
                for _ in range(400):
                    if renewed():
                        return "renewed"
                    threading.Event().wait(0.05)
                return "not renewed"

            async def suspending(order: str) -> str:
                """Wait until this was renewed."""
                for _ in range(400):
                    if renewed():
                        return "renewed"
                    await asyncio.sleep(0.05)
                return "not renewed"

            function: Any = suspending if bench.is_async else blocking
            function.__name__ = "charge"
            graph = bench.agent([tool(function)], CHARGE)
            state = await bench.invoke(graph, ask(), thread(api.__name__))
            assert state["messages"][2].content == "renewed"
            connection.execute(f"DELETE FROM {schema}.tool_executions")


async def test_a_tool_is_redacted_where_people_read(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    def redact(kind: str, value: Any) -> Any:
        return "(hidden)"

    for api in LEDGERS:
        async with open_bench(api, dsn, schema, settings=ToolSettings(redact=redact)) as bench:
            graph = bench.agent([tool_of(bench, "charge", Till().charge)], CHARGE)
            state = await bench.invoke(graph, ask(), thread(api.__name__))
            assert state["messages"][2].content == "charged o1"
    assert rows(connection, schema, "arguments, preview") == [("(hidden)", "(hidden)")] * 2


async def test_a_cancelled_tools_outcome_is_unknown(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    begun = asyncio.Event()

    async def charge(order: str) -> str:
        """Charge a card, slowly."""
        begun.set()
        await asyncio.sleep(60)
        return "charged"

    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        for number, transactional in enumerate([False, True]):
            begun.clear()
            bench.ledger._policies["charge"] = ToolPolicy(transactional=transactional)
            running = asyncio.create_task(bench.agent([tool(charge)], CHARGE).ainvoke(ask(), thread(f"t{number}")))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            # What was rolled back did not happen.
            status = "pending" if transactional else "unknown"
            found = await bench.ledger.get(f"t{number}", "call_1")
            assert found is not None
            assert found.status == status


async def test_an_action_that_calls_itself_is_refused(bench: Bench) -> None:
    bench.ledger.policy("charge", key=lambda args: "same")
    graphs: list[Any] = []

    def blocking(order: str) -> str:
        """Charge a card, by charging it."""
        return str(graphs[0].invoke(ask(), thread()))

    async def suspending(order: str) -> str:
        """Charge a card, by charging it."""
        return str(await graphs[0].ainvoke(ask(), thread()))

    function: Any = suspending if bench.is_async else blocking
    function.__name__ = "charge"
    graphs.append(bench.agent([tool(function)], CHARGE, CHARGE))
    with pytest.raises(ConfigurationError, match="calls itself"):
        await bench.invoke(graphs[0], ask(), thread())


async def test_a_tool_that_sends_its_parent_somewhere_does_so_again(bench: Bench) -> None:
    ran: list[str] = []

    def leave(to: str) -> str:
        """Leave this graph for a node of its parent."""
        ran.append(to)
        raise ParentCommand(Command(graph=Command.PARENT, goto=to, update={"messages": [AIMessage("left")]}))

    inner = bench.agent([tool_of(bench, "leave", leave)], calls(("call_1", "leave", {"to": "after"})))
    inner.checkpointer = None
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_node("after", lambda state: {"messages": [AIMessage("after")]})
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=bench.saver)
    first = await bench.invoke(graph, ask(), thread())
    assert first["messages"][-1].content == "after"
    found = await bench.do(bench.ledger.get, "t", "call_1")
    assert (found.status, ran) == ("success", ["after"])


async def test_a_tool_is_not_kept_from_running_where_nothing_is_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(action_runner, "_LONGEST_CATCH_UP", 0.05)
    till = Till()
    inner = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    inner.checkpointer = False
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=bench.saver)
    for number in range(2):
        await bench.invoke(graph, ask(), thread(f"t{number}"))
    assert till.charged == ["o1", "o1"]
    assert sum("is not stored" in record.message for record in caplog.records) == 1
    caplog.clear()
    await bench.invoke(graph, ask(), thread("exit"), durability="exit")
    assert len(till.charged) == 3
    assert not any("is not stored" in record.message for record in caplog.records)


async def test_a_streamed_graph_runs_its_tools_once(bench: Bench) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)

    def blocking() -> list[Any]:
        return list(graph.stream(ask(), thread(), stream_mode=["updates", "messages"]))

    if bench.is_async:
        parts = [part async for part in graph.astream(ask(), thread(), stream_mode=["updates", "messages"])]
    else:
        parts = await asyncio.to_thread(blocking)
    assert any("charged o1" in str(part) for part in parts)
    assert till.charged == ["o1"]


async def test_a_blocking_ledger_serves_a_graph_on_an_event_loop(dsn: str, schema: str) -> None:
    from langgraph.prebuilt import ToolNode
    from support.ledger import agent_graph

    till = Till()
    with open_ledger(dsn, schema) as (saver, ledger):
        node = ToolNode(
            [tool_of(Bench(saver, ledger), "charge", till.charge)],
            wrap_tool_call=ledger,
            awrap_tool_call=ledger.acall,
        )
        graph = agent_graph(node, CHARGE).compile(checkpointer=saver)
        state = await graph.ainvoke(ask(), thread())
        assert isinstance(state["messages"][-1], AIMessage)
        assert ledger.get("t", "call_1").status == "success"  # type: ignore[union-attr]
        assert till.charged == ["o1"]
