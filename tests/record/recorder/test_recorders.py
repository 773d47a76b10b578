"""The recorder on graphs of every kind: its runs, spans and events, and what is in them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import uuid
from contextlib import nullcontext
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command, interrupt
from support.recorder import config, model, recording, recording_async, rows

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, PGStateError
from langgraph_pgstate.record import AsyncRecorder, Recorder
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.prices import Prices

pytestmark = pytest.mark.smoke


Connection = psycopg.Connection


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def agent_graph(saver: Any) -> Any:
    """A node with a tool that sends the graph on to a subgraph with a model, then a node that asks a person."""
    asked = model()

    def plan(state: MessagesState) -> Any:
        add.invoke({"a": 1, "b": 2})
        return Command(goto="helper", update={"messages": [AIMessage("let us see")]})

    def think(state: MessagesState) -> Any:
        return {"messages": [asked.invoke(state["messages"])]}

    def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt({"question": "go on?"}))]}

    inner = StateGraph(MessagesState)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    graph = StateGraph(MessagesState)
    graph.add_node("plan", plan, destinations=("helper",))
    graph.add_node("helper", inner.compile(name="researcher"))
    graph.add_node("ask", ask)
    graph.add_edge(START, "plan")
    graph.add_edge("helper", "ask")
    graph.add_conditional_edges("ask", lambda state: END)
    return graph.compile(checkpointer=saver)


def hello() -> dict[str, Any]:
    return {"messages": [HumanMessage("hello")]}


def simple(saver: Any, *nodes: Any) -> Any:
    """A chain of nodes over messages."""
    graph = StateGraph(MessagesState)
    names = [START] + [node.__name__ for node in nodes]
    for node in nodes:
        graph.add_node(node.__name__, node)
    for one, other in itertools.pairwise(names):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=saver)


def test_a_run_is_a_tree_of_spans(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (saver, recorder):
        Prices(saver._database).set("gpt-x", 2, 10, cache_read="0.5", provider="azure.ai.openai")
        Prices(saver._database).set("gpt-x", 100, 100)
        recorder.record(agent_graph(saver)).invoke(hello(), config(user_id="ann"))
    spans = {span["name"]: span for span in rows(connection, schema, "spans")}
    assert {name: span["kind"] for name, span in spans.items()} == {
        "LangGraph": "graph",
        "plan": "node",
        "add": "tool",
        "helper": "node",
        "researcher": "graph",
        "think": "node",
        "Model": "llm",
        "ask": "node",
    }
    above = {name: span["parent_span_id"] for name, span in spans.items()}
    ids = {name: span["span_id"] for name, span in spans.items()}
    assert above == {
        "LangGraph": None,
        "plan": ids["LangGraph"],
        "add": ids["plan"],
        "helper": ids["LangGraph"],
        "researcher": ids["helper"],
        "think": ids["researcher"],
        "Model": ids["think"],
        "ask": ids["LangGraph"],
    }
    said = spans["Model"]
    assert (said["provider"], said["model"]) == ("azure.ai.openai", "gpt-x")
    assert (said["input_tokens"], said["output_tokens"]) == (100, 20)
    assert (said["cache_read_tokens"], said["reasoning_tokens"], said["agent"]) == (40, 5, "researcher")
    assert float(said["cost"]) == pytest.approx((60 * 2 + 40 * 0.5 + 20 * 10) / 1e6)
    attributes = said["attributes"]
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.response.model"] == "gpt-x-2026"
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.reasoning.output_tokens"] == 5
    assert spans["add"]["attributes"]["gen_ai.tool.name"] == "add"
    assert spans["add"]["input"] == {"a": 1, "b": 2}
    assert spans["plan"]["input"]["messages"][0]["role"] == "human"
    assert spans["plan"]["output"]["goto"] == "helper"
    assert {name: span["status"] for name, span in spans.items() if span["status"] != "success"} == {
        "LangGraph": "interrupted",
        "ask": "interrupted",
    }
    assert all(span["ended_at"] >= span["started_at"] for span in spans.values())


def test_a_span_names_the_checkpoint_that_its_superstep_started_from(
    dsn: str, schema: str, connection: Connection
) -> None:
    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(agent_graph(saver))
        graph.invoke(hello(), config())
        graph.invoke(Command(resume="yes"), config())
    query = f"""
        SELECT s.name, s.step - c.step, c.run_id FROM {schema}.spans s JOIN {schema}.checkpoints c
            USING (thread_id, checkpoint_ns, checkpoint_id) WHERE s.kind = 'node' ORDER BY s.started_at"""
    found = connection.execute(query.encode()).fetchall()
    assert [row[:2] for row in found] == [("plan", 1), ("helper", 1), ("think", 1), ("ask", 1), ("ask", 1)]
    assert {row[2] for row in found} == {rows(connection, schema, "runs")[0]["run_id"]}


def test_a_put_that_is_sent_late_takes_no_checkpoint_from_a_span(dsn: str, schema: str, connection: Connection) -> None:
    ended, taken, placed = threading.Event(), threading.Event(), threading.Event()

    def plan(state: MessagesState) -> Any:
        return {"messages": [AIMessage("let us see")]}

    def think(state: MessagesState) -> Any:
        return {"messages": [AIMessage("so be it")]}

    def done(state: MessagesState) -> None:
        ended.set()
        placed.wait(20)

    class Late(Recorder):
        """Takes the span for the outer graph's put, and sends it after the inner graph's put has placed the span."""

        def before_put(self, plan: Any, config: Any) -> Any:
            address, step = plan.request.address, plan.request.columns["step"]
            if address.checkpoint_ns:
                taken.wait(20)
            elif step == 1:
                ended.wait(20)
            found = super().before_put(plan, config)
            if not address.checkpoint_ns and step == 1:
                taken.set()
                placed.wait(20)
            return found

        def after_put(self, plan: Any) -> None:
            super().after_put(plan)
            if plan.request.address.checkpoint_ns and plan.request.columns["step"] == 0:
                placed.set()

    inner = StateGraph(MessagesState)
    inner.add_node("think", think)
    inner.add_node("done", done)
    inner.add_edge(START, "think")
    inner.add_edge("think", "done")
    with Database.open(dsn, schema=schema) as database:
        recorder = Late(database, RecorderSettings(interval=60))
        with PGStateSaver.from_conn_string(dsn, schema=schema, hook=recorder) as saver:
            outer = StateGraph(MessagesState)
            outer.add_node("plan", plan)
            outer.add_node("helper", inner.compile())
            outer.add_edge(START, "plan")
            outer.add_edge("plan", "helper")
            recorder.record(outer.compile(checkpointer=saver)).invoke(hello(), config())
            recorder.close()
    assert placed.is_set()
    (span,) = [row for row in rows(connection, schema, "spans") if row["name"] == "think"]
    (start,) = rows(connection, schema, "checkpoints", checkpoint_ns=span["checkpoint_ns"], step=0)
    assert span["checkpoint_id"] == start["checkpoint_id"]


def test_runs_sum_up_and_threads_have_the_status_of_the_newest(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(agent_graph(saver))
        graph.invoke(hello(), config(user_id="ann"))
        recorder.flush()
        assert rows(connection, schema, "threads")[0]["status"] == "interrupted"
        graph.invoke(Command(resume="yes"), config(user_id="ann"))
    first, second = rows(connection, schema, "runs")
    assert (first["status"], second["status"]) == ("interrupted", "success")
    assert (first["steps"], second["steps"]) == (3, 1)
    assert (first["input_tokens"], first["output_tokens"], second["input_tokens"]) == (100, 20, 0)
    assert (first["user_id"], first["alive_until"]) == ("ann", None)
    assert first["input"]["messages"][0]["content"] == "hello"
    assert second["output"]["messages"][-1]["content"] == "yes"
    assert second["first_checkpoint_id"] == first["last_checkpoint_id"] < second["last_checkpoint_id"]
    assert rows(connection, schema, "threads")[0]["status"] == "idle"
    of_runs = {row["run_id"] for row in rows(connection, schema, "checkpoints")}
    assert of_runs == {first["run_id"], second["run_id"]}


def test_events_tell_statuses_handoffs_interrupts_and_resumes(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(agent_graph(saver))
        graph.invoke(hello(), config())
        graph.invoke(Command(resume="yes"), config())
    events = rows(connection, schema, "events")
    assert [(event["kind"], event["payload"].get("status")) for event in events] == [
        ("status", "running"),
        ("handoff", None),
        ("interrupt", None),
        ("status", "interrupted"),
        ("status", "running"),
        ("resume", None),
        ("status", "success"),
    ]
    assert events[1]["payload"]["from"] == "plan"
    assert events[1]["payload"]["to"] == "helper"
    assert events[2]["payload"]["interrupts"][0]["value"] == {"question": "go on?"}
    assert events[5]["payload"] == {"resume": "yes"}
    assert events[2]["checkpoint_id"] == events[5]["checkpoint_id"]
    assert events[5]["checkpoint_id"] in {row["checkpoint_id"] for row in rows(connection, schema, "checkpoints")}


def test_a_tool_that_transfers_is_one_handoff(dsn: str, schema: str, connection: Connection) -> None:
    @tool
    def transfer_to_refunds(reason: str, call: Annotated[str, InjectedToolCallId]) -> Any:
        """Hands over."""
        done = ToolMessage("transferred", tool_call_id=call)
        return Command(goto="refunds", graph=Command.PARENT, update={"messages": [done]})

    def ask(state: MessagesState) -> Any:
        call = {"name": "transfer_to_refunds", "args": {"reason": "wants money"}, "id": "call-1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def refunds(state: MessagesState) -> Any:
        return {"messages": [AIMessage("here you are")]}

    sales = StateGraph(MessagesState)
    sales.add_node("ask", ask)
    sales.add_node("tools", ToolNode([transfer_to_refunds]))
    sales.add_edge(START, "ask")
    sales.add_edge("ask", "tools")
    graph = StateGraph(MessagesState)
    graph.add_node("sales", sales.compile(name="sales_agent"), destinations=("refunds",))
    graph.add_node("refunds", refunds)
    graph.add_edge(START, "sales")
    with recording(dsn, schema) as (saver, recorder):
        recorder.record(graph.compile(checkpointer=saver)).invoke(hello(), config())
    handoffs = rows(connection, schema, "events", kind="handoff")
    assert [event["payload"]["to"] for event in handoffs] == ["refunds"]
    assert handoffs[0]["payload"]["from"] == "sales_agent"
    assert handoffs[0]["payload"]["reason"]["reason"] == "wants money"
    assert {span["status"] for span in rows(connection, schema, "spans")} == {"success"}
    (span,) = rows(connection, schema, "spans", kind="tool")
    assert span["tool_call_id"] == span["attributes"]["gen_ai.tool.call.id"] == "call-1"


def test_an_error_is_told_with_its_traceback(dsn: str, schema: str, connection: Connection) -> None:
    def breaks(state: MessagesState) -> Any:
        raise LookupError("nothing\0 there")

    with recording(dsn, schema) as (saver, recorder), pytest.raises(LookupError):
        recorder.record(simple(saver, breaks)).invoke(hello(), config())
    (run,) = rows(connection, schema, "runs")
    assert (run["status"], run["error_type"], run["error_message"]) == ("error", "LookupError", "nothing there")
    assert "in breaks" in run["error_traceback"]
    assert {span["error_type"] for span in rows(connection, schema, "spans")} == {"LookupError"}
    assert rows(connection, schema, "threads")[0]["status"] == "error"


def test_a_stream_that_is_left_early_is_cancelled(dsn: str, schema: str, connection: Connection) -> None:
    asked = model()

    def think(state: MessagesState) -> Any:
        return {"messages": [asked.invoke(state["messages"])]}

    def again(state: MessagesState) -> Any:
        return {"messages": [asked.invoke(state["messages"])]}

    with recording(dsn, schema) as (saver, recorder):
        stream = recorder.record(simple(saver, think, again)).stream(hello(), config(), stream_mode="messages")
        next(iter(stream))
        stream.close()
    assert rows(connection, schema, "runs")[0]["status"] == "cancelled"
    spans = rows(connection, schema, "spans")
    assert all(span["ended_at"] is not None for span in spans)
    said = next(span for span in spans if span["kind"] == "llm")
    assert said["attributes"]["gen_ai.response.time_to_first_chunk"] >= 0


def test_a_second_child_of_a_checkpoint_is_a_fork(dsn: str, schema: str, connection: Connection) -> None:
    def one(state: MessagesState) -> Any:
        return {"messages": [AIMessage("one")]}

    def two(state: MessagesState) -> Any:
        return {"messages": [AIMessage("two")]}

    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(simple(saver, one, two))
        graph.invoke(hello(), config())
        graph.invoke(hello(), config())
        graph.update_state(config(), {"messages": [AIMessage("from outside")]})
        assert rows(connection, schema, "events", kind="fork") == []
        past = next(state.config for state in graph.get_state_history(config()) if state.next == ("two",))
        graph.invoke(None, past)
        graph.update_state(past, {"messages": [AIMessage("otherwise")]})
    forks = rows(connection, schema, "events", kind="fork")
    assert [fork["payload"]["source"] for fork in forks] == ["fork", "update"]
    assert forks[0]["payload"]["from"] == past["configurable"]["checkpoint_id"]


def test_the_same_run_again_is_another_attempt(dsn: str, schema: str, connection: Connection) -> None:
    def work(state: MessagesState) -> Any:
        return {"messages": [AIMessage("done")]}

    with recording(dsn, schema) as (saver, recorder):
        graph = recorder.record(simple(saver, work))
        for _ in range(2):
            graph.invoke(hello(), {**config(), "metadata": {"run_id": "run-1"}})
        # Goes on, without an input of its own.
        graph.invoke(None, {**config(), "metadata": {"run_id": "run-1"}})
    (run,) = rows(connection, schema, "runs")
    assert (run["run_id"], run["attempt"], run["status"]) == ("run-1", 3, "success")
    assert run["input"]["messages"][0]["content"] == "hello"


def test_a_run_has_the_release_of_its_metadata_or_of_the_recorder(
    dsn: str, schema: str, connection: Connection
) -> None:
    def work(state: MessagesState) -> Any:
        return {"messages": [AIMessage("done")]}

    for release in (None, "2026.11"):
        with recording(dsn, schema, settings=RecorderSettings(release=release)) as (saver, recorder):
            graph = recorder.record(simple(saver, work))
            graph.invoke(hello(), config())
            graph.invoke(hello(), {**config(), "metadata": {"release": "2026.12"}})
    found = [run["release"] for run in sorted(rows(connection, schema, "runs"), key=lambda run: run["started_at"])]
    assert found == [None, "2026.12", "2026.11", "2026.12"]


def test_only_graphs_that_run_here_can_be_recorded(dsn: str, schema: str) -> None:
    with recording(dsn, schema) as (_, recorder):
        with pytest.raises(ConfigurationError, match="must run in this process"):
            recorder.record(RemoteGraph("agent", url="http://localhost:1"))
        with pytest.raises(ConfigurationError, match="compiled graph"):
            recorder.record(StateGraph(MessagesState))


async def test_the_asynchronous_recorder_does_the_same(dsn: str, schema: str, connection: Connection) -> None:
    async with recording_async(dsn, schema) as (saver, recorder):
        graph = recorder.record(agent_graph(saver))
        await graph.ainvoke(hello(), config(user_id="ann"))
        await recorder.flush()
        (run,) = rows(connection, schema, "runs")
        assert (run["status"], run["steps"], run["input_tokens"]) == ("interrupted", 3, 100)
        await graph.ainvoke(Command(resume="yes"), config())
    kinds = [event["kind"] for event in rows(connection, schema, "events")]
    assert kinds == ["status", "handoff", "interrupt", "status", "status", "resume", "status"]
    spans = rows(connection, schema, "spans")
    assert {span["kind"] for span in spans} == {"graph", "node", "tool", "llm", "chain"}
    assert all(span["ended_at"] is not None for span in spans)
    assert rows(connection, schema, "threads")[0]["status"] == "idle"


async def test_a_cancelled_run_is_cancelled(dsn: str, schema: str, connection: Connection) -> None:
    waiting = asyncio.Event()

    async def waits(state: MessagesState) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    async with recording_async(dsn, schema) as (saver, recorder):
        running = asyncio.create_task(recorder.record(simple(saver, waits)).ainvoke(hello(), config()))
        await waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert rows(connection, schema, "runs")[0]["status"] == "cancelled"
    assert {span["status"] for span in rows(connection, schema, "spans")} == {"cancelled"}


async def test_a_blocking_recorder_does_not_hold_up_a_loop(dsn: str, schema: str, connection: Connection) -> None:
    def work(state: MessagesState) -> Any:
        return {"messages": [AIMessage("done")]}

    with recording(dsn, schema) as (saver, recorder):
        await recorder.record(simple(saver, work)).ainvoke(hello(), config())
        recorder.flush()
        assert rows(connection, schema, "runs")[0]["status"] == "success"


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_") and callable(value)}


def test_both_recorders_take_the_same_arguments() -> None:
    blocking, suspending = public(Recorder), public(AsyncRecorder)
    # The blocking one is closed at exit as at any other time.
    del suspending["write_at_exit"]
    assert blocking.keys() - {"on_chain_end", "on_chain_error"} == suspending.keys()
    for name in suspending:
        assert [*inspect.signature(blocking[name]).parameters] == [*inspect.signature(suspending[name]).parameters]


def test_the_agent_of_a_thread_is_its_graph_also_after_an_update(dsn: str, schema: str, connection: Connection) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("plan", lambda state: {"messages": [AIMessage("so")]})
    builder.add_edge(START, "plan")
    # With edges that are functions, a change of the state is recorded as a run.
    builder.add_conditional_edges("plan", lambda state: END)
    with recording(dsn, schema) as (saver, recorder):
        for thread_id, name in (("named", "planner"), ("unnamed", None)):
            graph = recorder.record(builder.compile(checkpointer=saver, name=name))
            graph.invoke(hello(), config(thread_id))
            graph.update_state(config(thread_id), {"messages": ["more"]}, as_node="plan")
    for thread_id, name in (("named", "planner"), ("unnamed", None)):
        assert [one["agent"] for one in rows(connection, schema, "threads", thread_id=thread_id)] == [name]
        assert [one["agent"] for one in rows(connection, schema, "runs", thread_id=thread_id)] == [name, name]


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(
    "ids", [{"thread_id": "ann-1\0"}, {"thread_id": "ann-1\ud800"}, {"user_id": "ann\0"}, {"run_id": "r\0"}], ids=ascii
)
def test_an_id_that_cannot_be_stored_is_recorded_nowhere(
    dsn: str, schema: str, connection: Connection, ids: dict[str, str], saved: bool, bound: bool
) -> None:
    """Cleaned, it would be the id of another thread, user or run."""

    def nothing(state: MessagesState) -> Any:
        return {}

    with recording(dsn, schema) as (saver, recorder):
        plain = simple(saver if saved else None, nothing)
        given: Any = {"configurable": {"thread_id": "ann-1", **ids}, "metadata": {"thread_id": "ann-1", **ids}}
        if bound:
            with pytest.raises(ConfigurationError, match="NUL or a lone surrogate"):
                recorder.record(plain).invoke(hello(), given)
        else:
            refused = pytest.raises(ConfigurationError) if saved else nullcontext()
            with refused:
                plain.invoke(hello(), {**given, "callbacks": [recorder]})
    for table in ("runs", "spans", "events", "threads", "checkpoints", "journal"):
        assert rows(connection, schema, table) == []


def test_records_are_written_where_no_thread_can_be_started(
    dsn: str, schema: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the process exits, from Python 3.12 on."""

    def refuse(_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with recording(dsn, schema, RecorderSettings(interval=3600)) as (saver, recorder):
        monkeypatch.setattr(recorder, "_write_end", lambda run: None)
        monkeypatch.setattr(recorder, "_started", lambda: None)
        recorder.record(simple(saver, lambda state: {})).invoke(hello(), config())
        monkeypatch.undo()
        assert recorder._queue.has_news
        monkeypatch.setattr(threading.Thread, "start", refuse)
        recorder.close()
        monkeypatch.undo()
    assert rows(connection, schema, "runs")[0]["status"] == "success"


def test_a_flush_after_the_close_says_what_is_not_written(dsn: str, schema: str) -> None:
    with recording(dsn, schema) as (_, recorder):
        root, step = uuid.uuid4(), uuid.uuid4()
        recorder.on_chain_start({}, {}, run_id=root, metadata={"thread_id": "t"}, name="graph")
        recorder.on_chain_start({}, {}, run_id=step, parent_run_id=root, name="step")
        recorder.close()
        recorder.on_chain_end({}, run_id=step)
        with pytest.raises(PGStateError, match="1 spans and events are not written yet; the recorder is closed"):
            recorder.flush()
