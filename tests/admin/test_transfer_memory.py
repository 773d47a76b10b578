"""Items that are moved from and to LangGraph's own store, by LangGraph's own store."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.store.base import Item, PutOp
from langgraph.store.postgres import PostgresStore
from psycopg.conninfo import make_conninfo
from support import FORK, GUARD_SECONDS

from langgraph_pgstate.admin import transfer_memory
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.admin.types import ItemDifference, MemoryTransferReport
from langgraph_pgstate.errors import ConfigurationError, SourceMissingError
from langgraph_pgstate.memory import PGMemoryStore

USER = ("users", "ann")
_asked: list[str] = []


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings of the numbers of letters."""
    _asked.extend(texts)
    return [[float(len(text)), text.count("a") + 0.1, text.count("e") + 0.2] for text in texts]


INDEX: dict[str, Any] = {"dims": 3, "embed": embed, "fields": ["text"]}


@contextmanager
def official(dsn: str, schema: str, **options: Any) -> Iterator[PostgresStore]:
    """LangGraph's own store, with its tables in a schema."""
    with PostgresStore.from_conn_string(
        make_conninfo(dsn, options=f"-csearch_path={schema},public"), **options
    ) as store:
        store.conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        store.setup()
        yield store


@pytest.fixture
def theirs(dsn: str, old_schema: str) -> Iterator[PostgresStore]:
    with official(dsn, old_schema) as store:
        yield store


@pytest.fixture
def ours(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as store:
        yield store


@pytest.fixture
def with_vectors(dsn: str, schema: str, old_schema: str) -> Iterator[tuple[PostgresStore, PGMemoryStore]]:
    """Both stores, with indexes of embeddings; its tests are marked `bare`, as they make tables."""
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=INDEX) as ours:
        ours.setup()
        with official(dsn, old_schema, index=INDEX) as theirs:
            yield theirs, ours


def items_of(store: Any) -> list[Item]:
    """All items of a store, with their times."""
    found = store.search((), limit=10_000, **({} if isinstance(store, PGMemoryStore) else {"refresh_ttl": False}))
    return sorted((Item(**{n: getattr(one, n) for n in Item.__slots__}) for one in found), key=lambda one: one.key)


def same_items(one: Any, other: Any) -> int:
    first, second = items_of(one), items_of(other)
    assert [item.dict() for item in first] == [item.dict() for item in second]
    return len(first)


def rows(store: PGMemoryStore | PostgresStore, connection: psycopg.Connection, schema: str, query: str) -> list[Any]:
    connection.execute(f'SET search_path = "{schema}", public'.encode())
    return connection.execute(query.encode()).fetchall()


def test_items_move_in_with_their_times_and_back(
    admin: Admin,
    dsn: str,
    old_schema: str,
    schema: str,
    theirs: PostgresStore,
    ours: PGMemoryStore,
    connection: psycopg.Connection,
) -> None:
    for number in range(7):
        theirs.put(USER, f"k{number}", {"n": number, "big": 1e21, "text": "Ünï \U0001f600 \\u0000 'q'"})
    theirs.put(("a", "b", "c"), "later", {"n": 1}, ttl=90)
    theirs.put(("a", "b", "c"), "later", {"n": 2}, ttl=90)
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert report == MemoryTransferReport(items=8, written=8, verified=8)
    assert same_items(theirs, ours) == 8
    times = "SELECT expires_at, ttl_minutes::float8 FROM store WHERE key = 'later'"
    ((ends, minutes),) = rows(theirs, connection, old_schema, times)
    assert rows(ours, connection, schema, "SELECT expires_at, ttl FROM memories WHERE key = 'later'") == [
        (ends, timedelta(minutes=minutes))
    ]
    assert admin.import_langgraph_memory(dsn, source_schema=old_schema).written == 0
    assert ours.history(USER, "k1")[0].changed_by == "import-langgraph"
    ours.remember("Likes tea", user_id="ann@example.com")
    ours.put(USER, "k1", {"n": 100})
    ours.put(USER, "new", {"n": 9}, ttl=0.25)
    other = f"{old_schema}_new"
    try:
        report = admin.export_langgraph_memory(dsn, target_schema=other)
        assert report.differences == [
            ItemDifference(
                "memories.user.ann@example.com",
                items_of(ours)[0].key,
                "a label of its namespace has a dot, which LangGraph's store takes as the end of a label",
            )
        ]
        assert (report.items, report.written, report.verified) == (10, 9, 9)
        ours.forget(user_id="ann@example.com", purge=True)
        with official(dsn, other) as exported:
            assert same_items(exported, ours) == 9
            assert rows(exported, connection, other, "SELECT ttl_minutes FROM store WHERE key = 'new'") == [(1,)]
        assert admin.export_langgraph_memory(dsn, target_schema=other).written == 0
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{other}" CASCADE'.encode())


