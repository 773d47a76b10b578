"""The command `retention`."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from support.cli import Run, lines
from support.samples import config_of, put_values

from langgraph_pgstate import PGStateSaver


def test_an_archive_that_fails_is_printed_and_ends_with_1(
    terminal: Run, saver: PGStateSaver, connection: psycopg.Connection, tmp_path: Path
) -> None:
    put_values(saver, config_of("old"), {"a": 1})
    connection.execute(f"UPDATE \"{saver.schema}\".threads SET updated_at = '2025-01-01Z'".encode())
    (tmp_path / "full").write_text("no folder")
    terminal("retention", "set", "chats", "--archive-after", "30d", "--archive-to", f"file://{tmp_path}/full")
    for command in (("retention", "apply"), ("maintain",)):
        shown = terminal(*command, code=1)
        assert "chats: nothing was done" in shown
        assert "cannot archive: file://" in shown
    assert "chats: cannot archive: file://" in terminal("retention")
    assert json.loads(terminal("--json", "retention"))["last_error"].startswith("cannot archive")


def test_policies_are_set_and_applied(terminal: Run, saver: PGStateSaver, connection: psycopg.Connection) -> None:
    for name in ("old", "new"):
        put_values(saver, config_of(name), {"a": 1})
    old = (
        f"UPDATE \"{saver.schema}\".threads SET updated_at = '2025-01-01Z', created_at = '2025-01-01Z', agent = 'a[b]'"
    )
    connection.execute(f"{old} WHERE thread_id = 'old'".encode())
    assert terminal("retention") == "no policies\n"
    terminal("retention", "set", "chats", "--agent", "a[b]", "--delete-after", "30d", "--content-after", "12h")
    terminal(
        *(
            "retention",
            "set",
            "all",
            "--archive-after",
            "90d",
            "--archive-to",
            "file:///cli",
            "--metadata",
            '{"a": 1}',
        ),
        *("--prune-after", "7d", "--keep-last", "5"),
    )
    shown = terminal("retention")
    assert "agent=a[b]" in lines(shown, "chats")[0]
    assert "90d to file:///cli" in lines(shown, "all")[0]
    assert [json.loads(line)["name"] for line in terminal("--json", "retention").splitlines()] == ["all", "chats"]
    assert "chats: 1 thread would be deleted" in terminal("retention", "apply", "--dry-run")
    assert "chats: 1 thread deleted" in terminal("maintain")
    assert terminal("retention", "apply", "chats") == "chats: nothing to do\n"
    assert "removed policy all" in terminal("retention", "remove", "all")
    assert "no policy 'all'" in terminal("retention", "remove", "all", code=1)
    assert json.loads(terminal("--json", "retention", "remove", "chats")) == {"removed": "chats"}
    memory = ("--archive-after", "90d", "--archive-to", "memory://cli")
    assert "must name a bucket or a folder" in terminal("retention", "set", "x", *memory, code=1)
    assert "requires the NAME" in terminal("retention", "set", code=1)
    assert "must have at least one of" in terminal("retention", "set", "x", code=1)
    assert "must be a JSON object" in terminal("retention", "set", "x", "--metadata", "[]", code=1)
