"""Every chat message once, in SQL: added, edited, removed, taken over from subgraphs, never without its checkpoint."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, interrupt
from support import APIS, config_of, counted, invoke, move_journal, open_saver, put_arguments, usual

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.checkpoints.hooks import PutHooks
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.errors import ConflictError
from langgraph_pgstate.record.message_hook import MessageHook
from langgraph_pgstate.schema.queries import Statement


class Row(NamedTuple):
    """What the tests look at of a row."""

    message_id: str
    change: str
    position: int
    content: str | None
    namespace: str


def rows(connection: psycopg.Connection, schema: str, where: str = "true") -> list[Row]:
    move_journal(connection, schema)
    found = connection.execute(
        f"SELECT message_id, change, position, content, checkpoint_ns FROM {schema}.messages "
        f"WHERE {where} ORDER BY checkpoint_id, position, message_id, change"
    ).fetchall()
    return [Row(*row) for row in found]


def changes(connection: psycopg.Connection, schema: str, where: str = "true") -> list[tuple[str, str]]:
    return [(row.message_id, row.change) for row in rows(connection, schema, where)]


def message_hook() -> MessageHook:
    return MessageHook()


@pytest.fixture
def kept(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[PGStateSaver]:
    """A blocking saver that keeps messages."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=message_hook()) as other:
        yield other


def put_messages(saver: PGStateSaver, config: Any, step: int, messages: Sequence[Any], **others: Any) -> Any:
    return saver.put(*put_arguments(config, step, messages=list(messages), **others))


def human(*ids: str) -> list[BaseMessage]:
    return [HumanMessage(f"text of {id}", id=id) for id in ids]


def chat_graph() -> StateGraph[Any, Any, Any, Any]:
    """Answers the last message; its messages have ids that count."""

    def answer(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"re: {last.content}", id=f"ai-{last.id}", name="bot")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_is_there_message_by_message(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, hook=message_hook()) as saver:
        graph = chat_graph().compile(checkpointer=saver)
        for turn in range(5):
            await invoke(graph, saver, {"messages": [HumanMessage(f"hi {turn}", id=f"h{turn}")]}, config_of("t"))
    expected = [row for turn in range(5) for row in (f"h{turn}", f"ai-h{turn}")]
    assert changes(connection, schema) == [(id, "added") for id in expected]
    assert [row.position for row in rows(connection, schema)] == list(range(10))
    assert connection.execute(
        f"SELECT role, agent, content, channel FROM {schema}.messages WHERE message_id = 'ai-h3'"
    ).fetchone() == ("ai", "bot", "re: hi 3", "messages")
    orphans = connection.execute(
        f"SELECT count(*) FROM {schema}.messages m WHERE NOT EXISTS (SELECT 1 FROM {schema}.checkpoints c "
        "WHERE c.checkpoint_id = m.checkpoint_id AND c.thread_id = m.thread_id AND c.checkpoint_ns = m.checkpoint_ns)"
    ).fetchone()
    assert orphans == (0,)