def test_of_an_item_that_both_have_the_one_stored_last_stays(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore
) -> None:
    for key in ("theirs", "ours"):
        theirs.put(USER, key, {"n": 1})
    admin.import_langgraph_memory(dsn, source_schema=old_schema)
    ours.put(USER, "ours", {"n": 2})
    ours.put(USER, "theirs", {"n": 2})
    theirs.put(USER, "theirs", {"n": 3})
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert (report.written, report.verified, report.newer, report.differences) == (1, 1, 1, [])
    found = {key: ours.get(USER, key) for key in ("theirs", "ours")}
    assert [one and one.value for one in found.values()] == [{"n": 3}, {"n": 2}]
    assert [one.value for one in ours.history(USER, "theirs")] == [{"n": 3}, {"n": 2}, {"n": 1}]


def test_what_has_expired_is_not_brought_but_ends_what_it_replaces(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore, connection: psycopg.Connection
) -> None:
    for key in ("never", "ended"):
        theirs.put(USER, key, {"n": 1}, ttl=None if key == "ended" else 5)
    end = "UPDATE store SET expires_at = now() - interval '1s' WHERE key = '%s' RETURNING key"
    rows(theirs, connection, old_schema, end % "never")
    assert admin.import_langgraph_memory(dsn, source_schema=old_schema).expired == 1
    assert [one.key for one in items_of(ours)] == ["ended"]
    theirs.put(USER, "ended", {"n": 2}, ttl=5)
    rows(theirs, connection, old_schema, end % "ended")
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert report.differences == []
    assert items_of(ours) == []


def test_a_read_that_moved_the_end_there_moves_it_here(
    admin: Admin, dsn: str, old_schema: str, schema: str, theirs: PostgresStore, connection: psycopg.Connection
) -> None:
    theirs.put(USER, "k", {"n": 1}, ttl=5)
    admin.import_langgraph_memory(dsn, source_schema=old_schema)
    theirs.get(USER, "k", refresh_ttl=True)
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert (report.written, report.verified) == (1, 1)
    found = rows(theirs, connection, schema, "SELECT expires_at, version FROM memories")
    assert found == [(*rows(theirs, connection, old_schema, "SELECT expires_at FROM store")[0], 1)]


def test_what_cannot_be_stored_is_named_and_the_rest_is_brought(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore, connection: psycopg.Connection
) -> None:
    theirs.put(USER, "k", {"n": 1})
    insert = "INSERT INTO store (prefix, key, value) VALUES ('a..b', 'x', '{}'), ('a', 'list', '[1]') RETURNING key"
    rows(theirs, connection, old_schema, insert)
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert [(one.namespace, one.key) for one in report.differences] == [("a", "list"), ("a..b", "x")]
    assert [one.key for one in items_of(ours)] == ["k"]


def test_a_schema_without_a_store_is_refused(admin: Admin, dsn: str, schema: str) -> None:
    with pytest.raises(SourceMissingError, match=r"\(store\) in schema"):
        admin.import_langgraph_memory(dsn, source_schema=schema)


