"""Long results of tools: masked for the model, read by reference, on the run's own thread only."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from support import config_of

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.tools import MaskResults, ToolSettings, mask_results, read_result_tool

LONG = "first\n" + "".join(f"line {number}\n" for number in range(5000)) + "last"


@tool
def fetch(n: int) -> str:
    """Fetch a page."""
    return LONG


def calls(name: str, id: str, **args: Any) -> dict[str, Any]:
    return {"messages": [AIMessage("", tool_calls=[{"name": name, "args": args, "id": id}])]}


def graph_of(state: PGState | AsyncPGState) -> Any:
    is_async = isinstance(state, AsyncPGState)
    given: Any = {"awrap_tool_call" if is_async else "wrap_tool_call": state.tools}
    node = ToolNode([fetch, read_result_tool(state)], **given)
    builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    return builder.compile(checkpointer=state.saver)


def read(graph: Any, thread_id: str, reference: str, **args: Any) -> str:
    given = calls("read_result", f"read {reference} {args}", reference=reference, **args)
    return str(graph.invoke(given, config_of(thread_id))["messages"][-1].content)


def test_a_long_result_has_beginning_end_and_reference() -> None:
    image = {"type": "image", "url": "https://example.org/x.png"}
    messages: list[Any] = [
        HumanMessage(LONG, id="h"),
        AIMessage(LONG, id="a"),
        ToolMessage("short", tool_call_id="1", id="short"),
        ToolMessage(LONG, tool_call_id="2", id="long", name="fetch"),
        ToolMessage([{"type": "text", "text": LONG}, image], tool_call_id="3", artifact={"kept": 1}),
        ToolMessage(LONG, tool_call_id="4", id="read", name="read_result"),
    ]
    before = [message.model_copy(deep=True) for message in messages]
    found = mask_results(messages)
    assert messages == before, "an argument was changed"
    assert [found[place] for place in (0, 1, 2, 5)] == [messages[place] for place in (0, 1, 2, 5)]
    masked = found[3]
    assert isinstance(masked.content, str)
    assert masked.content.startswith("first\nline 0\n")
    assert masked.content.endswith("line 4999\nlast")
    assert "read_result returns them for the reference long]" in masked.content
    assert 500 < count_tokens_approximately([masked]) < 700
    assert "reference 3]" in found[4].content[0]["text"]  # type: ignore[index]
    assert found[4].content[1:] == [image]
    assert mask_results(found) == found
    assert mask_results(messages, except_tools=["fetch"])[3] == messages[3]
    assert mask_results(messages, above=10**6) == messages
    edited = [*messages]
    MaskResults(above=100, head=50, tail=0).apply(edited, count_tokens=count_tokens_approximately)
    assert len(edited[3].content) < 400
    assert edited[5] == messages[5]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"above": -1}, "above must be a whole number"),
        ({"above": 100}, "tail must be at most `above`"),
        ({"except_tools": "fetch"}, "except_tools must be a list"),
        ({"limit": 1}, "has no option 'limit'"),
    ],
)
def test_options_that_say_nothing_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        mask_results([], **wrong)


@pytest.mark.slow
def test_a_model_reads_what_was_left_out(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        graph = graph_of(state)
        result = graph.invoke(calls("fetch", "c1", n=1), config_of("t"))["messages"][-1]
        assert result.content == LONG, "the checkpoint has the whole"
        assert read(graph, "t", result.id, limit=10).startswith("first\nline\n[characters 0 to 10 of")
        assert read(graph, "t", "c1", offset=len(LONG) - 4, limit=10**9).startswith("last\n[characters")
        second = read(graph, "t", result.id, offset=10, limit=4)
        assert second == f" 0\nl\n[characters 10 to 14 of {len(LONG):,}; read on with offset=14]"
        found = read(graph, "t", result.id, search="LINE 4321\n")
        assert found.startswith("[at character ")
        assert "line 4320\nline 4321\nline 4322" in found
        assert "the first 20 of" in read(graph, "t", result.id, search="line")
        assert "is not in the result" in read(graph, "t", result.id, search="motel")
        assert "has no result 'c2'" in read(graph, "t", "c2")


@pytest.mark.slow
async def test_a_reference_opens_results_of_the_runs_own_thread_only(dsn: str, schema: str) -> None:
    """Also those that the ledger has kept out of the state, and in a fork."""
    settings = ToolSettings(result_limit=1000)
    async with AsyncPGState.open(dsn, schema=schema, tools=settings) as state:
        graph = graph_of(state)

        async def ask(thread_id: str, reference: str) -> str:
            given = calls("read_result", f"read {reference}", reference=reference, limit=20)
            return str((await graph.ainvoke(given, config_of(thread_id)))["messages"][-1].content)

        result = (await graph.ainvoke(calls("fetch", "c1", n=1), config_of("ann")))["messages"][-1]
        reference = result.content.rpartition(" ")[2].rstrip("]")
        assert reference == "pgstate:tool/ann/c1"
        assert (await ask("ann", reference)).startswith("first\nline 0\n")
        assert await ask("bob", reference) == f"this conversation has no result {reference!r}"
        assert "no result" in await ask("bob", "c1")
        assert "no result" in await ask("bob", result.id)
        await state.threads.fork(
            "ann", (await graph.aget_state(config_of("ann"))).config["configurable"]["checkpoint_id"], to="fork"
        )
        assert (await ask("fork", reference)).startswith("first\nline 0\n")


def test_what_a_model_reads_is_not_kept_out_of_the_state_again(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, tools=ToolSettings(result_limit=1000)) as state:
        given = calls("read_result", "c2", reference="pgstate:tool/t/c1", offset=4000)
        tools = ToolNode([fetch, read_result_tool(state)], wrap_tool_call=state.tools)
        builder = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools")
        graph = builder.compile(checkpointer=state.saver)
        graph.invoke(calls("fetch", "c1", n=1), config_of("t"))
        whole = str(state.tools.result("pgstate:tool/t/c1").content)
        shown = str(graph.invoke(given, config_of("t"))["messages"][-1].content)
        assert shown.startswith(f"{whole[4000:8000]}\n[characters 4,000 to 8,000 of ")


def test_without_a_ledger_it_reads_the_state(dsn: str, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="must be given a state or its ledger"):
        read_result_tool(7)
    with PGState.open(dsn, schema=schema) as state:
        builder = StateGraph(MessagesState).add_node("tools", ToolNode([read_result_tool()]))
        graph = builder.add_edge(START, "tools").compile(checkpointer=state.saver)
        graph.update_state(config_of("t"), {"messages": [ToolMessage(LONG, tool_call_id="1", id="m")]})
        assert read(graph, "t", "m", limit=5).startswith("first\n[")
        assert "no result" in read(graph, "t", "pgstate:tool/t/1")


def test_edits_work_in_langchains_middleware() -> None:
    """A result that is masked for the model stays whole in the state."""
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    seen: list[list[Any]] = []

    class Model(models.GenericFakeChatModel):  # type: ignore[name-defined,misc]
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
            seen.append(messages)
            return super()._generate(messages, *args, **options)

    answers = [calls("fetch", "c1", n=1)["messages"][0], AIMessage("done")]
    edits = middleware.ContextEditingMiddleware(edits=[MaskResults()])
    agent = agents.create_agent(Model(messages=iter(answers)), [fetch, read_result_tool()], middleware=[edits])
    found = agent.invoke({"messages": [HumanMessage("hello")]})["messages"]
    assert found[2].content == LONG
    assert "read_result returns them" in seen[1][2].content
