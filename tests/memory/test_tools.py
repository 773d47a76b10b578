"""Tools of memory: for the run's user, whomever the model names."""

from __future__ import annotations

import json
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send
from psycopg import sql
from support import spread
from typing_extensions import TypedDict

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory import memory_tools

ANN: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    tool_calls = [{"name": name, "args": args, "id": f"c{n}"} for n, (name, args) in enumerate(made)]
    return {"messages": [HumanMessage("hello", id="said"), AIMessage("", tool_calls=tool_calls)]}


def graph_of(state: PGState | AsyncPGState) -> Any:
    node = ToolNode(memory_tools(state))
    builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    return builder.compile(checkpointer=state.saver, store=state.memory)


def said(found: dict[str, Any]) -> list[str]:
    return [str(one.content) for one in found["messages"] if isinstance(one, ToolMessage)]


def test_a_model_reaches_the_memories_of_the_runs_user_only(dsn: str, schema: str) -> None:
    """Whatever it passes: of the server's user before that of the client, too."""
    with PGState.open(dsn, schema=schema) as state:
        state.memory.remember("The code is 1234", user_id="bob")
        for tool in memory_tools(state):
            assert (
                not {"user_id", "tenant_id", "agent", "namespace", "runtime"}
                & tool.tool_call_schema.model_json_schema()["properties"].keys()
            )  # type: ignore[union-attr]
        graph = graph_of(state)
        others = {"user_id": "bob", "namespace": ["memories", "user", "bob"], "runtime": {"config": {}}}
        found = graph.invoke(
            calls(
                ("remember", {"content": "Likes tea", "key": "drink", **others}),
                ("remember", {"content": "x", "importance": 7}),
            ),
            ANN,
        )
        first, second = said(found)
        assert first == "remembered as drink"
        assert "importance must be" in second
        (memory,) = state.memory.recall(user_id="ann")
        assert (memory.message_id, memory.thread_id, memory.changed_by) == ("said", "t", "ann")
        assert memory.checkpoint_id is not None
        server = {"thread_id": "u", "user_id": "bob", "tenant_id": "other", "langgraph_auth_user_id": "ann"}
        bobs = state.memory.recall(user_id="bob")[0].key

        def call(name: str, **args: Any) -> str:
            # Calls of one message run at once.
            return said(graph.invoke(calls((name, {**args, **others})), {"configurable": server}))[-1]

        shown, _, gone = call("recall", query="code tea"), call("forget", key=bobs), call("forget", key="drink")
        assert [one["content"] for one in json.loads(shown)] == ["Likes tea"]
        assert gone == "forgotten"
        assert len(state.memory.recall(user_id="bob")) == 1
        with pytest.raises(ConfigurationError, match="require the run's user"):
            graph.invoke(calls(("recall", {"query": "a"})), {"configurable": {"thread_id": "v"}})


