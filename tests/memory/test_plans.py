"""Plans of searches and puts: what they read, and how the time grows with the number of items."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from psycopg import sql

from langgraph_pgstate.db import database
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.db.statements import array_literal
from langgraph_pgstate.memory import PGMemoryStore

DIMS = 4
ITEMS = 2000
NAMESPACE = ("users", "ann")


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[random.Random(f"{text} {place}").gauss(0, 1) for place in range(DIMS)] for text in texts]


@pytest.fixture(scope="module")
def store(dsn: str) -> Iterator[PGMemoryStore]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
        index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]}
        with PGMemoryStore.from_conn_string(dsn, schema="planned_memories", pool=False, index=index) as store:
            store.setup()
            store.batch([PutOp(NAMESPACE, f"{n:05}", {"text": f"word{n % 7} text {n}"}) for n in range(ITEMS)])
            store.batch([PutOp(("users", f"u{n}"), "one", {"text": f"text {n}"}) for n in range(1000)])
            connection.execute("ANALYZE planned_memories.memories, planned_memories.memory_vectors_1")
            yield store
        connection.execute("DROP SCHEMA planned_memories CASCADE")


def sent_by(dsn: str, call: Callable[[PGMemoryStore], Any]) -> dict[str, tuple[Any, Any]]:
    """Return the statements that a call sends, by name, with their parameters."""
    sent: dict[str, tuple[Any, Any]] = {}

    class Recording(BlockingConnection):
        async def fetch_together(self, statements: Any, after_commit: Any = None) -> Any:
            sent.update({query.name: (query, parameters) for query, parameters in statements})
            return await super().fetch_together(statements, after_commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", Recording)
        index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]}
        with PGMemoryStore.from_conn_string(dsn, schema="planned_memories", pool=False, index=index) as recorded:
            call(recorded)
    return sent


def generic_plan(connection: psycopg.Connection, query: Any, parameters: Any) -> str:
    """Run a statement as it is planned for any parameters, and return its plan with the numbers of rows."""

    def literal(name: str) -> sql.Composable:
        value = parameters[name]
        if name == "embedding":
            return sql.Literal(str([0.5] * DIMS))
        return sql.Literal(array_literal(value) if isinstance(value, list) else value)

    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(b"PREPARE planned AS " + query.text)
    given = sql.SQL(", ").join(map(literal, query.parameters))
    rows = connection.execute(sql.SQL("EXPLAIN (ANALYZE, TIMING OFF) EXECUTE planned({})").format(given)).fetchall()
    connection.execute("DEALLOCATE planned")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "words"])
def test_the_time_of_an_exact_search_grows_with_the_number_of_items(
    store: PGMemoryStore, dsn: str, connection: psycopg.Connection, mode: Any
) -> None:
    """No two sets of items are compared with each other, although the plan expects few."""
    sent = sent_by(dsn, lambda one: one.search(NAMESPACE, query="word3 text 7", mode=mode))
    (name,) = sent.keys() - {"set_planning"}
    plan = generic_plan(connection, *sent[name])
    assert f"actual rows={ITEMS}.00" in plan.replace(f"rows={ITEMS} ", f"rows={ITEMS}.00 ")
    assert "memories_pkey" in plan
    assert "Seq Scan on memories" not in plan
    assert sum(map(int, re.findall(r"Rows Removed by Join Filter: (\d+)", plan))) == 0
    loops = [int(number) for number in re.findall(r"CTE Scan on (?:candidates|scores) .*loops=(\d+)", plan)]
    assert loops
    assert max(loops) == 1
