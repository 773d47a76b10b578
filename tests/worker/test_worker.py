"""Workers within a process: how runs end, are tried again, are cancelled, and what a graph is given."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from psycopg import sql
from support import GUARD_SECONDS, config_of, loop_graph, wait_until
from support.worker import WORKERS, runs, wait_for_ends

from langgraph_pgstate import AsyncPGState, AsyncWorker, Backoff, PGState, Worker
from langgraph_pgstate.db.statements import Statements
from langgraph_pgstate.errors import ConfigurationError, RunCancelledError, RunFailedError, StaleHeadError
from langgraph_pgstate.record.recorder.records import enqueued_run


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    seen: Any


def graph_of(*nodes: Callable[..., Any], **options: Any) -> Any:
    """A graph whose nodes follow one another."""
    builder = StateGraph(State, **options)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder.compile()


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    """A state to enqueue with and to look at what workers did."""
    with PGState.open(dsn, schema=schema) as state:
        yield state


@asynccontextmanager
async def working(kind: type, dsn: str, schema: str, graphs: Any, **options: Any) -> AsyncIterator[Any]:
    """A worker of either API, in this process, with a state of its own."""
    given: Any = {"memory": options.pop("memory", None)}
    options = {"poll": 0.05, **options}
    if kind is Worker:
        with PGState.open(dsn, schema=schema, **given) as state:
            worker = Worker(state, graphs, **options)
            await asyncio.to_thread(worker.__enter__)
            try:
                yield worker
            finally:
                await asyncio.to_thread(worker.close)
        return
    async with (
        AsyncPGState.open(dsn, schema=schema, **given) as state,
        AsyncWorker(state, graphs, **options) as worker,
    ):
        yield worker


async def result(run: Any) -> Any:
    """What a run left."""
    return await asyncio.to_thread(run.wait, GUARD_SECONDS)


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_graph_is_given_what_was_enqueued(kind: type, dsn: str, schema: str, state: PGState) -> None:
    class Context(TypedDict):
        user: str

    def look(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
        configurable = config["configurable"]
        return {
            "seen": {
                "context": runtime.context,
                "tags": config["tags"],
                "metadata": config["metadata"],
                "ids": [configurable["thread_id"], configurable["run_id"], configurable["mine"]],
                # By this the recorder knows that the run has a row.
                "enqueued": enqueued_run.get(),
            }
        }

    async with working(kind, dsn, schema, {"agent": graph_of(look, context_schema=Context)}):
        run = state.runs.enqueue(
            "agent",
            {"messages": ["hi"]},
            thread_id="t",
            config={"configurable": {"mine": 1}, "tags": ["a"], "metadata": {"one": 1}},
            context={"user": "u"},
            metadata={"two": 2},
        )
        seen = (await result(run))["seen"]
    assert (seen["context"], seen["ids"]) == ({"user": "u"}, ["t", run.run_id, 1])
    assert [*seen["enqueued"]] == ["t", run.run_id]
    assert "a" in seen["tags"]
    assert {"one": 1, "two": 2, "run_id": run.run_id, "run_attempt": 1, "graph_id": "agent"}.items() <= seen[
        "metadata"
    ].items()
    found = state.saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    assert found.metadata["run_id"] == run.run_id
    # The queue's run and the record's are one, with what the recorder knows.
    await asyncio.to_thread(wait_until, lambda: (state.runs.get("t", run.run_id) or run).steps == 1, "the record")
    recorded = state.runs.get("t", run.run_id)
    assert recorded is not None
    assert (recorded.status, recorded.attempt, recorded.agent) == ("success", 1, "agent")
    assert len(state.runs.list(thread_id="t").items) == 1


@pytest.mark.slow
@pytest.mark.bare
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_embeds_what_an_index_lacks(
    kind: type, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the model was away."""
    if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        pytest.skip("the server has no pgvector")
    monkeypatch.setattr("langgraph_pgstate.worker.worker._INDEX_SECONDS", 0.05)
    asked = 0

    def embed(texts: list[str]) -> list[list[float]]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise TimeoutError("the model is away")
        return [[1.0, 0.0] for _ in texts]

    memory: Any = {"index": {"dims": 2, "embed": embed, "fields": ["text"]}}
    with PGState.open(dsn, schema=schema, memory=memory) as state:
        state.setup()
        state.memory.put(("users",), "k", {"text": "tea"})

    def has_vector() -> bool:
        found = connection.execute(sql.SQL("SELECT FROM {}.memory_vectors_1").format(sql.Identifier(schema)))
        return bool(found.fetchall())

    assert not has_vector()
    async with working(kind, dsn, schema, {"agent": graph_of()}, memory=memory):
        await asyncio.to_thread(wait_until, has_vector, "the embedding")
    assert asked == 3


