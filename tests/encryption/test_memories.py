"""Encrypted memories: stored, read, filtered, searched and rotated as others, and in no table as they are."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from langgraph_pgstate import AsyncPGState, Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import ConfigurationError, DecryptionError, EncryptedError, NotEncryptedError
from langgraph_pgstate.memory import PGMemoryStore

MASTER = LocalMasterKey(bytes(range(32)))
SECRET = "plantedinamemory"  # pragma: allowlist secret
ANNA = ("memories", "user", "anna")


def opened(dsn: str, schema: str, memory: Any = None, **options: Any) -> Any:
    """A state with encryption."""
    return PGState.open(dsn, schema=schema, encryption=Encryption(MASTER, **options), memory=memory or {})


def stored(connection: psycopg.Connection, schema: str) -> str:
    """The text of all rows with memories."""
    return "".join(
        str(connection.execute(f'SELECT t.*::text FROM "{schema}".{table} t').fetchall())
        for table in ("memories", "memory_versions")
    )


def test_items_are_encrypted_and_read(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    value = {"text": SECRET, "n": 12345678901234567890123, "nested": {"é": [SECRET, None, 1.5]}, "pgstate_encrypted": 1}
    with opened(dsn, schema) as state:
        memory = state.memory
        memory.put(("a",), "key", value)
        memory.put(("a",), "key", dict(reversed(value.items())))
        memory.put(("a", "b"), "other", {}, ttl=5)
        assert memory.get(("a",), "key").value == value
        assert [(one.namespace, one.value) for one in memory.search(("a",))] == [(("a", "b"), {}), (("a",), value)]
        assert memory.list_namespaces() == [("a",), ("a", "b")]
        assert [one.version for one in memory.history(("a",), "key")] == [1]
        memory.put(("a",), "key", {"text": f"{SECRET} again"})
        memory.delete(("a",), "key")
        found = memory.history(("a",), "key")
        assert [(one.version, one.value["text"]) for one in found] == [(2, f"{SECRET} again"), (1, SECRET)]
        assert memory.restore(("a",), "key", 1).value == value
        assert memory.browse(namespace=("a",)).items[0].value == value
    assert SECRET not in stored(connection, schema)
    assert SECRET.encode().hex() not in stored(connection, schema)


def test_memories_are_merged_and_kept(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """The same text is counted, and neither its hash nor a key that is made of it is stored."""
    with opened(dsn, schema) as state:
        memory = state.memory
        first = memory.remember(f"Likes {SECRET}.", user_id="anna", metadata={"why": SECRET})
        again = memory.remember(f"likes {SECRET}", user_id="anna")
        assert (again.key, again.content, again.duplicates, again.metadata) == (
            first.key,
            f"Likes {SECRET}.",
            1,
            {"why": SECRET},
        )
        memory.remember("Lives in Prague.", key="home", user_id="anna")
        memory.remember("Lives in Vienna.", key="home", user_id="anna", metadata={"since": 2026})
        assert memory.remember("lives in vienna", key="home", user_id="anna", metadata={"since": 2026}).duplicates == 1
        moment = memory.history(ANNA, "home")[1].valid_from
        assert {one.content for one in memory.recall(user_id="anna")} == {f"Likes {SECRET}.", "Lives in Vienna."}
        assert "Lives in Prague." in {one.content for one in memory.recall(user_id="anna", as_of=moment)}
        notes = memory.notes("task", user_id="anna")
        notes.save(goal=SECRET)
        notes.save(next_action="ask")
        assert memory.notes("task", user_id="anna").goal == SECRET
        shown = stored(connection, schema)
        assert memory.edit(ANNA, first.key, {"content": "Other."}, expected_version=1).value == {"content": "Other."}
    assert SECRET not in shown
    digest = hashlib.sha256(f"fact\0likes {SECRET}".encode()).hexdigest()[:32]
    with PGState.open(dsn, schema=schema) as plain:
        plain.memory.remember(f"Likes {SECRET}.", user_id="bert")
    assert digest not in shown
    assert digest in stored(connection, schema)


def test_a_value_that_was_moved_or_is_plain_is_refused(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with opened(dsn, schema, readable=["city"]) as state:
        for key in ("a", "b"):
            state.memory.put(("n",), key, {"text": key})
        connection.execute(
            f"""UPDATE "{schema}".memories m SET value = o.value FROM "{schema}".memories o
            WHERE m.key = 'a' AND o.key = 'b'"""
        )
        with pytest.raises(DecryptionError, match=r"memories\.value"):
            state.memory.get(("n",), "a")
        assert state.memory.get(("n",), "b").value == {"text": "b"}
        for forged in ("{}", '{"city": "Rome"}', '{"text": "x"}'):
            connection.execute(f"""UPDATE "{schema}".memories SET value = '{forged}' WHERE key = 'b'""")
            with pytest.raises(NotEncryptedError):
                state.memory.get(("n",), "b")
    with opened(dsn, schema) as state:
        state.memory.put(("n",), "a", {"text": "a"})
    with PGState.open(dsn, schema=schema) as state, pytest.raises(EncryptedError):
        state.memory.get(("n",), "a")


def test_a_namespace_that_names_a_user_has_her_key(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """An erasure destroys it, and what else is encrypted under it reads as nothing."""
    with opened(dsn, schema, scope="user") as state:
        state.memory.remember(SECRET, user_id="anna", tenant_id="user")
        state.memory.put(("users", "anna"), "key", {"text": SECRET})
        state.memory.put(("team",), "key", {"text": SECRET})
        state.files.write(("users", "anna"), "/a.txt", SECRET)
        rows = connection.execute(f'SELECT scope FROM "{schema}".data_keys ORDER BY 1').fetchall()
        assert rows == [("",), ("pgstate:search",), ("user:anna",)]
        exported = b"".join(state.privacy.export(user_id="anna")).decode()
        assert exported.count(SECRET) == 3
        state.privacy.erase(user_id="anna", key=bytes(32))
        assert state.memory.get(("team",), "key").value == {"text": SECRET}
    rows = connection.execute(f'SELECT wrapped FROM "{schema}".data_keys WHERE scope ~ $$^erased$$').fetchall()
    assert rows == [(None,)]


def test_filters_find_readable_keys_and_digests(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with opened(dsn, schema, readable=["stars"], searchable=["city"]) as state:
        memory = state.memory
        memory.put(("h",), "one", {"city": SECRET, "stars": 4, "text": "x"})
        memory.put(("h",), "two", {"city": "Rome", "stars": 2})
        memory.put(("h",), "three", {"city": 7.0, "stars": 1})
        memory.put(("h",), "none", {"city": None})

        def found(filter: Any) -> set[str]:
            return {one.key for one in memory.search(("h",), filter=filter)}

        assert found({"city": SECRET}) == {"one"}
        assert found({"city": "Paris"}) == set()
        assert found({"city": 7}) == {"three"}
        assert found({"city": {"$ne": SECRET}}) == {"two", "three", "none"}
        assert found({"city": None}) == {"none"}
        assert found({"city": SECRET, "stars": {"$gte": 3}}) == {"one"}
        assert found({"stars": {"$lt": 3}}) == {"two", "three"}
        for refused in ({"text": "x"}, {"city": {"$gt": "A"}}, {"city": {"name": "x"}}):
            with pytest.raises(ConfigurationError, match=r"memories\.value cannot be filtered by"):
                found(refused)
        assert SECRET not in stored(connection, schema)
        # The value is not found by a digest that another key makes.
        connection.execute(f'DELETE FROM "{schema}".data_keys WHERE scope = $$pgstate:search$$')
    with opened(dsn, schema, readable=["stars"], searchable=["city"]) as state:
        assert state.memory.search(("h",), filter={"city": SECRET}) == []
        assert state.memory.get(("h",), "one").value["city"] == SECRET


def test_searches_are_refused_by_name(dsn: str, schema: str) -> None:
    with opened(dsn, schema) as state:
        state.memory.put(("a",), "key", {"text": SECRET})
        with pytest.raises(ConfigurationError, match=r"memories\.words cannot be searched"):
            state.memory.search(("a",), query="word")
        with pytest.raises(ConfigurationError, match=r"memories\.words cannot be searched"):
            state.memory.recall("word", user_id="anna")
        with pytest.raises(ConfigurationError, match=r"memory_versions\.value cannot be searched"):
            state.memory.recall("word", user_id="anna", as_of=datetime.now(UTC))
        with pytest.raises(ConfigurationError, match=r"memories\.value cannot be searched"):
            state.memory.browse(user_id="anna", text="word")
        assert state.memory.recall(user_id="anna") == []


def test_words_are_found_by_their_digests(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    texts = {"nuts": f"Is allergic to Nuts, {SECRET}!", "rome": "Lives in Rome. Rome is a city", "three": "Has 3 cats"}
    with opened(dsn, schema, {"language": "english"}, search="words") as state:
        for key, text in texts.items():
            state.memory.remember(text, key=key, user_id="anna")
        for query, wanted in (("what about NUTS?", "nuts"), ("a city", "rome"), (SECRET, "nuts"), ("3 dogs", "three")):
            assert state.memory.recall(query, user_id="anna", limit=1)[0].key == wanted
        found = state.memory.search(ANNA, query="rome paris")
        assert [(one.key, one.words_rank) for one in found][:2] == [("rome", 1), (found[1].key, None)]
    rows = connection.execute(f'SELECT words::text, length(words) FROM "{schema}".memories ORDER BY key').fetchall()
    assert all(not any(word.lower() in words for word in ("nuts", "rome", "city", SECRET)) for words, _ in rows)
    assert [length for _, length in rows] == [5, 6, 3]
    assert SECRET not in stored(connection, schema)
    # Without the option nothing more is stored.
    with opened(dsn, schema) as state:
        state.memory.remember("Lives in Rome.", key="rome", user_id="anna")
    rows = connection.execute(f'SELECT words FROM "{schema}".memories WHERE key = $$rome$$').fetchall()
    assert rows == [(None,)]


@pytest.fixture
def has_vectors(dsn: str) -> None:
    """Skips a test if the server has no pgvector."""
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings in which texts that share letters are near each other."""
    return [[0.01 + text.lower().count(letter) for letter in "abcdefgh"] for text in texts]


