"""The command `audit`."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from support.cli import Run

from langgraph_pgstate import PGState, PGStateSaver

pytestmark = pytest.mark.smoke


def test_chains_are_verified_exported_and_adopted(
    terminal: Run, saver: PGStateSaver, dsn: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    with PGState.open(dsn, schema=saver.schema) as state:
        state.events.add("old", "note", {})
        assert "are not chained" in terminal("audit", code=1)
        assert "is up to date" in terminal("setup", "--audit")
    with PGState.open(dsn, schema=saver.schema) as state:
        for number in range(3):
            state.events.add("t", "note", {"number": number})
    shown = terminal("audit", "verify")
    assert "read 2 threads, 3 events" in shown
    assert "1 event from before the audit" in shown
    exported = tmp_path / "events.jsonl"
    assert terminal("audit", "export", "--to", str(exported)) == ""
    assert terminal("audit", "export") == exported.read_text()
    assert [json.loads(line)["number"] for line in exported.read_text().splitlines()] == [1, 2, 3]
    assert "adopted 1 event" in terminal("audit", "adopt", "--by", "eve")
    assert "nothing is wrong" in terminal("audit", "verify", "--against", str(exported))
    connection.execute(f"DELETE FROM {saver.schema}.events WHERE payload ->> 'number' = '1'".encode())
    assert "the event was removed" in terminal("audit", code=1)
    assert json.loads(terminal("--json", "audit", "--thread", "t", code=1))["problems"][0]["thread_id"] == "t"
    assert "--to requires export" in terminal("audit", "--to", str(exported), code=1)
    assert "requires verify" in terminal("audit", "export", "--against", str(exported), code=1)
