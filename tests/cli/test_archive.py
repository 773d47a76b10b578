"""The command `archive`."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from support.cli import Run, lines
from support.samples import config_of, put_values

from langgraph_pgstate import PGStateSaver


@pytest.mark.slow
def test_threads_go_and_come_back(
    terminal: Run, saver: PGStateSaver, connection: psycopg.Connection, tmp_path: Path
) -> None:
    for name in ("trip [1]", "trip 2", "new"):
        put_values(saver, config_of(name), {"a": 1})
    connection.execute(
        f"UPDATE \"{saver.schema}\".threads SET updated_at = '2025-01-01Z', user_id = 'eve', title = 'Prague'"
        " WHERE thread_id <> 'new'".encode()
    )
    to = f"file://{tmp_path}/archive"
    options = ("archive", "put", "--to", to, "--user", "eve", "--older-than", "30d")
    assert "would be archived: 2 threads with 2 rows" in terminal(*options, "--dry-run")
    assert "archived: 2 threads with 2 rows" in terminal(*options)
    assert "new was active a moment ago" in terminal("archive", "put", "new", "--to", to, code=1)
    assert "trip [1]" in terminal("archive")
    assert [json.loads(line)["thread_id"] for line in terminal("--json", "archive").splitlines()] == [
        "trip 2",
        "trip [1]",
    ]
    assert "verified: 2 threads" in terminal("archive", "check")
    for command in ("show", "conversation", "tree", "fork", "resume"):
        assert "pgstate archive restore" in terminal(command, "trip 2", code=1), command
    assert "pgstate archive restore" in terminal("delete", "trip 2", "--yes", code=1)
    assert "may be archived" in terminal("check", "--thread", "trip 2", code=1)
    terminal("hold", "trip [1]", "case 7", "--by", "ada")
    assert lines(terminal("threads"), "trip [1]", "idle, archived, held")
    assert lines(terminal("threads"), "trip 2", "idle, archived")
    terminal("release", "trip [1]", "case 7", "--by", "ada")
    assert "restored: 1 thread with 1 row" in terminal("archive", "restore", "trip 2")
    assert "threads deleted for good: 1" in terminal("archive", "delete", "trip [1]", "--yes")
    assert "no copy of the threads" in terminal("archive", "delete", "trip [1]", "--yes", code=1)
    # A restored thread stays in the database.
    assert "copies deleted: 1; threads deleted for good: 0" in terminal("archive", "delete", "trip 2", "--yes")
    # Of several named threads, the others are done. Threads that a filter selects may be left.
    put_values(saver, config_of("other"), {"a": 1})
    connection.execute(
        f"UPDATE \"{saver.schema}\".threads SET updated_at = '2025-01-01Z' WHERE thread_id = 'other'".encode()
    )
    assert "new was active" in terminal("archive", "put", "new", "other", "--to", to, code=1)
    # A repeated command succeeds, for example after the server was lost.
    assert "other is archived already" in terminal("archive", "put", "other", "--to", to)
    terminal("hold", "trip 2", "case 7", "--by", "ada")
    assert "trip 2 is held" in terminal("archive", "put", "--older-than", "30d", "--user", "eve", "--to", to)
    terminal("release", "trip 2", "case 7", "--by", "ada")
    assert "threads deleted for good: 1" in terminal("archive", "delete", "other", "none", "--yes")
    nowhere = f"file://{tmp_path}/nowhere"
    assert "there is no archive below file://" in terminal("archive", "restore", "--from", nowhere, code=1)
    assert json.loads(terminal("--json", "archive", "put", "new", "--to", to, code=1))["left"]
    assert "not archived, or does not exist" in terminal("archive", "restore", "trip [1]", code=1)
    assert "requires --to" in terminal("archive", "put", "trip 2", code=1)
    assert "requires the ids of threads, or one of --older-than" in terminal("archive", "put", "--to", to, code=1)
    assert "requires the ids of threads" in terminal("archive", "delete", code=1)
    assert "requires the ids of threads, or --from" in terminal("archive", "restore", code=1)
    assert "must name a bucket or a folder" in terminal("archive", "put", "new", "--to", "memory://x", code=1)
    assert "must have the form" in terminal("archive", "put", "trip 2", "--to", "nowhere", code=1)
