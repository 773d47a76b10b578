"""The store: versions, namespaces, expiry, indexes, and what two writers do at once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool
from support import GUARD_SECONDS, spread

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import BlockingCallError, ConfigurationError, SerializationError
from langgraph_pgstate.memory import AsyncPGMemoryStore, PGMemoryStore, items, memories, remembering
from langgraph_pgstate.memory import store as store_module
from langgraph_pgstate.memory.items import Origin

USER = ("users", "ann")
CONFIG: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings of words: texts that share words are near each other."""
    found = []
    for text in texts:
        vector = [0.01] * 16
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 16] += 1
        found.append(vector)
    return found


INDEX: dict[str, Any] = {"dims": 16, "embed": embed, "fields": ["text"]}


@pytest.fixture
def store(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as store:
        yield store


@pytest.fixture
def indexed(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    """A store with an index of embeddings; its tests are marked `bare`, as it makes a table."""
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=INDEX) as store:
        store.setup()
        store.setup()
        yield store


def rows(connection: psycopg.Connection, schema: str, query: str, *parameters: Any) -> list[Any]:
    connection.execute(sql.SQL("SET search_path = {}, public").format(sql.Identifier(schema)))
    return connection.execute(query.encode(), parameters).fetchall()


def versions(connection: psycopg.Connection, schema: str, key: str) -> list[Any]:
    query = "SELECT version, value ->> 'n', is_deleted FROM memory_versions WHERE key = %s ORDER BY version"
    return rows(connection, schema, query, key)


def test_a_change_keeps_the_version_before_it_and_an_equal_value_is_none(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    for n in (1, 1, 2, 3):
        store.put(USER, "k", {"n": n})
    created = store.get(USER, "k")
    assert created is not None
    assert created.value == {"n": 3}
    assert created.created_at < created.updated_at
    assert versions(connection, schema, "k") == [(1, "1", False), (2, "2", False)]
    store.delete(USER, "k")
    store.delete(USER, "k")
    store.put(USER, "k", {"n": 4})
    assert versions(connection, schema, "k") == [(1, "1", False), (2, "2", False), (3, "3", True)]
    assert rows(connection, schema, "SELECT version FROM memories") == [(4,)]


def test_no_more_versions_are_kept_than_asked_for(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    for history, kept in ((2, ["7", "8"]), (0, [])):
        with PGMemoryStore.from_conn_string(dsn, schema=schema, history=history) as store:
            for n in range(10):
                store.put(USER, str(history), {"n": n})
            for n in range(10):
                store.put(USER, f"{history} deleted", {"n": n})
                store.delete(USER, f"{history} deleted")
        assert [n for _, n, _ in versions(connection, schema, str(history))] == kept
        deleted = [n for _, n, _ in versions(connection, schema, f"{history} deleted")]
        assert deleted == [str(n) for n in range(10 - history, 10)]


def test_no_version_of_two_writers_is_lost(
    dsn: str, schema: str, connection: psycopg.Connection, store: PGMemoryStore
) -> None:
    """Also of those that store a new item at the same moment."""
    with ThreadPoolExecutor(8) as threads:
        for round in range(10):
            key = f"k{round}"
            [*threads.map(lambda n, key=key: store.put(USER, key, {"n": n}), range(8))]
            current = store.get(USER, key)
            assert current is not None
            kept = [int(n) for _, n, _ in versions(connection, schema, key)]
            assert sorted([*kept, current.value["n"]]) == [*range(8)]


def test_a_batch_in_which_items_meet_those_of_another_ends(store: PGMemoryStore) -> None:
    puts = [PutOp(USER, str(number), {"n": number}) for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda turn: store.batch(puts[:: 1 if turn % 2 else -1]), range(12))]
    assert len(store.search(USER, limit=100)) == 40


def test_namespaces_are_compared_label_by_label(store: PGMemoryStore) -> None:
    names = [
        ("user", "1"),
        ("user", "10"),
        ("user", "1", "x"),
        ("user", "1\x01"),
        ("us",),
        ("user", "%"),
        ("user", "_"),
    ]
    for name in names:
        store.put(name, "k", {"n": 1})
    assert {item.namespace for item in store.search(("user", "1"))} == {("user", "1"), ("user", "1", "x")}
    assert {item.namespace for item in store.search(("user",))} == {*names} - {("us",)}
    assert {item.namespace for item in store.search(())} == {*names}
    assert store.list_namespaces(prefix=("user", "*", "x")) == [("user", "1", "x")]
    assert store.list_namespaces(suffix=("x",)) == [("user", "1", "x")]
    ending = MatchCondition("suffix", "x")  # type: ignore[arg-type]
    assert store.batch([ListNamespacesOp((ending,))]) == [[("user", "1", "x")]], "a string is one label"
    assert store.list_namespaces(max_depth=1) == [("us",), ("user",)]
    assert store.list_namespaces(max_depth=2, limit=2, offset=1) == [("user", "%"), ("user", "1")]


@pytest.mark.parametrize(
    "namespace", [(), ("",), ("a.b",), ("a\0",), ("a", 1), ("\ud800",), ("langgraph", "x"), ("\U0010ffff",)]
)
def test_a_namespace_that_cannot_be_is_refused(store: PGMemoryStore, namespace: Any) -> None:
    with pytest.raises((InvalidNamespaceError, ConfigurationError)):
        store.put(namespace, "k", {"n": 1})
    assert store.search(()) == []


def test_a_deep_namespace_is_stored_or_refused_by_its_size(store: PGMemoryStore) -> None:
    deep = tuple(f"{number}" for number in range(120))
    store.put(deep, "k", {"n": 1})
    assert store.list_namespaces() == [deep]
    with pytest.raises(ConfigurationError, match="must together take at most"):
        store.put(tuple("x" * 20 for _ in range(200)), "k", {"n": 1})


@pytest.mark.parametrize("value", [{"a": object()}, {"a": float("nan")}, {"a": "\0"}, {"a": "\ud800"}, [1]])
def test_a_value_that_cannot_be_stored_is_refused_with_its_batch(store: PGMemoryStore, value: Any) -> None:
    with pytest.raises((SerializationError, ConfigurationError)):
        store.batch([PutOp(USER, "good", {"n": 1}), PutOp(USER, "bad", value)])
    assert store.get(USER, "good") is None


VALUES: list[dict[str, Any]] = [
    {"n": 9, "t": "a", "d": {"x": 1}},
    {"n": 10, "t": "b"},
    {"n": "10", "t": None},
    {"t": "B", "d": {"x": 2}, "l": [1, 2]},
    {"n": 2.5, "b": True},
]


@pytest.mark.parametrize(
    "filter",
    [
        {"n": {"$gt": 9}},
        {"n": {"$gte": 2.5, "$lt": 10}},
        {"n": 10},
        {"n": {"$ne": 10}},
        {"t": None},
        {"d": {"x": 1}},
        {"d": {"x": {"$gte": 2}}},
        {"d": {"y": None}},
        {"t": {"x": {"$ne": 1}}},
        {"l": {"0": 1}},
        {"l": [1, 2]},
        {"b": True},
        {"t": {"$eq": "b"}, "n": {"$lte": 10}},
        {"nothing": 1},
    ],
)
def test_filters_find_what_they_find_in_memory(store: PGMemoryStore, filter: dict[str, Any]) -> None:
    other = InMemoryStore()
    for number, value in enumerate(VALUES):
        for one in (store, other):
            one.put(USER, str(number), value)

    def keys(store: BaseStore, filter: Any) -> list[str] | None:
        try:
            return sorted(item.key for item in store.search(USER, filter=filter))
        except (TypeError, ValueError):
            # In memory, texts and numbers are compared as numbers.
            return None

    found, expected = keys(store, filter), keys(other, filter)
    assert found == ([key for key in expected if key != "2"] if expected and "$gt" in str(filter) else expected) or (
        expected is None and found is not None
    )


@pytest.mark.parametrize(
    "filter", [{"$or": []}, {"n": {"$in": [1]}}, {"n": {"$gt": [1]}}, {"n": {"$gt": 1, "x": 2}}, 5]
)
def test_a_filter_that_is_not_known_is_refused(store: PGMemoryStore, filter: Any) -> None:
    with pytest.raises(ConfigurationError):
        store.search(USER, filter=filter)


@pytest.mark.parametrize("query", ["a\0", "\ud800"])
def test_a_query_that_cannot_be_sent_is_refused(store: PGMemoryStore, query: str) -> None:
    for ask in (lambda: store.search(USER, query=query), lambda: store.batch([SearchOp(USER, query=query)])):
        with pytest.raises(ConfigurationError, match="query"):
            ask()


def test_an_expired_item_is_never_returned_and_is_swept_with_its_versions(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    for n in range(2):
        store.put(USER, "k", {"n": n}, ttl=10)
    store.put(("other",), "k", {"n": 1})
    rows(connection, schema, "UPDATE memories SET expires_at = now() WHERE ttl IS NOT NULL RETURNING 1")
    assert store.get(USER, "k") is None
    assert store.search(USER) == []
    assert store.search(USER, query="k") == []
    assert store.list_namespaces() == [("other",)]
    assert store.batch([GetOp(USER, "k"), GetOp(("other",), "k")])[0] is None
    assert store.sweep_ttl() == 1
    assert rows(connection, schema, "SELECT count(*) FROM memory_versions") == [(0,)]


def test_a_read_writes_nothing_itself_and_lets_items_live_longer_soon(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    store.put(USER, "k", {"n": 1}, ttl=10)
    before = rows(connection, schema, "SELECT expires_at, xmin::text FROM memories")
    assert store.get(USER, "k", refresh_ttl=False)
    assert store.search(USER, refresh_ttl=True)
    assert rows(connection, schema, "SELECT expires_at, xmin::text FROM memories") == before
    store.flush()
    ((expires_at, count),) = rows(connection, schema, "SELECT expires_at, access_count FROM memories")
    assert expires_at > before[0][0]
    assert count == 2
    assert store.get(USER, "k", refresh_ttl=True)
    # An item that expires before the read is noted stays expired.
    connection.execute("UPDATE memories SET expires_at = now()")
    store.flush()
    assert store.get(USER, "k") is None


def test_a_read_that_could_not_be_counted_is_counted_later(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A time to live rests on it."""
    place = make_conninfo(dsn, options="-c lock_timeout=20ms")
    with PGMemoryStore.from_conn_string(place, schema=schema, pool=1) as store:
        store.put(USER, "k", {"n": 1}, ttl=10)
        before = rows(connection, schema, "SELECT expires_at FROM memories")[0][0]
        with connection.transaction():
            rows(connection, schema, "SELECT 1 FROM memories FOR UPDATE")
            assert store.get(USER, "k")
            store.flush()
        store.flush()
        ((after, count),) = rows(connection, schema, "SELECT expires_at, access_count FROM memories")
    assert after > before
    assert count == 1


def test_reads_are_counted_by_a_store_that_was_made_before_its_loop(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applications make pools and stores when they are imported, and open the pools later."""
    monkeypatch.setattr(store_module, "FLUSH_SECONDS", 0.01)
    pool: Any = AsyncConnectionPool(dsn, open=False, kwargs={"autocommit": True}, min_size=1)
    store = AsyncPGMemoryStore(pool, schema=schema)

    async def read() -> None:
        async with pool:
            await store.aput(USER, "k", {"n": 1}, ttl=10)
            await store.aget(USER, "k")
            for _ in range(500):
                if rows(connection, schema, "SELECT 1 FROM memories WHERE access_count = 1"):
                    break
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(read(), GUARD_SECONDS))
    assert rows(connection, schema, "SELECT access_count FROM memories") == [(1,)]


@pytest.mark.parametrize("mode", ["READ ONLY", "ISOLATION LEVEL REPEATABLE READ"])
def test_counts_of_reads_are_not_written_in_a_callers_transaction(
    dsn: str, schema: str, connection: psycopg.Connection, mode: str
) -> None:
    """They are written by another thread, and an error would abort the transaction."""
    with psycopg.connect(dsn) as own:
        store = PGMemoryStore(own, schema=schema)
        store.put(USER, "k", {"n": 1}, ttl=10)
        own.execute(f"SET TRANSACTION {mode}".encode())
        assert store.get(USER, "k")
        rows(connection, schema, "UPDATE memories SET access_count = 5 RETURNING 1")
        store.flush()
        own.execute("SELECT 1")
        own.commit()
        store.flush()
    assert rows(connection, schema, "SELECT access_count FROM memories") == [(6,)]


def test_a_graph_leaves_where_a_memory_comes_from(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    class State(TypedDict, total=False):
        n: int

    def remember(state: State, *, store: BaseStore) -> State:
        store.put(USER, "k", {"n": 1})
        return {"n": 1}

    with PGState.open(dsn, schema=schema) as state:
        builder = StateGraph(State).add_node("remember", remember).add_edge(START, "remember")
        graph = state.record(builder.compile(checkpointer=state.saver, store=state.memory))
        graph.invoke({"n": 0}, CONFIG)
        runs = state.runs.list(thread_id="t").items
        ((thread_id, run_id, checkpoint_id, changed_by),) = rows(
            connection, schema, "SELECT thread_id, run_id, checkpoint_id, changed_by FROM memories"
        )
        assert (thread_id, run_id, changed_by) == ("t", runs[0].run_id, "ann")
        assert checkpoint_id in {found.config["configurable"]["checkpoint_id"] for found in state.saver.list(CONFIG)}


@pytest.mark.slow
@pytest.mark.bare
def test_a_search_returns_as_many_as_there_are_at_any_offset(indexed: PGMemoryStore) -> None:
    indexed.batch([PutOp(USER, f"{n:03}", {"text": f"word{n % 7} note {n}", "n": n}) for n in range(300)])
    for mode in ("hybrid", "vector", "words"):
        found = [
            item.key
            for offset in range(0, 300, 50)
            for item in indexed.search(USER, query="word3 note", limit=50, offset=offset, mode=mode)
        ]
        assert len({*found}) == len(found) == 300
        rare = indexed.search(USER, query="word3", filter={"n": {"$gte": 295}}, limit=10, mode=mode)
        assert len(rare) == 5


@pytest.mark.bare
def test_hybrid_finds_what_either_finds_and_says_why(indexed: PGMemoryStore) -> None:
    texts = {"a": "ann likes tea", "b": "the code is zebra42", "c": "bob likes coffee and cake"}
    for key, text in texts.items():
        indexed.put(USER, key, {"text": text})
    best = indexed.search(USER, query="zebra42")[0]
    assert (best.key, best.words_rank) == ("b", 1)
    assert best.score is not None
    assert best.vector_rank is not None
    assert best.rank_score == pytest.approx(1 / 11 + 1 / (10 + best.vector_rank))
    first = indexed.search(USER, query="tea for ann", mode="vector")[0]
    assert (first.key, first.words_rank) == ("a", None)


@pytest.mark.bare
def test_an_item_that_is_not_indexed_is_not_found_by_a_query(indexed: PGMemoryStore) -> None:
    indexed.put(USER, "hidden", {"text": "zebra"}, index=False)
    indexed.put(USER, "other", {"text": "horse", "more": "zebra"}, index=["more"])
    assert [item.key for item in indexed.search(USER, query="zebra")] == ["other"]
    indexed.put(USER, "other", {"text": "horse", "more": "zebra"}, index=False)
    assert indexed.search(USER, query="zebra") == []
    assert len(indexed.search(USER)) == 2


@pytest.mark.bare
async def test_no_text_gets_the_embedding_of_another_one(
    dsn: str, schema: str, indexed: PGMemoryStore, connection: psycopg.Connection
) -> None:
    """Of a model that answers with fewer embeddings than it was given texts nothing is stored."""
    index: Any = {**INDEX, "embed": lambda texts: embed(texts)[1:]}
    put = [PutOp(USER, "one", {"text": "tea"}), PutOp(USER, "two", {"text": "milk"})]
    with PGMemoryStore.from_conn_string(dsn, schema=indexed.schema, index=index) as store:
        store.batch(put)
        assert store.get(USER, "one") is not None
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=indexed.schema, index=index) as other:
        await other.abatch([one._replace(key=one.key + "!") for one in put])
    query = "SELECT m.key, m.is_unindexed FROM memories m ORDER BY 1"
    assert rows(connection, indexed.schema, query) == [(key, True) for key in ("one", "one!", "two", "two!")]
    assert rows(connection, indexed.schema, "SELECT count(*) FROM memory_vectors_1") == [(0,)]


def test_a_model_that_fails_loses_nothing(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    def failing(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("the model is away")

    with PGMemoryStore.from_conn_string(dsn, schema=schema, index={**INDEX, "embed": failing}) as store:
        store.put(USER, "k", {"text": "zebra"})
        assert [item.key for item in store.search(USER, query="zebra")] == ["k"]
        with pytest.raises(OSError, match="away"):
            store.search(USER, query="zebra", mode="vector")
    assert [item.key for item in indexed.search(USER, query="zebra")] == ["k"]
    assert indexed.search(USER, query="zebra", mode="vector") == []
    indexed.put(USER, "hidden", {"text": "zebra"}, index=False)
    assert indexed.reindex() == 1
    assert [item.key for item in indexed.search(USER, query="zebra", mode="vector")] == ["k"]
    assert indexed.reindex() == 0


@pytest.mark.slow
@pytest.mark.bare
def test_a_new_model_is_used_when_its_index_is_complete(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    """The items are embedded by both until then."""
    asked: list[str] = []

    def other(texts: Sequence[str]) -> list[list[float]]:
        asked.extend(texts)
        return [vector[:4] for vector in embed(texts)]

    indexed.batch([PutOp(USER, f"{n}", {"text": f"word{n}"}) for n in range(5)])
    both: Any = [INDEX, {**INDEX, "name": "new", "dims": 4, "embed": other}]
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=both) as store:
        store.setup()
        store.put(USER, "late", {"text": "late"})
        asked.clear()
        assert len(store.search(USER, query="word1", mode="vector")) == 6
        assert asked == []
        assert store.reindex() == 5
        asked.clear()
        assert len(store.search(USER, query="word1", mode="vector")) == 6
        assert asked == ["word1"]


class Asymmetric(Embeddings):
    """A model that embeds queries in another way than texts."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return embed([text.removesuffix("?")])[0]


@pytest.mark.bare
def test_a_query_is_embedded_as_a_query(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    options: Any = {"index": {**INDEX, "embed": Asymmetric()}}
    indexed.put(USER, "k", {"text": "zebra"})
    with PGMemoryStore.from_conn_string(dsn, schema=schema, **options) as store:
        assert store.search(USER, query="zebra?")[0].score == pytest.approx(1)

    async def ask() -> Any:
        async with AsyncPGMemoryStore.from_conn_string(dsn, schema=schema, **options) as store:
            return (await store.asearch(USER, query="zebra?"))[0].score

    assert asyncio.run(ask()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.bare
def test_the_embedding_of_an_earlier_text_is_not_used(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    """A process without the index has changed the text."""
    indexed.put(USER, "k", {"text": "zebra"})
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as plain:
        plain.put(USER, "k", {"text": "horse"})
    assert indexed.search(USER, query="zebra", mode="vector") == []
    assert indexed.reindex() == 1
    assert [item.key for item in indexed.search(USER, query="horse", mode="vector")] == ["k"]
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as plain:
        plain.delete(USER, "k")
        plain.put(USER, "k", {"text": "cow"})
    assert indexed.search(USER, query="zebra", mode="vector") == []


@pytest.mark.slow
@pytest.mark.bare
def test_a_model_must_return_what_the_index_holds(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    for wrong in ([1.0] * 15, [float("inf")] * 16):
        options: Any = {**INDEX, "embed": lambda texts, wrong=wrong: [wrong for _ in texts]}
        with (
            PGMemoryStore.from_conn_string(dsn, schema=schema, index=options) as store,
            pytest.raises(ConfigurationError, match="must return"),
        ):
            store.put(USER, "k", {"text": "a"})
    assert indexed.get(USER, "k") is None


@pytest.mark.slow
@pytest.mark.bare
def test_an_index_with_other_options_needs_another_name(dsn: str, schema: str, indexed: PGMemoryStore) -> None:
    for change in ({"dims": 3}, {"fields": ["other"]}, {"distance_type": "l2"}):
        options: Any = {**INDEX, **change}
        with (
            PGMemoryStore.from_conn_string(dsn, schema=schema, index=options) as store,
            pytest.raises(ConfigurationError, match="use another name"),
        ):
            store.setup()
    with (
        PGMemoryStore.from_conn_string(dsn, schema=schema, index={**INDEX, "name": "new"}) as store,
        pytest.raises(ConfigurationError, match="call setup"),
    ):
        store.put(USER, "k", {"text": "a"})


@pytest.mark.parametrize(
    "options",
    spread(
        [
            {"index": {"embed": embed}},
            {"index": {"dims": 2}},
            {"index": {"dims": 5000, "embed": embed}},
            {"index": {**INDEX, "kind": "x"}},
            {"index": {**INDEX, "ann_index_config": {"kind": "ivfflat"}}},
            {"index": {**INDEX, "ann_index_config": {"m": "16) WHERE false; --"}}},
            {"index": [INDEX, INDEX]},
            {"index": 5},
            {"ttl": {"default_ttl": -1}},
            {"ttl": {"other": 1}},
            {"ttl": 5},
            {"language": "english'; --"},
            {"history": -1},
            {"namespaces": 5},
            {"namespaces": {("a",): {"nothing": 1}}},
            {"namespaces": {("a",): {"ttl": -1}}},
            {"namespaces": {("a",): {"index": True}}},
            {"nothing": 1},
        ]
    ),
)
def test_an_option_that_is_not_usable_is_refused(dsn: str, options: Any) -> None:
    with pytest.raises(ConfigurationError), PGMemoryStore.from_conn_string(dsn, **options):
        pass


async def test_the_async_store_answers_other_threads_and_refuses_its_own(dsn: str, schema: str) -> None:
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=schema) as store:
        await store.aput(USER, "k", {"n": 1})
        with pytest.raises(BlockingCallError, match="await"):
            store.get(USER, "k")
        found = await asyncio.to_thread(store.get, USER, "k")
        assert found is not None
        assert found.value == {"n": 1}
        assert [item.key for item in await asyncio.to_thread(store.search, USER)] == ["k"]
        assert [item.key for item in (await store.abatch([SearchOp(USER)]))[0]] == ["k"]  # type: ignore[union-attr]


async def test_the_blocking_store_answers_an_event_loop(store: PGMemoryStore) -> None:
    await store.aput(USER, "k", {"text": "zebra"})
    assert [item.key for item in await store.asearch(USER, query="zebra")] == ["k"]


@pytest.mark.bare
def test_namespaces_have_fields_and_times_to_live_of_their_own(
    dsn: str, indexed: PGMemoryStore, connection: psycopg.Connection
) -> None:
    """Unless a put says otherwise; the most labels count."""
    namespaces: Any = {
        ("chats",): {"index": ["said"], "ttl": 5},
        ("chats", "kept"): {"ttl": None},
        ("logs",): {"index": False},
    }
    schema, options = indexed.schema, {"ttl": {"default_ttl": 60}, "namespaces": namespaces}
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=INDEX, **options) as store:
        for number, where in enumerate((USER, ("chats", "1"), ("chats", "kept"), ("logs",), ("chats2",))):
            store.put(where, str(number), {"text": "tea", "said": "coffee"})
        store.put(("chats", "1"), "5", {"text": "tea", "said": "coffee"}, index=["text"], ttl=7)
        store.remember("Likes tea", key="6", namespace=("chats", "2"))
        query = """
            SELECT m.key, extract(epoch FROM m.ttl)::integer / 60, m.index_fields,
                array_agg(v.field) FILTER (WHERE v.field > '')
            FROM memories m LEFT JOIN memory_vectors_1 v USING (namespace, key) GROUP BY m.key, m.ttl, m.index_fields
            ORDER BY m.key
        """
        assert rows(connection, schema, query) == [
            ("0", 60, None, ["text"]),
            ("1", 5, ["said"], ["said"]),
            ("2", None, ["said"], ["said"]),
            ("3", 60, [], None),
            ("4", 60, None, ["text"]),
            ("5", 7, ["text"], ["text"]),
            ("6", 5, ["content"], ["content"]),
        ]
        assert [one.key for one in store.search(("chats", "kept"), query="coffee", mode="words")] == ["2"]


async def test_times_to_live_of_namespaces_hold_on_an_event_loop(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=schema, namespaces={("a",): {"ttl": 5}}) as store:
        await store.aput(("a", "b"), "k", {})
    assert rows(connection, schema, "SELECT extract(epoch FROM ttl)::integer FROM memories") == [(300,)]


@pytest.mark.slow
@pytest.mark.bare
async def test_what_takes_long_to_encode_is_encoded_beside_the_event_loop(
    dsn: str, indexed: PGMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop: list[str] = []
    for module, name in ((store_module, "json_value"), (remembering, "json_value"), (memories, "json_value")):
        monkeypatch.setattr(module, name, noted(getattr(module, name), on_the_loop))
    monkeypatch.setattr(remembering.AsyncMemories, "_restored", noted(remembering.AsyncMemories._restored, on_the_loop))
    monkeypatch.setattr(items, "packed", noted(items.packed, on_the_loop))
    large = {"text": "tea", "numbers": [*range(2000)]}
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=indexed.schema, index=INDEX) as store:
        await store.abatch([PutOp(USER, f"k{n}", {"text": f"tea {n}", "more": "x" * 300}) for n in range(1000)])
        assert on_the_loop == []
        await store.remember("Likes tea", user_id="ann", key="k", metadata=large)
        await store.aput(USER, "k", large)
        await store.edit(USER, "k", {**large, "more": 1}, expected_version=1)
        await store.restore(USER, "k", 1)
        # Of one item, that is soon done.
        assert {*on_the_loop} == {"packed"}
        assert (await store.aget(USER, "k")).value == large  # type: ignore[union-attr]


def noted(function: Any, on_the_loop: list[str]) -> Any:
    """Note the calls that are made in the main thread."""

    def call(*given: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            on_the_loop.append(function.__name__)
        return function(*given, **options)

    return call


@pytest.mark.slow
@pytest.mark.bare
async def test_what_tasks_store_at_once_is_each_ones_own(
    dsn: str, indexed: PGMemoryStore, connection: psycopg.Connection
) -> None:
    """It is stored and embedded together: with the origin of each, and what fails, fails alone."""
    sizes: list[int] = []
    all_have_begun = threading.Event()

    def counted(texts: Sequence[str]) -> list[list[float]]:
        sizes.append(len(texts))
        assert all_have_begun.wait(GUARD_SECONDS)
        if any("poison" in text for text in texts):
            raise ValueError("the model takes no poison")
        return [vector[:3] if "short" in text else vector for text, vector in zip(texts, embed(texts), strict=True)]

    class State(TypedDict, total=False):
        name: str
        seen: str | None

    async def remember(state: State, *, store: BaseStore) -> State:
        begun.add(state["name"])
        if len(begun) == len(names):
            all_have_begun.set()
        await store.aput(where, state["name"], {"text": state["name"]})
        found = await store.aget(where, state["name"])
        return {"seen": found and found.value["text"]}

    begun: set[str] = set()
    where, schema, index = ("at once",), indexed.schema, {**INDEX, "embed": counted}
    names = [*(f"tea {number}" for number in range(20)), "poison"]
    configs: Any = [{"configurable": {"thread_id": f"t {name}", "user_id": f"u {name}"}} for name in names]
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=schema, index=index) as store:
        graph: Any = StateGraph(State).add_node("remember", remember).add_edge(START, "remember").compile(store=store)
        given = zip(names, configs, strict=True)
        found = await asyncio.gather(*(graph.ainvoke({"name": name}, config) for name, config in given))
        assert [one["seen"] for one in found] == names
        puts = [store.aput(where, "same", {"text": f"{n}"}) for n in range(5)]
        refused = store.aput(where, "short", {"text": "short"})
        results = await asyncio.gather(*puts, refused, return_exceptions=True)
        assert [type(one) for one in results] == [type(None)] * 5 + [ConfigurationError]
        assert [one.value["text"] for one in await store.history(where, "same")] == ["4", "3", "2", "1", "0"]
        await store.adelete(where, "same")
    query = """
        SELECT m.key, m.thread_id, m.changed_by, m.is_unindexed, v.embedding::real[]
        FROM memories m LEFT JOIN memory_vectors_1 v USING (namespace, key)
        WHERE m.namespace = '{at once}' ORDER BY m.key
    """
    for name, row in zip(sorted(names), rows(connection, schema, query), strict=True):
        vector = None if name == "poison" else pytest.approx(embed([name])[0])
        assert row == (name, f"t {name}", f"u {name}", name == "poison", vector)
    assert max(sizes) > 1


def test_batches_that_are_joined_keep_their_embeddings() -> None:
    index: Any = "index"

    def batch(*keys: str) -> items.Batch:
        puts = [items.Put(USER, key, "{}", None, None, []) for key in keys]
        numbers = [*range(1, len(keys) + 1)]
        embedded = items.Embedded(index, numbers, ["text"] * len(keys), [[len(key)] for key in keys])
        return items.Batch(puts, [embedded], False, Origin(thread_id=keys[0]))

    puts, (embedded,), origins = items.joined([batch("a", "bb"), batch("ccc")])
    keys = [puts[number - 1].key for number in embedded.numbers]
    assert [*zip(keys, embedded.vectors, strict=True)] == [("a", [1]), ("bb", [2]), ("ccc", [3])]
    assert [one.thread_id for one in origins] == ["a", "a", "ccc"]