@pytest.mark.parametrize("where", ["a worker", "an invocation"])
async def test_the_input_of_a_run_is_sent_when_its_first_node_has_begun(
    where: str, dsn: str, schema: str, state: PGState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the queue. That of an invocation is nowhere else, and sent at once."""
    done: list[str] = []
    send = Statements.execute_together

    def noted(self: Any, statements: Any, *rest: Any) -> Any:
        name = statements[-1][0].name
        if name.startswith(("put_checkpoint", "replace_checkpoint")):
            done.append("put")
        return (yield from send(self, statements, *rest))

    async def look(state: State) -> None:
        done.append("began")
        # What a node changes in what it is given is not in the checkpoint of the input.
        state["messages"].append(HumanMessage("mine"))

    monkeypatch.setattr(Statements, "execute_together", noted)
    graph = graph_of(look)
    if where == "a worker":
        async with working(AsyncWorker, dsn, schema, {"agent": graph}):
            for thread_id in ("first", "t"):
                # The first one waits for connections.
                done.clear()
                await result(state.runs.enqueue("agent", {"messages": ["hi"]}, thread_id=thread_id))
        assert done[0] == "began"
        assert "put" in done
    else:
        async with AsyncPGState.open(dsn, schema=schema, guard="lease") as on_loop:
            await graph.copy({"checkpointer": on_loop.saver}).ainvoke({"messages": ["hi"]}, config_of("t"))
        assert done[0] == "put"
    first = [*state.saver.list(config_of("t"))][-1]
    assert first.checkpoint["channel_values"] == {"__start__": {"messages": ["hi"]}}


@pytest.mark.slow
def test_an_async_worker_runs_on_uvloop(dsn: str, schema: str, state: PGState) -> None:
    uvloop = pytest.importorskip("uvloop")

    def look(state: State) -> dict[str, Any]:
        return {"seen": type(asyncio.get_running_loop()).__module__}

    async def look_async(state: State) -> dict[str, Any]:
        return look(state)

    async def main() -> None:
        async with working(AsyncWorker, dsn, schema, {"agent": graph_of(look_async)}):
            runs = [state.runs.enqueue("agent", {"messages": []}) for _ in range(20)]
            assert {(await result(run))["seen"] for run in runs} == {"uvloop"}

    uvloop.run(asyncio.wait_for(main(), GUARD_SECONDS))


@pytest.mark.parametrize("kind", WORKERS)
async def test_an_interrupt_ends_a_run_and_a_command_goes_on(kind: type, dsn: str, schema: str, state: PGState) -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": interrupt("sure?")}

    async with working(kind, dsn, schema, {"agent": graph_of(ask)}):
        run = state.runs.enqueue("agent", {"messages": []}, thread_id="t")
        assert [one.value for one in (await result(run))["__interrupt__"]] == ["sure?"]
        assert run.status() == "interrupted"
        run = state.runs.enqueue("agent", command=Command(resume="yes"), thread_id="t")
        assert (await result(run))["seen"] == "yes"


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_task_that_failed_after_it_wrote_runs_again(kind: type, dsn: str, schema: str, state: PGState) -> None:
    """The node has written when the function of its edge raises; LangGraph would take its task for finished."""
    failures = [ConnectionError("not now")]

    def route(state: State) -> str:
        if failures:
            raise failures.pop()
        return "second"

    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"messages": [AIMessage("first", id="1")]})
    builder.add_node("second", lambda state: {"messages": [AIMessage("second", id="2")]})
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", route, ["second"])
    async with working(kind, dsn, schema, {"agent": builder.compile()}):
        run = state.runs.enqueue("agent", {"messages": []}, max_attempts=2, retry=Backoff(initial=0.01))
        values = await asyncio.to_thread(run.wait, 30)
    assert [message.content for message in values["messages"]] == ["first", "second"]


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_breakpoint_ends_a_run_and_no_input_goes_on(
    kind: type, when: str, dsn: str, schema: str, state: PGState
) -> None:
    async with working(kind, dsn, schema, {"agent": loop_graph(3).compile()}):
        for count in (0 if when == "interrupt_before" else 1, 1 if when == "interrupt_before" else 2):
            given: dict[str, Any] = {when: ["step"]}
            run = state.runs.enqueue(
                "agent", {"count": 0} if not state.runs.list().items else None, thread_id="t", **given
            )
            assert (await result(run))["count"] == count
            assert run.status() == "interrupted"
        assert (await result(state.runs.enqueue("agent", thread_id="t")))["count"] == 3


async def was_asked_to_stop(worker: Worker) -> None:
    """Wait until a worker has asked its run to stop."""
    executions = worker._control._lane.executions
    await asyncio.to_thread(wait_until, lambda: any(one.stop for one in [*executions.values()]), "the request to stop")


@contextmanager
def gated(kind: type, calls: list[str]) -> Iterator[Any]:
    """A graph of two nodes, the first of which waits for the event that comes with it. Async, it can be cancelled."""
    gate = threading.Event()

    def wait(state: State) -> dict[str, Any]:
        calls.append("wait")
        gate.wait(GUARD_SECONDS)
        return {"messages": [AIMessage("waited", id="w")]}

    async def wait_async(state: State) -> dict[str, Any]:
        calls.append("wait")
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return {"messages": [AIMessage("waited", id="w")]}

    def after(state: State) -> dict[str, Any]:
        calls.append("after")
        return {}

    try:
        yield graph_of(wait if kind is Worker else wait_async, after), gate
    finally:
        gate.set()


@pytest.mark.slow
@pytest.mark.parametrize("action", ["cancel", "interrupt", "rollback"])
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_running_run_is_cancelled(
    kind: type, action: str, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    calls: list[str] = []
    with gated(kind, calls) as (graph, gate):
        async with working(kind, dsn, schema, {"agent": graph}) as worker:
            earlier = state.runs.enqueue("agent", {"messages": [HumanMessage("one", id="1")]}, thread_id="t")
            gate.set()
            await result(earlier)
            before = state.saver.get_tuple({"configurable": {"thread_id": "t"}})
            gate.clear()
            calls.clear()
            run = state.runs.enqueue("agent", {"messages": [HumanMessage("two", id="2")]}, thread_id="t")
            await asyncio.to_thread(wait_until, lambda: bool(calls), "the node")
            assert state.runs.cancel("t", run.run_id, action) == "running"
            if kind is Worker:
                # A node that blocks is waited for.
                await was_asked_to_stop(worker)
                assert run.status() == "running"
                gate.set()
            await asyncio.to_thread(wait_for_ends, connection, schema)
            assert calls == ["wait"]
            if action == "rollback":
                with pytest.raises(RunCancelledError):
                    await result(run)
                gate.set()
                await asyncio.sleep(0.2)
                assert state.saver.get_tuple({"configurable": {"thread_id": "t"}}) == before
                assert [row[1] for row in runs(connection, schema)] == ["success"]
            else:
                assert run.status() == {"cancel": "cancelled", "interrupt": "interrupted"}[action]
        # Nor does the recorder bring the run back.
        assert len(runs(connection, schema)) == (1 if action == "rollback" else 2)


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_newer_run_supersedes_a_running_one(
    kind: type, strategy: Any, dsn: str, schema: str, state: PGState
) -> None:
    calls: list[str] = []
    with gated(kind, calls) as (graph, gate):
        async with working(kind, dsn, schema, {"agent": graph}) as worker:
            first = state.runs.enqueue("agent", {"messages": [HumanMessage("one", id="1")]}, thread_id="t")
            await asyncio.to_thread(wait_until, lambda: bool(calls), "the node")
            second = state.runs.enqueue(
                "agent", {"messages": [HumanMessage("two", id="2")]}, thread_id="t", multitask_strategy=strategy
            )
            if kind is Worker:
                await was_asked_to_stop(worker)
                gate.set()
            else:
                await asyncio.to_thread(wait_until, lambda: len(calls) > 1, "the second run")
                gate.set()
            values = await result(second)
        messages = [message.id for message in values["messages"]]
        if strategy == "rollback":
            assert messages == ["2", "w"]
        else:
            assert first.status() == "interrupted"
            assert messages[0] == "1"
            assert "2" in messages


@pytest.mark.parametrize("repair", ["default", None, pytest.param("own", marks=pytest.mark.slow)])
async def test_an_interrupted_tool_call_gets_a_result_before_the_next_input(
    repair: Any, dsn: str, schema: str, state: PGState
) -> None:
    calls: list[list[Any]] = []

    def model(state: State) -> Any:
        messages = state["messages"]
        calls.append(messages)
        if len(calls) == 1:
            return {"messages": [AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": "c"}])]}
        return {"messages": [AIMessage("done")]}

    async def tools(state: State) -> Any:
        if isinstance(state["messages"][-1], AIMessage) and state["messages"][-1].tool_calls:
            started.set()
            await asyncio.sleep(30)
        return {}

    def own(state: Any, given: Any) -> Any:
        assert state.next == ("tools",)
        return {"messages": [ToolMessage("mine", tool_call_id="c"), *given["messages"]]}

    started = asyncio.Event()
    options: dict[str, Any] = {} if repair == "default" else {"repair": own if repair == "own" else None}
    async with working(AsyncWorker, dsn, schema, {"agent": graph_of(model, tools)}, **options):
        state.runs.enqueue("agent", {"messages": [HumanMessage("go")]}, thread_id="t")
        await started.wait()
        run = state.runs.enqueue(
            "agent", {"messages": [HumanMessage("stop")]}, thread_id="t", multitask_strategy="interrupt"
        )
        await result(run)
    kinds = [message.type for message in calls[1]]
    if repair is None:
        assert kinds == ["human", "ai", "human"]
        return
    assert kinds == ["human", "ai", "tool", "human"]
    assert (calls[1][2].content == "mine") is (repair == "own")
    assert (calls[1][2].status == "error") is (repair == "default")


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_factory_makes_a_graph_for_each_run(kind: type, dsn: str, schema: str, state: PGState) -> None:
    made = []

    @contextmanager
    def make(config: RunnableConfig) -> Iterator[Any]:
        made.append(config["configurable"]["thread_id"])
        yield loop_graph(config["configurable"]["steps"])

    async with working(kind, dsn, schema, {"agent": make}):
        for steps in (1, 3):
            run = state.runs.enqueue(
                "agent", {"count": 0}, thread_id=str(steps), config={"configurable": {"steps": steps}}
            )
            assert (await result(run))["count"] == steps
    assert made == ["1", "3"]


async def test_an_async_factory_fails_the_runs_of_a_blocking_worker(dsn: str, schema: str, state: PGState) -> None:
    async def make() -> Any:
        return loop_graph(1)

    async with working(Worker, dsn, schema, {"agent": make}):
        with pytest.raises(RunFailedError, match="AsyncWorker"):
            await result(state.runs.enqueue("agent", {"count": 0}))
    async with working(AsyncWorker, dsn, schema, {"agent": make}):
        assert (await result(state.runs.enqueue("agent", {"count": 0})))["count"] == 1


def test_a_worker_whose_graphs_lack_a_projected_channel_is_refused(dsn: str, schema: str) -> None:
    why = "'zz' is not a channel of any graph"
    with PGState.open(dsn, schema=schema, project=("zz",)) as state, pytest.raises(ConfigurationError, match=why):
        Worker(state, {"a": loop_graph(1)})


def test_a_graph_with_another_checkpointer_is_refused(state: PGState) -> None:
    with pytest.raises(ConfigurationError, match=r"graph 'agent' must be compiled without a .*InMemorySaver"):
        Worker(state, {"agent": loop_graph(1).compile(checkpointer=InMemorySaver())})
    for checkpointer in (None, state.saver, state.saver.with_allowlist([("a", "b")])):
        Worker(state, {"agent": loop_graph(1).compile(checkpointer=checkpointer)})


async def test_a_worker_leaves_other_queues_and_graphs_alone(
    dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    async with working(Worker, dsn, schema, {"agent": loop_graph(1)}, queues=["one", "two"]):
        done = [state.runs.enqueue("agent", {"count": 0}, queue=queue) for queue in ("one", "two")]
        left = state.runs.enqueue("agent", {"count": 0}), state.runs.enqueue("other", {"count": 0}, queue="one")
        for run in done:
            await result(run)
        assert [run.status() for run in left] == ["pending", "pending"]
        assert [(run.graph, run.is_accepted) for run in state.runs.queued().items] == [
            ("agent", False),
            ("other", False),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_busy_event_loop_and_a_blocking_node_keep_their_leases(
    kind: type, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    async def block(state: State) -> dict[str, Any]:
        time.sleep(2)  # on the loop
        return {"seen": "done"}

    def block_thread(state: State) -> dict[str, Any]:
        time.sleep(2)
        return {"seen": "done"}

    graph = graph_of(block if kind is AsyncWorker else block_thread)
    async with working(Worker, dsn, schema, {"none": graph}, lease_ttl=0.6):  # recovers what seems lost

        def main() -> None:
            async def work() -> None:
                async with working(kind, dsn, schema, {"agent": graph}, lease_ttl=0.6):
                    await result(run)

            asyncio.run(work())

        run = state.runs.enqueue("agent", {"messages": []}, thread_id="t")
        await asyncio.to_thread(main)
    assert runs(connection, schema) == [("t", "success", 1)]


@pytest.mark.slow
async def test_one_running_run_of_a_thread_at_a_time_in_the_order_of_enqueueing(
    dsn: str, schema: str, state: PGState
) -> None:
    running, most, order = [], [], []

    def work(state: State) -> dict[str, Any]:
        running.append(1)
        most.append(len(running))
        order.append(state["messages"][-1].content)
        time.sleep(0.01)
        running.pop()
        return {}

    async with (
        working(Worker, dsn, schema, {"agent": graph_of(work)}),
        working(Worker, dsn, schema, {"agent": graph_of(work)}),
    ):
        made = [state.runs.enqueue("agent", {"messages": [str(number)]}, thread_id="t") for number in range(10)]
        await result(made[-1])
    assert max(most) == 1
    assert order == [str(number) for number in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_thread_is_deleted_when_its_run_succeeds_if_asked(
    kind: type, dsn: str, schema: str, state: PGState, connection: psycopg.Connection
) -> None:
    async with working(kind, dsn, schema, {"agent": loop_graph(1)}):
        state.runs.enqueue("agent", {"count": 0}, thread_id="t", on_completion="delete")
        count = f"SELECT count(*) FROM {schema}.threads".encode()
        await asyncio.to_thread(wait_until, lambda: connection.execute(count).fetchone() == (0,), "the deletion")
        await asyncio.sleep(0.6)
    assert connection.execute(f"SELECT count(*) FROM {schema}.checkpoints".encode()).fetchone() == (0,)
    assert [run[1] for run in runs(connection, schema)] == ["success"]


async def test_a_worker_whose_start_is_cancelled_stops(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        worker = AsyncWorker(state, {"agent": loop_graph(1)})
        starting = asyncio.create_task(worker.__aenter__())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.to_thread(wait_until, lambda: not worker._control._thread.is_alive(), "the end")


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_worker_that_is_asked_to_drain_gives_its_runs_back_and_ends(
    kind: type, dsn: str, schema: str, state: PGState
) -> None:
    graphs = {"loop": loop_graph(900, lambda _: time.sleep(0.02))}
    async with working(kind, dsn, schema, graphs, lease_ttl=1.0) as worker:
        run = state.runs.enqueue("loop", {"count": 0}, config={"recursion_limit": 1000})
        await asyncio.to_thread(wait_until, lambda: run.status() == "running", "the run's start")
        assert state.runs.drain(worker.worker_id, by="eve")
        await asyncio.to_thread(wait_until, lambda: state.runs.workers() == (), "the worker's end")
        assert run.status() == "pending"
        assert not state.runs.drain(worker.worker_id)
    (queued,) = state.runs.queued().items
    assert queued.attempt == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
async def test_a_run_begins_only_at_the_head_that_it_expects(kind: type, dsn: str, schema: str, state: PGState) -> None:
    done: list[str] = []

    def first(values: State) -> State:
        done.append("first")
        return {"seen": 1}

    def second(values: State) -> State:
        done.append("second")
        if done.count("second") == 2:
            raise ConnectionError("the first attempt")
        return {"seen": 2}

    graph = graph_of(first, second)
    own = graph.copy({"checkpointer": state.saver})
    config = config_of("t")

    def head() -> Any:
        thread = state.threads.get("t")
        return thread and thread.head_checkpoint_id

    own.invoke({"messages": []}, config)
    options: Any = {"thread_id": "t", "max_attempts": 2, "retry": Backoff(initial=0.01)}
    seen = head()
    # It goes on from checkpoints of its own.
    good = state.runs.enqueue("agent", {"messages": []}, expected_head=seen, **options)
    async with working(kind, dsn, schema, {"agent": graph}):
        await asyncio.to_thread(good.wait, 30)
    assert done == ["first", "second"] * 2 + ["second"]
    with pytest.raises(StaleHeadError, match="has advanced"):
        state.runs.enqueue("agent", {"messages": []}, expected_head=seen, **options)
    assert not state.runs.enqueue("agent", run_id=good.run_id, expected_head=seen, **options).is_new
    with pytest.raises(StaleHeadError, match="no longer exists"):
        state.runs.enqueue("agent", {"messages": []}, thread_id="new", expected_head=seen)

    late = state.runs.enqueue("agent", {"messages": []}, expected_head=head(), **options)
    own.invoke({"messages": []}, config)
    before = [*done], head()
    async with working(kind, dsn, schema, {"agent": graph}):
        with pytest.raises(RunFailedError, match="has advanced from checkpoint"):
            await asyncio.to_thread(late.wait, 30)
    assert ([*done], head()) == before


async def test_the_answer_to_a_run_goes_on_whatever_head_the_run_expected(
    dsn: str, schema: str, state: PGState
) -> None:
    def ask(values: State) -> State:
        return {"seen": interrupt("go on?")}

    graph = graph_of(ask)
    graph.copy({"checkpointer": state.saver}).invoke({"messages": []}, config_of("t"))
    thread = state.threads.get("t")
    assert thread is not None
    run = state.runs.enqueue("agent", {"messages": []}, thread_id="t", expected_head=thread.head_checkpoint_id)
    async with working(Worker, dsn, schema, {"agent": graph}):
        await asyncio.to_thread(wait_until, lambda: run.status() == "interrupted", "the interrupt")
        answered = await asyncio.to_thread(state.interrupts.answer_run, "t", "yes")
        assert (await asyncio.to_thread(answered.wait, 30))["seen"] == "yes"