@pytest.mark.slow
@pytest.mark.bare
def test_embeddings_are_taken_over_without_asking_the_model(
    admin: Admin,
    dsn: str,
    old_schema: str,
    schema: str,
    with_vectors: tuple[PostgresStore, PGMemoryStore],
    connection: psycopg.Connection,
) -> None:
    theirs, ours = with_vectors
    for number in range(5):
        theirs.put(USER, f"k{number}", {"text": "tea " * (number + 1)})
    theirs.put(USER, "several", {"text": ["one", "three"]})
    theirs.put(USER, "other", {"text": "x", "more": "elephant"}, index=["more"])
    theirs.put(USER, "stale", {"text": "elephant"})
    theirs.put(USER, "stale", {"text": "ant"}, index=False)
    _asked.clear()
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert _asked == []
    assert (report.verified, report.with_vectors, report.differences) == (8, 6, [])
    assert [one.key for one in ours.search(USER, query="tea tea ", mode="vector", limit=1)] == ["k1"]
    assert ours.reindex() == 2
    assert sorted(_asked[1:]) == ["ant", "x"]
    # Back, into tables that are not there yet.
    other = f"{old_schema}_new"
    try:
        report = admin.export_langgraph_memory(dsn, target_schema=other)
        assert (report.verified, report.with_vectors, report.differences) == (8, 8, [])
        with official(dsn, other, index=INDEX) as exported:
            same_items(exported, ours)
            found = exported.search(USER, query="elephant ", limit=8)
            again = ours.search(USER, query="elephant ", mode="vector", limit=8)
            assert {one.key: pytest.approx(one.score) for one in found} == {one.key: one.score for one in again}
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{other}" CASCADE'.encode())


@pytest.mark.slow
@pytest.mark.bare
def test_embeddings_of_which_model_has_to_be_said_where_several_fit(
    admin: Admin, dsn: str, schema: str, old_schema: str, with_vectors: tuple[PostgresStore, PGMemoryStore]
) -> None:
    theirs, _ = with_vectors
    theirs.put(USER, "k", {"text": "tea"})
    indexes = [INDEX, {**INDEX, "name": "second"}, {**INDEX, "name": "wide", "dims": 4}]
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=indexes) as store:
        store.setup()
        for options, message in (
            ({}, "fit the dimensions of the store's embeddings: default, second"),
            ({"index": "wide"}, "'wide' takes embeddings of 4 dimensions"),
            ({"index": "none"}, "index must be one of the schema"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                admin.import_langgraph_memory(dsn, source_schema=old_schema, **options)
        assert admin.import_langgraph_memory(dsn, source_schema=old_schema, index="second").with_vectors == 1
        with pytest.raises(ConfigurationError, match="has 3 dimensions, and index 'wide' has 4"):
            admin.export_langgraph_memory(dsn, target_schema=old_schema, index="wide")


@pytest.mark.slow
@pytest.mark.bare
def test_what_is_imported_during_a_reindex_is_embedded_by_the_next(
    admin: Admin,
    dsn: str,
    old_schema: str,
    schema: str,
    with_vectors: tuple[PostgresStore, PGMemoryStore],
    connection: psycopg.Connection,
) -> None:
    theirs, _ = with_vectors

    def bring() -> None:
        """Import items, which were stored an hour ago."""
        rows(theirs, connection, old_schema, "UPDATE store SET updated_at = now() - interval '1 h' RETURNING key")
        admin.import_langgraph_memory(dsn, source_schema=old_schema)

    def embed_late(texts: Sequence[str]) -> list[list[float]]:
        if "first" in texts:
            theirs.put(USER, "a", {"text": "second"}, index=False)
            bring()
        return embed(texts)

    theirs.put(USER, "b", {"text": "first"}, index=False)
    bring()
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index={**INDEX, "embed": embed_late}) as store:
        assert [store.reindex(), store.reindex(), store.reindex()] == [1, 1, 0]


def test_items_that_change_meanwhile_are_taken_again(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore, monkeypatch: Any
) -> None:
    monkeypatch.setattr(transfer_memory, "PAGE", 20)
    theirs.batch([PutOp(USER, f"k{n:03}", {"n": n}) for n in range(60)])

    def write_on(done: int, total: int) -> None:
        if done == 40:
            theirs.put(USER, "k000", {"n": 100})
            theirs.put(("a",), "before", {"n": 101})

    report = admin.import_langgraph_memory(dsn, source_schema=old_schema, progress=write_on)
    assert (report.items, report.written, report.differences) == (60, 62, [])
    assert same_items(theirs, ours) == 61


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["import", "export"])
def test_a_program_that_writes_faster_than_is_copied_does_not_keep_a_transfer_from_ending(
    admin: Admin,
    dsn: str,
    old_schema: str,
    theirs: PostgresStore,
    ours: PGMemoryStore,
    monkeypatch: Any,
    direction: str,
) -> None:
    """In the order of the keys, and over and over."""
    monkeypatch.setattr(transfer_memory, "PAGE", 10)
    source: Any = theirs if direction == "import" else ours
    target: Any = ours if direction == "import" else theirs
    source.batch([PutOp(USER, f"k{n:05}", {"n": n}) for n in range(20)])
    portions = 0

    def write_on(done: int, total: int) -> None:
        nonlocal portions
        portions += 1
        assert portions < 100
        first = portions * 20
        source.batch([PutOp(USER, f"k{n:05}", {"n": n}) for n in range(first, first + 20)])

    def transfer(**options: Any) -> MemoryTransferReport:
        if direction == "import":
            return admin.import_langgraph_memory(dsn, source_schema=old_schema, **options)
        return admin.export_langgraph_memory(dsn, target_schema=old_schema, **options)

    report = transfer(progress=write_on)
    assert (report.items, report.differences) == (20, [])
    assert len(items_of(target)) == 20 * (portions + 1) - report.left
    again = transfer()
    assert (again.written, again.left) == (report.left, 0)
    assert same_items(theirs, ours) == 20 * (portions + 1)


