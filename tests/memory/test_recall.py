"""How many of the memories that answer a question are found: by words, by vectors, and by both."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks.evidence import made_evidence
from benchmarks.recall import DIMS, offline_model, recall
from langgraph_pgstate.memory import PGMemoryStore


@pytest.mark.slow
def test_a_hybrid_search_finds_more_than_either_alone(dsn: str) -> None:
    """Ten points more than by vectors at least; of no kind of questions more than two points less than by either."""
    pytest.importorskip("wordllama")
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
        index = {"dims": DIMS, "embed": offline_model(), "fields": ["text"]}
        try:
            with PGMemoryStore.from_conn_string(dsn, schema="recalled", pool=False, index=index) as store:
                store.setup()
                # What was chosen by the first half is measured by the second.
                found = recall(store, ("made",), made_evidence().half(1))
        finally:
            connection.execute("DROP SCHEMA IF EXISTS recalled CASCADE")
    assert found["all"]["hybrid"] >= found["all"]["vector"] + 10, found
    for kind, modes in found.items():
        assert modes["hybrid"] >= max(modes["vector"], modes["words"]) - 2, (kind, found)
