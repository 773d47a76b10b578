"""Large namespaces: searched approximately, with what lies between them; found as many as there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from psycopg import sql

from langgraph_pgstate.db import database, statements
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.memory import PGMemoryStore, indexing, items

BIG = ("users", "big")
DIMS = 8
ITEMS = 1500


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[random.Random(f"{text} {place}").gauss(0, 1) for place in range(DIMS)] for text in texts]


@pytest.fixture(scope="module")
def schema(dsn: str) -> Iterator[str]:
    """A schema for all of these tests, which add items that do not meet."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
        yield "large_memories"
        connection.execute("DROP SCHEMA IF EXISTS large_memories CASCADE")


@pytest.fixture(scope="module")
def store(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    """A store where 1,000 items make a namespace large."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(indexing.move_large_namespaces, "__defaults__", (1000,))
    with PGMemoryStore.from_conn_string(
        dsn, schema=schema, index={"dims": DIMS, "embed": embed, "fields": ["text"]}
    ) as store:
        store.setup()
        store.batch([PutOp(BIG, f"{n:05}", {"text": f"text {n}", "n": n}) for n in range(ITEMS)])
        for name in (("users", "a"), ("users", "big", "child"), ("users", "big2"), ("users", "c"), ("zoo",)):
            store.put(name, "one", {"text": f"text {name}", "n": -1})
        assert store.move_large_namespaces() == ITEMS
        yield store
    monkeypatch.undo()


def ready(connection: psycopg.Connection, schema: str) -> list[Any]:
    query = sql.SQL("SELECT namespace, is_ready FROM {}.large_namespaces").format(sql.Identifier(schema))
    return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_search_finds_what_an_exact_one_finds(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ready(connection, schema) == [([*BIG], True)]
    common = 0
    for number in range(0, 100, 5):
        found = store.search(("users",), query=f"text {number}", limit=20, mode="vector")
        with monkeypatch.context() as exact:
            exact.setattr(items, "_MAX_REACH", 0)
            wanted = store.search(("users",), query=f"text {number}", limit=20, mode="vector")
        assert found[0].key == wanted[0].key == f"{number:05}"
        common += len({(one.namespace, one.key) for one in found} & {(one.namespace, one.key) for one in wanted})
    assert common >= 20 * 20 * 0.95


@pytest.mark.slow
def test_what_lies_between_large_namespaces_is_found(store: PGMemoryStore) -> None:
    for name in (("users", "a"), ("users", "big", "child"), ("users", "big2"), ("users", "c")):
        assert store.search(("users",), query=f"text {name}", mode="vector")[0].namespace == name
        assert store.search(name, query="text", limit=5)[0].namespace == name
    assert {one.namespace for one in store.search(("zoo",), query="text")} == {("zoo",)}
    assert store.search((), query="text ('zoo',)", mode="vector")[0].namespace == ("zoo",)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_as_many_are_found_as_there_are(store: PGMemoryStore, mode: Any) -> None:
    """Whatever the filter, and at any offset."""
    rare = store.search(BIG, query="text 7", filter={"n": {"$gte": ITEMS - 3}}, limit=10, mode=mode)
    assert {one.value["n"] for one in rare if one.namespace == BIG} == {ITEMS - 3, ITEMS - 2, ITEMS - 1}
    for offset in (0, 100, 900, 1450):
        assert len(store.search(BIG, query="text 7", limit=50, offset=offset, mode=mode)) == 50
    assert len(store.search(BIG, query="text 7", limit=50, offset=1490, mode=mode)) == ITEMS + 1 - 1490


def test_a_rare_word_is_found_among_many(store: PGMemoryStore) -> None:
    store.put(BIG, "zebra", {"text": "a zebra in the snow", "n": 0})
    found = store.search(("users",), query="zebra snow")
    assert (found[0].key, found[0].words_rank) == ("zebra", 1)
    assert found[0].score is not None
    # Words that no item has make it less certain that the others matter.
    assert "zebra" in [one.key for one in store.search(("users",), query="where is the zebra", limit=3)]
    store.delete(BIG, "zebra")


def test_changed_and_deleted_items_are_found_as_they_are(store: PGMemoryStore) -> None:
    store.put(BIG, "00307", {"text": "other", "n": 307})
    assert store.search(BIG, query="other", mode="vector")[0].key == "00307"
    assert store.search(BIG, query="text 307", mode="vector")[0].key != "00307"
    store.put(BIG, "gone", {"text": "gone", "n": 0})
    assert store.search(BIG, query="gone", mode="vector")[0].key == "gone"
    store.delete(BIG, "gone")
    assert "gone" not in {one.key for one in store.search(BIG, query="gone", limit=30)}


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_what_waits_for_the_indexes_is_found(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection, mode: Any
) -> None:
    """A put into a large namespace does not pay for the approximate index: the next move does."""
    keys = [f"late {mode} {n}" for n in range(3)]
    store.batch([PutOp(BIG, key, {"text": key, "n": -5}) for key in keys])
    waiting = sql.SQL(
        "SELECT m.key, m.is_waiting FROM {0}.memories m JOIN {0}.memory_vectors_1 v USING (namespace, key)"
        " WHERE m.key = ANY(%s) AND m.is_large = v.is_large AND m.is_large <> m.is_waiting ORDER BY 1"
    ).format(sql.Identifier(schema))
    for is_waiting in (True, False):
        assert connection.execute(waiting, [keys]).fetchall() == [(key, is_waiting) for key in keys]
        for key in keys:
            assert store.search(BIG, query=key, mode=mode)[0].key == key
            assert store.search(("users",), query=key, filter={"n": -5}, mode=mode)[0].key == key
        if is_waiting:
            # As servers and workers do every minute.
            store.reindex()
    for key in keys:
        store.delete(BIG, key)


def test_the_approximate_index_answers_a_search(
    store: PGMemoryStore, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """With the settings that are sent before; by itself the planner would sort all of the namespace."""
    sent: list[tuple[Any, Any]] = []

    class Recording(BlockingConnection):
        async def fetch_together(self, statements: Any, after_commit: Any = None) -> Any:
            sent.extend(statements)
            return await super().fetch_together(statements, after_commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", Recording)
        index: Any = store.index_config
        with PGMemoryStore.from_conn_string(dsn, schema=schema, index=index, pool=False) as recorded:
            recorded.search(BIG, query="text 7", filter={"n": {"$gte": 0}})
    connection.execute("BEGIN")
    for query, parameters in sent[-2:]:
        values, formats = statements._encode(query, parameters) or ([], [])
        explain = b"EXPLAIN " if query.name == "search_large" else b""
        found = connection.pgconn.exec_params(explain + query.text, values, None, formats)
    connection.execute("ROLLBACK")
    plan = b"".join(found.get_value(row, 0) or b"" for row in range(found.ntuples)).decode()
    assert "memory_vectors_1_embedding_idx" in plan


@pytest.mark.slow
def test_items_that_are_put_while_a_namespace_is_moved_are_found(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    other = ("users", "growing")
    store.batch([PutOp(other, f"{n:05}", {"text": f"text {n}", "n": n}) for n in range(1200)])
    with ThreadPoolExecutor(3) as threads:
        putting = [
            threads.submit(store.put, other, f"{n:05}", {"text": f"late {n}", "n": n}) for n in range(0, 2400, 12)
        ]
        moving = threads.submit(store.move_large_namespaces)
        for one in [*putting, moving]:
            one.result()
    store.move_large_namespaces()
    assert ([*other], True) in ready(connection, schema)
    unmarked = connection.execute(
        sql.SQL(
            "SELECT count(*) FROM {0}.memories m JOIN {0}.memory_vectors_1 v USING (namespace, key)"
            ' WHERE m.namespace = %s::text[] COLLATE "C" AND NOT (m.is_large AND v.is_large)'
        ).format(sql.Identifier(schema)),
        [[*other]],
    ).fetchone()
    assert unmarked == (0,)
    for n in range(0, 2400, 120):
        assert store.search(other, query=f"late {n}", mode="vector")[0].value["n"] == n


def sent_by(dsn: str, schema: str, index: Any, call: Callable[[PGMemoryStore], Any]) -> list[str]:
    """Return the names of the statements that a call sends."""
    sent: list[str] = []

    class Recording(BlockingConnection):
        async def fetch(self, query: Any, parameters: Any) -> Any:
            sent.append(query.name)
            return await super().fetch(query, parameters)

        async def fetch_together(self, statements: Any, after_commit: Any = None) -> Any:
            sent.extend(query.name for query, _ in statements)
            return await super().fetch_together(statements, after_commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", Recording)
        with PGMemoryStore.from_conn_string(dsn, schema=schema, index=index, pool=False) as recorded:
            recorded.search(BIG, query="warm up", limit=1)
            sent.clear()
            call(recorded)
    return sent


def test_the_index_goes_on_until_a_filter_has_what_it_asks_for(store: PGMemoryStore, dsn: str, schema: str) -> None:
    """Of 1,500 the nearest forty have less than one of these thirty."""
    found: list[Any] = []
    rare = {"n": {"$gte": ITEMS - 30}}
    sent = sent_by(
        dsn,
        schema,
        store.index_config,
        lambda one: found.extend(one.search(BIG, query="text 7", filter=rare, limit=10, mode="vector")),
    )
    assert len(found) == 10
    assert [name for name in sent if name.startswith("search")] == ["search_vectors", "search_large"]


def test_what_the_approximate_index_leaves_out_is_found_exactly(
    store: PGMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = {"n": {"$gte": ITEMS - 3}}
    store.search(BIG, query="text 7")
    (index,) = store._open or ()
    allow = index.query("allow_scans")
    stopped = allow._replace(text=allow.text.replace(b"'strict_order'", b"'off'"))
    assert stopped != allow
    monkeypatch.setitem(index.queries, "allow_scans", stopped)
    found = store.search(BIG, query="text 7", filter=rare, limit=10, mode="vector")
    assert {one.value["n"] for one in found} == {ITEMS - 3, ITEMS - 2, ITEMS - 1}


def test_what_is_told_in_a_large_namespace_is_compared_by_the_approximate_index(
    store: PGMemoryStore, dsn: str, schema: str
) -> None:
    index: Any = store.index_config
    sent = sent_by(dsn, schema, index, lambda one: one.remember("text told", namespace=BIG))
    assert [name for name in sent if name.startswith("find_similar")] == ["find_similar_large"]
    sent = sent_by(dsn, schema, index, lambda one: one.remember("text told", namespace=("users", "small")))
    assert [name for name in sent if name.startswith("find_similar")] == ["find_similar_memories"]
    store.forget(namespace=BIG, purge=True)
