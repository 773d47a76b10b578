"""Memories that a function of the caller's extracts from runs that have ended, once for each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support import wait_until

from langgraph_pgstate import AsyncPGState, AsyncWorker, PGState, Worker
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory import extract_summaries, extraction

ANN: Any = {"configurable": {"user_id": "ann", "tenant_id": "acme"}}
FOLLOWED = {"chat": "extract"}


def chat() -> Any:
    builder = StateGraph(MessagesState).add_node("say", lambda _: {"messages": [AIMessage("Noted.")]})
    return builder.add_edge(START, "say").compile()


def said(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=f"said {text}")]}


def extract(messages: list[BaseMessage]) -> list[Any]:
    questions = [message for message in messages if isinstance(message, HumanMessage)]
    return [
        "Has talked to us.",
        *({"content": one.text, "kind": "interaction", "message_id": one.id, "key": one.text} for one in questions),
    ]


@pytest.mark.slow
def test_memories_of_a_run_are_extracted_after_it(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema) as state:
        graphs = {"chat": chat(), "extract": extraction(state, extract)}
        worker = Worker(state, graphs, followed_by=FOLLOWED)
        run = state.runs.enqueue("chat", said("I like tea"), thread_id="t", config=ANN)
        worker.run_until_idle()
        told = {one.content: one for one in state.memory.recall(user_id="ann", tenant_id="acme", limit=10)}
        assert told.keys() == {"Has talked to us.", "I like tea"}
        head = state.saver.get_tuple({"configurable": {"thread_id": "t"}})
        assert head is not None
        memory = told["I like tea"]
        assert (memory.thread_id, memory.run_id, memory.changed_by) == ("t", run.run_id, "extraction")
        assert memory.checkpoint_id == head.config["configurable"]["checkpoint_id"]
        assert (memory.kind, memory.message_id) == ("interaction", "said I like tea")
        state.flush()
        query = f"SELECT role, content FROM {schema}.memory_messages WHERE key = 'I like tea'"
        assert connection.execute(query.encode()).fetchall() == [("human", "I like tea")]
        assert [thread.thread_id for thread in state.threads.search().items] == ["t"], "an extraction's thread is left"
        # Again: nothing of this run, and of the next one what it says.
        again = {"thread_id": "t", "run_id": run.run_id}
        graph = extraction(state, lambda _: ["In other words."])
        graph.invoke(again)
        state.runs.enqueue("chat", said("And honey"), thread_id="t", config=ANN)
        worker = Worker(state, graphs, followed_by=FOLLOWED)
        worker.run_until_idle()
        found = {one.content: one.duplicates for one in state.memory.recall(user_id="ann", tenant_id="acme", limit=10)}
        assert found.keys() == {"Has talked to us.", "I like tea", "And honey"}


@pytest.mark.slow
def test_an_extraction_that_fails_midway_stores_nothing_twice(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the model asked again, which might say it in other words."""
    from langgraph_pgstate.memory.remembering import AsyncMemories

    tries: Counter[str] = Counter()
    remember = AsyncMemories.remember

    async def failing(self: Any, content: str, *args: Any, **options: Any) -> Any:
        tries[content] += 1
        if content == "second" and tries[content] == 1:
            raise ConnectionError("gone")
        return await remember(self, content, *args, **options)

    def extract(messages: list[BaseMessage]) -> list[str]:
        tries["extract"] += 1
        if tries["extract"] == 1:
            raise ConnectionError("the model is busy")
        return ["first", "second"]

    monkeypatch.setattr(AsyncMemories, "remember", failing)
    with PGState.open(dsn, schema=schema) as state:
        graphs = {"chat": chat(), "extract": extraction(state, extract)}
        state.runs.enqueue("chat", said("hello"), thread_id="t", config=ANN)
        with Worker(state, graphs, followed_by=FOLLOWED, poll=0.05):
            wait_until(lambda: len(state.memory.recall(user_id="ann", tenant_id="acme")) == 2, "both memories")
        assert {one.content: one.duplicates for one in state.memory.recall(user_id="ann", tenant_id="acme")} == {
            "first": 0,
            "second": 0,
        }
        assert tries == {"extract": 2, "first": 1, "second": 2}


