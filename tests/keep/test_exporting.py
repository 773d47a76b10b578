"""The export of all that is stored about a user."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import put_arguments
from support.keep import make_rich_thread
from support.tenants import open_walled

from langgraph_pgstate import AsyncPGState, Encryption, LocalMasterKey, PGState
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep import exporting
from langgraph_pgstate.keep.tables import NOT_ARCHIVED
from langgraph_pgstate.schema.queries import queries
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


@pytest.mark.slow
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
    state.threads.hold("his", "a case of bob", by="bob")
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


def test_what_an_erasure_deletes_is_exported_before(state: PGState, connection: psycopg.Connection) -> None:
    """Also a memory of no user that was stored in her thread, and a policy that names her."""
    state.threads.create("hers", user_id="evelyn")
    for key in ("said", "told"):
        state.memory.put(("shared",), key, {"text": "first"})
        state.memory.put(("shared",), key, {"text": "second"})
    connection.execute(f"UPDATE {state.schema}.memories SET thread_id = 'hers' WHERE key = 'said'".encode())
    connection.execute(f"UPDATE {state.schema}.memory_versions SET thread_id = 'hers' WHERE key = 'said'".encode())
    state.retention.put("all", delete_after=timedelta(days=30))
    state.retention.put("hers", user_id="evelyn", delete_after=timedelta(days=1))
    found = read(state.privacy.export(user_id="evelyn"))
    assert [row["key"] for row in found["memories"] + found["memory_versions"]] == ["said", "said"]
    assert [row["name"] for row in found["retention_policies"]] == ["hers"]
    erased = state.privacy.erase(user_id="evelyn").counts
    assert all(erased[table] == 1 for table in ("memories", "memory_versions", "retention_policies"))


def test_items_of_like_names_do_not_hide_each_other(state: PGState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PAGE", 1)
    for namespace, key in ((("evelyn",), "food pasta"), (("evelyn", "food"), "pasta")):
        state.memory.put(namespace, key, {"likes": 1})
        state.memory.put(namespace, key, {"likes": 2})
    for namespace, path in ((("evelyn",), "/a /b"), (("evelyn", "/a"), "/b")):
        state.files.write(namespace, path, "text")
    found = read(state.privacy.export(user_id="evelyn"))
    assert [len(found[table]) for table in ("memories", "memory_versions", "file_versions")] == [2, 2, 2]


@pytest.mark.slow
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


@pytest.mark.slow
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
        places = ("journal hers", "runs hers", "memories ['users', 'evelyn'] likes")
        assert [problem.startswith(place) for problem, place in zip(problems, places, strict=True)] == [True] * 3
    async with AsyncPGState.open(dsn, schema=schema, encryption=encryption) as other:
        assert [line async for line in other.privacy.export(user_id="evelyn")] == lines


def told(lines: Any) -> set[str]:
    """The lines of an export without what an archive changes in `threads`. Acts in threads of hers are there twice."""
    found = set()
    for line in map(json.loads, lines):
        for name in ("archived_at", "archive_id"):
            if line["table"] == "threads":
                line["row"].pop(name)
        found.add(json.dumps(line, sort_keys=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encryption", [None, Encryption(LocalMasterKey(bytes(range(32))), scope="user")])
async def test_archived_threads_are_exported_as_those_in_the_database(
    dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path, encryption: Encryption | None
) -> None:
    """Also what she did in archived threads of others; nothing is restored."""
    with PGState.open(dsn, schema=schema, project=("messages",), encryption=encryption) as state:
        make_rich_thread(state, "rich")
        said(state, "hers", "my secret garden", "eve")
        state.interrupts.answer("hers", "yes", by="eve")
        said(state, "live", "still here", "eve")
        for thread_id in ("his", "his-live"):
            said(state, thread_id, "a public park", "bob")
            said(state, thread_id, "something of hers", "eve")
            connection.execute(f"UPDATE {schema}.threads SET user_id = 'bob' WHERE thread_id = '{thread_id}'".encode())
            (run,) = state.runs.list(thread_id=thread_id, user_id="bob").items
            state.runs.feedback.add(thread_id, run.run_id, name="good", comment="of eve", by="eve")
            state.runs.feedback.add(thread_id, run.run_id, name="bad", comment="of bob", by="bob")
            state.interrupts.answer(thread_id, "yes", by="eve")
        before = told(state.privacy.export(user_id="eve"))
        moved = state.archive.put(["rich", "hers", "his"], to=tmp_path.as_uri(), idle_for=timedelta(0))
        assert moved.threads == 3, moved
        problems: list[str] = []
        after = [*state.privacy.export(user_id="eve", on_problem=problems.append)]
        assert told(after) - before == before - told(after) == set()
        assert problems == []
        assert not any(text in line for line in after for text in (b"public park", b"of bob"))
        assert len(state.archive.list().items) == 3
        tables = {"states", "checkpoints", "labels", "spans", "tool_executions", "feedback", "events", "projections"}
        assert {json.loads(line)["table"] for line in after} >= tables
        async with AsyncPGState.open(dsn, schema=schema, encryption=encryption) as other:
            assert [line async for line in other.privacy.export(user_id="eve")] == after


def test_archives_are_exported_with_the_columns_of_the_database() -> None:
    """A table that `export_thread_rows` gets is exported from archives, too."""
    text = queries("s").export_thread_rows.text.decode()
    pattern = r"SELECT '(\w+)'.*? to_jsonb\(\w+\)((?: (?:OPERATOR\(pg_catalog\.-\)|-) '\w+'::text)*)"
    found = {
        name: {*re.findall(r"'(\w+)'::text", columns)}
        for name, columns in re.findall(pattern, text.replace("pg_catalog.to_", "to_"), re.S)
    }
    assert {name: columns for name, columns in found.items() if name not in NOT_ARCHIVED} == exporting.EXPORTED


@pytest.mark.slow
def test_an_archived_thread_is_exported_to_its_tenant_only(dsn: str, tmp_path: Path) -> None:
    with open_walled(dsn) as walled, walled.open(pool=2) as state:
        tenants = [state.for_tenant(name) for name in ("acme", "other")]
        for one, thread_id in zip(tenants, ("hers", "theirs"), strict=True):
            one.saver.put(*put_arguments(own(thread_id), 1))
            assert one.archive.put([thread_id], to=tmp_path.as_uri(), idle_for=timedelta(0)).threads == 1
        for one, thread_id in zip(tenants, ("hers", "theirs"), strict=True):
            found = read(one.privacy.export(user_id="evelyn"))
            assert {row["thread_id"] for rows in found.values() for row in rows} == {thread_id}
            assert len(found["states"]) == 1


@pytest.mark.slow
def test_an_archive_that_cannot_be_read_is_named_by_the_export(state: PGState, tmp_path: Path) -> None:
    for thread_id in ("gone", "damaged", "live"):
        said(state, thread_id, f"{thread_id} garden", "evelyn")
    for thread_id in ("gone", "damaged"):
        state.archive.put([thread_id], to=(tmp_path / thread_id).as_uri(), idle_for=timedelta(0))
    shutil.rmtree(tmp_path / "gone")
    (pack,) = (tmp_path / "damaged").glob("*.pack")
    pack.write_bytes(pack.read_bytes()[:-9])
    problems: list[str] = []
    found = read(state.privacy.export(user_id="evelyn", on_problem=problems.append))
    assert {row["content"] for row in found["messages"]} >= {"live garden"}
    assert [row["thread_id"] for row in found["archived_threads"]] == ["damaged", "gone"]
    assert ["is damaged" in problems[0], "does not exist" in problems[1], len(problems)] == [True, True, 2]


@pytest.mark.slow
def test_a_thread_that_is_archived_or_restored_meanwhile_is_exported(
    state: PGState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its rows nor its archive are missed."""
    monkeypatch.setattr(exporting, "_PAGE", 1)
    for thread_id in ("a", "b"):
        said(state, thread_id, f"garden {thread_id}", "evelyn")
    place = {"to": tmp_path.as_uri(), "idle_for": timedelta(0)}
    for change in (lambda: state.archive.put(["a"], **place), lambda: state.archive.restore(["a"])):
        texts = []
        for line in map(json.loads, state.privacy.export(user_id="evelyn")):
            if line["table"] == "messages":
                texts.append(line["row"]["content"])
            if change is not None and line["row"].get("thread_id") == "a":
                change()
                change = None
        assert {"garden a", "garden b"} <= {*texts}
