"""The commands on the test server, and two conversations for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from support.cli import FAILED, NOW, PRAGUE, Run, converse
from support.record import Record
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app


@pytest.fixture
def run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `pgstate` on the test server, in this process."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)

    def run(*arguments: str, code: int = 0, input: str | None = None) -> Any:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments], input=input)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def terminal(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """What `pgstate` prints on a terminal 140 columns wide."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 140)

    def run(*arguments: str, code: int = 0, input: str | None = None) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments], input=input)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


@pytest.fixture
def travels(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    """Two threads of Eve's and one of Bob's; a run that went well, one that failed, and one whose process died."""
    record = Record(connection, saver.schema)
    record.thread(
        "trip-to-prague", NOW + 60, user_id="eve", tenant_id="acme", agent="travel", title="Prague [in March]"
    )
    record.thread("trip-to-oslo", NOW + 30, user_id="eve", agent="travel", status="error")
    record.thread("invoices", NOW, user_id="bob", agent="office", status="busy")
    well = {"agent": "travel", "user_id": "eve", "steps": 4, "input_tokens": 5210, "output_tokens": 311}
    record.run(PRAGUE, NOW, 8.75, thread_id="trip-to-prague", cost=Decimal("0.0203"), **well)
    failure = {"status": "error", "error_type": "builtins.ValueError", "error_message": "no room [at all]\nin Oslo"}
    record.run(FAILED, NOW + 20, 0.25, thread_id="trip-to-oslo", agent="travel", steps=2, **failure)
    gone = {"status": "running", "alive_until": datetime.now(UTC) - timedelta(minutes=1)}
    record.run(
        "0198f0aa-7ee9-7284-ab5f-90ab5e6f1c11", NOW + 40, None, thread_id="invoices", agent="office", steps=31, **gone
    )
    inside = {"run_id": PRAGUE, "thread_id": "trip-to-prague"}
    model = {"model": "claude-sonnet-4-5", "provider": "anthropic", "agent": "travel", **inside}
    record.span("1", "graph", NOW, 8.75, name="travel", **inside)
    record.span("2", "node", NOW + 0.01, 2.1, name="agent", parent_span_id="1", **inside)
    first = {"input_tokens": 2500, "output_tokens": 90, "cost": Decimal("0.0089"), "cache_read_tokens": 2000}
    record.span("3", "llm", NOW + 0.02, 2.0, name="ChatAnthropic", parent_span_id="2", **first, **model)
    record.span("4", "node", NOW + 2.2, 4.3, name="tools", parent_span_id="1", **inside)
    record.span("5", "tool", NOW + 2.2, 0.04, name="find_flights", parent_span_id="4", **inside)
    problem = {"status": "error", "error_type": "TimeoutError", "error_message": "the hotel did not [answer]"}
    record.span("6", "tool", NOW + 2.3, 4.1, name="book_hotel", parent_span_id="4", **problem, **inside)
    record.span("7", "node", NOW + 6.5, 2.2, name="agent", parent_span_id="1", **inside)
    record.span("8", "llm", NOW + 6.6, 2.0, name="ChatAnthropic", parent_span_id="7", input_tokens=2710, **model)
    record.execution("call-1", NOW + 2.2, 0.04, tool="find_flights", thread_id="trip-to-prague")
    record.execution("call-2", NOW + 2.3, None, tool="book_hotel", thread_id="trip-to-prague", status="unknown")
    return record


@pytest.fixture
def conversation(saver: PGStateSaver) -> PGStateSaver:
    """Two threads, `one` and `two`, with a few turns each."""
    converse(saver, "one", 3)
    converse(saver, "two", 1)
    return saver


@pytest.fixture
def upstream_schema(dsn: str, schema: str, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema for the tables of LangGraph's own saver."""
    name = f"{schema}_upstream"
    connection.execute(f'CREATE SCHEMA "{name}"')
    yield name
    connection.execute(f'DROP SCHEMA "{name}" CASCADE')
