"""Budgets: calls are refused before they are made, also in the middle of a run, by what any process has spent."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, TypedDict
from uuid import uuid4

import psycopg
import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support import GUARD_SECONDS, examples, wait_until
from support.queue import STATES, call, open_state
from support.recorder import USAGE, Model, rows

from langgraph_pgstate import AsyncPGState, AsyncWorker, PGState, Worker
from langgraph_pgstate.errors import BudgetExceededError, DatabaseError, RunFailedError
from langgraph_pgstate.record.recorder import budgets
from langgraph_pgstate.record.types import Budget

# 60 tokens at 1, 40 from the cache at 1, 20 at 2, for a million.
pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]

CALL = Decimal("0.00014")
OWNER = {"user_id": "ada", "tenant_id": "acme", "agent": "helper"}
# LangChain makes the coroutines of all handlers of a model's start first. It drops those after the one that refuses.


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


class Listener(BaseCallbackHandler):
    """A handler of the application, which notes the metadata of model calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_chat_model_start(self, *args: Any, metadata: Any = None, **kwargs: Any) -> None:
        self.seen.append(metadata)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(budgets, "_FRESH_SECONDS", 0.1)
    monkeypatch.setattr(budgets, "_SHARE", 0)
    yield
    # A coroutine that is never awaited fails this test, and not another one.
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("api", STATES)
async def test_the_user_of_configurable_is_known_before_the_first_call(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    agent, listener = Agent(8), Listener()
    callbacks: list[Any] = [[listener], CallbackManager([listener], inheritable_handlers=[listener])]
    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 3 * CALL, user="*")
        graph = state.record(agent.graph(is_async=api is AsyncPGState).compile(checkpointer=state.saver))

        async def stream(config: Any) -> None:
            if api is AsyncPGState:
                async for _ in graph.astream({}, config, durability="exit"):
                    pass
            else:
                await asyncio.to_thread(lambda: list(graph.stream({}, config, durability="exit")))

        for thread_id, given in zip("ab", callbacks, strict=True):
            configurable = {"thread_id": thread_id, "user_id": "ada", "tenant_id": "acme"}
            with pytest.raises(BudgetExceededError, match="user 'ada'"):
                await stream({"configurable": configurable, "callbacks": given})
            assert agent.made == 3
        await call(state.flush)
    assert [run["user_id"] for run in rows(connection, schema, "runs")] == ["ada", "ada"]
    assert len(listener.seen) >= 3
    assert all("user_id" not in metadata for metadata in listener.seen), "others see no more than before"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "durability"), [("configurable", "exit"), ("configurable", "async"), ("metadata", "async")]
)
@pytest.mark.parametrize("api", STATES)
async def test_no_user_of_many_runs_at_once_is_over_the_budget(
    api: type, place: str, durability: Any, dsn: str, schema: str
) -> None:
    users = [f"user{number}" for number in range(examples(160))]
    gate = asyncio.Semaphore(len(users) // 2)
    agents = {user: Agent(8, pause=0.002) for user in users}

    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 3 * CALL, user="*")

        async def spend(user: str) -> Any:
            async with gate:
                config: Any = {"configurable": {"thread_id": user}}
                config.setdefault(place, {})["user_id"] = user
                graph = agents[user].graph(is_async=api is AsyncPGState)
                recorded = state.record(graph.compile(checkpointer=state.saver))
                if api is AsyncPGState:
                    return await recorded.ainvoke({}, config, durability=durability)
                return await asyncio.to_thread(recorded.invoke, {}, config, durability=durability)

        found = await asyncio.gather(*map(spend, users), return_exceptions=True)
    assert {type(one) for one in found} == {BudgetExceededError}
    assert {user: agent.made for user, agent in agents.items()} == dict.fromkeys(users, 3)


