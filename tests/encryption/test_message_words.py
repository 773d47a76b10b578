"""Encrypted messages are found by digests of their words, if `search="words"` stores them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from support import config_of, put_arguments

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin import words
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.errors import ConfigurationError, EncryptedError

MASTER = LocalMasterKey(bytes(range(32)))
TEXTS = ["Book a hotel in Prague, please.", "Rome's hotels are full - sorry!", "Then a flat in Prague or Vienna"]


def opened(dsn: str, schema: str, **options: Any) -> PGState:
    options = {"scope": "user", "search": "words", **options}
    return PGState.open(dsn, schema=schema, encryption=Encryption(MASTER, **options))


def say(state: PGState, thread_id: str, texts: list[str]) -> None:
    """Store a conversation."""
    messages = [
        HumanMessage(text, id=f"m{n}") if n % 2 == 0 else AIMessage(text, id=f"m{n}") for n, text in enumerate(texts)
    ]
    config = config_of(thread_id)
    config["configurable"]["user_id"] = "anna"
    state.saver.put(*put_arguments(config, 0, messages=messages))
    state.maintain()


def found(state: PGState, query: str) -> set[tuple[str, str]]:
    return {(hit.message.thread_id, hit.message.message_id) for hit in state.messages.search(query).items}


def test_messages_are_found_by_words(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with opened(dsn, schema) as state:
        say(state, "t", TEXTS)
        for query, wanted in (
            ("PRAGUE", {"m0", "m2"}),
            ("hotel prague", {"m0"}),
            ("prague -hotel", {"m2"}),
            ("rome or vienna", {"m1", "m2"}),
            ('"prague, please"', {"m0"}),
            ("Rome's", {"m1"}),
            ("hote", set()),
            ("berlin", set()),
        ):
            assert found(state, query) == {("t", one) for one in wanted}, query
        (hit,) = state.messages.search("hotel please").items
        assert (hit.message.content, hit.snippet) == (TEXTS[0], "Book a «hotel» in Prague, «please».")
        assert [one.thread_id for one in state.threads.search(text="vienna").items] == ["t"]
        state.threads.fork("t", to="fork")
        assert found(state, "vienna") == {("t", "m2"), ("fork", "m2")}
        assert [one.content for one in state.messages.conversation("fork")] == TEXTS
        state.privacy.erase(thread_id="t", message_id="m2", key=bytes(32))
        assert ("t", "m2") not in found(state, "vienna")
    rows = str(connection.execute(f'SELECT content FROM "{schema}".messages').fetchall()).lower()
    assert "hotel" not in rows
    assert "prague" not in rows
    with PGState.open(dsn, schema=schema) as plain, pytest.raises(EncryptedError):
        plain.messages.search(rows.split(" ")[1].strip("',)("))


@pytest.mark.slow
def test_words_stay_when_keys_are_rotated(dsn: str, schema: str) -> None:
    with opened(dsn, schema, cache_for=timedelta(seconds=1)) as state:
        say(state, "t", TEXTS)
    encryption = Encryption(MASTER, scope="user", search="words", cache_for=timedelta(seconds=1))
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.rotate_keys()
        assert (report.problems, report.left) == ([], 0)
        assert admin.check(deep=True).problems == []
    with opened(dsn, schema) as state:
        assert found(state, "hotel prague") == {("t", "m0")}
        assert [one.content for one in state.messages.conversation("t")] == TEXTS


def test_plain_messages_are_found_once_they_are_encrypted(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        say(state, "t", TEXTS)
    with Admin.open(dsn, schema=schema, encryption=Encryption(MASTER, search="words", accept_plain=True)) as admin:
        assert admin.encrypt().problems == []
    with opened(dsn, schema) as state:
        assert found(state, "hotel prague") == {("t", "m0")}


def test_without_the_option_nothing_is_stored_or_found(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with opened(dsn, schema, search=None) as state:
        say(state, "t", TEXTS)
        with pytest.raises(ConfigurationError, match=r"messages\.content cannot be searched"):
            state.messages.search("prague")
    rows = connection.execute(f'SELECT content FROM "{schema}".messages').fetchall()
    assert rows
    assert not any(" " in content for (content,) in rows)


def test_words_are_added_to_what_was_encrypted_without_them(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page; a message without words, and what does not decrypt, stay as they are."""
    monkeypatch.setattr(words, "_PAGE", 2)
    without = {"scope": "user", "search": None}
    with opened(dsn, schema, **without) as state:
        say(state, "t", [*TEXTS, "?!", "Prague again"])
        state.memory.remember("Lives in Prague.", key="home", user_id="anna")
        state.memory.put(("n",), "fields", {"text": "a flat", "other": "vienna"}, index=["text"])
        state.memory.put(("n",), "none", {"text": "a flat"}, index=False)
        state.memory.put(("n",), "whole", {"text": "a boat"})
    table = f'"{schema}".messages'
    connection.execute(f"UPDATE {table} SET content = left(content, 60) WHERE message_id = 'm4'".encode())
    encryption = Encryption(MASTER, scope="user", search="words")
    with (
        Admin.open(dsn, schema=schema, encryption=Encryption(MASTER)) as admin,
        pytest.raises(ConfigurationError, match="search='words'"),
    ):
        admin.add_words()
    reached: list[Any] = []
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.add_words(progress=reached.append)
        assert (report.values, report.rows) == (6, 9)
        assert [one.table for one in reached] == ["messages"] * 3 + ["memories"] * 3
        assert admin.add_words().values == 0
    with opened(dsn, schema) as state:
        connection.execute(f"DELETE FROM {table} WHERE message_id = 'm4'".encode())
        assert found(state, "prague") == {("t", "m0"), ("t", "m2")}
        assert [one.content for one in state.messages.conversation("t")] == [*TEXTS, "?!"]
        assert state.memory.recall("prague", user_id="anna")[0].words_rank == 1

        def ranked(query: str) -> set[str]:
            return {one.key for one in state.memory.search(("n",), query=query) if one.words_rank is not None}

        assert (ranked("flat"), ranked("vienna"), ranked("boat")) == ({"fields"}, set(), {"whole"})


def test_a_message_that_changes_meanwhile_is_not_put_back(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(dsn, schema, search=None) as state:
        say(state, "t", TEXTS[:1])
        state.memory.put(("n",), "key", {"text": "before"})
        execute = BlockingConnection.execute_together

        async def late(self: BlockingConnection, statements: Any) -> Any:
            query, parameters = statements[0]
            if query.name in ("add_words_of_message", "replace_words"):
                # The keys are loaded first, and the page is then read again.
                query.contents.seal(self.keys, parameters)
                connection.execute(f'UPDATE "{schema}".messages SET content = NULL'.encode())
                state.memory.put(("n",), "key", {"text": query.name})
            return await execute(self, statements)

        monkeypatch.setattr(BlockingConnection, "execute_together", late)
        with Admin.open(dsn, schema=schema, encryption=Encryption(MASTER, scope="user", search="words")) as admin:
            assert admin.add_words().values == 0
    for table, column in (("messages", "content"), ("memories", "words")):
        rows = connection.execute(f'SELECT {column} FROM "{schema}".{table}'.encode()).fetchall()
        assert rows == [(None,)]
