"""Erasure: nothing of a user, a thread or a message stays, what belongs to others does, and a receipt counts it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support import FORK, GUARD_SECONDS, config_of, examples, put_arguments, spread, wait_until
from support.keep import archive_and_die
from support.tenants import open_walled

from langgraph_pgstate import AsyncPGState, Encryption, LocalMasterKey, PGState, PGStateSaver, Worker
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import (
    ConfigurationError,
    NotFoundError,
    TenantError,
    ThreadArchivedError,
    ThreadHeldError,
    ThreadInUseError,
)
from langgraph_pgstate.keep import archiving, erasing
from langgraph_pgstate.keep.packing import load_manifest, unpack
from langgraph_pgstate.runs import Runs  # noqa: F401
from langgraph_pgstate.threads import branches, rows

KEY = b"a secret of the operator"
Ask = Callable[[str], list[Any]]


@pytest.fixture
def ask(connection: psycopg.Connection, schema: str) -> Ask:
    """SQL behind the back of the package."""

    def run(statement: str) -> list[Any]:
        cursor = connection.execute(statement.replace("{}", schema).encode())
        return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, project=("note",)) as state:
        yield state


class Talk(MessagesState):
    note: str


def talk() -> Any:
    """A graph that notes what was said, answers, and asks."""

    def listen(given: Talk) -> dict[str, Any]:
        text = str(given["messages"][-1].content)
        return {"note": f"noted: {text}", "messages": [AIMessage(f"You said {text}", name="guide")]}

    def ask_back(given: Talk) -> dict[str, Any]:
        return {"messages": [ToolMessage(f"told {interrupt('Is it right?')}", tool_call_id="c")]}

    builder = StateGraph(Talk).add_node("listen", listen).add_node("ask_back", ask_back)
    return builder.add_edge(START, "listen").add_edge("listen", "ask_back").add_edge("ask_back", END)


def own(thread_id: str, user: str = "evelyn") -> Any:
    return {"configurable": {"thread_id": thread_id, "user_id": user}}


def said(state: PGState, thread_id: str, text: str, user: str = "evelyn", id: str | None = None) -> None:
    graph = state.record(talk().compile(checkpointer=state.saver))
    graph.invoke({"messages": [HumanMessage(text, id=id, name="Eve Example")]}, own(thread_id, user))
    state.flush()


def whole(ask: Ask, schema: str) -> str:
    """All that is in the tables, as text."""
    found = []
    for (table,) in ask("SELECT relname FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind = 'r'"):
        found += [f"{table}: {row}" for (row,) in ask(f"SELECT t::text FROM {{}}.{table} t")]
    return "\n".join(found)


def values(state: PGState, thread_id: str) -> list[Any]:
    """The values of all checkpoints of a thread."""
    return [found.checkpoint["channel_values"] for found in state.saver.list(config_of(thread_id))]


def test_each_table_is_erased_or_excepted(connection: psycopg.Connection, schema: str) -> None:
    rows = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition",
        [schema],
    )
    tables = {name for (name,) in rows}
    covered = erasing.BY_THREAD | erasing.BY_USER.keys() | erasing.KEYS
    assert tables - covered - erasing.EXCEPTED.keys() == set(), "add them to keep/erasing.py"
    assert (covered | erasing.EXCEPTED.keys()) - tables == set()
    assert covered & erasing.EXCEPTED.keys() == set()
    with_threads = connection.execute(
        "SELECT c.relname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND a.attname = 'thread_id'",
        [schema],
    )
    # Each that has a thread's id goes with the thread, or forgets it.
    of_none = {"memories", "memory_versions", "file_versions", "schedules", "holds"}
    assert {name for (name,) in with_threads} - erasing.BY_THREAD == of_none


def test_rows_of_others_stay_in_each_table(
    ask: Ask, state: PGState, connection: psycopg.Connection, schema: str
) -> None:
    rows = {
        "memories": """namespace, key, version, value, created_at, updated_at, is_large, is_waiting, is_unindexed,
            valid_from, changed_by, user_id) SELECT '{memories,user,bob}', k, 1, '1', now(), now(), false, false,
            false, now(), 'bob', u FROM (VALUES ('a', 'bob'), ('b', NULL)) AS r (k, u""",
        "memory_versions": """namespace, key, version, value, valid_from, valid_to, is_deleted, changed_by, deleted_by,
            user_id) SELECT n::text[], k, 1, '1', now(), now(), true, c, 'bob', u FROM (VALUES
            ('{memories,user,bob}', 'a', 'bob', 'bob'), ('{memories,user,bob}', 'b', 'bob', NULL),
            ('{memories,user,zoe}', 'c', 'zoe', 'zoe')) AS r (n, k, c, u""",
        "large_namespaces": "namespace) VALUES ('{memories,user,bob}'",
        "files": """namespace, path, directory, version, size, line_count, is_text)
            VALUES ('{bob}', '/a', '/', 1, 1, 1, true""",
        "file_texts": "namespace, path, content) VALUES ('{bob}', '/a', 'text'",
        "file_versions": """namespace, path, version, operation, change_id, size, line_count, is_text, changed_by)
            VALUES ('{bob}', '/a', 1, 'write', 'c', 1, 1, true, 'bob'""",
        "schedules": """name, graph, queue, cron, timezone, missed, options, data, owner_id)
            SELECT s, 'graph', 'default', '* * * * *', 'UTC', 'skip', o::jsonb, '', u FROM (VALUES
            ('a', '{}', 'bob'), ('b', '{"owner": {"user_id": "bob"}}', NULL)) AS r (s, o, u""",
        "assistants": "assistant_id, version, owner_id) VALUES ('a', 1, 'bob'",
        "assistant_versions": "assistant_id, version, graph, name, data) VALUES ('a', 1, 'graph', 'a', ''",
        "budgets": "scope, name, amount) VALUES ('user', 'bob', 1), ('agent', 'evelyn', 1",
        "retention_policies": "name, user_id) VALUES ('p', 'bob'",
        "queue_limits": "queue, key) VALUES ('default', 'bob'",
        "queue_keys": "queue, key) VALUES ('default', 'bob'",
        "deleted_costs": """started_at, span_id, cost, user_id, key) VALUES
            (now(), 'a', 1, 'bob', 'x'), (now(), 'b', 1, 'zoe', 'bob'""",
        "feedback": """thread_id, run_id, feedback_id, source, name, score, created_by)
            VALUES ('t', 'r', 'f', 'human', 'score', 1, 'bob'""",
        "answers": """thread_id, checkpoint_ns, checkpoint_id, interrupt_id, answer_id, task_id, value_type, value,
            answered_by) VALUES ('t', '', 'c', 'i', 'a', 't', 'null', '', 'bob'""",
    }
    assert rows.keys() == erasing.BY_USER.keys()
    ask("INSERT INTO {}.runs (thread_id, run_id, status, started_at) VALUES ('t', 'r', 'success', now())")
    for table, row in rows.items():
        connection.execute(f"INSERT INTO {schema}.{table} ({row})".encode())
    assert [*state.privacy.export(user_id="evelyn")] == []
    assert state.privacy.erase(user_id="evelyn").counts == {}
    counts = state.privacy.erase(user_id="bob").counts
    assert (counts["memories"], counts["memory_versions"], sum(counts.values())) == (2, 2, 21)
    newest = state.privacy.receipts(limit=1)
    older = state.privacy.receipts(limit=1, cursor=newest.next)
    assert [sum(one.counts.values()) for page in (newest, older) for one in page.items] == [21, 0]


def test_errors_of_policies_name_no_erased_thread(state: PGState, ask: Ask) -> None:
    for thread_id in ("hers", "other"):
        said(state, thread_id, "hello", "evelyn")
        state.retention.put(thread_id, delete_after=timedelta(days=1))
        ask(f"UPDATE {{}}.retention_policies SET last_error = 'cannot delete {thread_id}' WHERE name = '{thread_id}'")
    state.privacy.erase(thread_id="hers", key=KEY)
    assert [one.last_error for one in state.retention.policies()] == [None, "cannot delete other"]


@pytest.mark.slow
def test_a_user_is_erased_and_others_stay(state: PGState, ask: Ask, schema: str, dsn: str) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    said(state, "his", "a public park", "bob")
    state.threads.set_title("hers", "secret title")
    state.memory.put(("users", "evelyn"), "likes", {"content": "secret roses"})
    state.memory.put(("users", "bob"), "likes", {"content": "lawns"})
    state.files.write(("evelyn",), "/diary.txt", "secret diary")
    state.files.write(("bob",), "/diary.txt", "open diary")
    state.schedules.put("hers", "agent", cron="0 0 1 1 *", config={"configurable": {"user_id": "evelyn"}})
    state.runs.enqueue("agent", {"messages": [("user", "secret wish")]}, thread_id="queued", config=own("queued"))
    state.interrupts.answer("his", "yes", by="evelyn")
    before = whole(ask, schema)
    assert "evelyn" in before
    dry = state.privacy.erase(user_id="evelyn", dry_run=True)
    assert (dry.dry_run, dry.receipt, dry.erasure_id) == (True, None, None)
    assert whole(ask, schema) == before
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (done.counts, done.kept) == (dry.counts, [])
    after = whole(ask, schema)
    assert "secret" not in after
    assert "evelyn" not in after
    assert {"park", "lawns", "open diary", "bob"} <= {
        one for one in ("park", "lawns", "open diary", "bob") if one in after
    }
    assert values(state, "hers") == []
    assert values(state, "his")
    with Admin.open(dsn, schema=schema) as admin:
        assert admin.check(deep=True).problems == []
    assert done.receipt is not None
    assert done.counts["threads"] == 2
    assert done.counts["answers redacted"] == 1
    assert state.privacy.verify(done.receipt, KEY, user_id="evelyn").is_of
    assert state.privacy.verify(done.receipt, KEY, user_id="bob").is_of is False
    assert [one.receipt for one in state.privacy.receipts().items] == [done.receipt]


@pytest.mark.slow
def test_forks_and_copies_go_along_and_those_of_others_lose_what_they_inherited(
    state: PGState, ask: Ask, schema: str, dsn: str
) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.threads.fork("hers", to="fork")
    state.saver.copy_thread("hers", "copy")
    state.saver.copy_thread("copy", "copy of copy")
    state.threads.fork("hers", to="bobs", owner={"user_id": "bob", "metadata": {}})
    said(state, "bobs", "what bob has added", "bob")
    done = state.privacy.erase(user_id="evelyn")
    assert done.kept == []
    assert ask("SELECT thread_id, user_id, forked_from_thread_id FROM {}.threads") == [("bobs", "bob", None)]
    last = state.saver.get_tuple(config_of("bobs"))
    assert last is not None
    texts = [str(message.content) for message in last.checkpoint["channel_values"]["messages"]]
    assert (texts[0].strip(), texts[1].strip()) == ("[erased]", "[erased]")
    assert texts[2] == "what bob has added"
    assert [message.content.strip() for message in state.messages.conversation("bobs")][:3] == [
        *("[erased]", "[erased]", "what bob has added")
    ]
    assert "garden" not in whole(ask, schema)
    with Admin.open(dsn, schema=schema) as admin:
        assert admin.check(deep=True).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("is_archived", [False, True])
def test_heirs_are_found_whatever_was_pruned_or_deleted_since(
    state: PGState, ask: Ask, schema: str, tmp_path: Path, dsn: str, is_archived: bool
) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.saver.copy_thread("hers", "copy", owner={"user_id": "carl", "metadata": {}})
    state.threads.fork("copy", to="bobs", owner={"user_id": "bob", "metadata": {}})
    state.saver.copy_thread("copy", "mine", owner={"user_id": "evelyn", "metadata": {}})
    for thread_id, user in (("hers", "evelyn"), ("bobs", "bob"), ("mine", "evelyn")):
        said(state, thread_id, f"what {user} has added", user)
    # Of what they have in common no checkpoint is left, nor the thread in between.
    state.saver.prune(["hers", "bobs", "mine"])
    state.saver.delete_thread("copy")
    if is_archived:
        state.archive.put(["bobs", "mine"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    done = state.privacy.erase(thread_id="hers", key=KEY)
    assert done.kept == []
    assert ask("SELECT thread_id, origin_thread_ids FROM {}.threads ORDER BY 1") == [("bobs", ["copy"])]
    assert "garden" not in whole(ask, schema)
    assert str(values(state, "bobs")[0]["messages"][-2].content) == "what bob has added"
    assert [*tmp_path.iterdir()] == []
    with Admin.open(dsn, schema=schema) as admin:
        assert admin.check(deep=True).problems == []


@pytest.mark.slow
def test_an_heir_of_several_of_her_threads_loses_what_all_of_them_had(state: PGState, ask: Ask, schema: str) -> None:
    said(state, "first", "my secret garden", "evelyn")
    state.saver.copy_thread("first", "second")
    said(state, "second", "secret roses", "evelyn")
    state.saver.copy_thread("second", "bobs", owner={"user_id": "bob", "metadata": {}})
    assert state.privacy.erase(thread_id="first").kept == []
    assert "secret" not in whole(ask, schema)


def test_a_thread_stays_until_its_heirs_can_be_redacted(state: PGState, ask: Ask, schema: str) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.saver.copy_thread("hers", "bobs", owner={"user_id": "bob", "metadata": {}})
    state.threads.hold("bobs", "case 7", by="counsel")
    for what in ({"thread_id": "hers", "message_id": "m1"}, {"thread_id": "hers"}, {"user_id": "evelyn"}):
        done = state.privacy.erase(**what, key=KEY)
        assert [one.thread_id for one in done.kept] == ["bobs", "hers"]
        assert "thread 'bobs' has inherited from this thread" in done.kept[1].why
    state.threads.release("bobs", "case 7", by="counsel")
    ended = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (ended.erasure_id, ended.is_complete) == (done.erasure_id, True)
    assert "garden" not in whole(ask, schema)


@pytest.mark.slow
def test_forks_and_copies_of_threads_of_others_lose_what_a_user_said_in_them(
    state: PGState, ask: Ask, schema: str, tmp_path: Path
) -> None:
    said(state, "bobs", "a public park", "bob")
    said(state, "bobs", "my secret garden", "evelyn")
    assert ask("SELECT user_id FROM {}.threads") == [("bob",)]
    for name, owner in (("fork", "bob"), ("archived", "bob"), ("gone", "bob"), ("zoes", "zoe")):
        state.threads.fork("bobs", to=name, owner={"user_id": owner, "metadata": {}})
    state.saver.copy_thread("fork", "copy")
    state.archive.put(["archived", "gone"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.archive.restore(["gone"])
    state.saver.delete_thread("gone")
    state.threads.hold("zoes", "case 7", by="counsel")
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert [one.thread_id for one in done.kept] == ["zoes", "bobs"]
    assert "thread 'zoes' has inherited from this thread" in done.kept[1].why
    state.threads.release("zoes", "case 7", by="counsel")
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    found = whole(ask, schema)
    assert "garden" not in found
    assert b"garden".hex() not in found
    assert [*tmp_path.iterdir()] == []
    for name in ("bobs", "fork", "archived", "zoes", "copy"):
        messages = values(state, name)[0]["messages"]
        assert [len(str(one.content).strip()) for one in messages] == [13, 22, 8, 8], name


@pytest.mark.parametrize("first", ["evelyn", "bob"])
@pytest.mark.parametrize("how", ["fork", "copy"])
@pytest.mark.parametrize("what", [{"user_id": "evelyn"}, {"thread_id": "hers", "message_id": "secret"}])
def test_a_fork_that_is_made_meanwhile_is_redacted(
    state: PGState, ask: Ask, schema: str, dsn: str, monkeypatch: pytest.MonkeyPatch, first: str, how: str, what: Any
) -> None:
    said(state, "hers", "a public park", first)
    said(state, "hers", "my secret garden", "evelyn", id="secret")
    forks = erasing._Work._forks

    async def late(*given: Any) -> Any:
        monkeypatch.setattr(erasing._Work, "_forks", forks)
        found = await forks(*given)
        with PGState.open(dsn, schema=schema) as other:
            owner: Any = {"user_id": "bob", "metadata": {}}
            if how == "fork":
                other.threads.fork("hers", to="bobs", owner=owner)
            else:
                other.saver.copy_thread("hers", "bobs", owner=owner)
        return found

    monkeypatch.setattr(erasing._Work, "_forks", late)
    assert state.privacy.erase(**what, key=KEY).is_complete
    assert len(values(state, "bobs")[0]["messages"]) == 4
    assert "garden" not in whole(ask, schema)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["evelyn", "bob"])
@pytest.mark.parametrize("how", ["fork", "copy"])
@pytest.mark.parametrize("source", ["hers", "between"])
@pytest.mark.parametrize("what", [{"user_id": "evelyn"}, {"thread_id": "hers", "message_id": "secret"}])
def test_an_erasure_waits_for_a_fork_that_is_being_made(
    state: PGState,
    ask: Ask,
    schema: str,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    how: str,
    source: str,
    what: Any,
) -> None:
    said(state, "hers", "a public park", first)
    said(state, "hers", "my secret garden", "evelyn", id="secret")
    state.threads.fork("hers", to="between", owner={"user_id": "bob", "metadata": {}})
    copied, goes_on = threading.Event(), threading.Event()
    module = branches if how == "fork" else rows
    bind_copy = module.bind_copy

    async def late(*given: Any) -> None:
        copied.set()
        assert goes_on.wait(GUARD_SECONDS)
        await bind_copy(*given)

    monkeypatch.setattr(module, "bind_copy", late)

    def copy() -> None:
        owner: Any = {"user_id": "bob", "metadata": {}}
        with PGState.open(dsn, schema=schema) as other:
            if how == "fork":
                other.threads.fork(source, to="bobs", owner=owner)
            else:
                other.saver.copy_thread(source, "bobs", owner=owner)

    copying = threading.Thread(target=copy)
    copying.start()
    assert copied.wait(GUARD_SECONDS)
    done: list[bool] = []
    erasing_ = threading.Thread(target=lambda: done.append(state.privacy.erase(**what, key=KEY).is_complete))
    erasing_.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'"
    wait_until(lambda: bool(done or ask(waits)), "the erasure waits")
    goes_on.set()
    copying.join(GUARD_SECONDS)
    erasing_.join(GUARD_SECONDS)
    assert done == [True]
    assert len(values(state, "bobs")[0]["messages"]) == 4
    assert "garden" not in whole(ask, schema)


@pytest.mark.parametrize("owner", ["evelyn", None])
@pytest.mark.parametrize("what", [{"user_id": "evelyn"}, {"thread_id": "hers"}])
def test_a_fork_that_was_kept_is_found_by_a_repeated_call(
    state: PGState, ask: Ask, what: dict[str, str], owner: str | None
) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    state.threads.fork("hers", to="fork", owner=owner and {"user_id": owner, "metadata": {}})
    if owner is None:
        ask("UPDATE {}.threads SET user_id = NULL WHERE thread_id = 'fork'")
    state.threads.hold("fork", "case 7", by="ada")
    assert state.privacy.erase(**what, key=KEY).kept[0].thread_id == "fork"
    state.threads.release("fork", "case 7", by="ada")
    done = state.privacy.erase(**what, key=KEY)
    assert (done.is_complete, ask("SELECT thread_id FROM {}.threads")) == (True, [])


def test_what_a_thread_inherited_from_another_user_stays_hers(state: PGState) -> None:
    said(state, "origin", "a public park", "bob")
    state.threads.fork("origin", to="hers", owner={"user_id": "evelyn", "metadata": {}})
    state.saver.copy_thread("origin", "third")
    state.privacy.erase(user_id="evelyn")
    for thread_id in ("origin", "third"):
        assert str(values(state, thread_id)[0]["messages"][0].content) == "a public park"
    assert values(state, "hers") == []


@pytest.mark.slow
def test_a_message_is_redacted_in_all_that_holds_it(state: PGState, ask: Ask, schema: str, dsn: str) -> None:
    text = "the account is DE89 3704 0044"
    said(state, "t", "good morning", "evelyn", id="m0")
    said(state, "t", text, "evelyn", id="m1")
    said(state, "t", "and thank you", "evelyn", id="m2")
    state.saver.copy_thread("t", "copy")
    state.threads.fork("t", to="bobs", owner={"user_id": "bob", "metadata": {}})
    state.memory.put(("facts",), "k", {"content": "unrelated"})
    ask("UPDATE {}.memories SET thread_id = 't', message_id = 'm1', value = '{\"content\": \"account DE89\"}'")
    for content in ("of another message", "its second version"):
        state.memory.put(("facts",), "other", {"content": content})
    for table in ("memories", "memory_versions"):
        ask(f"UPDATE {{}}.{table} SET thread_id = 't', message_id = 'm0' WHERE key = 'other'")
    assert "DE89" in whole(ask, schema)
    dry = state.privacy.erase(thread_id="t", message_id="m1", dry_run=True)
    assert "DE89" in whole(ask, schema)
    done = state.privacy.erase(thread_id="t", message_id="m1", key=KEY)
    assert done.counts == dry.counts
    after = whole(ask, schema)
    assert "DE89" not in after
    for thread_id in ("t", "copy", "bobs"):
        for channels in values(state, thread_id):
            for message in channels.get("messages", []):
                if message.id == "m1":
                    assert (message.type, message.content, message.name) == ("human", text_of(text), "[erased]   ")
                assert "DE89" not in str(message)
            assert "DE89" not in str(channels.get("note"))
    kept = [str(message.content) for message in values(state, "t")[0]["messages"]]
    assert kept[0] == "good morning"
    assert "and thank you" in kept
    assert state.messages.conversation("t")[0].content == "good morning"
    assert ask("SELECT key, version FROM {}.memories UNION ALL SELECT key, version FROM {}.memory_versions") == [
        ("other", 2),
        ("other", 1),
    ]
    with Admin.open(dsn, schema=schema) as admin:
        report = admin.check(deep=True)
        assert report.problems == []
    # The conversation goes on from there.
    said(state, "t", "once more", "evelyn")
    assert "DE89" not in whole(ask, schema)
    assert state.privacy.verify(done.receipt or {}, KEY, thread_id="t", message_id="m1").is_of
    again = state.privacy.erase(thread_id="t", message_id="m1")
    assert again.counts.get("segments redacted", 0) == 0


def test_a_message_beside_a_redacted_one_keeps_its_words(state: PGState, ask: Ask) -> None:
    """Both were given in one checkpoint."""
    graph = state.record(talk().compile(checkpointer=state.saver))
    given = [HumanMessage("the account is DE89", id="m1"), HumanMessage("good morning", id="m2")]
    graph.invoke({"messages": given}, own("t", "evelyn"))
    state.flush()
    state.privacy.erase(thread_id="t", message_id="m1")
    found = dict(ask("SELECT message_id, content FROM {}.messages WHERE message_id IN ('m1', 'm2')"))
    assert (found["m1"].strip(), found["m2"]) == (text_of("the account is DE89").strip(), "good morning")


def test_what_waits_in_the_journal_is_redacted(state: PGState, ask: Ask, schema: str, dsn: str) -> None:
    said(state, "t", "the account is DE89 3704 0044", "evelyn", id="m1")
    payload = {"x": "he said: the account is DE89 3704 0044"}
    event = {"thread_id": "t", "event_id": "1", "created_at": 0, "kind": "note", "payload": payload}
    entry = JournalEntry(events=[orjson.dumps(event)], thread_ids=["t"]).pack()
    with PGState.open(dsn, schema=schema, recover_journal=False) as bare:
        ask(f"INSERT INTO {{}}.journal (thread_id, entry_id, data) VALUES ('t', 'e', '\\x{entry.hex()}')")
        bare.privacy.erase(thread_id="t", message_id="m1")
    assert ask("SELECT payload FROM {}.events WHERE event_id = '1'") == [({"x": "[erased]"},)]
    assert "DE89" not in whole(ask, schema)


def text_of(text: str) -> str:
    """What stands in place of a text."""
    return "[erased]" + " " * (len(text) - len("[erased]"))


def test_a_held_thread_withstands_and_names_the_holder(state: PGState, ask: Ask) -> None:
    said(state, "held", "my secret garden", "evelyn", id="m1")
    said(state, "other", "a second one", "evelyn")
    state.threads.hold("held", "case 7", by="counsel")
    for what in ({"thread_id": "held"}, {"thread_id": "held", "message_id": "m1"}):
        with pytest.raises(ThreadHeldError, match=r"held by counsel since .* \(case 7\)"):
            state.privacy.erase(**what)
    assert state.privacy.receipts().items == ()
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (done.is_complete, done.receipt) == (False, None)
    assert [(one.thread_id, "held by counsel" in one.why) for one in done.kept] == [("held", True)]
    assert ask("SELECT thread_id FROM {}.threads") == [("held",)]
    # The end of another erasure.
    state.privacy.erase(user_id="bob", key=KEY)
    begun = state.privacy.receipt(done.erasure_id)
    assert (begun.ended_at, begun.receipt) == (None, None)
    state.threads.release("held", "case 7", by="counsel")
    ended = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (ended.erasure_id, ended.is_complete) == (done.erasure_id, True)
    assert ended.counts["threads"] == 2
    assert ask("SELECT count(*) FROM {}.threads") == [(0,)]


def test_what_she_did_in_a_held_thread_of_another_user_stays(state: PGState, ask: Ask, schema: str) -> None:
    said(state, "bobs", "a public park", "bob")
    state.interrupts.answer("bobs", "yes", by="evelyn")
    state.threads.hold("bobs", "case 7", by="counsel")
    done = state.privacy.erase(user_id="evelyn")
    assert [(one.thread_id, "held by counsel" in one.why) for one in done.kept] == [("bobs", True)]
    assert ask("SELECT answered_by FROM {}.answers") == [("evelyn",)]
    assert ask("SELECT payload ->> 'by' FROM {}.events WHERE kind = 'answer'") == [("evelyn",)]
    state.threads.release("bobs", "case 7", by="counsel")
    assert state.privacy.erase(user_id="evelyn").kept == []
    assert "evelyn" not in whole(ask, schema)


@pytest.mark.slow
def test_an_interrupted_erasure_ends_when_it_is_called_again(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        said(state, f"t{number}", f"secret {number}", "evelyn")
    counts = state.privacy.erase(user_id="evelyn", dry_run=True).counts
    done = []

    async def dying(*given: Any, **options: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(given)
        return await delete(*given, **options)

    delete = erasing.delete_thread
    monkeypatch.setattr(erasing, "delete_thread", dying)
    with pytest.raises(KeyboardInterrupt):
        state.privacy.erase(user_id="evelyn", key=KEY)
    monkeypatch.undo()
    (begun,) = state.privacy.receipts().items
    assert (begun.ended_at, begun.counts["threads"]) == (None, 2)
    said(state, "other", "of bob", "bob")
    assert state.privacy.erase(user_id="bob").erasure_id != begun.erasure_id
    with PGState.open(dsn, schema=schema) as later:
        ended = later.privacy.erase(user_id="evelyn", key=KEY)
    assert (ended.erasure_id, ended.counts) == (begun.erasure_id, counts)
    assert ended.receipt is not None
    assert ended.receipt["counts"] == counts


def test_a_thread_that_is_gone_is_finished_or_not_found(state: PGState) -> None:
    with pytest.raises(NotFoundError, match="no thread 'none'"):
        state.privacy.erase(thread_id="none")
    said(state, "t", "hello there", "evelyn", id="m1")
    with pytest.raises(NotFoundError, match="no message 'm9'"):
        state.privacy.erase(thread_id="t", message_id="m9")
    done = state.privacy.erase(thread_id="t")
    assert done.receipt is not None
    assert done.receipt["signature"] is None
    with pytest.raises(NotFoundError):
        state.privacy.erase(thread_id="t")


def test_what_a_user_did_in_threads_of_others_is_redacted(state: PGState, ask: Ask, schema: str, dsn: str) -> None:
    said(state, "bobs", "a public park", "bob")
    said(state, "bobs", "my secret garden", "evelyn")
    ask("UPDATE {}.threads SET user_id = 'bob'")
    assert ask("SELECT count(*) FROM {}.runs WHERE user_id = 'evelyn'") == [(1,)]
    run = ask("SELECT run_id FROM {}.runs WHERE user_id = 'bob'")[0][0]
    state.runs.feedback.add("bobs", run, score=1.0, comment="secret comment", by="evelyn")
    done = state.privacy.erase(user_id="evelyn")
    after = whole(ask, schema)
    assert "garden" not in after
    assert "secret" not in after
    assert "evelyn" not in after
    assert done.counts["messages redacted"] >= 1
    assert str(values(state, "bobs")[0]["messages"][0].content) == "a public park"
    with Admin.open(dsn, schema=schema) as admin:
        assert admin.check(deep=True).problems == []


def test_a_worker_in_the_middle_of_a_run_of_hers_stores_nothing_more(
    state: PGState, ask: Ask, schema: str, dsn: str
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(given: MessagesState) -> dict[str, Any]:
        entered.set()
        assert leave.wait(30)
        return {"messages": [("ai", "secret answer")]}

    graph = StateGraph(Talk).add_node("wait", wait).add_edge(START, "wait")
    state.runs.enqueue("agent", {"messages": [("user", "secret wish")]}, thread_id="t", config=own("t"))
    state.runs.enqueue("agent", {"messages": [("user", "secret second")]}, thread_id="t", config=own("t"))
    with Worker(state, {"agent": graph}, concurrency=1):
        assert entered.wait(30)
        done = state.privacy.erase(user_id="evelyn", key=KEY)
        assert done.is_complete
        leave.set()
    state.flush()
    after = whole(ask, schema)
    assert "secret" not in after
    assert "evelyn" not in after


def test_a_message_of_a_running_thread_is_refused_by_name(state: PGState, ask: Ask) -> None:
    said(state, "t", "my secret garden", "evelyn", id="m1")
    ask("UPDATE {}.runs SET status = 'running', alive_until = now() + interval '1 minute', ended_at = NULL")
    with pytest.raises(ThreadInUseError, match="a run of it is running"):
        state.privacy.erase(thread_id="t", message_id="m1")
    assert state.privacy.receipts().items == ()


def test_a_message_of_a_thread_whose_tool_outlives_its_run_is_refused_by_name(state: PGState, ask: Ask) -> None:
    said(state, "t", "my secret garden", "evelyn", id="m1")
    ask(
        "INSERT INTO {}.tool_executions (thread_id, idempotency_key, tool, status, alive_until, arguments) "
        "VALUES ('t', 'k', 'pay', 'running', now() + interval '1 minute', '0')"
    )
    with pytest.raises(ThreadInUseError, match="a tool of it is running"):
        state.privacy.erase(thread_id="t", message_id="m1")


def test_what_is_put_meanwhile_is_found_by_another_round(
    state: PGState, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(state, "t", "my secret garden", "evelyn")
    late = iter(["late"])
    erase = erasing._erase_thread

    async def put_then_erase(*given: Any) -> Any:
        for thread_id in late:
            # By another connection, as of a process that knows nothing of it.
            thread = threading.Thread(target=said, args=(state, thread_id, "secret late", "evelyn"))
            thread.start()
            thread.join()
        return await erase(*given)

    monkeypatch.setattr(erasing, "_erase_thread", put_then_erase)
    done = state.privacy.erase(user_id="evelyn")
    assert done.counts["threads"] == 2
    assert ask("SELECT count(*) FROM {}.threads") == [(0,)]


def test_events_of_an_earlier_deletion_go_along(state: PGState, ask: Ask) -> None:
    state.setup(audit=True)
    said(state, "t", "my secret garden", "evelyn")
    state.saver.delete_thread("t", by="bob")
    assert ask("SELECT count(*) FROM {}.events") == [(1,)]
    state.privacy.erase(thread_id="t")
    for table in ("events", "event_chains", "event_hashes"):
        assert ask(f"SELECT count(*) FROM {{}}.{table}") == [(0,)], table
    assert state.audit.verify().problems == []


@pytest.mark.slow
@pytest.mark.parametrize("is_archived", [False, True])
def test_threads_of_others_forget_that_they_were_forked_from_or_to_it(
    state: PGState, ask: Ask, schema: str, tmp_path: Path, is_archived: bool
) -> None:
    state.setup(audit=True)
    said(state, "origin", "a public park", "bob")
    state.threads.fork("origin", to="of evelyn", owner={"user_id": "evelyn", "metadata": {}}, by="bob")
    state.threads.fork("of evelyn", to="carls", owner={"user_id": "carl", "metadata": {}}, by="carl")
    state.threads.fork("origin", to="dans", owner={"user_id": "dan", "metadata": {}})
    lines = [*state.audit.export()]
    if is_archived:
        state.archive.put(["origin", "carls"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    planned = state.privacy.erase(user_id="evelyn", dry_run=True)
    assert planned.kept == []
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert done.kept == []
    assert is_archived or planned.counts == done.counts
    assert "of evelyn" not in whole(ask, schema)
    payloads = dict(ask("SELECT thread_id, payload FROM {}.events WHERE kind = 'fork' AND thread_id <> 'origin'"))
    assert payloads["dans"]["forked_from"]["thread_id"] == "origin"
    assert payloads["carls"]["forked_from"]["thread_id"] is None
    assert payloads["carls"]["forked_from"]["checkpoint_id"]
    assert state.audit.verify(exported=lines).problems == []


def test_a_held_thread_of_another_user_still_names_the_thread_that_was_forked_from_it(state: PGState, ask: Ask) -> None:
    said(state, "origin", "a public park", "bob")
    state.threads.fork("origin", to="hers", owner={"user_id": "evelyn", "metadata": {}})
    state.threads.hold("origin", "case 7", by="counsel")
    done = state.privacy.erase(user_id="evelyn")
    assert [one.thread_id for one in done.kept] == ["origin"]
    assert ask("SELECT count(*) FROM {}.threads WHERE thread_id = 'hers'") == [(0,)]
    assert ask("SELECT payload FROM {}.events WHERE kind = 'fork'") == [({"forked_to": {"thread_id": "hers"}},)]


def test_an_audited_chain_stays_explained(state: PGState, ask: Ask) -> None:
    state.setup(audit=True)
    said(state, "hers", "my secret garden", "evelyn")
    said(state, "bobs", "a public park", "bob", id="m1")
    state.interrupts.answer("bobs", "yes", by="evelyn")
    lines = [*state.audit.export()]
    assert len(lines) == ask("SELECT count(*) FROM {}.events")[0][0]
    state.privacy.erase(user_id="evelyn", key=KEY)
    report = state.audit.verify(exported=lines)
    assert report.problems == []
    assert (report.explained, report.ended > 0) == (1, True)
    assert "hers" not in whole(ask, state.schema)


def test_keys_of_a_user_and_of_threads_are_destroyed(dsn: str, schema: str, ask: Ask) -> None:
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        said(state, "held", "my secret garden", "evelyn")
        for scope in ("thread:held", "user:bob", "other"):
            ask(
                "INSERT INTO {}.data_keys (key_id, scope, master_id, wrapped, is_current)"
                f" VALUES ('key of {scope[:4]}{scope[-3:]}', '{scope}', 'm', 'x', true)"
            )
        state.threads.hold("held", "case 7", by="counsel")
        assert not state.privacy.erase(user_id="evelyn").is_complete
        assert ask("SELECT count(*) FROM {}.data_keys WHERE wrapped IS NULL") == [(0,)]
        state.threads.release("held", "case 7", by="counsel")
        assert state.privacy.erase(user_id="evelyn").counts["data_keys destroyed"] == 1
        left = ask("SELECT scope, wrapped IS NULL AND destroyed_at IS NOT NULL FROM {}.data_keys ORDER BY 2, 1")
        assert ("user:bob", False) in left
        gone = [scope for scope, is_destroyed in left if is_destroyed]
        assert [scope.startswith("erased:") for scope in gone] == [True, True]


def test_a_key_that_is_made_during_an_erasure_without_keys_stays(
    state: PGState, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process encrypts under it meanwhile. The next call, with keys, ends the erasure."""
    said(state, "hers", "my secret garden", "evelyn")
    rows = erasing._erase_rows

    async def meanwhile(*given: Any) -> Any:
        ask(
            "INSERT INTO {}.data_keys (key_id, scope, master_id, wrapped, is_current)"
            " VALUES ('k', 'user:evelyn', 'm', 'x', true)"
        )
        return await rows(*given)

    monkeypatch.setattr(erasing, "_erase_rows", meanwhile)
    with pytest.raises(ConfigurationError, match="erase the user from a state with encryption="):
        state.privacy.erase(user_id="evelyn")
    assert ask("SELECT wrapped FROM {}.data_keys") == [(b"x",)]


def test_content_of_others_under_a_key_of_hers_stays_readable(dsn: str, schema: str, ask: Ask) -> None:
    """She has taken a turn in the thread of another user, in a process that records nothing."""
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    for user, text in (("bob", "a public park"), ("evelyn", "my secret garden"), ("bob", "the park again")):
        # Each turn in a process of its own.
        with PGStateSaver.from_conn_string(dsn, schema=schema, encryption=encryption) as saver:
            talk().compile(checkpointer=saver).invoke({"messages": [HumanMessage(text)]}, own("bobs", user))
    assert ask("SELECT count(*) FROM {}.data_keys WHERE scope = 'user:evelyn'") == [(1,)]
    before = whole(ask, schema)
    with PGState.open(dsn, schema=schema) as state:
        # It cannot encrypt what others have under her key again.
        for dry_run in (True, False):
            with pytest.raises(ConfigurationError, match="erase the user from a state with encryption="):
                state.privacy.erase(user_id="evelyn", key=KEY, dry_run=dry_run)
        assert whole(ask, schema) == before
        assert state.privacy.erase(user_id="nobody").is_complete
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    assert ask("SELECT wrapped IS NULL FROM {}.data_keys WHERE scope LIKE 'erased:%'") == [(True,)]
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        texts = [str(message.content) for message in values(state, "bobs")[0]["messages"]]
        assert "a public park" in texts
        assert "the park again" in texts


@pytest.mark.slow
def test_a_thread_that_got_another_owner_in_this_process_stays_readable(dsn: str, schema: str) -> None:
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        said(state, "t", "my secret garden", "evelyn")
        said(state, "t", "a public park", "bob")
        state.threads.fork("t", to="bobs", owner={"user_id": "bob", "metadata": {}})
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"UPDATE \"{schema}\".threads SET user_id = 'bob' WHERE thread_id = 't'".encode())
        assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        texts = [str(message.content).strip() for message in values(state, "t")[0]["messages"]]
        assert texts == ["[erased]", "[erased]", "a public park", "You said a public park"]


