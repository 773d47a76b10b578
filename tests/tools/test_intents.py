"""What an action is: the same one again, or another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict
from uuid import UUID

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from support.ledger import Bench, ask, calls, open_ledger, thread, tool_of

from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.tools import ToolRetry, current_execution
from tests.tools.test_ledger import CHARGE, Till
from tests.tools.test_ledger_more import of_api

pytestmark = pytest.mark.smoke


async def test_a_rerun_on_replay_is_an_action_of_its_own(bench: Bench) -> None:
    till = Till()
    bench.ledger.policy("charge", on_replay="rerun")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    await bench.invoke(graph, None, past)
    assert till.charged == ["o1", "o1"]
    assert len(set(till.tokens)) == 2
    assert len(await bench.do(bench.ledger.list, "t")) == 2


async def test_a_fork_that_edits_the_call_is_a_new_action(bench: Bench) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",))
    edited = past.values["messages"][-1].model_copy(
        update={"tool_calls": calls(("call_1", "charge", {"order": "o2"})).tool_calls}
    )
    config = await graph.aupdate_state(past.config, {"messages": [edited]})
    answer = await bench.invoke(graph, None, config)
    assert answer["messages"][2].content == "charged o2"
    assert till.charged == ["o1", "o2"]


async def test_an_id_that_a_provider_uses_again_is_a_new_action(bench: Bench) -> None:
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, CHARGE)
    await bench.invoke(graph, ask(), thread())
    assert till.charged == ["o1", "o1"]


class Chat(TypedDict):
    other: list[AIMessage]
    chat: Annotated[list[Any], add_messages]


async def test_an_id_that_is_used_again_in_messages_of_another_name_is_a_new_action(bench: Bench) -> None:
    till = Till()
    builder = StateGraph(Chat)
    builder.add_node("agent", lambda state: {"chat": [CHARGE.model_copy(update={"id": None})]})
    builder.add_node("tools", bench.tool_node([tool_of(bench, "charge", till.charge)], messages_key="chat"))
    builder.add_edge(START, "agent").add_edge("agent", "tools")
    graph = builder.compile(checkpointer=bench.saver)
    for _ in range(2):
        await bench.invoke(graph, {"chat": ask()["messages"], "other": []}, thread())
    assert till.charged == ["o1", "o1"]


def booking(bench: Bench, body: Callable[[str], Iterator[Any]]) -> StructuredTool:
    """A tool of the bench's API that calls functions of the ledger."""

    async def suspending(who: str) -> str:
        for answer in body(who):
            await answer
        return f"booked for {who}"

    def blocking(who: str) -> str:
        list(body(who))
        return f"booked for {who}"

    if bench.is_async:
        return StructuredTool.from_function(coroutine=suspending, name="book", description="Book.")
    return StructuredTool.from_function(blocking, name="book", description="Book.")


async def test_actions_of_one_task_do_not_share_the_calls_that_they_make(bench: Bench) -> None:
    """Of two bookings, one asks first. When its task is run again, only this one calls the function."""
    till = Till()
    pay = bench.ledger.once(of_api(bench, till.charge), name="pay")

    def body(who: str) -> Iterator[Any]:
        if who == "b":
            interrupt("Book it?")
        yield pay("o1")

    both = calls(("call_1", "book", {"who": "a"}), ("call_2", "book", {"who": "b"}))
    graph = bench.agent([booking(bench, body)], both)
    await bench.invoke(graph, ask(), thread())
    # LangGraph's tool node does not wait for other tools when one asks.
    while not any(one.status == "success" for one in await bench.do(bench.ledger.list, "t") if one.tool == "book"):
        await asyncio.sleep(0.01)
    assert till.charged == ["o1"]
    state = await bench.invoke(graph, Command(resume="yes"), thread())
    assert [message.content for message in state["messages"][2:4]] == ["booked for a", "booked for b"]
    assert till.charged == ["o1", "o1"]


async def test_an_action_that_is_tried_again_gets_what_its_calls_returned(bench: Bench) -> None:
    till = Till()
    pay = bench.ledger.once(of_api(bench, till.charge), name="pay")
    tries: list[str] = []

    def body(who: str) -> Iterator[Any]:
        yield pay("o1")
        yield pay("o1")
        tries.append(who)
        if len(tries) == 1:
            raise ValueError("full")

    bench.ledger.policy("book", on_error="retry", retry=ToolRetry(attempts=2, delay=0.01))
    graph = bench.agent([booking(bench, body)], calls(("call_1", "book", {"who": "a"})))
    state = await bench.invoke(graph, ask(), thread())
    assert (state["messages"][2].content, tries) == ("booked for a", ["a", "a"])
    assert till.charged == ["o1", "o1"]


async def test_a_key_of_the_arguments_says_what_the_action_is(bench: Bench) -> None:
    till = Till()
    bench.ledger.policy("charge", key=lambda args: args["order"])
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, calls(("call_2", "charge", {"order": "o1"})))
    answer = await bench.invoke(graph, ask(), thread())
    assert till.charged == ["o1"]
    first, second = answer["messages"][2], answer["messages"][4]
    assert (second.content, second.tool_call_id, first.id != second.id) == ("charged o1", "call_2", True)
    assert (await bench.do(bench.ledger.get, "t", "charge:o1")).status == "success"
    await bench.invoke(graph, ask(), thread("u"))
    assert till.charged == ["o1", "o1"]
    assert len(set(till.tokens)) == 2


