"""Operations of memory as spans of the run that calls them."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from langgraph_pgstate import AsyncPGState, PGState, RecorderSettings
from langgraph_pgstate.errors import ConfigurationError

ANN: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}
STEPS = [
    ("upsert_memory", "hotel", None),
    ("search_memory", None, "river"),
    ("delete_memory", "hotel", None),
    ("upsert_memory", "home", None),
    ("search_memory", None, "where?"),
    ("delete_memory", "home", None),
]


def found(spans: Any, schema: str) -> list[tuple[Any, ...]]:
    assert {span.attributes["gen_ai.memory.store.id"] for span in spans} == {schema}
    assert all(span.name == span.attributes["gen_ai.operation.name"] and span.status == "success" for span in spans)
    return [(span.name, span.attributes.get("gen_ai.memory.record.id"), span.input) for span in spans]


@pytest.mark.parametrize("content", [True, False])
def test_what_a_recorded_run_does_with_memory_is_a_span(dsn: str, schema: str, content: bool) -> None:
    with PGState.open(dsn, schema=schema, recording=RecorderSettings(content=content)) as state:

        def node(_: MessagesState, *, store: BaseStore) -> Any:
            store.put(("a",), "hotel", {"text": "A river view"})
            store.search(("a",), query="river")
            store.delete(("a",), "hotel")
            state.memory.remember("Lives in Rome", key="home", user_id="ann")
            state.memory.recall("where?", user_id="ann")
            state.memory.forget("home", user_id="ann")
            with pytest.raises(ConfigurationError, match="importance"):
                state.memory.remember("x", user_id="ann", importance=7)
            return {}

        builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
        graph = builder.compile(checkpointer=state.saver, store=state.memory)
        graph.invoke({"messages": []}, ANN)
        assert not [span for span in state.spans.list(thread_id="t").items if span.kind == "memory"], (
            "it is not recorded"
        )
        state.record(graph).invoke({"messages": []}, ANN)
        spans = [span for span in state.spans.list(thread_id="t").items if span.kind == "memory"]
        assert spans.pop().status == "error"
        assert found(spans, schema) == [(name, key, query if content else None) for name, key, query in STEPS]
        assert {span.node for span in spans} == {"node"}


async def test_the_same_on_an_event_loop(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:

        async def node(_: MessagesState) -> Any:
            memory = state.memory
            await memory.aput(("a",), "hotel", {"text": "A river view"})
            await memory.asearch(("a",), query="river")
            await memory.adelete(("a",), "hotel")
            await memory.remember("Lives in Rome", key="home", user_id="ann")
            await memory.recall("where?", user_id="ann")
            await memory.forget("home", user_id="ann")
            return {}

        builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
        graph = state.record(builder.compile(checkpointer=state.saver, store=state.memory))
        await graph.ainvoke({"messages": []}, ANN)
        spans = [span for span in (await state.spans.list(thread_id="t")).items if span.kind == "memory"]
        assert found(spans, schema) == STEPS