@pytest.mark.slow
def test_archived_content_of_others_under_a_key_of_hers_stays_readable(
    dsn: str, schema: str, ask: Ask, tmp_path: Path
) -> None:
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        # Nothing is recorded, so that no row but her data key says that she wrote in the thread.
        for thread_id, user in (("bobs", "evelyn"), ("hers", "evelyn"), ("other", "bob")):
            graph = talk().compile(checkpointer=state.saver)
            graph.invoke({"messages": [HumanMessage("a public park")]}, own(thread_id, user))
        ask("UPDATE {}.threads SET user_id = 'bob' WHERE thread_id = 'bobs'")
        state.archive.put(["bobs", "hers", "other"], to=tmp_path.as_uri(), idle_for=timedelta(0))
        (pack,) = tmp_path.glob("*.pack")
        away = pack.rename(tmp_path / "elsewhere")
        kept = state.privacy.erase(user_id="evelyn", key=KEY).kept
        assert {one.thread_id for one in kept} == {"hers"}
        away.rename(pack)
        assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    assert ask("SELECT thread_id, archived_at IS NULL FROM {}.threads ORDER BY 1") == [("bobs", True), ("other", False)]
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        assert str(values(state, "bobs")[0]["messages"][0].content) == "a public park"


def test_namespaces_of_others_are_left_alone(state: PGState, ask: Ask) -> None:
    state.memory.put(("users", "bob"), "k", {"content": "of bob"})
    state.memory.put(("users", "guide"), "k", {"content": "of guide"})
    for owner in ({"agent": "guide"}, {"user_id": "bob", "agent": "guide"}, {"user_id": "guide"}):
        state.memory.remember(f"{owner}", **owner)  # type: ignore[arg-type]
    assert state.privacy.erase(user_id="users").counts == {}
    assert state.privacy.erase(user_id="memories").counts == {}
    assert state.privacy.erase(user_id="guide").counts == {"memories": 2}
    assert len([*state.privacy.export(user_id="guide")]) == 0
    assert ask("SELECT namespace, user_id FROM {}.memories ORDER BY namespace") == [
        (["memories", "agent", "guide"], None),
        (["memories", "user", "bob", "agent", "guide"], "bob"),
        (["users", "bob"], None),
    ]


