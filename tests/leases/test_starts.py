"""Tools whose start the check of a lease refuses, or whose run ends while they run: what is recorded of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware, wrap_tool_call
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt import ToolNode
from support.ledger import Bench, agent_graph, ask, thread, tool_of

from langgraph_pgstate.errors import (
    LeaseLostError,
    RunBudgetExceededError,
    StaleHeadError,
    ThreadDeletedError,
    ToolOutcomeUnknownError,
    ToolSetupError,
)
from langgraph_pgstate.leases.checking import LeaseCheck, ToolStarts
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.process_identity import lease_clock
from tests.tools.test_ledger import CHARGE, Till
from tests.tools.test_ledger_more import BOOK, ToolCaller, booking, of_api, one_node, with_table

REFUSED = "was not started, it had no effect: lease 1 of thread 't' was lost"


class Held(HeldLease):
    """A lease that is confirmed until it is lost."""

    def __init__(self) -> None:
        lease: Any = SimpleNamespace(thread_id="t", fencing_token=1)
        super().__init__(lease, lease_clock() + 600, is_read_first=True)

    def config(self, *, cancels: bool = False) -> dict[str, Any]:
        """A config of a run under the lease, whose end also cancels a run on an event loop if it should."""
        return {**thread(), "callbacks": [LeaseCheck(self, None if cancels else uuid4())]}

    def end(self) -> None:
        """Reach its last confirmed end."""
        self.confirmed_until = lease_clock() - 1

    def node(self, bench: Bench, tools: list[Any], *, offloads: bool = False, **options: Any) -> ToolNode:
        """A `ToolNode` on the ledger; the lease ends between the intent and the start of the tool."""

        def blocking(request: Any, execute: Any) -> Any:
            def late(request: Any) -> Any:
                self.end()
                return execute(request)

            return bench.ledger(request, late)

        async def suspending(request: Any, execute: Any) -> Any:
            async def late(request: Any) -> Any:
                self.end()
                return await execute(request)

            return await bench.ledger.acall(request, late)

        if bench.is_async or offloads:
            return ToolNode(tools, awrap_tool_call=suspending, **options)
        return ToolNode(tools, wrap_tool_call=blocking, **options)


async def status_of(bench: Bench, key: str = "call_1") -> tuple[str, int]:
    found = await bench.do(bench.ledger.get, "t", key)
    return found.status, found.attempt


@pytest.mark.parametrize("on_error", ["raise", "retry"])
async def test_a_tool_that_was_refused_is_run_by_the_next_run(bench: Bench, on_error: str) -> None:
    till, held = Till(), Held()
    charge = tool_of(bench, "charge", till.charge)
    bench.ledger.policy("charge", on_error=on_error)
    node = held.node(bench, [charge], handle_tool_errors=True)
    with pytest.raises(LeaseLostError, match=f"charge {REFUSED}"):
        await bench.invoke(agent_graph(node, CHARGE).compile(checkpointer=bench.saver), ask(), held.config())
    assert await status_of(bench) == ("pending", 1)
    assert till.charged == []
    await bench.invoke(bench.agent([charge], CHARGE), None, thread())
    assert await status_of(bench) == ("success", 2)
    assert till.charged == ["o1"]


async def test_a_tool_that_was_refused_while_its_run_was_cancelled_has_not_begun(bench: Bench) -> None:
    till, held = Till(), Held()
    graph = agent_graph(held.node(bench, [tool_of(bench, "charge", till.charge)]), CHARGE)
    with pytest.raises(asyncio.CancelledError if bench.is_async else LeaseLostError):
        await bench.invoke(graph.compile(checkpointer=bench.saver), ask(), held.config(cancels=True))
    assert await status_of(bench) == ("pending", 1)


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_blocking_tool_of_an_event_loop_that_was_refused_has_not_begun(
    bench: Bench, timeout: float | None
) -> None:
    till, held = Till(), Held()
    bench.ledger.policy("charge", timeout=timeout)
    charge = StructuredTool.from_function(till.charge, name="charge", description="Charge.")
    node = held.node(bench, [charge], offloads=True)
    # The checkpoints of a blocking saver could not be stored.
    with pytest.raises(LeaseLostError, match=REFUSED):
        await agent_graph(node, CHARGE).compile().ainvoke(ask(), held.config())
    assert await status_of(bench) == ("pending", 1)
    assert till.charged == []


async def test_a_transactional_tool_that_was_refused_has_not_begun(
    bench: Bench, connection: psycopg.Connection
) -> None:
    with_table(connection, bench.saver.schema)
    held = Held()
    node = held.node(bench, [booking(bench)], handle_tool_errors=True)
    with pytest.raises(LeaseLostError, match=REFUSED):
        await bench.invoke(agent_graph(node, BOOK).compile(checkpointer=bench.saver), ask(), held.config())
    assert await status_of(bench) == ("pending", 1)
    await bench.invoke(bench.agent([booking(bench)], BOOK), None, thread())
    assert connection.execute(f"SELECT room FROM {bench.saver.schema}.bookings").fetchall() == [("7",)]


async def test_a_refusal_of_which_middleware_makes_an_answer_is_none(bench: Bench) -> None:
    till, held = Till(), Held()

    async def asuspending(request: Any, handler: Any) -> Any:
        held.end()
        return await handler(request)

    def ablocking(request: Any, handler: Any) -> Any:
        held.end()
        return handler(request)

    late: Any = wrap_tool_call(asuspending if bench.is_async else ablocking)
    retrying = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False, on_failure="continue")
    agent = create_agent(
        ToolCaller(messages=iter([CHARGE, AIMessage("done")])),
        [tool_of(bench, "charge", till.charge)],
        middleware=[bench.ledger.middleware(), retrying, late],
        checkpointer=bench.saver,
    )
    with pytest.raises(LeaseLostError, match=REFUSED):
        await bench.invoke(agent, ask(), held.config())
    assert await status_of(bench) == ("pending", 1)
    assert till.charged == []


@pytest.mark.parametrize("is_action", [False, True])
async def test_the_refusal_of_another_tool_is_not_that_of_the_tool_that_calls_it(bench: Bench, is_action: bool) -> None:
    """Its own effect has happened, so it must not run again."""
    till, held = Till(), Held()
    note = tool_of(bench, "note", lambda order: f"noted {order}")
    asked = AIMessage("", tool_calls=[{**CHARGE.tool_calls[0], "name": "note", "id": "call_2"}])
    nested = agent_graph(held.node(bench, [note]), asked).compile() if is_action else note
    given = ask() if is_action else {"order": "o1"}

    def blocking(order: str) -> str:
        """Charge a card, and let another tool note it."""
        till.charge(order)
        if not is_action:
            held.end()
        return str(nested.invoke(given))

    async def suspending(order: str) -> str:
        """Charge a card, and let another tool note it."""
        till.charge(order)
        if not is_action:
            held.end()
        return str(await nested.ainvoke(given))

    charge = tool("charge")(suspending if bench.is_async else blocking)
    graph = bench.agent([charge], CHARGE, handle_tool_errors=True)
    with pytest.raises(LeaseLostError, match="^note was not started" if is_action else "^lease 1"):
        await bench.invoke(graph, ask(), held.config())
    assert await status_of(bench) == ("unknown", 1)
    if is_action:
        assert await status_of(bench, "call_2") == ("pending", 1)
    with pytest.raises(ToolOutcomeUnknownError):
        await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


async def test_a_tool_with_a_beginning_of_its_own_may_have_begun(bench: Bench) -> None:
    """LangChain calls the handlers of its start after that."""
    till, held = Till(), Held()

    class Charge(StructuredTool):
        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            till.charge("o1")
            return super().invoke(*args, **kwargs)

        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
            till.charge("o1")
            return await super().ainvoke(*args, **kwargs)

    node = held.node(bench, [Charge.from_function(till.charge, name="charge", description="Charge.")])
    with pytest.raises(LeaseLostError):
        await bench.invoke(agent_graph(node, CHARGE).compile(checkpointer=bench.saver), ask(), held.config())
    assert await status_of(bench) == ("unknown", 1)


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("other", 1),
        StaleHeadError("t", "", "1", "2"),
        ThreadDeletedError("t", None),
        RunBudgetExceededError("tokens", 2, 1),
        ToolSetupError("set up in another way"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("is_plain", [False, True])
async def test_the_outcome_of_what_ends_with_its_run_is_unknown(bench: Bench, error: Exception, is_plain: bool) -> None:
    till = Till()

    def charge(order: str) -> str:
        """Charge a card; then the run may not go on."""
        till.charge(order)
        raise error

    if is_plain:
        once = bench.ledger.once(of_api(bench, charge), key=lambda args: args["order"])
        graph = one_node(bench, lambda state: iter([once("o1")]))
    else:
        graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE)
    with pytest.raises(type(error)):
        await bench.invoke(graph, ask(), thread())
    assert await status_of(bench, "charge:o1" if is_plain else "call_1") == ("unknown", 1)
    with pytest.raises(ToolOutcomeUnknownError):
        await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


def test_a_tool_begins_when_no_check_refuses_its_start() -> None:
    starts, first, second = ToolStarts(), uuid4(), uuid4()
    lost = LeaseLostError("t", 1)
    assert starts.refusal is None
    starts.allow(first)
    starts.refuse(first, lost)
    assert starts.refusal is lost, "two leases are checked"
    starts.refuse(second, lost)
    assert starts.refusal is lost
    starts.allow(second_try := uuid4())
    starts.refuse(uuid4(), lost)
    assert starts.refusal is None, second_try
