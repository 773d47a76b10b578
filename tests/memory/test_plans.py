"""Plans of searches and puts: what they read, and how the time grows with the number of items."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from psycopg import sql
from support import spread

from benchmarks.memory import fill_ours, make_given
from langgraph_pgstate.db import database
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.db.statements import array_literal
from langgraph_pgstate.memory import PGMemoryStore, indexing
from tests.architecture.test_sql import nodes

DIMS = 4
ITEMS = 2000
NAMESPACE = ("users", "ann")


def embedding(dims: int) -> Callable[[Sequence[str]], list[list[float]]]:
    """Return a function that makes an embedding of each text."""

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[random.Random(f"{text} {place}").gauss(0, 1) for place in range(dims)] for text in texts]

    return embed


@pytest.fixture(scope="module")
def store(dsn: str) -> Iterator[PGMemoryStore]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
        index: Any = {"dims": DIMS, "embed": embedding(DIMS), "fields": ["text"]}
        with PGMemoryStore.from_conn_string(dsn, schema="planned_memories", pool=False, index=index) as store:
            store.setup()
            store.batch([PutOp(NAMESPACE, f"{n:05}", {"text": f"word{n % 7} text {n}"}) for n in range(ITEMS)])
            store.batch([PutOp(("users", f"u{n}"), "one", {"text": f"text {n}"}) for n in range(1000)])
            connection.execute("ANALYZE planned_memories.memories, planned_memories.memory_vectors_1")
            yield store
        connection.execute("DROP SCHEMA planned_memories CASCADE")


Sent = list[list[tuple[Any, Any]]]
"""Statements, by the transaction they were sent in."""


def sent_by(dsn: str, schema: str, call: Callable[[PGMemoryStore], Any], dims: int = DIMS) -> Sent:
    """Return the statements that a call sends, with their parameters."""
    sent: Sent = []

    class Recording(BlockingConnection):
        async def fetch_together(self, statements: Any, after_commit: Any = None) -> Any:
            sent.append([*statements])
            return await super().fetch_together(statements, after_commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", Recording)
        index: Any = {"dims": dims, "embed": embedding(dims), "fields": ["text"]}
        with PGMemoryStore.from_conn_string(dsn, schema=schema, pool=False, index=index) as recorded:
            call(recorded)
    return sent


def plan_of(connection: psycopg.Connection, statements: Sequence[tuple[Any, Any]], dims: int = DIMS) -> str:
    """Run the last one of some statements as it is planned after the others; return its plan as JSON."""

    def literal(parameters: Any, name: str) -> sql.Composable:
        value = parameters[name]
        if name == "embedding":
            return sql.Literal(str([0.5] * dims))
        return sql.Literal(array_literal(value) if isinstance(value, list) else value)

    with connection.transaction(force_rollback=True):
        for number, (query, parameters) in enumerate(statements):
            connection.execute(f"PREPARE planned{number} AS ".encode() + query.text)
            given = sql.SQL(", ").join(literal(parameters, name) for name in query.parameters)
            is_last = number == len(statements) - 1
            explain = sql.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " if is_last else "")
            found = connection.execute(explain + sql.SQL("EXECUTE {}({})").format(sql.SQL(f"planned{number}"), given))
            rows = found.fetchall()
            connection.execute(f"DEALLOCATE planned{number}")
    return json.dumps(rows[0][0])


@pytest.mark.parametrize(
    "mode", ["hybrid", *(pytest.param(one, marks=pytest.mark.slow) for one in ("vector", "words"))]
)
def test_the_time_of_an_exact_search_grows_with_the_number_of_items(
    store: PGMemoryStore, dsn: str, connection: psycopg.Connection, mode: Any
) -> None:
    """No two sets of items are compared with each other, although the plan expects few."""
    (sent,) = sent_by(dsn, "planned_memories", lambda one: one.search(NAMESPACE, query="word3 text 7", mode=mode))
    plan = [*nodes(json.loads(plan_of(connection, sent))[0]["Plan"])]
    assert ITEMS in [node["Actual Rows"] for node in plan]
    assert "memories_pkey" in {node.get("Index Name") for node in plan}
    assert ("Seq Scan", "memories") not in {(node["Node Type"], node.get("Relation Name")) for node in plan}
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0
    loops = [node["Actual Loops"] for node in plan if node.get("CTE Name") in ("candidates", "scores")]
    assert loops
    assert max(loops) == 1


@dataclass(frozen=True)
class Crowd:
    """Many memories: those of users in namespaces of 50, of teams in twenty of these each, and a large one in a team's.

    Attributes:
        schema: The schema.
        dims: Dimensions of the embeddings.
        users: Number of the last user.
    """

    schema: str
    dims: int
    users: int


LARGE = ("teams", "0", "large")


@pytest.fixture(
    scope="module",
    params=[
        (10_000, 1_000, 8),
        pytest.param((1_000_000, 100_000, 384), marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["10,000", "1,000,000"],
)
def crowd(dsn: str, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    memories, size, dims = request.param
    namespaces = (memories - size) // 50
    found = Crowd(f"crowded_{memories}", dims, namespaces - 1)
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.MonkeyPatch.context() as patch:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
        patch.setattr(indexing.move_large_namespaces, "__defaults__", (size,))
        index: Any = {"dims": dims, "embed": embedding(dims), "fields": ["text"]}
        with PGMemoryStore.from_conn_string(dsn, schema=found.schema, pool=False, index=index) as store:
            store.setup()
            try:
                make_given(connection, memories - size, namespaces, dims)
                connection.execute(
                    "UPDATE given SET namespace = ARRAY['teams', n / 20, n %% 20]::text[]"
                    " FROM (SELECT key AS k, namespace[2]::integer AS n FROM given) g WHERE k = key AND n < %s",
                    [namespaces // 5],
                )
                connection.execute(
                    "INSERT INTO given SELECT %s, 'l' || key, value, base FROM given ORDER BY key LIMIT %s",
                    [[*LARGE], size],
                )
                fill_ours(connection, found.schema)
                connection.execute("DROP TABLE given, base")
                store.move_large_namespaces()
                tables = sql.Identifier(found.schema)
                for table in ("memories", "memory_vectors_1"):
                    connection.execute(sql.SQL("VACUUM ANALYZE {}.{}").format(tables, sql.Identifier(table)))
                yield found
            finally:
                connection.execute("DROP TABLE IF EXISTS given, base")
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(found.schema)))


SEARCHES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "small": (("users",), {}),
    "small, filter": (("users",), {"filter": {"n": {"$gte": 0}}}),
    "prefix": (("teams", "1"), {}),
    "prefix, filter": (("teams", "1"), {"filter": {"n": {"$gte": 0}}}),
    "large": (LARGE, {}),
    "large, filter": (LARGE, {"filter": {"n": {"$gte": 0}}}),
    "large in a prefix": (("teams", "0"), {}),
    "large in a prefix, filter": (("teams", "0"), {"filter": {"n": {"$gte": 0}}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hybrid", "vector"])
@pytest.mark.parametrize("search", spread(SEARCHES))
def test_searches_read_by_index_however_many_memories_there_are(
    crowd: Crowd, dsn: str, connection: psycopg.Connection, search: str, mode: Any
) -> None:
    """A small namespace and a range of them exactly, a large one by the approximate index."""
    (prefix, options), is_large = SEARCHES[search], search.startswith("large")
    if prefix[0] == "users":
        prefix = ("users", str(crowd.users))

    def call(store: PGMemoryStore) -> None:
        found = store.search(prefix, query="ann likes tea", mode=mode, **options)
        assert len(found) == 10
        assert {one.namespace[: len(prefix)] for one in found} == {prefix}

    sent = sent_by(dsn, crowd.schema, call, crowd.dims)
    assert [one[-1][0].name for one in sent] == (["search_vectors", "search_large"] if is_large else ["search_vectors"])
    plan = [*nodes(json.loads(plan_of(connection, sent[-1], crowd.dims))[0]["Plan"])]
    indexes = {node.get("Index Name") for node in plan}
    stored = [node for node in plan if node.get("Relation Name") in ("memories", "memory_vectors_1")]
    assert {node["Node Type"] for node in stored} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    assert "memories_pkey" in indexes
    assert ("memory_vectors_1_embedding_idx" if is_large else "memory_vectors_1_pkey") in indexes
    assert is_large or "memory_vectors_1_embedding_idx" not in indexes
    read = sum(map(rows_of, stored))
    print(f"{search}, {mode}: {read:,.0f} rows by {', '.join(sorted(filter(None, indexes)))}")  # noqa: T201
    # Each of a small namespace with its embedding; of a large one its nearest, and those that are looked at for words.
    assert read <= (20_000 if is_large else 2 * (50 if prefix[0] == "users" else 1000) + 20)


def rows_of(node: dict[str, Any]) -> float:
    """Return how many rows a scan has looked at."""
    keys = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(node.get(key, 0) for key in keys) * node["Actual Loops"]
