"""The export of all that is stored about a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support import put_arguments

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep import exporting
from tests.keep.test_erasing import own, said


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, project=("note",)) as state:
        yield state


def read(lines: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in lines:
        one = json.loads(line)
        assert one.keys() == {"table", "row"}
        found.setdefault(one["table"], []).append(one["row"])
    return found


def test_it_has_all_of_a_user_and_nothing_of_others(state: PGState, connection: psycopg.Connection) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    said(state, "second", "one more thing", "evelyn")
    said(state, "his", "a public park", "bob")
    said(state, "his", "something of hers", "evelyn")
    connection.execute(f"UPDATE {state.schema}.threads SET user_id = 'bob' WHERE thread_id = 'his'".encode())
    for user in ("evelyn", "bob"):
        state.memory.put(("users", user), "likes", {"content": f"roses of {user}"})
        state.files.write((user,), "/diary.txt", f"diary of {user}")
    state.interrupts.answer("his", "yes", by="evelyn")
    found = read(state.privacy.export(user_id="evelyn"))
    assert [row["thread_id"] for row in found["threads"]] == ["hers", "second"]
    assert {row["thread_id"] for row in found["checkpoints"]} == {"hers", "second"}
    assert {row["content"] for row in found["messages"]} >= {"my secret garden", "something of hers"}
    assert [row["values"]["note"] for row in found["states"]] == ["noted: my secret garden", "noted: one more thing"]
    assert [row["value"] for row in found["memories"]] == [{"content": "roses of evelyn"}]
    assert [row["content"] for row in found["file_versions"]] == ["diary of evelyn"]
    assert [row["answered_by"] for row in found["answers"]] == ["evelyn"]
    assert not any(text in json.dumps(found) for text in ("public park", "of bob"))
    # Only what is encoded is left out.
    assert not any({"state", "data", "value"} & {*row} for row in found["checkpoints"])


def test_pages_are_read_one_after_the_other(state: PGState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PAGE", 3)
    for number in range(5):
        state.saver.put(*put_arguments(own(f"t{number}"), number))
        state.memory.put(("users", "evelyn"), f"k{number}", {"number": number})
    found = read(state.privacy.export(user_id="evelyn"))
    assert [row["thread_id"] for row in found["threads"]] == [f"t{number}" for number in range(5)]
    assert [len(found[table]) for table in ("checkpoints", "memories")] == [5, 5]


async def test_both_apis_export_the_same(state: PGState, dsn: str, schema: str) -> None:
    said(state, "hers", "my secret garden", "evelyn")
    async with AsyncPGState.open(dsn, schema=schema) as other:
        lines = [line async for line in other.privacy.export(user_id="evelyn")]
    assert lines == [*state.privacy.export(user_id="evelyn")]
    with pytest.raises(ConfigurationError, match="must not be empty"):
        [*state.privacy.export(user_id="")]