def test_all_that_a_message_says_has_a_column(kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    call = {"name": "add", "args": {"a": 1, "b": [float("nan"), "\0"]}, "id": "call-1"}
    messages = [
        SystemMessage([{"type": "text", "text": "be"}, {"type": "image_url", "image_url": "x"}, "kind"], id="s"),
        AIMessage("", id="a", tool_calls=[call], usage_metadata=usage, name="bot"),  # type: ignore[list-item]
        ToolMessage("3\0\ud800", id="t", tool_call_id="call-1", name="add"),
    ]
    arguments = put_arguments(config_of("t"), 0, messages=messages)
    arguments[2]["run_id"] = "run-7"  # type: ignore[typeddict-unknown-key, unused-ignore]
    kept.put(*arguments)
    move_journal(connection, schema)
    found = connection.execute(
        f"SELECT role, agent, content, tool_calls, tool_call_id, input_tokens, output_tokens, run_id "
        f"FROM {schema}.messages ORDER BY position"
    ).fetchall()
    calls = [{"name": "add", "args": {"a": 1, "b": [None, ""]}, "id": "call-1"}]
    assert found == [
        ("system", None, "be\nkind", None, None, None, None, "run-7"),
        ("ai", "bot", "", calls, None, 7, 3, "run-7"),
        ("tool", "add", "3?", None, "call-1", None, None, "run-7"),
    ]


@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_edits_and_removals_are_rows_of_their_own(
    is_cold: bool, dsn: str, schema: str, kept: PGStateSaver, connection: psycopg.Connection
) -> None:
    """With a cache that knows the parent, and in a process that has seen nothing."""

    def put(config: Any, step: int, messages: Sequence[Any]) -> Any:
        if not is_cold:
            return put_messages(kept, config, step, messages)
        with PGStateSaver.from_conn_string(dsn, schema=schema, pool=False, hook=message_hook()) as other:
            return put_messages(other, config, step, messages)

    a, b, c, d = human("a", "b", "c", "d")
    config = put(config_of("t"), 0, [a, b, c])
    config = put(config, 1, [a, HumanMessage("other", id="b"), c])
    config = put(config, 2, [a, c, d])
    config = put(config, 3, [a, c, d])
    config = put(config, 4, [])
    put(config, 5, [b])
    assert [row[:4] for row in rows(connection, schema)] == [
        ("a", "added", 0, "text of a"),
        ("b", "added", 1, "text of b"),
        ("c", "added", 2, "text of c"),
        ("b", "edited", 1, "other"),
        ("b", "removed", 1, None),
        ("d", "added", 2, "text of d"),
        ("a", "removed", 0, None),
        ("c", "removed", 2, None),
        ("d", "removed", 2, None),
        ("b", "added", 0, "text of b"),
    ]


@pytest.mark.parametrize("api", APIS)
async def test_langgraphs_own_ways_to_remove_and_edit(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, hook=message_hook()) as saver:
        graph = chat_graph().compile(checkpointer=saver)
        config: Any = config_of("t")
        await invoke(graph, saver, {"messages": human("a", "b")}, config)
        update = graph.aupdate_state
        await update(config, {"messages": [RemoveMessage(id="a"), HumanMessage("changed", id="b")]}, as_node="answer")
        assert changes(connection, schema) == [
            ("a", "added"),
            ("b", "added"),
            ("ai-b", "added"),
            ("a", "removed"),
            ("b", "edited"),
        ]
        await update(config, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}, as_node="answer")
        assert changes(connection, schema)[5:] == [("b", "removed"), ("ai-b", "removed")]


