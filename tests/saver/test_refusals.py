"""A run that is refused because another has its thread is an event: it has not failed, nor has the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support import FORK, GUARD_SECONDS, config_of, run_children, wait_until
from support.recorder import rows

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import LeaseHeldError, StaleHeadError
from langgraph_pgstate.record.options import RecorderSettings

APIS = [PGState, AsyncPGState]
SAID = {"messages": [HumanMessage("hi", id="h")]}


@asynccontextmanager
async def open_state(api: type, dsn: str, schema: str, **options: Any) -> AsyncIterator[Any]:
    if api is PGState:
        with PGState.open(dsn, schema=schema, **options) as state:
            yield state
    else:
        async with AsyncPGState.open(dsn, schema=schema, **options) as state:
            yield state


async def answer_of(call: Any) -> Any:
    return await call if hasattr(call, "__await__") else call


def answering(state: Any, wait: Callable[[], Any] = lambda: None) -> Any:
    """A recorded graph with one node, which waits for something."""

    async def asking(_: MessagesState) -> dict[str, Any]:
        await asyncio.to_thread(wait)
        return {"messages": [AIMessage("hello", id="a")]}

    def blocking(_: MessagesState) -> dict[str, Any]:
        wait()
        return {"messages": [AIMessage("hello", id="a")]}

    node = blocking if isinstance(state, PGState) else asking
    builder = StateGraph(MessagesState).add_node("answer", node).add_edge(START, "answer")
    return state.record(builder.compile(checkpointer=state.saver))


async def invoke(graph: Any, state: Any, config: Any, given: Any = SAID) -> Any:
    if isinstance(state, PGState):
        return await asyncio.to_thread(graph.invoke, given, config)
    return await graph.ainvoke(given, config)


def named(run_id: str) -> Any:
    return {**config_of("t"), "metadata": {"run_id": run_id}}


class Door:
    """What a node waits for, and whether it is there."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(GUARD_SECONDS)


