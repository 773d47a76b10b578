"""What every command prints, on a terminal of 80 columns and in a pipe, with ids as long as people have them."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.record import Record
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli import output
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.cli.output import as_json, bytes_in_words, format_time, money, shorten
from langgraph_pgstate.cli.record import _seconds
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory import PGMemoryStore
from langgraph_pgstate.options import age
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.threads.types import Label
from tests.interrupts.test_api import asking

pytestmark = pytest.mark.smoke


WIDTH = 80


THREAD, WAITING, RUN, USER, AGENT, ENQUEUED = (str(UUID(int=2**127 + number)) for number in range(6))


LABELS: dict[str, Any] = {"agent": AGENT, "tenant_id": f"tenant-{USER}", "user_id": USER}


ERROR = {"status": "error", "error_type": "builtins.ValueError", "error_message": "no room at all " * 20}


TOKENS = {"input_tokens": 123_456_789, "output_tokens": 23_456_789, "cache_read_tokens": 98_765_432}


RUN_TOKENS = {name: TOKENS[name] for name in ("input_tokens", "output_tokens")}


MODEL = "some-provider/some-model-of-a-long-name-2026-03-01"


# Each command as it is run here. A worker and a server only log; `join` prints JSON in any case.
COMMANDS: dict[str, list[str]] = {
    "setup": [],
    "migrate": [],
    "status": [],
    "check": ["--deep"],
    "tree": [WAITING],
    "show": [WAITING],
    "conversation": [WAITING],
    "search": ["somebody"],
    "events": [THREAD],
    "executions": [THREAD],
    "leases": [],
    "diff": [WAITING, f"{WAITING}@first"],
    "label": [WAITING, "the place to come back to, whatever else may happen to it then"],
    "threads": [],
    "runs": [],
    "trace": [THREAD],
    "tools": ["--since", "5000d"],
    "cost": ["--by", "agent,model,tenant,user,day", "--since", "5000d"],
    "price": [MODEL, "--input", "3.123456", "--output", "15.123456", "--reasoning", "99.5", "--cache-read", "0.3125"],
    "prices": [],
    "maintain": [],
    "backfill": [],
    "expire": [WAITING, "--ttl", "30d"],
    "sweep": ["--dry-run"],
    "interrupts": [],
    "answer": [WAITING, '"yes"'],
    "upcast": ["--to", "2", "--upcasters", "the_wide_app:upcasters", "--dry-run"],
    "fork": [f"{WAITING}@first"],
    "settle": [THREAD, "call-0-0", "done", "--result", "booked"],
    "prune": ["--keep-last", "2", "--dry-run"],
    "export-langgraph": ["--to", "DSN", "--to-schema", "SCHEMA_theirs"],
    "import-langgraph": ["--from", "DSN", "--from-schema", "SCHEMA_theirs"],
    "dead-letters": [],
    "limits": [AGENT, "--key", AGENT, "--concurrency", "1000000", "--rate", "1000000/100d"],
    "budgets": ["agent", AGENT, "--amount", "1000000.25"],
    "delete": [THREAD, "--yes"],
    "enqueue": [AGENT, '{"said": []}', "--thread", ENQUEUED, "--run", ENQUEUED],
    "cancel": [ENQUEUED],
    "memory": ["list", "--user", USER],
    "schedule": ["add", f"every working day for {AGENT}", AGENT, "0 9 * * 1-5", "--timezone", "Europe/Prague"],
}


# These print a document for each row; all others print one.
LISTS = {
    "threads", "runs", "tree", "conversation", "search", "events", "executions", "leases", "interrupts", "prices",
    "dead-letters", "limits", "budgets", "schedule", "memory",
}  # fmt: skip


@pytest.fixture
def schema_of_all(
    dsn: str, saver: PGStateSaver, connection: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A schema in which every command finds something to print, all of it wide."""
    record = Record(connection, saver.schema)
    PGMemoryStore(connection, schema=saver.schema).remember("somebody likes this and that " * 20, user_id=USER)
    title = "A journey through all the towns of the north that have a name"
    record.thread(THREAD, 20, title=title, expires_at="2036-01-01", **LABELS)
    enqueued = {"queue": "default", **RUN_TOKENS, **ERROR, **LABELS}
    record.run(RUN, 0, 123.4, thread_id=THREAD, steps=1234, cost="1234.56", **enqueued)
    request = request_run(saver._codec, AGENT, {"said": []})
    record.add("run_requests", thread_id=THREAD, run_id=RUN, data=request.data, options=dict(request.options))
    inside = {"thread_id": THREAD, "run_id": RUN}
    record.span("1", "graph", 0, 100, name="a-graph-of-a-long-name", **ERROR, **inside)
    for provider in ("anthropic", "another-provider-of-a-long-name"):
        model = {
            "model": MODEL,
            "provider": provider,
            "reasoning_tokens": 12_345_678,
            "cost": "1234.56",
            "agent": AGENT,
        }
        record.span(provider, "llm", 1, 50, name="ChatModel", parent_span_id="1", **TOKENS, **model, **inside)
    for number in range(2):
        tool = f"a_tool_of_a_long_name_that_tells_all_it_does_{number}"
        record.span(tool, "tool", 60, 1, name=tool, parent_span_id="1", **ERROR, **inside)
        for each in range(12):
            record.execution(
                f"call-{number}-{each}", 60, None if each % 2 else 0.04, tool=tool, thread_id=THREAD, status="unknown"
            )
    for number in range(2):
        details = {"from": AGENT, "to": AGENT, "reason": "nobody else knows the towns of the north " * 5}
        record.event(f"{number}", "handoff", number, thread_id=THREAD, run_id=RUN, agent=AGENT, payload=details)
    record.add(
        "leases", thread_id=THREAD, holder_id=f"a-host-of-a-long-name/{'b' * 36}/4026531836/12345/999/{'c' * 32}:1",
        fencing_token=1, expires_at="2036-01-01",
    )  # fmt: skip
    graph = asking(saver, "may the journey go on through all the towns of the north? " * 3)
    config: Any = {"configurable": {"thread_id": WAITING, **LABELS}}
    graph.invoke({"said": ["something that somebody said " * 10]}, config)
    first = list(saver.list({"configurable": {"thread_id": WAITING}}))[-1]
    newest = saver.get_tuple(config)
    assert newest is not None
    for number in range(3):
        text = f"somebody said this {'and that ' * 40}"
        record.message(f"{number}", newest.checkpoint["id"], number, text, thread_id=WAITING)
    record.add("labels", thread_id=WAITING, checkpoint_ns="", checkpoint_id=first.checkpoint["id"], label="first")
    (tmp_path / "the_wide_app.py").write_text(
        "upcasters = {2: lambda values: {**values, 'a_channel_' + 'x' * 90: 1}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    yield saver.schema
    connection.execute(f'DROP SCHEMA IF EXISTS "{saver.schema}_theirs" CASCADE')


def printed(dsn: str, schema: str, *options: str) -> dict[str, str]:
    """What each command prints."""
    shown = {}
    for name, arguments in COMMANDS.items():
        given = [each.replace("DSN", dsn).replace("SCHEMA", schema) for each in arguments]
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *options, name, *given])
        assert result.exit_code == 0, result.output + repr(result.exception)
        shown[name] = result.stdout
        assert shown[name].strip()
    return shown


