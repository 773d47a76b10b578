"""The commands that show the record, on a small one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from support_record import EPOCH, Record
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app

pytestmark = pytest.mark.smoke


Run = Any


# Times in a record are seconds after its epoch; this one is of the last hour.
NOW = (datetime.now(UTC) - EPOCH).total_seconds() - 1800


PRAGUE, FAILED = "0198f0aa-7ee7-7284-ab5f-cc8e3a352424", "0198f0aa-7ee8-7284-ab5f-2d3e8a711907"


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
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
def run(dsn: str, record: Record, monkeypatch: pytest.MonkeyPatch) -> Run:
    """What `pgstate` prints on a terminal 140 columns wide."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 140)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", record.schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


def lines(shown: str, *words: str) -> list[str]:
    """The lines that hold some words, with single blanks."""
    found = [" ".join(line.split()) for line in shown.splitlines()]
    return [line for line in found if all(word in line for word in words)]


def test_threads_are_listed(run: Run) -> None:
    shown = run("threads")
    assert [line.split()[0] for line in shown.splitlines()[3:6]] == ["trip-to-prague", "trip-to-oslo", "invoices"]
    assert "trip-to-prague Prague [in March] eve acme travel idle" in lines(shown, "prague")[0]
    assert "there are more" not in shown
    some = run("threads", "--user", "eve", "--limit", "1")
    assert "trip-to-prague" in some
    assert "the first 1 thread; there are more" in some
    assert "trip-to-oslo" in run("threads", "--status", "error", "--agent", "travel")
    assert run("threads", "--user", "nobody") == "no threads\n"
    assert "'asleep' is not one of idle, busy" in run("threads", "--status", "asleep", code=2)


def test_runs_are_listed(run: Run) -> None:
    shown = run("runs")
    assert "success" in lines(shown, "trip-to-prague")[0]
    assert "8.8 s 4 5,521 0.0203" in lines(shown, "trip-to-prague")[0]
    assert "250 ms 2 0 builtins.ValueError: no room [at all]" in lines(shown, "trip-to-oslo")[0]
    assert "5e6f1c11 office crashed" in lines(shown, "invoices")[0]
    failed = run("runs", "--failed")
    assert "trip-to-prague" not in failed
    assert len(lines(failed, f"{datetime.now().year}-")) == 2
    assert len(lines(run("runs", "--min-steps", "30"), f"{datetime.now().year}-")) == 1
    assert len(lines(run("runs", "--thread", "trip-to-oslo", "--status", "error"), f"{datetime.now().year}-")) == 1
    assert run("runs", "--since", "1s") == "no runs\n"
    assert "is no age" in run("runs", "--since", "soon", code=1)
    assert "'late' is not one of pending, running" in run("runs", "--status", "late", code=2)
    assert "--failed goes without" in run("runs", "--failed", "--status", "error", code=2)


def test_a_narrow_terminal_cuts_nothing_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("runs")
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 60)
    assert run("runs").splitlines()[1].split() == wide.splitlines()[1].split()
    assert "8.8 s 4 5,521 0.0203" in lines(run("runs"), "trip-to-prague")[0]


def test_a_trace_is_drawn(run: Run) -> None:
    shown = run("trace", "trip-to-prague")
    assert (
        "trip-to-prague run 0198f0aa-7ee7-7284-ab5f-cc8e3a352424 success · travel" in lines(shown, "trip-to-prague")[0]
    )
    drawn = shown.splitlines()[1:]
    assert [line.lstrip("│├└─ ").split("  ")[0] for line in drawn] == [
        "graph travel",
        "node agent",
        "llm ChatAnthropic claude-sonnet-4-5",
        "node tools",
        "tool find_flights",
        "tool book_hotel",
        "node agent",
        "llm ChatAnthropic claude-sonnet-4-5",
    ]
    assert "error TimeoutError: the hotel did not [answer]" in lines(shown, "book_hotel")[0]
    assert "+20 ms 2.0 s 2,500→90 tokens 0.0089" in lines(shown, "llm")[0]
    assert (
        run("trace", "trip-to-prague", "0198f0aa")
        == run("trace", "trip-to-prague", "3a352424")
        == run("trace", "trip-to-prague", PRAGUE)
        == shown
    )


def test_each_attempt_is_drawn_from_its_own_beginning(run: Run, record: Record) -> None:
    record.run("twice", NOW + 30, 5, thread_id="invoices", attempt=2)
    for number, started in enumerate((NOW + 10, NOW + 30)):
        inside = {"run_id": "twice", "thread_id": "invoices"}
        record.span("root", "graph", started, 5, **inside)
        record.span(f"node {number}", "node", started + 2, parent_span_id="root", **inside)
    drawn = run("trace", "invoices", "twice").splitlines()[1:]
    first, second = (f"{(EPOCH + timedelta(seconds=NOW + at)).astimezone():%Y-%m-%d %H:%M:%S}" for at in (10, 30))
    assert [" ".join(line.split()) for line in drawn] == [
        first,
        "graph root +0 ms 5.0 s",
        "└── node node 0 +2.0 s 1.0 s",
        second,
        "graph root +0 ms 5.0 s",
        "└── node node 1 +2.0 s 1.0 s",
    ]


