"""The state as JSON that a person edits, and what has been changed in it."""

from __future__ import annotations

import json
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_pgstate.inspector.editing import changes, editable


class Basket(TypedDict, total=False):
    """A state with reducers."""

    items: Annotated[list[str], operator.add]
    total: int
    messages: Annotated[list[Any], add_messages]


def test_what_is_too_large_is_left_out_and_named() -> None:
    text, left_out = editable({"large": "x" * 100_000, "small": 1, "messages": [HumanMessage("Hello", id="h")]})
    assert json.loads(text) == {"small": 1, "messages": [{"type": "human", "content": "Hello", "id": "h"}]}
    assert left_out == ["large"]


def test_lists_with_a_reducer_become_what_was_written() -> None:
    builder = StateGraph(Basket).add_node("buy", lambda state: {}).add_edge(START, "buy")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    said = [HumanMessage("Hello", id="h"), AIMessage("Hi", id="a")]
    graph.invoke({"items": ["tea", "milk"], "total": 2, "messages": said}, config)
    values = graph.get_state(config).values
    written = json.loads(editable(values)[0])
    assert changes(written, values, graph) == {}
    written["items"].remove("tea")
    written["messages"].pop()
    changed = changes(written, values, graph)
    assert changed.keys() == {"items", "messages"}
    graph.update_state(config, changed)
    assert graph.get_state(config).values == {"items": ["milk"], "total": 2, "messages": said[:1]}
    # Channels that were left out stay.
    assert changes({}, values, graph) == {}
