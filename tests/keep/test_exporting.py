"""The export of all that is stored about a user."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support import put_arguments

from langgraph_pgstate import AsyncPGState, Encryption, LocalMasterKey, PGState
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


def test_files_that_are_not_in_plain_text_have_their_content(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Of the newest version; or the reason why it has none."""
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        for text in ("first", "diary of évelyn"):
            state.files.write(("users", "evelyn"), "/diary.txt", text)
        state.files.write(("users", "evelyn"), "/photo.bin", b"\xff\x00photo")
        state.files.write(("users", "evelyn"), "/gone.txt", "gone")
        state.files.delete(("users", "evelyn"), "/gone.txt")
        state.files.write(("evelyn",), "/moved.txt", "moved")
        said(state, "hers", "my secret garden", "evelyn")
        name = f'"{schema}".file_versions'
        other = f"(SELECT data FROM {name} WHERE path = '/photo.bin')"
        connection.execute(f"UPDATE {name} SET data = {other} WHERE path = '/moved.txt'".encode())
        table = f'"{schema}".checkpoints'
        connection.execute(f"UPDATE {table} SET state = substr(state, 1, 40)".encode())
        found = read(state.privacy.export(user_id="evelyn"))
        contents = {
            (row["path"], row["version"]): row.get("error") or (row["content"], row.get("content_encoding"))
            for row in found["file_versions"]
        }
        assert contents == {
            ("/diary.txt", 1): (None, None),
            ("/diary.txt", 2): ("diary of évelyn", None),
            ("/photo.bin", 1): (b64encode(b"\xff\x00photo").decode(), "base64"),
            ("/gone.txt", 1): (None, None),
            ("/gone.txt", 2): (None, None),
            ("/moved.txt", 1): "its content cannot be read here: DecryptionError",
        }
        assert all("is_encoded" not in row and "data" not in row for row in found["file_versions"])
        assert [row["error"] for row in found["states"]] == ["it cannot be read here: DecryptionError"]


async def test_a_value_that_cannot_be_read_is_a_line_that_says_so(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Also one that JSON cannot hold as it is, and one that waits in the journal; all else is exported."""
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user")
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        said(state, "hers", "my secret garden", "evelyn")
        said(state, "more", "her \ud83c half", "evelyn")
        state.memory.put(("users", "evelyn"), "likes", {"content": "roses"})
        state.memory.put(("users", "evelyn"), "number", {"content": 2**70})
        for statement in (
            "UPDATE {}.runs SET output = (SELECT to_jsonb(content) FROM {}.messages LIMIT 1) WHERE thread_id = 'hers'",
            "UPDATE {}.memories SET value = '{\"content\": \"roses\"}' WHERE key = 'likes'",
            "INSERT INTO {}.journal (thread_id, entry_id, data) VALUES ('hers', 'e', 'plain')",
        ):
            connection.execute(statement.replace("{}", f'"{schema}"').encode())
        problems: list[str] = []
        lines = [*state.privacy.export(user_id="evelyn", on_problem=problems.append)]
        found = read(lines)
        (run,) = (row for row in found["runs"] if row["thread_id"] == "hers")
        assert run["output"] is None
        assert run["error"].startswith("output cannot be read here: runs.output of 'hers'")
        assert "my secret garden" in json.dumps(run["input"])
        likes, number = sorted(found["memories"], key=lambda row: str(row["key"]))
        assert likes["value"] is None
        assert "is not encrypted" in likes["error"]
        assert number["value"] == {"content": 2**70}
        assert "her ? half" in {row["content"] for row in found["messages"]}
        assert [row["thread_id"] for row in found["journal"]] == ["hers"]
        assert len(found["states"]) == 2
        told = ("journal hers", "runs hers", "memories ['users', 'evelyn'] likes")
        assert [problem.startswith(place) for problem, place in zip(problems, told, strict=True)] == [True] * 3
    async with AsyncPGState.open(dsn, schema=schema, encryption=encryption) as other:
        assert [line async for line in other.privacy.export(user_id="evelyn")] == lines