class Order:
    """An object whose text is its address."""


class Named(Order):
    def __str__(self) -> str:
        return "o1"


def _later(args: Any) -> Any:
    async def key() -> str:
        return str(args["order"])

    coroutine = key()
    coroutine.close()
    return coroutine


@pytest.mark.parametrize(
    "key", [lambda args: {"o1", "o2"}, lambda args: ("a", {"o1"}), lambda args: Order(), lambda args: [Order()], _later]
)
async def test_a_key_that_another_process_would_write_differently_is_refused(bench: Bench, key: Any) -> None:
    till = Till()
    bench.ledger.policy("charge", key=key)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    with pytest.raises(ConfigurationError, match="another process"):
        await bench.invoke(graph, ask(), thread())
    assert till.charged == []


@pytest.mark.parametrize("key", [17, 1.5, ("o1", 2), {"a": ["o1"]}, UUID(int=1), Named(), "look at 0x1F"])
async def test_a_key_may_have_any_lasting_text(bench: Bench, key: Any) -> None:
    till = Till()
    bench.ledger.policy("charge", key=lambda args: key)
    await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), ask(), thread())
    assert (await bench.do(bench.ledger.get, "t", f"charge:{key}")).status == "success"


async def test_parallel_calls_are_actions_of_their_own(bench: Bench) -> None:
    till = Till()
    many = calls(*[(f"call_{number}", "charge", {"order": f"o{number}"}) for number in range(8)])
    graph = bench.agent([tool_of(bench, "charge", till.charge)], many)
    await bench.invoke(graph, ask(), thread())
    assert sorted(till.charged) == [f"o{number}" for number in range(8)]
    assert len(await bench.do(bench.ledger.list, "t")) == 8


async def test_a_send_to_a_tool_node_is_recorded(bench: Bench) -> None:
    till = Till()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [CHARGE.model_copy()]})
    builder.add_node("tools", bench.tool_node([tool_of(bench, "charge", till.charge)]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges(
        "agent", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
    )
    graph = builder.compile(checkpointer=bench.saver)
    await bench.invoke(graph, ask(), thread())
    assert (await bench.do(bench.ledger.get, "t", "call_1")).status == "success"


async def test_a_subgraphs_tools_know_both_checkpoints(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    inner = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    inner.checkpointer = None
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=bench.saver)
    await bench.invoke(graph, ask(), thread())
    schema = bench.saver.schema
    assert connection.execute(
        f"""SELECT c.step FROM {schema}.tool_executions e
        JOIN {schema}.checkpoints c USING (thread_id, checkpoint_ns, checkpoint_id)"""
    ).fetchall() == [(1,)]
    assert connection.execute(
        f"""SELECT c.checkpoint_ns, c.step FROM {schema}.tool_executions e
        JOIN {schema}.checkpoints c ON c.thread_id = e.thread_id AND c.checkpoint_id = e.root_checkpoint_id"""
    ).fetchall() == [("", 0)]


def test_a_graph_without_a_thread_is_refused(dsn: str, schema: str) -> None:
    with open_ledger(dsn, schema) as (_, ledger):
        bench = Bench(None, ledger)
        graph = bench.agent([tool_of(bench, "charge", Till().charge)], CHARGE)
        with pytest.raises(ConfigurationError, match="thread"):
            graph.invoke(ask())
        with pytest.raises(ConfigurationError, match="mistake"):
            ledger.policy("charge", mistake=1)
        with pytest.raises(ConfigurationError, match="one of"):
            ledger.settle("t", "k", "perhaps")
        with pytest.raises(NotFoundError):
            ledger.settle("t", "k", "done")


def test_current_execution_outside_of_the_ledger_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        current_execution()


# What a function is called with


SHIP = """
import sys
from langgraph.types import Command, interrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_pgstate import PGState

class Client:
    pass

ballast = [object() for _ in range(int(sys.argv[3]))]
with PGState.open(sys.argv[1], schema=sys.argv[2]) as state:
    @state.tools.once
    def ship(client, orders, more):
        print("shipped", flush=True)

    def node(_):
        ship(Client(), {"o1", "o2", "o3", "o4"}, {"by": [Client(), frozenset({"x", "y", "z"})]})
        if sys.argv[4] == "die":
            import os
            os._exit(9)

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=state.saver)
    config = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []} if sys.argv[4] == "die" else None, config, durability="sync")
"""


@pytest.mark.slow
def test_a_function_is_known_again_whatever_its_arguments_address_or_order(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An object's address, and the order of a set, are others in each process."""
    # Both have random hash seeds, so that the orders of the sets differ but in one of a hundred cases.
    ran = subprocess.run(
        [sys.executable, "-c", SHIP, dsn, schema, "0", "die"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (9, "shipped\n"), ran.stderr
    monkeypatch.setattr(sys, "argv", ["-c", dsn, schema, "1000", "go on"])
    exec(SHIP, {"__name__": "__main__"})
    assert capsys.readouterr().out == ""