def test_a_trace_says_why_a_run_failed(run: Run, record: Record) -> None:
    shown = run("trace", "trip-to-oslo")
    assert "builtins.ValueError: no room [at all] in Oslo" in shown
    assert "no spans of this run" in shown
    assert "there is no run 'x' of thread 'trip-to-oslo'" in " ".join(run("trace", "trip-to-oslo", "x", code=1).split())
    assert "has no runs" in run("trace", "nobody", code=1)
    record.run("0198f0aa-again", thread_id="trip-to-oslo")
    assert "2 runs of thread" in run("trace", "trip-to-oslo", "0198", code=1)


def test_tools_are_measured(run: Run, record: Record) -> None:
    shown = run("tools")
    assert "find_flights 1 0.0% 40 ms 40 ms 40 ms" in lines(shown, "find_flights")[0]
    assert "book_hotel 1 1 100.0% 4.1 s" in lines(shown, "book_hotel", "100.0%")[0]
    assert "actions in the ledger" in shown
    assert "book_hotel 1 1 –" in lines(shown, "book_hotel", "–")[0]
    assert "no tool was called" in run("tools", "--since", "1s")


def test_cost_is_summed_up(run: Run) -> None:
    shown = run("cost")
    assert "travel claude-sonnet-4-5 2 5,210 2,000 90 0 0.0089 1" in lines(shown, "claude")[0]
    assert "prices" in shown
    by_day = run("cost", "--by", "day,user")
    assert f"{datetime.now(UTC):%Y-}" in by_day
    assert "eve" in by_day
    assert "no model was called" in run("cost", "--since", "1s")
    assert "'api' is not one of" in run("cost", "--by", "agent,api", code=2)


def test_prices_are_set_and_listed(run: Run) -> None:
    assert run("prices") == "no prices\n"
    said = run("price", "claude-sonnet-4-5", "--input", "3", "--output", "15", "--cache-read", "0.30")
    assert said == "a million tokens of claude-sonnet-4-5: 3 read, 15 written\n"
    later = ("--from", "2027-01-01", "--provider", "[bedrock]", "--reasoning", "16")
    assert "at [bedrock], from 2027-01-01 on" in run(
        "price", "claude-sonnet-4-5", "--input", "2.5", "--output", "12", *later
    )
    shown = run("prices")
    assert lines(shown, "any") == ["claude-sonnet-4-5 any 3 15 0.30"]
    [line] = lines(shown, "[bedrock]")
    assert line.endswith("2.5 12 16")
    assert run("prices", "--model", "gpt") == "no prices\n"
    assert "--input is a price" in run("price", "gpt", "--input", "much", "--output", "1", code=1)
    assert "price of 0 or more" in run("price", "gpt", "--input", "1", "--output", "-1", code=1)


def test_maintain_makes_months_settles_runs_and_drops_old_months(run: Run, record: Record) -> None:
    ahead = months_from_now(3)
    assert run("maintain", "--months", "3") == f"partitions made: {ahead}; 1 run of dead processes ended\n"
    settled = lines(run("runs", "--failed"), "invoices")[0]
    assert "crashed" in settled
    assert "ProcessDied" in settled
    assert run("maintain") == "partitions made: none, all are there; 0 runs of dead processes ended\n"
    old = months_from_now(-3)
    name = old.replace("-", "_")
    record.connection.execute(
        f"CREATE TABLE {record.schema}.spans_{name} PARTITION OF {record.schema}.spans "
        f"FOR VALUES FROM ('{old}-01') TO ('{months_from_now(-2)}-01')".encode()
    )
    dropping = run("maintain", "--drop-older-than", "2").splitlines()
    assert dropping[1] == f"partitions dropped, with their spans: {old}"
    assert "none, no month is so old" in run("maintain", "--drop-older-than", "2")


def months_from_now(number: int) -> str:
    """The month so many after this one, as `2026-01`."""
    today = datetime.now(UTC)
    year, month = divmod(today.year * 12 + today.month - 1 + number, 12)
    return f"{year}-{month + 1:02}"


@pytest.mark.bare
@pytest.mark.parametrize(
    "arguments",
    [("threads",), ("runs",), ("trace", "t"), ("tools",), ("cost",), ("prices",), ("maintain",)],
)
def test_a_missing_schema_is_one_line(dsn: str, schema: str, arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments])
    assert result.exit_code == 1
    assert result.output.startswith("error:")
    assert "setup" in result.output