@pytest.mark.parametrize("is_other_process", [False, True], ids=["one process", "two"])
@pytest.mark.parametrize("api", APIS)
async def test_clicks_while_a_run_is_under_way_are_events(
    api: type, is_other_process: bool, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    door = Door()
    async with (
        open_state(api, dsn, schema, guard="lease") as state,
        open_state(api, dsn, schema, guard="lease") as another,
    ):
        clicked = another if is_other_process else state
        first = asyncio.create_task(invoke(answering(state, door), state, named("first")))
        assert await asyncio.to_thread(door.reached.wait, GUARD_SECONDS)
        # Its first checkpoint names it.
        stored = f"SELECT 1 FROM {schema}.checkpoints"
        await asyncio.to_thread(wait_until, lambda: connection.execute(stored).fetchall() != [], "its first checkpoint")
        for number in range(2):
            with pytest.raises(LeaseHeldError, match="'first'") as refused:
                await invoke(answering(clicked), clicked, named(f"click {number}"))
            assert refused.value.run_id == "first"
            assert refused.value.acquired_at is not None
            assert str(refused.value.acquired_at) in str(refused.value)
        await answer_of(clicked.flush())
        await answer_of(state.flush())
        assert (await answer_of(state.threads.get("t"))).status == "busy"
        door.opened.set()
        await first
        for one in (state, another):
            await answer_of(one.flush())
        assert (await answer_of(state.threads.get("t"))).status == "idle"
        assert (await answer_of(state.runs.failed())).items == ()
        assert [run.run_id for run in (await answer_of(state.runs.list())).items] == ["first"]
        events = (await answer_of(state.events.list("t", kind="refused"))).items
    assert [event.payload["run_id"] for event in events] == ["click 0", "click 1"]
    assert {event.payload["held_by"] for event in events} == {"first"}
    assert all(event.payload["error_type"] == "LeaseHeldError" and event.payload["since"] for event in events)
    assert {row["run_id"] for row in rows(connection, schema, "spans")} == {"first"}
    assert {row["run_id"] for row in rows(connection, schema, "checkpoints")} == {"first"}


async def test_a_run_that_waits_takes_no_checkpoint_of_the_one_it_waits_for(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    door = Door()
    settings = RecorderSettings(interval=0.01)
    async with open_state(PGState, dsn, schema, guard="lease", on_busy="wait", recording=settings) as state:
        first = asyncio.create_task(invoke(answering(state, door), state, named("first")))
        await asyncio.to_thread(door.reached.wait, GUARD_SECONDS)
        second = asyncio.create_task(invoke(answering(state), state, named("second")))
        while state.recorder()._tracker.runs.run_on("t", "input").run_id != "second":
            await asyncio.sleep(0.01)
        state.flush()
        assert [row["run_id"] for row in rows(connection, schema, "runs")] == ["first"]
        door.opened.set()
        await asyncio.gather(first, second)
        state.flush()
    found = [(row["run_id"], row["status"]) for row in rows(connection, schema, "runs")]
    assert found == [("first", "success"), ("second", "success")]
    query = f"SELECT run_id FROM {schema}.checkpoints ORDER BY checkpoint_id"
    assert [row[0] for row in connection.execute(query.encode())] == ["first"] * 3 + ["second"] * 3


@pytest.mark.parametrize("api", APIS)
async def test_a_run_again_that_is_refused_leaves_what_it_was(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Its row says how the attempt before has ended."""
    door = Door()
    async with open_state(api, dsn, schema, guard="lease") as state:
        graph = answering(state)
        await invoke(graph, state, named("again"))
        first = asyncio.create_task(invoke(answering(state, door), state, named("first")))
        await asyncio.to_thread(door.reached.wait, GUARD_SECONDS)
        with pytest.raises(LeaseHeldError):
            await invoke(graph, state, named("again"))
        door.opened.set()
        await first
    (row,) = rows(connection, schema, "runs", run_id="again")
    assert (row["status"], row["attempt"]) == ("success", 1)


def test_a_run_that_is_refused_before_its_first_superstep_by_a_guarded_head_is_an_event(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def overtake() -> None:
        with PGState.open(dsn, schema=schema) as other:
            answering(other).update_state(config_of("t"), {"messages": [AIMessage("ha", id="ha")]}, as_node="answer")

    with PGState.open(dsn, schema=schema, guard="head") as state:
        answering(state).invoke(SAID, named("first"))
        graph = answering(state)
        get_tuple = state.saver.get_tuple

        def late(config: Any) -> Any:
            found = get_tuple(config)
            overtake()
            return found

        state.saver.get_tuple = late
        # Without a node that begins meanwhile: the input's checkpoint is waited for.
        with pytest.raises(StaleHeadError):
            graph.invoke(SAID, named("late"), durability="sync")
        state.saver.get_tuple = get_tuple
        state.flush()
        assert [run.run_id for run in state.runs.list().items] == ["first"]
        assert [event.payload["run_id"] for event in state.events.list("t", kind="refused").items] == ["late"]


def test_a_run_that_was_overtaken_in_its_middle_has_failed_and_the_thread_has_not(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGState.open(dsn, schema=schema, guard="head") as state, PGState.open(dsn, schema=schema) as other:

        def overtake() -> None:
            answering(other).update_state(config_of("t"), {"messages": [AIMessage("ha", id="ha")]}, as_node="answer")

        answering(state).invoke(SAID, named("first"))
        with pytest.raises(StaleHeadError):
            answering(state, overtake).invoke(SAID, named("late"), durability="sync")
        state.flush()
        assert [run.run_id for run in state.runs.failed().items] == ["late"]
        assert state.events.list("t", kind="refused").items == ()
        thread = state.threads.get("t")
        assert thread is not None
        assert thread.status == "idle"


def test_a_refusal_on_a_thread_that_was_deleted_leaves_no_row(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    settings = RecorderSettings(interval=1_000_000.0)
    with PGState.open(dsn, schema=schema, guard="lease", recording=settings) as state:
        other = PGState.open(dsn, schema=schema, guard="lease")
        with state.leases.hold("t"), other as refused:
            with pytest.raises(LeaseHeldError, match="since"):
                answering(refused).invoke(SAID, config_of("t"))
            state.saver.delete_thread("t")
            refused.flush()
    assert rows(connection, schema, "events") == []


def hold(dsn: str, schema: str, reached: Any, opened: Any) -> None:
    def wait() -> None:
        reached.set()
        opened.wait(GUARD_SECONDS)

    with PGState.open(dsn, schema=schema, guard="lease") as state:
        answering(state, wait).invoke(SAID, named("in another process"))


def test_a_refusal_names_the_run_of_another_process(dsn: str, schema: str) -> None:
    reached, opened = FORK.Event(), FORK.Event()
    errors: list[str] = []
    holder = threading.Thread(target=lambda: errors.extend(run_children(hold, [(dsn, schema, reached, opened)])))
    holder.start()
    try:
        assert reached.wait(GUARD_SECONDS)
        with (
            PGState.open(dsn, schema=schema, guard="lease") as state,
            pytest.raises(LeaseHeldError, match=r"\(run 'in another process'\) since 2.* until 2"),
        ):
            answering(state).invoke(SAID, named("click"))
    finally:
        opened.set()
        holder.join(GUARD_SECONDS)
    assert errors == [""]