def test_bad_arguments_are_refused_before_anything(state: PGState) -> None:
    for wrong in (
        {},
        {"user_id": "a", "thread_id": "b"},
        {"message_id": "m"},
        {"user_id": "a", "message_id": "m"},
        {"user_id": ""},
        {"user_id": "a", "key": b"short"},
        # pragma: allowlist nextline secret
        {"user_id": "a", "key": "-----BEGIN PRIVATE KEY-----\nno\n-----END PRIVATE KEY-----"},
    ):
        with pytest.raises(ConfigurationError):
            state.privacy.erase(**wrong)
    assert state.privacy.receipts().items == ()


@pytest.mark.slow
def test_archived_threads_are_erased_from_their_archives(
    state: PGState, ask: Ask, schema: str, tmp_path: Path, dsn: str
) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.threads.fork("hers", to="bobs", owner={"user_id": "bob", "metadata": {}})
    for thread_id, text, user in (("back", "secret roses", "evelyn"), ("his", "a public park", "bob")):
        said(state, thread_id, text, user)
    place = tmp_path.as_uri()
    state.archive.put(["hers", "back", "his"], to=place, idle_for=timedelta(0))
    state.archive.restore(["back"])
    (before,) = {file.stem for file in tmp_path.iterdir()}
    dry = state.privacy.erase(user_id="evelyn", dry_run=True)
    assert (dry.counts["archived threads"], dry.counts["archived copies"], dry.kept) == (1, 2, [])
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert done.kept == []
    assert (done.counts["threads"], done.counts["archived copies"]) == (2, 2)
    after = whole(ask, schema)
    assert "evelyn" not in after
    assert "garden" not in after
    # The archive was written anew without hers, and bob's thread comes back from it.
    (now,) = {file.stem for file in tmp_path.iterdir()}
    assert now != before
    assert ask("SELECT thread_id FROM {}.archived_threads") == [("his",)]
    state.archive.restore(["his"])
    assert values(state, "his")[0]["note"] == "noted: a public park"
    assert str(values(state, "bobs")[0]["messages"][0].content).strip() == "[erased]"
    with Admin.open(dsn, schema=schema) as admin:
        assert admin.check(deep=True).problems == []