@pytest.mark.parametrize("api", STATES)
async def test_calls_in_progress_count_as_what_the_last_one_cost(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Runs of one user whose calls all begin before one of them ends."""
    agent, going = Agent(1), threading.Event()

    class Slow(Agent):
        def model(self) -> Model:
            class Waiting(Model):
                def _generate(self, *args: Any, **kwargs: Any) -> Any:
                    agent.made += 1
                    going.wait(GUARD_SECONDS)
                    return super()._generate(*args, **kwargs)

            message = AIMessage("hi", usage_metadata=USAGE, response_metadata={"model_name": "gpt-x"})
            return Waiting(messages=iter([message]))

    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 5 * CALL, user="ada")
        await invoke(state, agent, "first")
        runs = [asyncio.ensure_future(invoke(state, Slow(1), f"t{number}")) for number in range(6)]
        done: set[Any] = set()
        while len(done) < 2:
            done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED, timeout=GUARD_SECONDS)
        going.set()
        found = await asyncio.gather(*runs, return_exceptions=True)
        assert agent.made == 5
        errors = [one for one in found if isinstance(one, BudgetExceededError)]
        assert [(one.spent, one.reserved) for one in errors] == [(CALL, 4 * CALL)] * 2
        assert "and calls in progress are expected to cost 0.00056; the budget is 0.0007" in str(errors[0])
        with pytest.raises(BudgetExceededError, match=r"has spent 0\.0007 today"):
            await invoke(state, agent, "last")
        await call(state.flush)
    assert {row["payload"].get("reserved") for row in rows(connection, schema, "events", kind="budget")} == {
        "0.00056",
        None,
    }


async def test_a_failed_call_reserves_nothing(dsn: str, schema: str) -> None:
    class Failing(Agent):
        def node(self, state: State) -> State:
            with pytest.raises(ValueError, match="no"):
                self.failing().invoke("hi")
            self.model().invoke("hi")
            return {"count": state.get("count", 0) + 1}

        def failing(self) -> Model:
            class Broken(Model):
                def _generate(self, *args: Any, **kwargs: Any) -> Any:
                    raise ValueError("no")

            return Broken(messages=iter([]), name="Counted")

    agent = Failing(2)
    async with priced(PGState, dsn, schema) as state:
        state.runs.budget(3 * CALL, user="ada")
        assert (await invoke(state, agent, "t"))["count"] == 2
        assert not state._recorder._budgets._started


async def test_a_reading_that_ends_late_forgets_no_call(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading knows only of ada, and ends during a call of bob, of whom the second one knows."""
    read, has_begun, may_end = budgets.read_spending, threading.Event(), threading.Event()
    numbers, late = itertools.count(), Agent(8)

    async def held(*arguments: Any) -> Any:
        number, found = next(numbers), await read(*arguments)
        if number == 0:
            has_begun.set()
            assert may_end.wait(GUARD_SECONDS)
        return found

    class Between(Agent):
        def model(self) -> Model:
            agent = self

            class Waiting(Model):
                def _generate(self, *args: Any, **kwargs: Any) -> Any:
                    agent.made += 1
                    if agent.made == 2:
                        may_end.set()
                        wait_until(lambda: late.made > 0, "the first reading has ended")
                    return super()._generate(*args, **kwargs)

            message = AIMessage("hi", usage_metadata=USAGE, response_metadata={"model_name": "gpt-x"})
            return Waiting(messages=iter([message]))

    monkeypatch.setattr(budgets, "read_spending", held)
    monkeypatch.setattr(budgets, "_FRESH_SECONDS", 60.0)
    quick = Between(8)
    async with priced(PGState, dsn, schema) as state:
        state.runs.budget(3 * CALL, user="*")
        first = asyncio.ensure_future(invoke(state, late, "a", user_id="ada"))
        await asyncio.to_thread(has_begun.wait, GUARD_SECONDS)
        second = asyncio.ensure_future(invoke(state, quick, "b", user_id="bob"))
        found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(one) for one in found] == [BudgetExceededError] * 2
    assert (late.made, quick.made) == (3, 3)