def test_every_command_is_looked_at() -> None:
    names = {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback}
    assert names == COMMANDS.keys() | {
        "archive",
        "audit",
        "privacy",
        "retention",
        "tenancy",
        "hold",
        "holds",
        "release",
        "worker",
        "resume",
        "join",
        "serve",
        "encryption",
        "export",
        "inspect",
    }


@pytest.mark.slow
def test_nothing_is_wider_than_the_terminal(dsn: str, schema_of_all: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.console.made, "_width", WIDTH)
    monkeypatch.setattr(output.console.made, "_force_terminal", True)
    for name, shown in printed(dsn, schema_of_all).items():
        wide = [line for line in shown.splitlines() if len(line.rstrip()) > WIDTH]
        assert (name, wide) == (name, [])
        if name in ("threads", "interrupts"):
            assert WAITING in shown


@pytest.mark.slow
def test_every_command_prints_json(dsn: str, schema_of_all: str) -> None:
    shown = printed(dsn, schema_of_all, "--json")
    for name, text in shown.items():
        documents = [json.loads(line) for line in text.splitlines()]
        assert all(isinstance(document, dict) for document in documents), name
        assert name in LISTS or len(documents) == 1, name
    assert json.loads(shown["runs"].splitlines()[0])["run_id"] == RUN
    assert [json.loads(line)["message_id"] for line in shown["conversation"].splitlines()] == ["0", "1", "2"]
    assert json.loads(shown["settle"])["status"] == "success"


@pytest.mark.slow
def test_a_pipe_gets_all_of_it(dsn: str, schema_of_all: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.console.made, "_width", WIDTH)
    shown = printed(dsn, schema_of_all)
    for name, words in {
        "threads": [THREAD, WAITING, *LABELS.values()],
        "runs": [THREAD, RUN, AGENT],
        "cost": [MODEL, *LABELS.values()],
        "prices": [MODEL, "99.5"],
        "tools": ["a_tool_of_a_long_name_that_tells_all_it_does_0", "p95"],
        "interrupts": [WAITING, *(value for key, value in LABELS.items() if key != "tenant_id")],
        "executions": [f"call-{number}-{each}" for number in range(2) for each in range(12)],
        "events": [RUN, AGENT],
        "leases": [THREAD, "c" * 32],
        "upcast": ["a_channel_" + "x" * 90],
    }.items():
        for word in words:
            assert word in shown[name]
    assert "left out" not in "".join(shown.values())


def test_words_for_sizes_ages_and_long_lines() -> None:
    assert [bytes_in_words(size) for size in (0, 999, 1000, 26_700_000)] == ["0 B", "999 B", "1.0 kB", "26.7 MB"]
    assert age("30d") == timedelta(days=30)
    assert age("1.5h") == timedelta(minutes=90)
    with pytest.raises(ConfigurationError):
        age("30")
    with pytest.raises(ConfigurationError, match="must be less than"):
        age("99999999999d")
    assert shorten("a  b\nc", 10) == "a b c"
    assert shorten("abcdefgh", 5) == "abcd…"


def test_words_for_seconds_and_money() -> None:
    assert [_seconds(value) for value in (0, 0.0125, 3.44, 59.96, 125, 12000)] == [
        "0 ms", "12 ms", "3.4 s", "1:00 min", "2:05 min", "3:20 h"
    ]  # fmt: skip
    assert [money(Decimal(value)) for value in ("0", "1234.5", "0.25", "0.02034", "0.00001")] == [
        "", "1,234.50", "0.25", "0.0203", "1.0e-5"
    ]  # fmt: skip


def test_times_say_their_zone_and_json_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime(2026, 7, 1, 12, 30, 5, tzinfo=timezone(timedelta(hours=5)))
    for zone, shown in (("Europe/Prague", "2026-07-01 09:30 CEST"), ("UTC", "2026-07-01 07:30 UTC")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert format_time(moment) == shown
        assert format_time(moment, seconds=True) == shown.replace(":30", ":30:05")
    assert as_json(Label("t", "", "c", "paid", moment))["created_at"] == "2026-07-01T07:30:05+00:00"
    monkeypatch.undo()
    time.tzset()
