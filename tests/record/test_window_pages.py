"""Windows of threads: of the messages in their states, read from the ends."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from support import config_of

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.record import window

KEEP = ("system", "first_human", "last_human", "last")


class Delta(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=100)]


def graph_of(state: PGState | AsyncPGState, kind: type = MessagesState) -> Any:
    builder = StateGraph(kind).add_node("node", lambda _: {}).add_edge(START, "node")
    return state.record(builder.compile(checkpointer=state.saver))


def turn(number: int, size: int = 200) -> list[BaseMessage]:
    call = {"name": "f", "args": {}, "id": f"call {number}"}
    return [
        HumanMessage(f"question {number}", id=f"q{number}"),
        AIMessage("", tool_calls=[call], id=f"c{number}"),
        ToolMessage("x" * size, tool_call_id=call["id"], id=f"r{number}"),
        AIMessage(
            [{"type": "text", "text": f"answer {number}"}, {"type": "image_url", "image_url": "…"}], id=f"a{number}"
        ),
    ]


@pytest.mark.slow
def test_a_window_reads_no_more_of_a_long_thread_than_it_shows(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """What lies between is deleted here, so that reading it would fail."""
    config: Any = config_of("t")
    with PGState.open(dsn, schema=schema) as state:
        graph = graph_of(state)
        graph.update_state(config, {"messages": [SystemMessage("Be brief.", id="s")]})
        for number in range(50):
            graph.update_state(config, {"messages": turn(number, 9000)})
        messages = graph.get_state(config).values["messages"]
    query = f"SELECT segment_ids FROM {schema}.checkpoints WHERE thread_id = 't' ORDER BY checkpoint_id DESC LIMIT 1"
    [(ids,)] = connection.execute(query.encode()).fetchall()
    gone = ids[5:-30]
    assert len(gone) > 10
    connection.execute(f"DELETE FROM {schema}.segments WHERE segment_id = ANY(%s)".encode(), [gone])
    with PGState.open(dsn, schema=schema) as state:
        with pytest.raises(Exception, match="is missing"):
            state.saver.get_tuple(config)
        found = state.messages.window("t", max_tokens=20_000, keep=KEEP)
        assert found == window(messages, max_tokens=20_000, keep=KEEP)
        assert [message.id for message in found[:2]] == ["s", "q0"]
        assert state.messages.window("t", max_messages=3) == [messages[0], messages[-4], messages[-1]]
        with pytest.raises(Exception, match="is missing"):
            state.messages.window("t")


@pytest.mark.parametrize("kind", [MessagesState, Delta])
async def test_a_window_is_of_the_state_whatever_holds_it(dsn: str, schema: str, kind: type) -> None:
    config: Any = config_of("t")
    async with AsyncPGState.open(dsn, schema=schema) as state:
        assert await state.messages.window("t") == []
        graph = graph_of(state, kind)
        for number in range(5):
            await graph.ainvoke({"messages": turn(number)}, config)
            if number == 3:
                middle = (await graph.aget_state(config)).config["configurable"]["checkpoint_id"]
        await graph.ainvoke({"messages": [RemoveMessage("q1"), HumanMessage("edited", id="q3")]}, config)
        messages = (await graph.aget_state(config)).values["messages"]
        assert len(messages) == 19
        assert await state.messages.window("t") == messages
        assert await state.messages.window("t", max_tokens=300) == window(messages, max_tokens=300)
        before = await state.messages.window("t", checkpoint_id=middle, max_messages=2)
        assert [message.id for message in before] == ["q3", "a3"]
        with pytest.raises(NotFoundError):
            await state.messages.window("t", checkpoint_id="00000000-0000-6000-8000-000000000000")


def test_a_window_upcasts_as_the_saver_does(dsn: str, schema: str) -> None:
    config: Any = config_of("t")
    with PGState.open(dsn, schema=schema) as state:
        graph_of(state).update_state(config, {"messages": turn(1)})

    def shout(values: Any) -> Any:
        return {**values, "messages": [HumanMessage("WHAT?", id="q1"), *values["messages"][1:]]}

    with PGState.open(dsn, schema=schema, state_version=2, upcasters={2: shout}) as state:
        assert state.messages.window("t")[0].content == "WHAT?"


def test_what_holds_no_messages_is_refused(dsn: str, schema: str) -> None:
    class Odd(TypedDict):
        messages: list
        note: str

    config: Any = config_of("t")
    with PGState.open(dsn, schema=schema) as state:
        graph_of(state, Odd).update_state(config, {"messages": ["hello"], "note": "n"})
        for channel in ("messages", "note"):
            with pytest.raises(ConfigurationError, match="must be a list of messages"):
                state.messages.window("t", channel=channel)
        assert state.messages.window("t", channel="other") == []