def test_an_item_of_a_clock_that_is_ahead_is_brought(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore, connection: psycopg.Connection
) -> None:
    theirs.put(USER, "k", {"n": 1})
    rows(theirs, connection, old_schema, "UPDATE store SET updated_at = now() + interval '1 h' RETURNING key")
    assert admin.import_langgraph_memory(dsn, source_schema=old_schema).written == 1


def _write_on(dsn: str, schema: str, stop: Any, begun: Any) -> None:
    with official(dsn, schema) as store:
        number = 0
        while not stop.wait(0.005):
            number += 1
            store.batch([PutOp(USER, f"k{n:03}", {"n": n, "round": number}) for n in range(0, 60, 7)])
            store.put(USER, f"new{number:05}", {"n": number})
            begun.set()


@pytest.mark.slow
def test_a_program_may_write_beside_the_import(
    admin: Admin, dsn: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore
) -> None:
    theirs.batch([PutOp(USER, f"k{n:03}", {"n": n}) for n in range(60)])
    stop, begun = FORK.Event(), FORK.Event()
    writer = FORK.Process(target=_write_on, args=(dsn, old_schema, stop, begun), daemon=True)
    writer.start()
    try:
        assert begun.wait(GUARD_SECONDS)
        report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    finally:
        stop.set()
        writer.join(GUARD_SECONDS)
    assert writer.exitcode == 0
    assert report.differences == []
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert (report.verified, report.newer, report.differences) == (report.items, 0, [])
    assert same_items(theirs, ours) == report.items


def _import_and_die(dsn: str, schema: str, old_schema: str) -> None:
    transfer_memory.PAGE = 20  # type: ignore[misc]

    def die(done: int, total: int) -> None:
        if done >= 60:
            os.kill(os.getpid(), signal.SIGKILL)

    with Admin.open(dsn, schema=schema) as admin:
        admin.import_langgraph_memory(dsn, source_schema=old_schema, progress=die)


@pytest.mark.slow
def test_an_import_that_was_killed_goes_on(
    admin: Admin, dsn: str, schema: str, old_schema: str, theirs: PostgresStore, ours: PGMemoryStore
) -> None:
    theirs.batch([PutOp(USER, f"k{n:03}", {"n": n}) for n in range(100)])
    process = FORK.Process(target=_import_and_die, args=(dsn, schema, old_schema), daemon=True)
    process.start()
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert len(items_of(ours)) == 60
    report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
    assert (report.items, report.written, report.verified) == (100, 40, 100)
    assert same_items(theirs, ours) == 100
