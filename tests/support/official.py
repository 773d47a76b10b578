"""LangGraph's own PostgreSQL saver in its own schema, and graphs that make every kind of thread."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from psycopg.rows import dict_row

from support.samples import exact_tuple


@contextmanager
def official_saver(dsn: str, schema: str, *, setup: bool = True) -> Iterator[PostgresSaver]:
    """Provide the official saver with its tables in `schema`."""
    with psycopg.connect(
        dsn, autocommit=True, prepare_threshold=0, row_factory=dict_row, options=f"-c search_path={schema}"
    ) as connection:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        saver = PostgresSaver(connection)
        if setup:
            saver.setup()
        yield saver


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    turn: int
    nothing: str | None
    ratio: float
    flag: bool
    raw: bytes
    numbers: Annotated[list[int], operator.add]
    profile: dict[str, Any]


def chat_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a chat that also edits and removes messages, and keeps values of every kind."""

    def answer(state: Chat) -> dict[str, Any]:
        turn = state.get("turn", 0) + 1
        changes: list[Any] = [AIMessage(f"answer {turn} " * 20, id=f"a{turn}")]
        if turn == 4:
            changes.append(HumanMessage("edited", id="h1"))
        if turn == 6:
            changes.append(RemoveMessage(id="a2"))
        return {
            "messages": changes,
            "turn": turn,
            "nothing": None,
            "ratio": turn / 3,
            "flag": turn % 2 == 0,
            "raw": b"\0\xff" * turn,
            "numbers": list(range(turn)),
            "profile": {"name": "x" * 300, "turn": turn, "tags": {"a", "b"}},
        }

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def talk(saver: BaseCheckpointSaver[str], thread_id: str, turns: int, start: int = 1) -> None:
    """Return some turns of the chat."""
    graph = chat_graph(saver)
    for turn in range(start, start + turns):
        config = {"configurable": {"thread_id": thread_id, "user_id": "u1"}, "metadata": {"run_id": f"run-{turn}"}}
        graph.invoke({"messages": [HumanMessage(f"question {turn} " * 20, id=f"h{turn}")]}, config)


class Asking(TypedDict, total=False):
    answers: Annotated[list[str], operator.add]
    jobs: list[str]


def asking_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Three parallel tasks, made by `Send`, each of which waits for a person."""

    def ask(job: str) -> Asking:
        return {"answers": [f"{job}: {interrupt(job)}"]}

    builder = StateGraph(Asking)
    builder.add_node("plan", lambda state: {"jobs": ["a", "b", "c"]})
    builder.add_node("ask", ask)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("ask", job) for job in state["jobs"]], ["ask"])
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def answer_one(saver: BaseCheckpointSaver[str], thread_id: str) -> None:
    """Answer the first open question of the thread, and leave the others open."""
    graph = asking_graph(saver)
    config = {"configurable": {"thread_id": thread_id}}
    graph.invoke(Command(resume={graph.get_state(config).interrupts[0].id: "yes"}), config)


class Inner(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]


def nested_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a graph that calls one subgraph, and has another with a memory of its own."""

    def subgraph(name: str, **options: Any) -> Any:
        builder = StateGraph(Inner)
        builder.add_node(name, lambda state: {"notes": [f"{name} {len(state.get('notes', []))} " * 20]})
        builder.add_edge(START, name)
        return builder.compile(**options)

    builder = StateGraph(Inner)
    builder.add_node("called", subgraph("once"))
    builder.add_node("lasting", subgraph("always", checkpointer=True))
    builder.add_edge(START, "called")
    builder.add_edge("called", "lasting")
    return builder.compile(checkpointer=saver)


def extend(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    """Return a reducer of a DeltaChannel."""
    return [*(state or []), *(item for write in writes for item in write)]


class Log(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]


def delta_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a graph whose only channel stores what was added, and a snapshot every fourth time."""
    builder = StateGraph(Log)
    builder.add_node("add", lambda state: {"log": [f"entry {len(state.get('log', []))} " * 20]})
    builder.add_edge(START, "add")
    return builder.compile(checkpointer=saver)


@dataclass
class Account:
    """A type that no serializer allows unless it is told to."""

    number: int
    built: bool = False

    def __post_init__(self) -> None:
        Account.constructed += 1

    constructed = 0


def fill(saver: BaseCheckpointSaver[str]) -> list[str]:
    """Make one thread of every kind, and return their ids."""
    talk(saver, "chat", 8)
    graph = chat_graph(saver)
    history = list(graph.get_state_history({"configurable": {"thread_id": "chat"}}))
    fork = graph.update_state(history[9].config, {"messages": [HumanMessage("another way", id="fork")]})
    graph.invoke(None, fork)
    graph.invoke({"messages": [HumanMessage("and on", id="on")]}, {"configurable": {"thread_id": "chat"}})

    asking_graph(saver).invoke({"answers": []}, {"configurable": {"thread_id": "asking"}})
    answer_one(saver, "asking")

    for _ in range(3):
        nested_graph(saver).invoke({"notes": ["start"]}, {"configurable": {"thread_id": "nested"}})
    for number in range(7):
        delta_graph(saver).invoke({"log": [f"said {number}"]}, {"configurable": {"thread_id": "delta"}})

    # Writes without a checkpoint, as a killed run with async durability leaves them.
    lost = {"configurable": {"thread_id": "lost", "checkpoint_ns": "", "checkpoint_id": "1f000000-lost"}}
    saver.put_writes(lost, [("messages", "late"), ("turn", 1)], "task", "~path")
    saver.put_writes(lost, [("__interrupt__", "why")], "task", "~path")
    return ["asking", "chat", "delta", "lost", "nested"]


def assert_same_answers(one: BaseCheckpointSaver[str], other: BaseCheckpointSaver[str], thread_id: str) -> int:
    """Compare all data of a thread in two savers, and return the number of checkpoints."""
    config = {"configurable": {"thread_id": thread_id}}
    listed = list(one.list(config))
    # Checkpoints of two namespaces may have one id. Their order is then undefined.
    in_order = [(found.config["configurable"]["checkpoint_id"], repr(found.config)) for found in listed]
    theirs = [(found.config["configurable"]["checkpoint_id"], repr(found.config)) for found in other.list(config)]
    assert sorted(in_order) == sorted(theirs)
    assert [id for id, _ in in_order] == [id for id, _ in theirs]
    for found in listed:
        assert exact_tuple(other.get_tuple(found.config)) == exact_tuple(one.get_tuple(found.config))
    by_id = {repr(found.config): exact_tuple(found) for found in listed}
    assert {repr(found.config): exact_tuple(found) for found in other.list(config)} == by_id
    for namespace in {found.config["configurable"]["checkpoint_ns"] for found in listed}:
        latest = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
        assert exact_tuple(other.get_tuple(latest)) == exact_tuple(one.get_tuple(latest))
        for found in listed:
            in_namespace = found.config["configurable"]["checkpoint_ns"] == namespace
            if in_namespace and "log" in found.checkpoint["channel_versions"]:
                history = {"config": found.config, "channels": ["log"]}
                assert repr(other.get_delta_channel_history(**history)) == repr(
                    one.get_delta_channel_history(**history)
                )
    return len(listed)