@pytest.mark.parametrize("user", ["ann", "*", "ann@example.com"])
def test_what_recall_shows_is_forgotten_whichever_agent_has_stored_it(dsn: str, schema: str, user: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        for one in (user, "other"):
            state.memory.remember("Likes tea", key="drink", user_id=one, agent="planner")
        graph, config = graph_of(state), {"configurable": {"thread_id": "t", "user_id": user}}
        (shown,) = said(graph.invoke(calls(("recall", {"query": "tea"})), config))
        assert [one["key"] for one in json.loads(shown)] == ["drink"]
        assert "holds NUL" in said(graph.invoke(calls(("forget", {"key": "\0"})), config))[-1]
        assert said(graph.invoke(calls(("forget", {"key": "drink"})), config))[-1] == "forgotten"
        assert [one.user_id for one in state.memory.recall()] == ["other"]


def sent(form: str) -> Any:
    """A graph whose calls are each sent to the tools, in one of the forms in which agents send them."""
    messages = "chat" if form == "channel" else "messages"
    schema: Any = TypedDict("schema", {messages: Annotated[list[Any], add_messages]})  # type: ignore[misc]

    def ask(state: Any) -> Any:
        call = {"type": "tool_call", "name": "remember", "args": {"content": "Likes tea"}, "id": "c"}
        return {messages: [AIMessage("", id="asked", tool_calls=[call])]}

    def send(state: Any) -> list[Send]:
        last = state[messages][-1]
        given: dict[str, Any] = {
            "call": last.tool_calls,
            "context": {"__type": "tool_call_with_context", "tool_call": last.tool_calls[0], "state": state},
            "message": {messages: [last]},
            "channel": {messages: [last]},
        }
        return [Send("tools", given[form])]

    def build(state: PGState) -> Any:
        node = ToolNode(memory_tools(state), messages_key=messages)
        builder = StateGraph(schema).add_node("ask", ask).add_node("tools", node).add_edge(START, "ask")
        return builder.add_conditional_edges("ask", send, ["tools"]).compile(checkpointer=state.saver)

    return messages, build


@pytest.mark.parametrize("form", spread(["call", "context", "message", "channel"]))
def test_what_a_sent_call_remembers_leads_to_its_message(
    dsn: str, schema: str, connection: psycopg.Connection, form: str
) -> None:
    messages, build = sent(form)
    with PGState.open(dsn, schema=schema) as state:
        graph = state.record(build(state))
        graph.invoke({messages: [HumanMessage("I like tea", id="said")]}, ANN)
        graph.invoke({messages: []}, {"configurable": {"thread_id": "alone", "user_id": "bob"}})
        (memory,), (other,) = (state.memory.recall(user_id=user) for user in ("ann", "bob"))
        assert (memory.message_id, memory.thread_id, memory.checkpoint_id is None) == ("said", "t", False)
        assert (other.message_id, other.thread_id) == ("asked", "alone")
    query = sql.SQL("SELECT user_id, content FROM {}.memory_messages ORDER BY user_id").format(sql.Identifier(schema))
    assert connection.execute(query).fetchall() == [("ann", "I like tea"), ("bob", "")]


async def test_the_tools_work_on_an_event_loop(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        found = await graph_of(state).ainvoke(calls(("remember", {"content": "Likes tea"})), ANN)
        assert said(found)[0].startswith("remembered as ")
        assert len(await state.memory.recall(user_id="ann")) == 1


def test_deepagents_own_backend_works_on_the_store(dsn: str, schema: str) -> None:
    backends = pytest.importorskip("deepagents.backends")
    with PGState.open(dsn, schema=schema) as state:
        backend = backends.StoreBackend(store=state.memory, namespace=lambda runtime: ("files", "ann"))
        assert backend.write("/notes/plan.md", "1. Book\n2. Pack\n").error is None
        assert backend.edit("/notes/plan.md", "Book", "Book a van").error is None
        assert "Book a van" in str(backend.read("/notes/plan.md"))
        assert [one["path"] for one in backend.ls("/notes").entries] == ["/notes/plan.md"]
        assert [one["path"] for one in backend.glob("**/*.md").matches] == ["/notes/plan.md"]
        assert [one["line"] for one in backend.grep("Pack").matches] == [2]
        assert len(state.memory.history(("files", "ann"), "/notes/plan.md")) == 2


def test_langmem_and_create_agent_work_on_the_store(dsn: str, schema: str) -> None:
    langmem = pytest.importorskip("langmem")
    agents = pytest.importorskip("langchain.agents")
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")

    class Model(models.GenericFakeChatModel):  # type: ignore[name-defined,misc]
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    def call(name: str, args: dict[str, Any]) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

    with PGState.open(dsn, schema=schema) as state:
        namespace = ("langmem", "{user_id}")
        tools = [
            langmem.create_manage_memory_tool(namespace=namespace, store=state.memory),
            langmem.create_search_memory_tool(namespace=namespace, store=state.memory),
            *memory_tools(state),
        ]
        answers = [
            call("manage_memory", {"action": "create", "content": "Likes tea"}),
            call("search_memory", {"query": "tea"}),
            call("remember", {"content": "Lives in Rome"}),
            AIMessage("done"),
        ]
        agent = agents.create_agent(Model(messages=iter(answers)), tools, checkpointer=state.saver, store=state.memory)
        found = agent.invoke({"messages": [HumanMessage("hello")]}, ANN)
        assert "Likes tea" in said(found)[1]
        assert [item.value["content"] for item in state.memory.search(("langmem", "ann"))] == ["Likes tea"]
        assert [one.content for one in state.memory.recall(user_id="ann")] == ["Lives in Rome"]