async def test_an_older_reading_that_ends_later_replaces_none(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, may_end = budgets.read_spending, asyncio.Event()
    numbers = itertools.count()

    async def held(*arguments: Any) -> Any:
        number, found = next(numbers), await read(*arguments)
        # What others spend between two readings.
        known = {owner: (amount, number * CALL) for owner, (amount, _) in found.budgets.items()}
        return found._replace(budgets=known)

    async with priced(AsyncPGState, dsn, schema) as state:
        await state.runs.budget(CALL, user="ada")
        account = state._recorder._budgets
        run_within, begun = account._runner.run_within, asyncio.Event()

        async def late(*arguments: Any) -> Any:
            found = await run_within(*arguments)
            if not begun.is_set():
                begun.set()
                await may_end.wait()
            return found

        monkeypatch.setattr(budgets, "read_spending", held)
        monkeypatch.setattr(account._runner, "run_within", late)
        run: Any = SimpleNamespace(tenant_id=None, user_id="ada", agent=None, queue_key=None, ended_at=None)
        older = asyncio.create_task(account.read(run))
        await begun.wait()
        await account.read(run)
        may_end.set()
        await older
        assert account.admit(run, uuid4(), "gpt-x") is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
async def test_enqueued_scheduled_and_resumed_runs_have_the_budget_of_their_user(
    kind: type, dsn: str, schema: str
) -> None:
    class Asking(Agent):
        def node(self, state: State) -> State:
            if state.get("count") == 1:
                interrupt("go on?")
            return super().node(state)

    agents = {"plain": Agent(8), "asking": Asking(8), "due": Agent(8)}
    async with priced(PGState if kind is Worker else AsyncPGState, dsn, schema) as state:
        await call(state.runs.budget, 3 * CALL, user="*")
        graphs = {name: agent.graph().compile() for name, agent in agents.items()}
        for name, user in (("plain", "ada"), ("asking", "bob"), ("due", "eve")):
            config = {"configurable": {"user_id": user}}
            if name == "due":
                await call(state.schedules.put, "daily", name, {}, cron="0 0 1 1 *", config=config)
                await call(state.schedules.trigger, "daily")
            else:
                await call(state.runs.enqueue, name, {}, thread_id=name, config=config)
        await call(kind(state, graphs, poll=0.05).run_until_idle)
        assert [agent.made for agent in agents.values()] == [3, 1, 3]
        await call(state.interrupts.answer, "asking", "yes")
        await call(kind(state, graphs, poll=0.05).run_until_idle)
        assert [agent.made for agent in agents.values()] == [3, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("api", STATES)
async def test_blocking_calls_on_an_event_loop_are_refused(api: type, how: str, dsn: str, schema: str) -> None:
    class Blocking(Agent):
        async def anode(self, state: State) -> State:
            return self.node(state)

    agent, config = Blocking(5), {"metadata": OWNER}
    async with priced(api, dsn, schema) as state:
        await call(state.runs.budget, 2 * CALL, user="*")
        graph = state.record(agent.graph(is_async=how == "ainvoke").compile())
        for _ in range(2):
            with pytest.raises(BudgetExceededError):
                # In either call, the model is called in the thread of the event loop.
                graph.invoke({}, config) if how == "invoke" else await graph.ainvoke({}, config)
            assert agent.made == 2
            await asyncio.sleep(0.2)


@pytest.mark.slow
def test_calls_are_refused_if_the_event_loop_of_the_recorder_does_not_run(dsn: str, schema: str) -> None:
    agent, loop = Agent(5), asyncio.new_event_loop()
    state = loop.run_until_complete(AsyncPGState.open(dsn, schema=schema))
    try:
        loop.run_until_complete(state.prices.set("gpt-x", 1, 2))
        loop.run_until_complete(state.runs.budget(2 * CALL, user="*"))
        graph = state.record(agent.graph().compile())
        for _ in range(2):
            with pytest.raises(BudgetExceededError):
                graph.invoke({}, {"metadata": OWNER})
            assert agent.made == 2
            time.sleep(0.2)
    finally:
        loop.run_until_complete(state.close())
        loop.close()


@pytest.mark.slow
async def test_a_call_whose_reading_is_cancelled_is_checked_with_the_last_known_costs(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is ending, and cancels its tasks."""

    async def cancelled(*arguments: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    agent, config = Agent(1), {"metadata": OWNER}
    async with priced(AsyncPGState, dsn, schema) as state:
        await state.runs.budget(2 * CALL, user="*")
        graph = state.record(agent.graph().compile())
        await asyncio.to_thread(graph.invoke, {}, config)
        monkeypatch.setattr(budgets, "read_spending", cancelled)
        await asyncio.sleep(0.2)
        assert (await asyncio.to_thread(graph.invoke, {}, config))["count"] == 1
        await asyncio.sleep(0.2)
        with pytest.raises(BudgetExceededError):
            await asyncio.to_thread(graph.invoke, {}, config)
    assert agent.made == 2


def test_a_graph_within_another_one_has_the_user_of_the_whole(dsn: str, schema: str) -> None:
    agent = Agent(8)
    with PGState.open(dsn, schema=schema) as state:
        state.prices.set("gpt-x", 1, 2)
        state.runs.budget(3 * CALL, user="*")
        inner = state.record(agent.graph().compile())
        outer = StateGraph(State)
        outer.add_node("inner", inner.invoke)
        outer.add_edge(START, "inner")
        config = {"configurable": {"thread_id": "t", "user_id": "ada"}}
        for graph in (outer.compile(checkpointer=state.saver), state.record(outer.compile(checkpointer=state.saver))):
            with pytest.raises(BudgetExceededError, match="'ada'"):
                graph.invoke({}, config, durability="exit")
            assert agent.made == 3
