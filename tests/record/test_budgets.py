"""Budgets: calls are refused before they are made, also in the middle of a run, by what any process has spent."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from support import GUARD_SECONDS
from support_queue import STATES, call, open_state
from support_recorder import USAGE, Model, rows

from langgraph_pgstate import AsyncPGState, AsyncWorker, PGState, Worker
from langgraph_pgstate.errors import BudgetExceededError, DatabaseError, RunFailedError
from langgraph_pgstate.record import budgets
from langgraph_pgstate.types import Budget

# 60 tokens at 1, 40 from the cache at 1, 20 at 2, for a million.
CALL = Decimal("0.00014")
OWNER = {"user_id": "ada", "tenant_id": "acme", "agent": "helper"}
# LangChain makes the coroutines of all handlers of a model's start first. It drops those after the one that refuses.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'ahandle_event' was never awaited:RuntimeWarning")


class State(TypedDict, total=False):
    count: int


class Agent:
    """A graph that calls a model some times, in one superstep each, and counts the calls that were made."""

    def __init__(self, calls: int = 3, pause: float = 0) -> None:
        self.calls, self.pause, self.made = calls, pause, 0

    def model(self) -> Model:
        agent = self

        class Counted(Model):
            def _generate(self, *args: Any, **kwargs: Any) -> Any:
                agent.made += 1
                return super()._generate(*args, **kwargs)

        message = AIMessage("hi", usage_metadata=USAGE, response_metadata={"model_name": "gpt-x"})
        return Counted(messages=iter([message]))

    def node(self, state: State) -> State:
        time.sleep(self.pause)
        self.model().invoke("hi")
        return {"count": state.get("count", 0) + 1}

    async def anode(self, state: State) -> State:
        await self.model().ainvoke("hi")
        return {"count": state.get("count", 0) + 1}

    def graph(self, *, is_async: bool = False) -> Any:
        builder = StateGraph(State)
        builder.add_node("node", self.anode if is_async else self.node)
        builder.add_edge(START, "node")
        builder.add_conditional_edges("node", lambda state: "node" if state["count"] < self.calls else "__end__")
        return builder


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(budgets, "_FRESH_SECONDS", 0.1)
    monkeypatch.setattr(budgets, "_SHARE", 0)
    yield
    # What LangChain drops is found while its warning is ignored, and not in another test.
    gc.collect()


@asynccontextmanager
async def priced(api: type, dsn: str, schema: str) -> Any:
    """A state with a price."""
    async with open_state(api, dsn, schema) as state:
        await call(state.prices.set, "gpt-x", 1, 2)
        yield state


async def invoke(state: Any, caller: Agent, thread_id: str, **owner: str) -> Any:
    """Run a recorded graph of either API, with the owner in its config."""
    config = {"configurable": {"thread_id": thread_id}, "metadata": {**OWNER, **owner}}
    if isinstance(state, PGState):
        graph = state.record(caller.graph().compile(checkpointer=state.saver))
        return await asyncio.to_thread(graph.invoke, {}, config)
    graph = state.record(caller.graph(is_async=True).compile(checkpointer=state.saver))
    return await graph.ainvoke({}, config)


@pytest.mark.parametrize("api", STATES)
@pytest.mark.parametrize("scope", ["tenant", "user", "agent"])
async def test_a_call_is_refused_in_the_middle_of_a_run_when_the_budget_is_used_up(
    api: type, scope: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    agent, name = Agent(5), {"tenant": "acme", "user": "ada", "agent": "helper"}[scope]
    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 2 * CALL, **{scope: "*"})
        with pytest.raises(BudgetExceededError) as raised:
            await invoke(state, agent, "t")
        assert agent.made == 2
        assert (raised.value.scope, raised.value.name) == (scope, name)
        assert (raised.value.spent, raised.value.amount) == (2 * CALL, 2 * CALL)
        with pytest.raises(BudgetExceededError):
            await invoke(state, agent, "t2")
        assert agent.made == 2, "refused before its first call"
        other = {"tenant": "tenant_id", "user": "user_id", "agent": "agent"}[scope]
        await call(state.runs.budget, 1, **{scope: "rich"})
        assert (await invoke(state, agent, "t3", **{other: "rich"}))["count"] == 5
        listed = await call(state.runs.budgets)
        assert listed == [Budget(scope, "*", 2 * CALL, None), Budget(scope, "rich", Decimal(1), 5 * CALL)]
        await call(state.runs.budget, None, **{scope: "*"})
        await asyncio.sleep(0.2)
        assert (await invoke(state, agent, "t2"))["count"] == 5
    (event,) = rows(connection, schema, "events", kind="budget", thread_id="t")
    assert event["payload"] == {"scope": scope, "name": name, "spent": "0.00028", "amount": "0.00028"}
    assert len(rows(connection, schema, "spans", kind="llm", thread_id="t")) == 2


@pytest.mark.parametrize("api", STATES)
async def test_what_another_process_spends_counts_soon(api: type, dsn: str, schema: str) -> None:
    agent = Agent(1)
    async with priced(api, dsn, schema) as state, priced(PGState, dsn, schema) as other:
        await call(state.runs.budget, 2 * CALL, user="ada")
        await invoke(state, agent, "t1")
        await invoke(other, agent, "t2")
        await asyncio.to_thread(other.flush)
        await asyncio.sleep(0.2)
        with pytest.raises(BudgetExceededError):
            await invoke(state, agent, "t3")
        await call(state.flush)
        with pytest.raises(BudgetExceededError):
            await invoke(other, agent, "t4")
    assert agent.made == 2


@pytest.mark.parametrize("api", STATES)
async def test_a_deleted_thread_renews_no_budget(api: type, dsn: str, schema: str) -> None:
    agent = Agent(1)
    async with priced(api, dsn, schema) as state, priced(PGState, dsn, schema) as other:
        await call(state.runs.budget, 2 * CALL, user="ada")
        for thread_id in ("t1", "t2"):
            await invoke(state, agent, thread_id)
            # At once: what was spent may be in the journal only.
            await call(state.saver.delete_thread if api is PGState else state.saver.adelete_thread, thread_id)
        await call(state.flush)
        assert (await call(state.runs.budgets))[0].spent == 2 * CALL
        for one in (state, other):
            with pytest.raises(BudgetExceededError):
                await invoke(one, agent, "t3")
    assert agent.made == 2


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
async def test_a_run_that_deletes_its_thread_renews_no_budget(kind: type, dsn: str, schema: str) -> None:
    agent = Agent(2)
    async with priced(AsyncPGState if kind is AsyncWorker else PGState, dsn, schema) as state:
        await call(state.runs.budget, 10 * CALL, key="k")
        graph = agent.graph(is_async=kind is AsyncWorker).compile()
        for _ in range(3):
            await call(state.runs.enqueue, "agent", {}, key="k", on_completion="delete", stream_mode=[])
        worker = kind(state, {"agent": graph})
        await call(worker.run_until_idle)
        await call(state.flush)
        assert (await call(state.runs.budgets))[0].spent == 6 * CALL


@pytest.mark.parametrize("api", STATES)
async def test_costs_of_this_process_are_counted_once(api: type, dsn: str, schema: str) -> None:
    agent = Agent(1)
    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 4 * CALL, user="ada")
        for number in range(3):
            await invoke(state, agent, f"t{number}")
            await call(state.flush)
            await asyncio.sleep(0.15)
        assert (await invoke(state, agent, "t4"))["count"] == 1
        with pytest.raises(BudgetExceededError):
            await invoke(state, agent, "t5")


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
async def test_an_enqueued_run_has_the_budget_of_its_key(
    kind: type, dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(3)
    async with priced(PGState if kind is Worker else AsyncPGState, dsn, schema) as state:
        await call(state.runs.budget, CALL, key="acme")
        graph = agent.graph(is_async=kind is AsyncWorker).compile()

        def enqueue(key: str) -> Any:
            return call(state.runs.enqueue, "agent", {}, key=key, thread_id=key, max_attempts=5)

        refused, free = await enqueue("acme"), await enqueue("other")
        worker = kind(state, {"agent": graph}, poll=0.05)
        await call(worker.run_until_idle)
        with pytest.raises(RunFailedError, match="BudgetExceededError") as raised:
            await call(refused.wait, GUARD_SECONDS)
        why = "key 'acme' has spent 0.00014 today (UTC); the budget is 0.00014"
        assert why in str(raised.value)
        # One line, without a traceback: nothing is wrong with the program.
        (told,) = [one for one in caplog.records if one.name == "langgraph_pgstate.worker" and "acme" in one.message]
        assert told.message == f"run {refused.run_id} of thread acme was refused: {why}"
        assert told.exc_info is None
        assert (await call(free.wait, GUARD_SECONDS))["count"] == 3
        assert agent.made == 4


async def test_the_database_is_not_asked_for_each_call(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_FRESH_SECONDS", 60.0)
    asked: list[int] = []
    read = budgets.read_spending

    async def counted(*arguments: Any) -> Any:
        asked.append(1)
        return await read(*arguments)

    monkeypatch.setattr(budgets, "read_spending", counted)
    async with priced(PGState, dsn, schema) as state:
        await invoke(state, Agent(10), "t")
        await invoke(state, Agent(10), "t", user_id="bob")
        assert len(asked) == 1, "without budgets, owners need not be known"
    async with priced(PGState, dsn, schema) as state:
        state.runs.budget(1, user="*")
        await invoke(state, Agent(10), "t", user_id="bob")
        await invoke(state, Agent(10), "t")
        await invoke(state, Agent(10), "t", user_id="bob")
        assert len(asked) == 3


async def test_nothing_is_refused_while_it_is_not_known_what_was_spent(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any) -> Any:
        raise DatabaseError("no")

    async with priced(PGState, dsn, schema) as state:
        state.runs.budget(0, user="*")
        with monkeypatch.context() as patched:
            patched.setattr(budgets, "read_spending", fail)
            assert (await invoke(state, Agent(1), "t"))["count"] == 1
        await asyncio.sleep(0.2)
        with pytest.raises(BudgetExceededError):
            await invoke(state, Agent(1), "t")


async def test_the_first_calls_of_a_process_wait_for_what_was_spent(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call beside one that reads is not allowed unseen."""
    both = threading.Barrier(2)
    read = budgets.read_spending

    async def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return await read(*arguments)

    monkeypatch.setattr(budgets, "read_spending", slow)
    agent = Agent(1)

    class Both(Agent):
        def node(self, state: State) -> State:
            both.wait(GUARD_SECONDS)
            return agent.node(state)

    async with priced(PGState, dsn, schema) as state:
        state.runs.budget(0, user="*")
        found = await asyncio.gather(*(invoke(state, Both(1), thread_id) for thread_id in "ab"), return_exceptions=True)
    assert [type(one) for one in found] == [BudgetExceededError] * 2
    assert agent.made == 0