def test_a_message_mutated_in_place_is_an_edit(kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    messages = human("a", "b")
    config = put_messages(kept, config_of("t"), 0, messages)
    messages[0].content = "mutated"
    messages.append(HumanMessage("more", id="c"))
    put_messages(kept, config, 1, messages)
    assert [row[:4] for row in rows(connection, schema)[2:]] == [
        ("a", "edited", 0, "mutated"),
        ("c", "added", 2, "more"),
    ]


@pytest.mark.parametrize("api", APIS)
async def test_a_process_that_comes_later_neither_loses_nor_doubles(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Each turn in a process of its own; the first two without a hook, whose messages are made up for."""
    for turn in range(5):
        options = {"hook": message_hook()} if turn >= 2 else {}
        async with open_saver(api, dsn, schema, **options) as saver:
            graph = chat_graph().compile(checkpointer=saver)
            await invoke(graph, saver, {"messages": human(f"h{turn}")}, config_of("t"))
    expected = {id for turn in range(5) for id in (f"h{turn}", f"ai-h{turn}")}
    assert {row.message_id for row in rows(connection, schema)} == expected
    assert len(rows(connection, schema)) == 10
    assert sorted(row.position for row in rows(connection, schema)) == list(range(10))


@pytest.mark.parametrize("api", APIS)
async def test_what_is_said_right_after_a_resumption_is_kept(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """LangGraph counts up the versions in the checkpoint it was given, of which the saver remembers the old ones."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("Shall I?"), id="answer")]}

    builder = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask")
    async with open_saver(api, dsn, schema, hook=message_hook()) as saver:
        graph = builder.compile(checkpointer=saver)
        await invoke(graph, saver, {"messages": human("question")}, config_of("t"))
        await invoke(graph, saver, Command(resume="yes"), config_of("t"))
    assert changes(connection, schema) == [("question", "added"), ("answer", "added")]


@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_branches_do_not_touch_each_other(
    is_cold: bool, dsn: str, schema: str, kept: PGStateSaver, connection: psycopg.Connection
) -> None:
    a, b, c, d, e = human("a", "b", "c", "d", "e")
    root = put_messages(kept, config_of("t"), 0, [a])
    left = put_messages(kept, root, 1, [a, b, c])
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=message_hook()) as other:
        saver = other if is_cold else kept
        right = put_messages(saver, root, 1, [a, d, b])
        right = put_messages(saver, right, 2, [d, b, e])
    put_messages(kept, left, 2, [a, c])
    found = changes(connection, schema, f"checkpoint_id = '{right['configurable']['checkpoint_id']}'")
    assert found == [("a", "removed"), ("e", "added")]
    assert changes(connection, schema) == [
        ("a", "added"),
        ("b", "added"),
        ("c", "added"),
        ("d", "added"),
        ("b", "added"),
        ("a", "removed"),
        ("e", "added"),
        ("b", "removed"),
    ]


def test_what_a_prune_left_of_the_past_still_counts(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    a, b, c = human("a", "b", "c")
    config = put_messages(kept, config_of("t"), 0, [a])
    config = put_messages(kept, config, 1, [a, b])
    kept.prune(["t"])
    put_messages(kept, config, 2, [b, c])
    assert changes(connection, schema) == [("a", "added"), ("b", "added"), ("a", "removed"), ("c", "added")]


def test_messages_without_ids_are_told_apart(kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    config: Any = config_of("t")
    texts = ["ok", "ok", "no", "ok", "no"]
    for step in range(len(texts)):
        config = put_messages(kept, config, step, [HumanMessage(text) for text in texts[: step + 1]])
    found = rows(connection, schema)
    assert [(row.position, row.content, row.change) for row in found] == [
        (index, text, "added") for index, text in enumerate(texts)
    ]
    assert len({row.message_id for row in found}) == 5
    with_other_seeds = message_hook()
    kept._hook = with_other_seeds
    put_messages(kept, config, 5, [HumanMessage(text) for text in texts[1:]])
    # Of equal ones the last is gone, and what stands behind another than before is added again.
    assert [row.change for row in rows(connection, schema)[5:]] == ["added", "added", "removed"]


def test_an_equal_message_more_is_a_message_more(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    config = put_messages(kept, config_of("t"), 0, [HumanMessage("ok"), HumanMessage("ok")])
    put_messages(kept, config, 1, [HumanMessage("first"), *(HumanMessage("ok") for _ in range(3))])
    found = [(row.position, row.content, row.change) for row in rows(connection, schema)]
    again = [(place, "ok", "added") for place in (1, 2, 3)]
    assert found == [(0, "ok", "added"), (1, "ok", "added"), (0, "first", "added"), *again]


@pytest.mark.parametrize(
    "id", ["x" * 5000, "a\0b", "\ud800", "é" * 200, 'quote"back\\slash', "{a,b}", "NULL", " "], ids=range(8)
)
def test_any_id_can_be_stored(id: str, kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    one, two = HumanMessage("one"), HumanMessage("two", id="two")
    one.id = id
    config = put_messages(kept, config_of("t"), 0, [one, two])
    put_messages(kept, config, 1, [two])
    found = rows(connection, schema)
    assert [(row.change, row.content) for row in found] == [("added", "one"), ("added", "two"), ("removed", None)]
    assert found[0].message_id == found[2].message_id
    longest = random.Random(1).randbytes(1200).hex()
    put_messages(kept, config_of(longest), 0, [one])
    assert len(rows(connection, schema, f"thread_id = '{longest}'")) == 1


def test_two_messages_with_one_id_do_not_break_a_put(
    kept: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    config = put_messages(kept, config_of("t"), 0, [HumanMessage("one", id="a"), HumanMessage("two", id="a")])
    put_messages(kept, config, 1, [HumanMessage("three", id="a"), HumanMessage("four", id="a")])
    assert [row[:4] for row in rows(connection, schema)] == [
        ("a", "added", 0, "one"),
        ("a-2", "added", 1, "two"),
        ("a", "edited", 0, "three"),
        ("a-2", "edited", 1, "four"),
    ]


def test_only_messages_are_taken_for_messages(kept: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    text = "x" * 200
    config = kept.put(*put_arguments(config_of("t"), 0, words=[text], __start__=human("a"), mixed=[text, *human("b")]))
    kept.put(*put_arguments(config, 1, words=[text, text[:9]], one=human("c")[0], mixed=[{"role": "user"}]))
    assert [(row.message_id, row.change) for row in rows(connection, schema)] == [("b", "added")]


class Relentless:
    """Rewrites the parent each time a put is about to be sent, so that it never finds what it builds on."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema
        self.tries = 0

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        if plan.base_revisions:
            self.tries += 1
            self._connection.execute(f"UPDATE {self._schema}.checkpoints SET revision = revision + 1")
        return ()

    def after_put(self, plan: PutPlan) -> None:
        return


def test_a_put_that_was_not_stored_leaves_no_message(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    enemy = Relentless(connection, schema)
    hook = PutHooks(message_hook(), enemy)
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=hook) as kept:
        a, b, c = human("a", "b", "c")
        config = put_messages(kept, config_of("t"), 0, [a, b])
        for messages in ([a, b, c], [a, c]):
            before = enemy.tries
            with pytest.raises(ConflictError):
                put_messages(kept, config, 1, messages)
            assert enemy.tries > before + 1
        assert changes(connection, schema) == [("a", "added"), ("b", "added")]


def test_a_checkpoint_that_was_not_stored_again_changes_no_message(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """Its row is there, but from before."""
    a, b, c = human("a", "b", "c")
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=message_hook()) as kept:
        config = put_messages(kept, config_of("t"), 0, [a])
        arguments = put_arguments(config, 1, messages=[a, b])
        kept.put(*arguments)
    hook = PutHooks(message_hook(), Relentless(connection, schema))
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=hook) as kept:
        for messages in ([a, b, c], [a, c]):
            arguments[1]["channel_values"]["messages"] = messages
            with pytest.raises(ConflictError):
                kept.put(*arguments)
    assert changes(connection, schema) == [("a", "added"), ("b", "added")]


def test_a_put_whose_answer_was_lost_stores_its_messages_once(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    with (
        counted(dsn) as proxy,
        PGStateSaver.from_conn_string(proxy.dsn, schema=schema, pool=1, hook=message_hook()) as kept,
    ):
        a, b, c = human("a", "b", "c")
        config = put_messages(kept, config_of("t"), 0, [a, b])
        for step, messages in enumerate(([a, b, c], [a, c]), 1):
            proxy.answers_to_lose = 1
            config = put_messages(kept, config, step, messages)
            assert proxy.answers_to_lose == 0
    assert changes(connection, schema) == [("a", "added"), ("b", "added"), ("c", "added"), ("b", "removed")]


def test_new_messages_cost_no_round_trip(dsn: str, schema: str, saver: PGStateSaver) -> None:
    with (
        counted(dsn) as proxy,
        PGStateSaver.from_conn_string(proxy.dsn, schema=schema, pool=1, hook=message_hook()) as kept,
    ):
        config: Any = config_of("t")
        ids = [str(number) for number in range(20)]
        trips = []
        for step in range(20):
            before = proxy.count
            config = put_messages(kept, config, step, human(*ids[: step + 1]))
            trips.append(proxy.count - before)
        assert usual(trips[10:]) == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_subgraphs_messages_are_the_roots_once_it_has_them(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """While the subgraph runs its new messages are its own; the root takes over what it gets; notes stay behind."""
    seen: list[list[Row]] = []

    def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("thinking", id="s1")], "notes": [AIMessage("aside", id="n1")]}

    def second(state: MessagesState) -> dict[str, Any]:
        seen.append(rows(connection, schema))
        return {"messages": [AIMessage("done", id="s2")]}

    class Inner(MessagesState):
        notes: Annotated[list[Any], operator.add]

    inner = StateGraph(Inner)
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    async with open_saver(api, dsn, schema, hook=message_hook()) as saver:
        graph = outer.compile(checkpointer=saver)
        for turn in range(2):
            await invoke(graph, saver, {"messages": human(f"h{turn}")}, config_of("t"), durability="sync")
    assert {(row.message_id, bool(row.namespace)) for row in seen[0]} == {("h0", False), ("s1", True), ("n1", True)}
    found = {(row.message_id, row.change, bool(row.namespace)) for row in rows(connection, schema)}
    assert found == {
        ("h0", "added", False),
        ("s1", "added", False),
        ("s2", "added", False),
        ("n1", "added", True),
        ("h1", "added", False),
    }
    assert len(rows(connection, schema)) == len(found)
    assert len({row.message_id for row in seen[1]}) == 5


def test_a_subgraph_does_not_send_what_the_root_has(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """Two hundred messages handed down are no reason to send two hundred rows."""
    found: list[list[str]] = []

    class Watching(MessageHook):
        def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
            statements = super().before_put(plan, config)
            assert plan.journal_entry is not None
            for _, change in plan.journal_entry.messages:
                found.append([message["message_id"] for message in json.loads(change)["messages"]])
            return statements

    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=Watching()) as kept:
        messages = human(*(str(number) for number in range(200)))
        root = put_messages(kept, config_of("t"), 0, messages)
        config, checkpoint, metadata, versions = put_arguments(
            config_of("t", "child:1"), 0, messages=[*messages, *human("new")]
        )
        metadata["parents"] = {"": root["configurable"]["checkpoint_id"]}
        kept.put(config, checkpoint, metadata, versions)
    assert [len(ids) for ids in found] == [200, 1]


def test_a_companion_that_fails_does_not_fail_the_put(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Relentless):
        def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
            raise LookupError("mine")

        def after_put(self, plan: PutPlan) -> None:
            raise LookupError("mine, too")

    hook = PutHooks(Broken(connection, schema), message_hook())
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=hook) as kept:
        put_messages(kept, config_of("t"), 0, human("a"))
    assert changes(connection, schema) == [("a", "added")]
    assert "is not recorded" in caplog.text


def test_a_message_that_stands_in_two_channels_is_said_in_both(dsn: str, schema: str) -> None:
    class Two(MessagesState):
        research: Annotated[list[Any], operator.add]

    def answer(state: Two) -> dict[str, Any]:
        found = AIMessage("an ocelot", id="a")
        return {"messages": [found], "research": [found]}

    builder = StateGraph(Two)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        graph = state.record(builder.compile(checkpointer=state.saver))
        graph.invoke({"messages": [HumanMessage("what?", id="h")]}, config_of("t"))
        for _ in range(2):
            assert [one.message_id for one in state.messages.conversation("t")] == ["h", "a"]
            assert [one.message_id for one in state.messages.conversation("t", channel="research")] == ["a"]
            for thread_id in ("t", None):
                hits = state.messages.search("ocelot", thread_id=thread_id).items
                assert [(hit.message.message_id, hit.message.channel) for hit in hits] == [("a", "messages")]
            state.flush()
        state.saver.copy_thread("t", "copy")
        assert [one.message_id for one in state.messages.conversation("copy", channel="research")] == ["a"]


def test_a_message_that_comes_to_a_second_channel_later_is_found_once_and_in_each_as_it_stands(
    dsn: str, schema: str
) -> None:
    class Two(MessagesState):
        notes: Annotated[list[Any], add_messages]

    builder = StateGraph(Two)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("a grey ocelot", id="a")]})
    builder.add_node("note", lambda state: {"notes": state["messages"][-1:]})
    builder.add_node("change", lambda state: {"notes": [AIMessage("a spotted ocelot", id="a")]})
    for source, target in ((START, "answer"), ("answer", "note"), ("note", "change")):
        builder.add_edge(source, target)

    with PGState.open(dsn, schema=schema) as state:
        state.setup()

        def found(query: str, **options: Any) -> list[tuple[str, str | None]]:
            pages = [state.messages.search(query, limit=1, **options)]
            while pages[-1].next:
                pages.append(state.messages.search(query, limit=1, cursor=pages[-1].next, **options))
            return sorted((hit.message.channel, hit.message.content) for page in pages for hit in page.items)

        graph = state.record(builder.compile(checkpointer=state.saver, interrupt_before=["change"]))
        graph.invoke({"messages": [HumanMessage("what?", id="h")]}, config_of("t"))
        for options in ({}, {"thread_id": "t"}):
            assert found("ocelot", **options) == [("messages", "a grey ocelot")]
        graph.invoke(None, config_of("t"))
        for options in ({}, {"thread_id": "t"}):
            assert found("grey", **options) == [("messages", "a grey ocelot")]
            assert found("spotted", **options) == [("notes", "a spotted ocelot")]
            assert found("ocelot", **options) == [("messages", "a grey ocelot"), ("notes", "a spotted ocelot")]


def test_a_message_that_comes_to_two_channels_at_once_with_two_texts_is_on_some_page_in_each(
    dsn: str, schema: str
) -> None:
    class Two(MessagesState):
        notes: Annotated[list[Any], add_messages]

    said = {"messages": [AIMessage("a grey ocelot", id="a")], "notes": [AIMessage("a spotted ocelot", id="a")]}
    builder = StateGraph(Two)
    builder.add_node("answer", lambda state: said)
    builder.add_edge(START, "answer")
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        state.record(builder.compile(checkpointer=state.saver)).invoke({"messages": []}, config_of("t"))
        first = state.messages.search("ocelot", limit=1)
        second = state.messages.search("ocelot", limit=1, cursor=first.next)
        assert [hit.message.channel for hit in (*first.items, *second.items)] == ["messages", "notes"]
        assert second.next is None


def test_a_search_in_a_thread_finds_nothing_in_one_that_is_anothers(dsn: str, schema: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("an ocelot", id="a")]})
    builder.add_edge(START, "answer")
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        config: Any = {"configurable": {"thread_id": "t", "user_id": "eve", "tenant_id": "acme"}}
        state.record(builder.compile(checkpointer=state.saver)).invoke({"messages": []}, config)
        for owner, expected in (
            ({}, ["a"]),
            ({"user_id": "eve", "tenant_id": "acme"}, ["a"]),
            ({"user_id": "mallory"}, []),
            ({"user_id": "eve", "tenant_id": "other"}, []),
        ):
            hits = state.messages.search("ocelot", thread_id="t", **owner).items
            assert [hit.message.message_id for hit in hits] == expected, owner
