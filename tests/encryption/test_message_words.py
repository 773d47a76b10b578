"""Encrypted messages are found by digests of their words, if `search="words"` stores them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from support import config_of, put_arguments

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin.api import Admin
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
