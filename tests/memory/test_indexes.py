"""Indexes of embeddings: embedded by one call at a time, swept, dropped; duplicates in large namespaces."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from langgraph_pgstate import PGState
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.runners import BlockingRunner
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StaleMemoryError
from langgraph_pgstate.memory import PGMemoryStore, indexing, items

DIMS = 4


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return embeddings that are the same for texts that differ in their last word only."""
    return [
        [random.Random(f"{text.rpartition(' ')[0]} {place}").gauss(0, 1) for place in range(DIMS)] for text in texts
    ]


def index(
    name: str = "default", model: Callable[..., Any] = embed, fields: Sequence[str] = ("text",)
) -> dict[str, Any]:
    return {"name": name, "dims": DIMS, "embed": model, "fields": [*fields]}


@pytest.fixture
def place(dsn: str, schema: str, connection: psycopg.Connection) -> Iterator[str]:
    """A schema whose tables of vectors are removed."""
    if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        pytest.skip("the server has no pgvector")
    yield schema
    for number in (1, 2):
        table = sql.Identifier(schema, f"memory_vectors_{number}")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))


@contextmanager
def opened(dsn: str, schema: str, *indexes: dict[str, Any], **options: Any) -> Iterator[PGMemoryStore]:
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=indexes or None, **options) as store:
        store.setup()
        yield store


def vectors(connection: psycopg.Connection, schema: str) -> list[tuple[str, str]]:
    query = sql.SQL("SELECT key, field FROM {} ORDER BY key, field").format(sql.Identifier(schema, "memory_vectors_1"))
    return connection.execute(query).fetchall()


def test_one_call_at_a_time_embeds_what_an_index_lacks(dsn: str, place: str) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def slow(texts: Sequence[str]) -> list[list[float]]:
        asked.set()
        assert goes_on.wait(30)
        return embed(texts)

    with opened(dsn, place) as store:
        store.put(("users",), "a", {"text": "a text"})
    with opened(dsn, place, index(model=slow)) as first, opened(dsn, place, index()) as second:
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(first.reindex()))
        thread.start()
        assert asked.wait(30)
        assert second.reindex() == 0
        goes_on.set()
        thread.join(30)
        assert counts == [1]
        assert second.search(("users",), query="a text", mode="vector")[0].key == "a"


