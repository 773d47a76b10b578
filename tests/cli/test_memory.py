"""The command `memory`."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from langgraph.store.postgres import PostgresStore
from psycopg.conninfo import make_conninfo
from support.cli import Run, words

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.memory import PGMemoryStore


@pytest.mark.slow
def test_memories_are_listed_shown_and_forgotten(run: Run, dsn: str, saver: PGStateSaver) -> None:
    with PGMemoryStore.from_conn_string(dsn, schema=saver.schema) as store:
        for city in ("Rome", "Oslo"):
            store.remember(f"Lives in {city} [now]", key="home", user_id="ann", by="importer", message_id="m1")
        store.remember("Likes tea", "preference", user_id="ann")
        store.notes("move").save(goal="Move")
    assert "no memories" in words(run("memory", "list", "--user", "bob"))
    listed = words(run("memory", "--user", "ann"))
    assert "Lives in Oslo [now]" in listed
    assert "home" not in words(run("memory", "--user", "ann", "--kind", "preference"))
    shown = words(run("memory", "show", "home", "--user", "ann"))
    assert "stored by importer" in shown
    assert "message m1" in shown
    assert "Lives in Rome [now]" in words(run("memory", "history", "home", "--user", "ann"))
    assert "Move" in words(run("memory", "show", "move", "--namespace", "notes"))
    assert "no memory 'home'" in words(run("memory", "show", "home", code=1))
    assert "requires KEY" in words(run("memory", "history", code=1))
    assert "must be given" in words(run("memory", "forget", "--yes", code=1))
    run("memory", "forget", "--user", "ann", input="n\n", code=1)
    assert "forgot 1 memory" in words(run("memory", "forget", "home", "--user", "ann", "--yes"))
    assert json.loads(run("--json", "memory", "forget", "--user", "ann", "--purge", "--yes").output) == {"forgotten": 1}
    assert "no memory 'home'" in words(run("memory", "show", "home", "--user", "ann", code=1))


def test_an_index_that_no_program_uses_is_dropped(run: Run, dsn: str, saver: PGStateSaver) -> None:
    assert "no indexes" in words(run("memory", "indexes"))
    index = {"name": "old", "dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}
    with PGMemoryStore.from_conn_string(dsn, schema=saver.schema, index=index) as store:
        store.setup()
        if not store.list_indexes():
            pytest.skip("the server has no pgvector")
    assert "complete" in words(run("memory", "indexes"))
    assert "requires the name" in words(run("memory", "drop-index", code=1))
    run("memory", "drop-index", "old", input="n\n", code=1)
    assert json.loads(run("--json", "memory", "indexes").output) == {"old": True}
    assert "dropped the index old" in words(run("memory", "drop-index", "old", "--yes"))
    assert "no index 'old'" in words(run("memory", "drop-index", "old", "--yes", code=1))


@pytest.mark.bare
def test_what_an_index_lacks_is_embedded_by_the_model_of_a_file(
    run: Run, dsn: str, saver: PGStateSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    monkeypatch.chdir(tmp_path)
    assert "langgraph.json has no store.index" in words(run("memory", "reindex", code=1))
    with PGMemoryStore.from_conn_string(dsn, schema=saver.schema) as store:
        for number in range(3):
            store.put(("users",), str(number), {"text": "tea"})
    (tmp_path / "embed.py").write_text("def embed(texts):\n    return [[1.0, 0.0] for _ in texts]\n")
    index = {"dims": 2, "embed": "./embed.py:embed", "fields": ["text"]}
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": {}, "store": {"index": index}}))
    assert "embedded 3 items" in words(run("memory", "reindex"))
    assert json.loads(run("--json", "memory", "reindex").output) == {"embedded": 0, "indexes": {"default": True}}
    assert "takes no KEY" in words(run("memory", "reindex", "k", code=1))


def test_items_move_from_langgraphs_store_and_back(
    run: Run, dsn: str, upstream_schema: str, saver: PGStateSaver
) -> None:
    theirs = make_conninfo(dsn, options=f"-csearch_path={upstream_schema}")
    there = ("--from", dsn, "--from-schema", upstream_schema)
    assert "there are no LangGraph tables (store)" in words(run("memory", "import-langgraph", *there, code=1))
    assert "requires --from" in words(run("memory", "import-langgraph", code=1))
    assert "requires --to" in words(run("memory", "export-langgraph", code=1))
    with PostgresStore.from_conn_string(theirs) as store:
        store.setup()
        store.put(("users", "ann"), "k", {"n": 1})
        shown = words(run("memory", "import-langgraph", *there))
        assert "imported 1 item: 1 written; 1 compared with the other side" in shown
        with PGMemoryStore.from_conn_string(dsn, schema=saver.schema) as ours:
            ours.put(("users", "ann"), "k", {"n": 2})
            ours.remember("Likes tea", user_id="a.b")
        assert "left as they are" in words(run("memory", "import-langgraph", *there))
        back = run("--json", "memory", "export-langgraph", "--to", dsn, "--to-schema", upstream_schema, code=1)
        assert json.loads(back.output)["differences"][0]["namespace"] == "memories.user.a.b"
        found = store.get(("users", "ann"), "k")
        assert found is not None
        assert found.value == {"n": 2}
