"""Memory through PgBouncer in transaction mode: server connections change hands after every transaction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from psycopg import sql

from langgraph_pgstate import PGState
from langgraph_pgstate.memory import indexing
from tests.db.test_database import Bouncer, bouncer_version

DIMS = 4


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[random.Random(f"{text} {place}").gauss(0, 1) for place in range(DIMS)] for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("prepare_threshold", [None, 2])
def test_many_callers_share_three_server_connections(
    prepare_threshold: int | None, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    version = bouncer_version()
    if not version:
        pytest.skip("PgBouncer is not installed")
    if prepare_threshold is not None and version < (1, 21):
        pytest.skip(f"PgBouncer {version[0]}.{version[1]} does not track prepared statements, 1.21 does")
    if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        pytest.skip("the server has no pgvector")
    bouncer = Bouncer(dsn, tmp_path, prepared=100 if prepare_threshold is not None else 0)
    options: Any = {"memory": {"index": {"dims": DIMS, "embed": embed, "fields": ["text"]}}}
    try:
        with PGState.open(bouncer.dsn, schema=schema, prepare_threshold=prepare_threshold, **options) as state:
            state.setup()
            memory = state.memory
            memory.batch([PutOp(("big",), str(n), {"text": f"text {n}", "n": n}) for n in range(300)])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(indexing.move_large_namespaces, "__defaults__", (300,))
                assert memory.move_large_namespaces() == 300

            def work(number: int) -> None:
                user = f"user{number}"
                for step in range(10):
                    memory.put(("small", user), str(step), {"text": f"text {step}"})
                    assert memory.get(("small", user), str(step)) is not None
                    assert memory.search(("small", user), query=f"text {step}", mode="vector")[0].key == str(step)
                    assert len(memory.search(("big",), query=f"text {step}", filter={"n": {"$gte": 290}})) == 10
                    memory.remember("Likes tea.", user_id=user)
                assert [one.duplicates for one in memory.recall("tea", user_id=user)] == [9]
                assert memory.forget(user_id=user) == 1

            with ThreadPoolExecutor(8) as threads:
                list(threads.map(work, range(8)))
        # No setting of a transaction is left on a connection that others use.
        with psycopg.connect(bouncer.dsn, autocommit=True) as client:
            for name in ("plan_cache_mode", "hnsw.iterative_scan"):
                shown = client.execute(sql.SQL("SHOW {}").format(sql.SQL(name))).fetchone()
                assert shown in (("auto",), ("off",))
    finally:
        bouncer.close()
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}.memory_vectors_1").format(sql.Identifier(schema)))