@pytest.mark.slow
@pytest.mark.bare
@pytest.mark.usefixtures("has_vectors")
def test_embeddings_are_stored_if_they_are_allowed(
    dsn: str, schema: str, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    memory = {"index": {"dims": 8, "embed": embed, "fields": ["content"]}}
    with opened(dsn, schema, memory) as state, pytest.raises(ConfigurationError, match="plain_vectors=True"):
        state.setup()
    with opened(dsn, schema, memory, plain_vectors=True) as state:
        state.setup()
        state.memory.remember(f"abba {SECRET}", key="one", user_id="anna")
        state.memory.remember("hedge", key="two", user_id="anna")
        found = state.memory.recall("baab", user_id="anna", limit=1)
        assert [(one.key, one.vector_rank, one.words_rank) for one in found] == [("one", 1, None)]
        # It is so similar that it replaces the earlier one.
        assert state.memory.remember(f"baba {SECRET}", user_id="anna").key == "one"
        assert state.memory.search(ANNA, query="hedge", filter=None)[0].value["content"] == "hedge"
        with pytest.raises(ConfigurationError, match="cannot be searched"):
            state.memory.search(ANNA, query="hedge", mode="words")
    with opened(dsn, schema, memory) as state, pytest.raises(ConfigurationError, match="plain_vectors=True"):
        state.memory.remember("abba", user_id="anna")

    def failing(texts: Sequence[str]) -> list[list[float]]:
        raise ConnectionError("no model")

    memory["index"]["embed"] = failing
    with opened(dsn, schema, memory, plain_vectors=True) as state:
        with pytest.raises(ConnectionError):
            state.memory.recall("abba", user_id="anna")
        state.memory.remember("later", key="later", user_id="anna")
    memory["index"]["embed"] = embed
    with opened(dsn, schema, memory, plain_vectors=True) as state:
        assert state.memory.reindex() == 1
    assert SECRET not in stored(connection, schema)


@pytest.mark.parametrize("search", [None, "words"])
def test_plain_memories_become_encrypted(search: Any, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """With their words and hashes; and are found and merged as before."""
    with PGState.open(dsn, schema=schema) as state:
        state.memory.remember("Lives in Rome.", key="home", user_id="anna")
        state.memory.remember(f"Lives in {SECRET}.", key="home", user_id="anna")
        state.memory.remember(f"Likes {SECRET}.", user_id="anna")
        state.memory.put(("items",), "key", {"text": SECRET, "n": 1}, index=False)
    accepting = Encryption(MASTER, scope="user", search=search, accept_plain=True)
    with Admin.open(dsn, schema=schema, encryption=accepting) as admin:
        report = admin.encrypt()
        # Three values, an earlier one, two hashes, and the words of two.
        assert (report.problems, report.values) == ([], 8)
        assert admin.encrypt().values == 0
    assert SECRET not in stored(connection, schema)
    digest = hashlib.sha256(f"fact\0likes {SECRET}".encode()).hexdigest()[:32]
    rows = connection.execute(f'SELECT digest FROM "{schema}".memories').fetchall()
    assert (digest,) not in rows
    with opened(dsn, schema, scope="user", search=search) as state:
        assert state.memory.remember(f"likes {SECRET}", user_id="anna").duplicates == 1
        assert [one.value["content"] for one in state.memory.history(ANNA, "home")] == [
            f"Lives in {SECRET}.",
            "Lives in Rome.",
        ]
        if search:
            assert state.memory.recall(f"{SECRET} lives", user_id="anna", limit=1)[0].key == "home"
    rows = connection.execute(f'SELECT count(words) FROM "{schema}".memories').fetchall()
    assert rows == [(2 if search else 0,)]


@pytest.mark.slow
def test_memories_are_rotated(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    encryption = Encryption(MASTER, scope="user", searchable=["city"], cache_for=timedelta(seconds=1))
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        for number in range(3):
            state.memory.put(("users", "anna"), "key", {"n": number, "city": SECRET})
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.rotate_keys()
        assert (report.problems, report.values, report.left) == ([], 3, 0)
        assert admin.check(deep=True).problems == []
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        assert [one.value["n"] for one in state.memory.history(("users", "anna"), "key")] == [2, 1, 0]
        state.memory.put(("users", "anna"), "key", {"city": SECRET, "n": 2})
        assert len(state.memory.history(("users", "anna"), "key")) == 3
        assert len(state.memory.search(("users",), filter={"city": SECRET})) == 1


async def test_many_tasks_and_users_at_once(dsn: str, schema: str) -> None:
    """Puts that are stored together are of several users, whose data keys are made meanwhile."""
    encryption = Encryption(MASTER, scope="user")
    async with AsyncPGState.open(dsn, schema=schema, encryption=encryption) as state:
        await asyncio.gather(
            *(
                state.memory.aput(("users", f"u{n % 30}"), f"k{n}", {"n": n, "labels": ['"', "\\", "\n"]})
                for n in range(90)
            )
        )
        found = await asyncio.gather(*(state.memory.aget(("users", f"u{n % 30}"), f"k{n}") for n in range(90)))
        assert [one.value["n"] for one in found] == [*range(90)]


@pytest.mark.parametrize("label", ['a"b', "a\\b", "a\nb", "{a,b}", "é\x01"])
def test_labels_of_any_form(label: str, dsn: str, schema: str) -> None:
    """Guard: what is bound to a namespace is bound to the same one when it is read."""
    with PGMemoryStore.from_conn_string(dsn, schema=schema, encryption=Encryption(MASTER, scope="user")) as store:
        store.put(("users", label), label, {"text": "x"})
        assert [one.value for one in store.search(("users", label))] == [{"text": "x"}]
        assert store.get(("users", label), label).value == {"text": "x"}  # type: ignore[union-attr]
