"""The command `retention`."""

from __future__ import annotations

import json

import psycopg
from support.cli import Run, lines
from support.samples import config_of, put_values

from langgraph_pgstate import PGStateSaver


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
            "memory://cli",
            "--metadata",
            '{"a": 1}',
        ),
        *("--prune-after", "7d", "--keep-last", "5"),
    )
    shown = terminal("retention")
    assert "agent=a[b]" in lines(shown, "chats")[0]
    assert "90d to memory://cli" in lines(shown, "all")[0]
    assert [json.loads(line)["name"] for line in terminal("--json", "retention").splitlines()] == ["all", "chats"]
    assert "chats: 1 thread would be deleted" in terminal("retention", "apply", "--dry-run")
    assert "chats: 1 thread deleted" in terminal("maintain")
    assert terminal("retention", "apply", "chats") == "chats: nothing to do\n"
    assert "removed policy all" in terminal("retention", "remove", "all")
    assert "no policy 'all'" in terminal("retention", "remove", "all", code=1)
    assert "requires the NAME" in terminal("retention", "set", code=1)
    assert "must have one of" in terminal("retention", "set", "x", code=1)
    assert "must be a JSON object" in terminal("retention", "set", "x", "--metadata", "[]", code=1)