def packed(place: Path) -> bytes:
    """All rows in the archives of a folder."""
    found = []
    for file in place.glob("*.json"):
        data = file.with_suffix(".pack").read_bytes()
        for frame in load_manifest(file.read_bytes(), file.name).frames.values():
            rows = unpack(frame, data[frame.offset : frame.offset + frame.bytes], file.name)
            found += [row for table in rows.values() for row in table]
    return b"".join(found)


@pytest.mark.slow
def test_what_a_user_did_in_archived_threads_of_others_is_erased(
    state: PGState, ask: Ask, schema: str, tmp_path: Path
) -> None:
    ran, acted = ["his-away", "his-back", "his-gone"], ["his-rated", "his-answered", "his-labelled"]
    for thread_id in [*ran, *acted, "his-own", "his-last"]:
        said(state, thread_id, "a public park", "bob")
    for thread_id in ran:
        said(state, thread_id, "my secret garden", "evelyn")
    (run,) = state.runs.list(thread_id="his-rated").items
    state.runs.feedback.add("his-rated", run.run_id, name="good", comment="like a garden", by="evelyn")
    state.interrupts.answer("his-answered", "yes", by="evelyn")
    ask(
        "INSERT INTO {}.events (thread_id, event_id, kind, payload)"
        " VALUES ('his-labelled', 'e', 'action', jsonb_build_object('action', 'label', 'by', 'evelyn'))"
    )
    state.archive.put([*ran, *acted, "his-own", "his-last"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    # The archive is written again, and still tells whom the threads name.
    state.archive.delete(["his-last"])
    state.archive.restore(["his-back", "his-gone"])
    state.saver.delete_thread("his-gone")
    assert b"garden" in packed(tmp_path)
    dry = state.privacy.erase(user_id="evelyn", dry_run=True)
    assert (dry.counts["archived threads"], dry.counts["archived copies"], dry.kept) == (4, 6, [])
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (done.kept, done.counts["archived copies"], done.counts["feedback"]) == ([], 6, 1)
    assert ask("SELECT thread_id, user_id, users FROM {}.archived_threads") == [("his-own", "bob", None)]
    state.archive.restore(["his-own"])
    for left in (whole(ask, schema).encode(), packed(tmp_path)):
        assert b"evelyn" not in left
        assert b"garden" not in left
    stay = {*ran, *acted, "his-own"} - {"his-gone"}
    assert {one.thread_id for one in state.threads.list(user_id="bob").items} == stay
    assert state.privacy.erase(user_id="evelyn", key=KEY).counts == {}


@pytest.mark.parametrize("payload", spread(["[]", "7", '{"by": 1e400}', '{"by": ["evelyn"]}', '{"by": null}']))
def test_an_event_of_any_form_keeps_no_thread_from_an_archive(
    state: PGState, ask: Ask, tmp_path: Path, payload: str
) -> None:
    said(state, "his", "a public park", "bob")
    ask(f"INSERT INTO {{}}.events (thread_id, event_id, kind, payload) VALUES ('his', 'e', 'action', '{payload}')")
    assert state.archive.put(["his"], to=tmp_path.as_uri(), idle_for=timedelta(0)).threads == 1
    assert ask("SELECT user_id, users FROM {}.archived_threads") == [("bob", None)]


@pytest.mark.slow
def test_an_archived_thread_of_another_that_is_held_is_kept(state: PGState, tmp_path: Path) -> None:
    said(state, "his", "a public park", "bob")
    said(state, "his", "my secret garden", "evelyn")
    state.archive.put(["his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.threads.hold("his", "case 7", by="ada")
    for dry_run in (True, False):
        done = state.privacy.erase(user_id="evelyn", dry_run=dry_run)
        assert [(one.thread_id, "ada" in one.why) for one in done.kept] == [("his", True)]
        assert [one.thread_id for one in state.archive.list().items] == ["his"]
    assert b"garden" in packed(tmp_path)
    state.threads.release("his", "case 7", by="ada")
    ended = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (ended.is_complete, ended.counts["archived copies"], [*tmp_path.iterdir()]) == (True, 1, [])


@pytest.mark.slow
def test_a_thread_of_another_that_is_archived_again_meanwhile_stays(
    state: PGState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(state, "his", "a public park", "bob")
    said(state, "his", "my secret garden", "evelyn")
    state.archive.put(["his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    copies_of = erasing.copies_of

    def late(*given: Any) -> Any:
        # Other searches for copies come before the redaction.
        if given[2].user_id is not None:
            state.archive.put(["his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
        return copies_of(*given)

    with monkeypatch.context() as patched:
        patched.setattr(erasing, "copies_of", late)
        done = state.privacy.erase(user_id="evelyn", key=KEY)
    # Archived again after the redaction, so that the new copy names nobody else.
    assert (done.is_complete, b"garden" in packed(tmp_path)) == (True, False)
    state.archive.restore(["his"])
    assert "noted: a public park" in {one.get("note") for one in values(state, "his")}


@pytest.mark.parametrize(
    "what",
    [
        {"user_id": "evelyn"},
        {"thread_id": "hers", "message_id": "m1"},
        pytest.param({"thread_id": "hers"}, marks=pytest.mark.slow),
    ],
)
def test_what_is_erased_after_it_was_copied_is_in_no_archive(
    state: PGState, dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: dict[str, str]
) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.threads.fork("hers", to="bobs", owner={"user_id": "bob", "metadata": {}})
    said(state, "his", "a public park", "bob")
    begin = archiving.begin_archive

    async def late(*given: Any) -> None:
        monkeypatch.setattr(archiving, "begin_archive", begin)
        with PGState.open(dsn, schema=schema) as other:
            assert other.privacy.erase(**what, key=KEY).receipt is not None
        await begin(*given)

    monkeypatch.setattr(archiving, "begin_archive", late)
    report = state.archive.put(["hers", "bobs", "his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    assert ({one.thread_id for one in report.left}, report.threads) == ({"hers", "bobs"}, 1)
    assert b"park" in packed(tmp_path)
    assert b"garden" not in packed(tmp_path)


@pytest.mark.slow
def test_an_erasure_waits_for_the_row_of_an_archive_that_is_made(
    state: PGState, ask: Ask, dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    said(state, "his", "a public park", "bob")
    add, store, done = archiving.add_archive, archiving.store, list[Any]()

    def erase() -> None:
        with PGState.open(dsn, schema=schema) as other:
            done.append(other.privacy.erase(user_id="evelyn", key=KEY))

    erasure = threading.Thread(target=erase)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

    async def late(*given: Any) -> None:
        erasure.start()
        wait_until(lambda: ask(waiting) != [(0,)] or not erasure.is_alive(), "the erasure waits")
        await add(*given)

    async def store_late(*given: Any) -> None:
        erasure.join(GUARD_SECONDS)
        await store(*given)

    monkeypatch.setattr(archiving, "add_archive", late)
    monkeypatch.setattr(archiving, "store", store_late)
    state.archive.put(["hers", "his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    assert [(one.thread_id, "is an unfinished archive" in one.why) for one in done[0].kept] == [("hers", True)]
    assert state.privacy.erase(user_id="evelyn", key=KEY).receipt is not None
    assert b"garden" not in packed(tmp_path)


@pytest.mark.slow
def test_an_archive_of_a_process_that_may_still_store_it_is_kept(
    state: PGState, ask: Ask, dsn: str, schema: str, tmp_path: Path
) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    began, ends = FORK.Event(), FORK.Event()
    process = FORK.Process(target=archive_and_die, args=(dsn, schema, tmp_path.as_uri(), "hers", began, ends))
    process.start()
    assert began.wait(GUARD_SECONDS)
    kept = [state.privacy.erase(user_id="evelyn", key=KEY, dry_run=dry_run).kept for dry_run in (True, False)]
    ends.set()
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert len([*tmp_path.glob("*.pack")]) == 1
    kept.append(state.privacy.erase(user_id="evelyn", key=KEY).kept)
    assert [[(one.thread_id, "is an unfinished archive" in one.why) for one in some] for some in kept] == [
        [("hers", True)]
    ] * 3
    # The clock of the server was set back by an hour, or an hour has passed.
    for sign in "+-":
        ask(f"UPDATE {{}}.archives SET created_at = now() {sign} interval '1 hour'")
        assert state.privacy.erase(user_id="evelyn", dry_run=True).is_complete
    assert state.privacy.erase(user_id="evelyn", key=KEY).receipt is not None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [{"user_id": "evelyn"}, {"thread_id": "hers"}, {"thread_id": "hers", "message_id": "m1"}]
)
def test_copies_of_deleted_forks_are_erased(state: PGState, ask: Ask, tmp_path: Path, what: dict[str, str]) -> None:
    bob = {"user_id": "bob", "metadata": {}}
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    said(state, "reused", "a public park", "bob")
    state.threads.fork("hers", to="fork", owner=bob)
    state.threads.fork("fork", to="fork of the fork", owner=bob)
    state.saver.copy_thread("hers", "copy")
    gone = ["fork", "fork of the fork", "copy"]
    state.archive.put([*gone, "reused"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.archive.restore(gone)
    # The archive is written again, and still tells where the forks come from.
    state.archive.delete(["reused"])
    for thread_id in gone:
        state.saver.delete_thread(thread_id)
    ask("DELETE FROM {}.tombstones")
    said(state, "copy", "a public bench", "bob")
    state.archive.put(["copy"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    assert b"garden" in packed(tmp_path)
    assert state.privacy.erase(**what, dry_run=True).counts["archived copies"] == 3
    # Until its place can be reached, the source stays, because the copies are found by it.
    (first, *_) = sorted(tmp_path.glob("*.pack"))
    data = first.read_bytes()
    first.unlink()
    for _ in range(2):
        done = state.privacy.erase(**what, key=KEY)
        assert {one.thread_id for one in done.kept} >= {*gone[:2], "hers"}
        assert done.receipt is None
    first.write_bytes(data)
    done = state.privacy.erase(**what, key=KEY)
    assert (done.kept, done.counts["archived copies"]) == ([], 3)
    assert b"garden" not in packed(tmp_path)
    assert ask("SELECT thread_id FROM {}.archived_threads") == [("copy",)]
    state.archive.restore(["copy"])
    assert "noted: a public bench" in {one.get("note") for one in values(state, "copy")}


@pytest.mark.slow
def test_copies_of_a_deleted_fork_are_erased_by_a_thread_that_is_gone(state: PGState, ask: Ask, tmp_path: Path) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    state.threads.fork("hers", to="fork", owner={"user_id": "bob", "metadata": {}})
    state.archive.put(["fork"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.archive.restore(["fork"])
    for thread_id in ("fork", "hers"):
        state.saver.delete_thread(thread_id)
    ask("DELETE FROM {}.events")
    assert state.privacy.erase(thread_id="hers", key=KEY).counts["archived copies"] == 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("is_message", [False, True])
def test_a_redacted_thread_of_another_that_is_archived_again_meanwhile_stays(
    state: PGState, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_message: bool
) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    state.threads.fork("hers", to="bobs", owner={"user_id": "bob", "metadata": {}})
    state.archive.put(["bobs"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    copies_of = erasing.copies_of

    def late(*given: Any) -> Any:
        monkeypatch.setattr(erasing, "copies_of", copies_of)
        state.archive.put(["bobs"], to=tmp_path.as_uri(), idle_for=timedelta(0))
        return copies_of(*given)

    monkeypatch.setattr(erasing, "copies_of", late)
    what = {"thread_id": "hers"} | ({"message_id": "m1"} if is_message else {})
    done = state.privacy.erase(**what, key=KEY)
    assert done.kept == []
    assert b"garden" not in packed(tmp_path)
    if is_message:
        assert state.archive.restore(["bobs"]).threads == 1
    assert str(values(state, "bobs")[0]["messages"][0].content).strip() == "[erased]"


@pytest.mark.slow
def test_an_archived_thread_is_erased_by_its_id(state: PGState, ask: Ask, tmp_path: Path) -> None:
    said(state, "hers", "my secret garden", "evelyn", id="m1")
    said(state, "held", "a public park", "bob")
    state.archive.put(["hers", "held"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    with pytest.raises(ThreadArchivedError, match="archive restore"):
        state.privacy.erase(thread_id="hers", message_id="m1")
    dry = state.privacy.erase(thread_id="hers", dry_run=True)
    assert dry.counts == {"archived copies": 1, "archived threads": 1}
    state.threads.hold("held", "case 7", by="ada")
    with pytest.raises(ThreadHeldError, match="ada"):
        state.privacy.erase(thread_id="held")
    told = state.privacy.erase(user_id="bob", dry_run=True)
    assert [(one.thread_id, "ada" in one.why) for one in told.kept] == [("held", True)]
    assert ask("SELECT count(*) FROM {}.erasures") == [(0,)]
    done = state.privacy.erase(thread_id="hers", key=KEY)
    assert (done.is_complete, done.counts["threads"], done.counts["archived copies"]) == (True, 1, 1)
    assert state.threads.get("hers") is None
    assert ask("SELECT thread_id FROM {}.archived_threads") == [("held",)]


@pytest.mark.slow
def test_what_an_archive_keeps_is_named_until_it_can_be_reached(state: PGState, tmp_path: Path) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    said(state, "his", "a public park", "bob")
    state.archive.put(["hers", "his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.archive.restore(["hers"])
    (pack,) = tmp_path.glob("*.pack")
    data = pack.read_bytes()
    pack.write_bytes(data[:-1])
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert [(one.thread_id, one.why.startswith("an archive has it")) for one in done.kept] == [("hers", True)]
    assert done.receipt is None
    pack.write_bytes(data)
    ended = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (ended.erasure_id, ended.is_complete) == (done.erasure_id, True)
    assert ended.counts["archived copies"] == 1
    assert {file.suffix for file in tmp_path.iterdir()} == {".pack", ".json"}
    state.archive.restore(["his"])


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_an_archived_thread_of_another_user_stays_if_an_older_copy_is_hers(
    state: PGState, ask: Ask, tmp_path: Path, is_new: bool, others: int
) -> None:
    said(state, "t", "my secret garden", "evelyn")
    said(state, "his", "a public park", "bob")
    place = tmp_path.as_uri()
    state.archive.put(["t", "his"][: 1 + others], to=place, idle_for=timedelta(0))
    state.archive.restore(["t"])
    if is_new:
        state.saver.delete_thread("t")
        ask("DELETE FROM {}.tombstones")
    said(state, "t", "a public lake", "bob")
    ask("UPDATE {}.threads SET user_id = 'bob'")
    state.archive.put(["t"], to=place, idle_for=timedelta(0))
    # A thread in which she has spoken is restored, redacted, and stays in the database.
    copies = 1 if is_new else 2
    assert state.privacy.erase(user_id="evelyn", dry_run=True).counts["archived copies"] == copies
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert (done.is_complete, done.counts["archived copies"]) == (True, copies)
    away = ["t"] * is_new + ["his"] * others
    assert ask("SELECT thread_id, user_id FROM {}.archived_threads ORDER BY 1 DESC") == [(id, "bob") for id in away]
    assert len([*tmp_path.glob("*.pack")]) == len(away)
    assert state.archive.restore(away).threads == len(away)
    assert values(state, "t")[0]["note"] == "noted: a public lake"
    assert "garden" not in whole(ask, state.schema)


@pytest.mark.slow
def test_a_copy_of_hers_that_is_the_only_one_of_a_thread_of_another_user_is_restored(
    state: PGState, ask: Ask, tmp_path: Path
) -> None:
    said(state, "t", "my secret garden", "evelyn")
    said(state, "u", "my secret roses", "evelyn")
    state.archive.put(["t", "u"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    ask("UPDATE {}.threads SET user_id = 'bob' WHERE thread_id = 't'")
    for dry_run in (True, False):
        done = state.privacy.erase(user_id="evelyn", key=KEY, dry_run=dry_run)
        assert (done.kept, done.counts["archived copies"]) == ([], 2)
    assert ask("SELECT thread_id, user_id FROM {}.threads") == [("t", "bob")]
    assert "garden" not in whole(ask, state.schema)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_held_thread_of_another_user_keeps_its_copy_of_hers(state: PGState, ask: Ask, tmp_path: Path) -> None:
    for thread_id in ("t", "u", "v"):
        said(state, thread_id, "my secret garden", "evelyn")
    state.archive.put(["t", "u"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    state.archive.restore(["t"])
    ask("UPDATE {}.threads SET user_id = 'bob' WHERE thread_id = 't'")
    ask("DELETE FROM {}.runs WHERE thread_id = 't'")
    state.threads.hold("t", "case 7", by="counsel")
    for dry_run in (True, False):
        done = state.privacy.erase(user_id="evelyn", key=KEY, dry_run=dry_run)
        assert [(one.thread_id, "held by counsel" in one.why) for one in done.kept] == [("t", True)]
        assert done.counts["archived copies"] == 1
    assert ask("SELECT thread_id FROM {}.archived_threads") == [("t",)]
    state.threads.release("t", "case 7", by="counsel")
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_archive_that_cannot_be_opened_keeps_its_thread_only(
    state: PGState, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    for thread_id in ("away", "here"):
        said(state, thread_id, "my secret garden", "evelyn")
    place = tmp_path.as_uri()
    state.archive.put(["away"], to=place, idle_for=timedelta(0))
    if is_restored:
        state.archive.restore(["away"])
    ask("UPDATE {}.archives SET url = 's3://bucket/prefix'")
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert [one.thread_id for one in done.kept] == ["away"]
    assert "s3://bucket/prefix" in done.kept[0].why
    assert "the extra `archive`" in done.kept[0].why
    assert ask("SELECT thread_id FROM {}.threads") == ([] if is_restored else [("away",)])
    ask(f"UPDATE {{}}.archives SET url = '{place}'")
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("why", ["was deleted at", "already has rows"])
def test_an_archived_thread_that_cannot_be_restored_is_kept(state: PGState, ask: Ask, tmp_path: Path, why: str) -> None:
    said(state, "away", "my secret garden", "evelyn")
    ask("CREATE TEMP TABLE noted AS SELECT * FROM {}.runs")
    state.archive.put(["away"], to=tmp_path.as_uri(), idle_for=timedelta(0))
    said(state, "here", "my secret roses", "evelyn")
    if why == "was deleted at":
        ask("INSERT INTO {}.tombstones (thread_id, expires_at) VALUES ('away', now() + interval '1 hour')")
    else:
        ask("INSERT INTO {}.runs SELECT * FROM noted")
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert [(one.thread_id, why in one.why, str(tmp_path) in one.why) for one in done.kept] == [("away", True, True)]
    assert ask("SELECT thread_id FROM {}.threads") == [("away",)]
    ask("DELETE FROM {}.tombstones")
    ask("DELETE FROM {}.runs")
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete


@pytest.mark.slow
def test_a_thread_is_named_once_among_the_kept(state: PGState, tmp_path: Path) -> None:
    said(state, "t", "my secret garden", "evelyn")
    for _ in range(2):
        state.archive.put(["t"], to=tmp_path.as_uri(), idle_for=timedelta(0))
        state.archive.restore(["t"])
    for pack in tmp_path.glob("*.pack"):
        pack.unlink()
    assert [one.thread_id for one in state.privacy.erase(user_id="evelyn", key=KEY).kept] == ["t"]


@pytest.mark.slow
def test_only_rows_of_her_tenant_are_erased(dsn: str) -> None:
    with open_walled(dsn) as walled, walled.open(pool=2) as state:
        tenants = [state.for_tenant(name) for name in ("acme", "other")]
        for one in tenants:
            saver = one.saver
            saver.put(*put_arguments(own("t"), 1))
            one.memory.put(("users", "evelyn"), "likes", {"content": "roses"})
        with pytest.raises(TenantError, match="an erasure must be given"):
            state.privacy.erase(user_id="evelyn")
        done = tenants[0].privacy.erase(user_id="evelyn", key=KEY)
        assert (done.counts["threads"], done.counts["memories"]) == (1, 1)
        assert [one.saver.get_tuple(config_of("t")) is None for one in tenants] == [True, False]
        assert tenants[1].memory.get(("users", "evelyn"), "likes") is not None
        assert [len(one.privacy.receipts().items) for one in tenants] == [1, 0]
        assert b"roses" in b"".join(tenants[1].privacy.export(user_id="evelyn"))
        assert [*tenants[0].privacy.export(user_id="evelyn")] == []


@pytest.mark.slow
async def test_a_cancelled_erasure_goes_on_when_it_is_called_again(dsn: str, schema: str, ask: Ask) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        for number in range(6):
            await state.saver.aput(*put_arguments(own(f"t{number}"), 1))
        for number in range(examples(8)):
            task = asyncio.create_task(state.privacy.erase(user_id="evelyn", key=KEY))
            await asyncio.sleep(0.003 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        receipts = [one.receipt for one in (await state.privacy.receipts(limit=100)).items if one.receipt]
        if not receipts:
            done = await state.privacy.erase(user_id="evelyn", key=KEY)
            assert done.receipt is not None
            receipts = [done.receipt]
    assert ask("SELECT count(*) FROM {}.threads") == [(0,)]
    # Of however many calls, all threads were counted once.
    assert sum(receipt["counts"].get("threads", 0) for receipt in receipts) == 6


def test_a_run_of_an_erased_user_that_waits_in_a_thread_of_another_ends_as_cancelled(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        for name in ("bob", "eve"):
            owner = {"configurable": {"user_id": name}}
            run = state.runs.enqueue("agent", {}, thread_id="t", run_after=timedelta(hours=1), config=owner)
        state.runs.cancel("t", state.runs.queued().items[0].run_id)
        state.privacy.erase(user_id="eve")
        thread = state.threads.get("t")
        assert (run.status(), thread and thread.status) == ("cancelled", "idle")


@pytest.mark.parametrize(
    "given", [{"role": "user", "content": "PIN 4711"}, ("user", "PIN 4711"), HumanMessage("PIN 4711")]
)
def test_a_short_message_is_redacted_in_the_input_that_gave_it_no_id(
    state: PGState, ask: Ask, schema: str, given: Any
) -> None:
    graph = state.record(talk().compile(checkpointer=state.saver))
    graph.invoke({"messages": [given]}, own("hers"))
    found = state.messages.conversation("hers")
    assert found[0].content == "PIN 4711"
    assert state.privacy.erase(thread_id="hers", message_id=found[0].message_id, key=KEY).is_complete
    for row in ask(
        "SELECT state FROM {}.checkpoints UNION SELECT data FROM {}.writes UNION SELECT data FROM {}.segments"
    ):
        # What the graph itself made of it stays: it is not equal to the message.
        content = frames.unpack(row[0], "it").replace(b"said PIN 4711", b"").replace(b"noted: PIN 4711", b"")
        assert b"PIN 4711" not in content
    assert ask("SELECT input::text FROM {}.runs WHERE input::text LIKE '%PIN 4711%'") == []


@pytest.mark.slow
def test_answers_with_which_a_user_resumed_a_thread_of_another_are_erased(
    state: PGState, ask: Ask, schema: str
) -> None:
    def resume(thread_id: str, user: str) -> None:
        graph = state.record(talk().compile(checkpointer=state.saver))
        graph.invoke(Command(resume=f"the secret word of {user} to {thread_id}"), own(thread_id, user))

    for thread_id, owner in (("bobs", "bob"), ("hers", "evelyn")):
        said(state, thread_id, "a public park", owner)
        resume(thread_id, "evelyn")
        state.threads.fork(thread_id, to=f"fork of {thread_id}", owner={"user_id": "bob", "metadata": {}})
    resumed = "SELECT thread_id, data FROM {}.writes WHERE idx = -4 ORDER BY 1"
    assert {thread_id for thread_id, _ in ask(resumed)} == {"bobs", "fork of bobs", "hers", "fork of hers"}
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
    assert all(b"secret" not in frames.unpack(data, "it") for _, data in ask(resumed))
    assert "secret" not in whole(ask, schema)


@pytest.mark.parametrize("damaged", ["bobs", "hers"])
def test_a_damaged_thread_is_kept_and_all_else_is_erased(state: PGState, ask: Ask, damaged: str) -> None:
    said(state, "hers", "my secret garden")
    state.threads.fork("hers", to="fork", owner={"user_id": "bob", "metadata": {}})
    said(state, "bobs", "my secret garden")
    said(state, "bobs", "a public park", "bob")
    ask("UPDATE {}.threads SET user_id = 'bob' WHERE thread_id = 'bobs'")
    state.memory.put(("users", "evelyn"), "likes", {"content": "secret roses"})
    (intact,) = ask(f"SELECT checkpoint_id, state FROM {{}}.checkpoints WHERE thread_id = '{damaged}' AND step = 0")
    damage = "UPDATE {{}}.checkpoints SET state = '\\x{}' WHERE thread_id = '{}' AND checkpoint_id = '{}'"
    ask(damage.format(intact[1][:-9].hex(), damaged, intact[0]))
    done = state.privacy.erase(user_id="evelyn", key=KEY)
    assert [one.thread_id for one in done.kept] == (["bobs"] if damaged == "bobs" else ["fork", "hers"])
    assert "is damaged" in done.kept[0].why
    assert ask("SELECT count(*) FROM {}.memories") == [(0,)]
    ask(damage.format(intact[1].hex(), damaged, intact[0]))
    assert state.privacy.erase(user_id="evelyn", key=KEY).is_complete