def test_a_call_that_fails_or_dies_lets_others_embed(dsn: str, place: str, connection: psycopg.Connection) -> None:
    def away(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("the model is away")

    with opened(dsn, place) as store:
        store.put(("users",), "a", {"text": "a text"})
    with opened(dsn, place, index(model=away)) as first, opened(dsn, place, index()) as second:
        with pytest.raises(OSError, match="away"):
            first.reindex()
        dead = sql.SQL("UPDATE {} SET indexer = 'dead', indexing_until = now() + {}::interval")
        table = sql.Identifier(place, "memory_indexes")
        connection.execute(dead.format(table, "1 minute"))
        assert second.reindex() == 0
        connection.execute(dead.format(table, "-1 second"))
        assert second.reindex() == 1


def test_expired_items_leave_no_embeddings(dsn: str, place: str, connection: psycopg.Connection) -> None:
    with opened(dsn, place, index()) as store:
        store.put(("users",), "a", {"text": "a"}, ttl=0.00001)
        store.put(("users",), "b", {"text": "b"})
    with opened(dsn, place) as other:
        assert other.sweep_ttl() == 1
    assert vectors(connection, place) == [("b", "text")]


def test_a_purge_leaves_no_embedding_that_a_later_memory_gets(
    dsn: str, place: str, connection: psycopg.Connection
) -> None:
    """In a process that does not know the index. The later memory has the same version."""
    with opened(dsn, place, index(fields=("content",))) as store, opened(dsn, place) as other:
        for purge in (
            lambda: other.forget("home", purge=True),
            lambda: other.remove(("memories",), "home", expected_version=1, purge=True),
        ):
            store.remember("lives in Rome", key="home")
            purge()
            assert vectors(connection, place) == []
            other.remember("likes old tea", key="home")
            assert store.reindex() == 1
            assert store.recall("likes old tea")[0].score == pytest.approx(1)
            store.forget(namespace=("memories",), purge=True)


def test_embeddings_without_their_item_are_swept(
    dsn: str, place: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that does not know the index has deleted or changed the item."""
    monkeypatch.setattr(items, "_PAGE", 3)
    with opened(dsn, place, index(fields=("text", "title"))) as store:
        for key in "abcdefg":
            store.put(("users",), key, {"text": key, "title": key})
    with opened(dsn, place) as other:
        for key in "bcg":
            other.delete(("users",), key)
        other.put(("users",), "d", {"text": "changed"})
        with Database.open(dsn, schema=place) as database:
            swept = run_blocking(items.sweep_vectors(BlockingRunner(database), other.queries))
            assert swept == 8
            assert run_blocking(items.sweep_vectors(BlockingRunner(database), other.queries)) == 0
    assert vectors(connection, place) == [(key, field) for key in "aef" for field in ("text", "title")]
    with PGState.open(dsn, schema=place) as state:
        state.memory.delete(("users",), "a")
        state.maintain()
    assert {key for key, _ in vectors(connection, place)} == {"e", "f"}


def test_an_item_that_is_stored_meanwhile_keeps_its_embedding(
    dsn: str, place: str, connection: psycopg.Connection
) -> None:
    """It is not seen yet when its old embedding is looked for."""
    with opened(dsn, place, index()) as store, opened(dsn, place, history=0) as other:
        store.put(("users",), "a", {"text": "a"})
        other.delete(("users",), "a")
        with psycopg.connect(dsn) as putting:
            # Version 1 again, as the orphan is.
            schema = sql.Identifier(place)
            putting.execute(
                sql.SQL(
                    "INSERT INTO {}.memories (namespace, key, version, value, created_at, updated_at, is_large,"
                    " is_waiting, is_unindexed, valid_from)"
                    " VALUES ('{{users}}', 'a', 1, '{{}}', now(), now(), false, false, false, now())"
                ).format(schema)
            )
            putting.execute(sql.SQL("UPDATE {}.memory_vectors_1 SET version = 1").format(schema))
            with Database.open(dsn, schema=place) as database:
                assert run_blocking(items.sweep_vectors(BlockingRunner(database), other.queries)) == 0
            putting.commit()
    assert vectors(connection, place) == [("a", "text")]


@pytest.mark.parametrize("current", [2, 99], ids=["the version before", "another version"])
def test_a_refused_value_leaves_no_embedding_in_a_callers_transaction(
    current: int, dsn: str, place: str, connection: psycopg.Connection
) -> None:
    embeddings = sql.SQL("SELECT embedding::text, version FROM {}").format(sql.Identifier(place, "memory_vectors_1"))
    with opened(dsn, place, index()):
        pass
    store, name = PGMemoryStore(connection, schema=place, index=index()), (("users",), "a")
    store.put(*name, {"text": "apple pie"})
    first = connection.execute(embeddings).fetchall()
    with connection.transaction():
        store.put(*name, {"text": "quantum physics"})
        store.put(*name, {"text": "roman law"})
        before = connection.execute(embeddings).fetchall()
        with pytest.raises(StaleMemoryError):
            store.restore(*name, 1, expected_version=current)
        assert connection.execute(embeddings).fetchall() == before
        assert store.restore(*name, 1, expected_version=3).version == 4
    assert connection.execute(embeddings).fetchall() == [(first[0][0], 4)]


def test_an_old_index_is_dropped(dsn: str, place: str, connection: psycopg.Connection) -> None:
    with opened(dsn, place, index("old")) as store:
        store.put(("users",), "a", {"text": "a text"})
        with pytest.raises(ConfigurationError, match="must not be among the options of this store"):
            store.drop_index("old")
    with opened(dsn, place, index("old"), index("new")) as store:
        assert store.list_indexes() == {"old": True, "new": False}
        assert store.reindex() == 1
    with opened(dsn, place) as store:
        store.drop_index("old")
    assert connection.execute("SELECT to_regclass(%s)", [f"{place}.memory_vectors_1"]).fetchone() == (None,)
    with opened(dsn, place, index("new")) as store:
        assert store.search(("users",), query="a text", mode="vector")[0].key == "a"
        with pytest.raises(NotFoundError):
            store.drop_index("old")


@contextmanager
def minutes_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls of `reindex` begin two minutes later by the server's clock."""
    begin = indexing.begin

    async def later(*arguments: Any) -> Any:
        found = await begin(*arguments)
        return None if found is None else found + timedelta(minutes=2)

    with monkeypatch.context() as patched:
        patched.setattr(indexing, "begin", later)
        yield


def test_an_index_that_a_process_does_not_know_lacks_nothing_later(
    dsn: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older process runs beside a newer one, and an index that was left out is used again."""
    both = index("old"), index("new")
    for knows, lacks in (("old", "new"), ("new", "old")):
        with opened(dsn, place, *both) as store:
            store.reindex()
        with opened(dsn, place, index(knows)) as store, minutes_later(monkeypatch):
            store.put(("users",), knows, {"text": f"{knows} text"})
            assert store.reindex() == 0
        with opened(dsn, place, *both) as store:
            assert store.list_indexes() == {knows: True, lacks: False}
            assert store.reindex() == 1
        with opened(dsn, place, index(lacks)) as store:
            assert store.search(("users",), query=f"{knows} text", mode="vector")[0].key == knows


def test_nothing_is_settled_while_another_index_gets_its_items(
    dsn: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other call may have read past an item that was stored meanwhile."""
    with opened(dsn, place, index("old")) as older:

        def slow(texts: Sequence[str]) -> list[list[float]]:
            older.put(("users",), "a", {"text": "late"})
            with minutes_later(monkeypatch):
                assert older.reindex() == 0
            return embed(texts)

        older.put(("users",), "b", {"text": "early"})
        with opened(dsn, place, index("new", slow)) as slower:
            assert slower.reindex() == 1
        with opened(dsn, place, index("new")) as newer:
            assert newer.reindex() == 1
            assert len(newer.search(("users",), query="late", mode="vector")) == 2


@pytest.mark.slow
def test_what_is_told_again_in_a_large_namespace_is_merged(
    dsn: str, place: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing.move_large_namespaces, "__defaults__", (50,))
    with opened(dsn, place, index(fields=("content",))) as store:
        for number in range(60):
            store.remember(f"fact about {random.Random(number).random()} here", user_id="ann")
        assert store.move_large_namespaces() == 60
        told = store.remember("Likes green tea much", user_id="ann")
        again = store.remember("Likes green tea very", user_id="ann")
        assert (again.key, again.duplicates, again.content) == (told.key, 1, "Likes green tea very")
        assert store.remember("Hates green tea very", user_id="ann").key != told.key