@pytest.mark.slow
async def test_an_async_function_extracts_on_an_event_loop(dsn: str, schema: str) -> None:
    async def extract(messages: list[BaseMessage]) -> list[str]:
        return [messages[0].text]

    async with AsyncPGState.open(dsn, schema=schema) as state:
        for function in (extract, lambda messages: [messages[-1].text]):
            graphs = {"chat": chat(), "extract": extraction(state, function, max_messages=2)}
            await state.runs.enqueue("chat", said("I like tea"), config=ANN)
            await AsyncWorker(state, graphs, followed_by=FOLLOWED).run_until_idle()
        told = await state.memory.recall(user_id="ann", tenant_id="acme")
        assert {one.content for one in told} == {"I like tea", "Noted."}


def test_what_has_no_owner_or_no_sense_is_refused(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        graph = extraction(state, lambda _: [{"content": "x", "user_id": "bob"}])
        run = state.runs.enqueue("chat", said("hello"), thread_id="t")
        owned = state.runs.enqueue("chat", said("hello"), thread_id="u", config=ANN)
        Worker(state, {"chat": chat()}).run_until_idle()
        with pytest.raises(ConfigurationError, match="must have a user or a tenant"):
            graph.invoke({"thread_id": "t", "run_id": run.run_id})
        with pytest.raises(ConfigurationError, match="an extractor must return texts"):
            graph.invoke({"thread_id": "u", "run_id": owned.run_id})
        for wrong in ({"chat": "other"}, {"chat": "chat"}):
            with pytest.raises(ConfigurationError, match="followed_by"):
                Worker(state, {"chat": chat()}, followed_by=wrong)

        async def extract(messages: Any) -> Any: ...

        with pytest.raises(ConfigurationError, match="not async"):
            extraction(state, extract)
        saved = extraction(state, lambda _: ["x"]).copy(update={"checkpointer": state.saver})
        with pytest.raises(ConfigurationError, match="durability='sync'"):
            saved.invoke({"thread_id": "u", "run_id": owned.run_id}, {"configurable": {"thread_id": "other job"}})
        assert state.memory.recall(user_id="ann", tenant_id="acme") == []
        saved.invoke(
            {"thread_id": "u", "run_id": owned.run_id}, {"configurable": {"thread_id": "j"}}, durability="sync"
        )
        assert len(state.memory.recall(user_id="ann", tenant_id="acme")) == 1


@pytest.mark.slow
def test_summaries_of_langchains_middleware_are_kept_beside_the_history(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The middleware replaces messages of the state; the record and earlier checkpoints have them, and say so."""
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    answers = [AIMessage(text) for text in ("one", "two", "They counted.", "three")]
    model = models.GenericFakeChatModel(messages=iter(answers))
    shorten = middleware.SummarizationMiddleware(model, trigger=("messages", 5), keep=("messages", 1))
    with PGState.open(dsn, schema=schema) as state:
        graphs = {"chat": agents.create_agent(model, middleware=[shorten])}
        graphs["extract"] = extraction(state, extract_summaries)
        for text in ("first", "second", "third"):
            state.runs.enqueue("chat", said(text), thread_id="t", config=ANN)
            Worker(state, graphs, followed_by=FOLLOWED).run_until_idle()
        (summary,) = state.memory.recall(user_id="ann", tenant_id="acme", kinds=["summary"])
        assert "They counted." in summary.content
        shown = state.messages.window("t")
        assert [message.text for message in shown] == [summary.content, "third", "three"]
        assert (summary.thread_id, summary.message_id) == ("t", shown[0].id)
        assert len(state.messages.search("first OR second", thread_id="t").items) >= 2
        query = f"SELECT thread_id, content FROM {schema}.summaries"
        assert connection.execute(query.encode()).fetchall() == [("t", summary.content)]
