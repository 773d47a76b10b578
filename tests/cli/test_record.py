"""The commands that show and maintain the record, on a small one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.cli import NOW, PRAGUE, Run, lines
from support.record import EPOCH, Record
from typer.testing import CliRunner

from langgraph_pgstate.cli.app import app

pytestmark = pytest.mark.smoke


@pytest.fixture
def record(travels: Record) -> Record:
    return travels


@pytest.fixture
def run(terminal: Run, record: Record) -> Run:
    return terminal


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
    assert "must be a number and s, m" in run("runs", "--since", "soon", code=1)
    assert "'late' is not one of pending, running" in run("runs", "--status", "late", code=2)
    assert "--failed takes no" in run("runs", "--failed", "--status", "error", code=2)


def test_a_narrow_terminal_cuts_nothing_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("runs")
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 60)
    assert run("runs").splitlines()[1].split() == wide.splitlines()[1].split()
    assert "8.8 s 4 5,521 0.0203" in lines(run("runs"), "trip-to-prague")[0]


def test_a_trace_is_drawn(run: Run) -> None:
    shown = run("trace", "trip-to-prague")
    [head] = lines(shown, "trip-to-prague")
    assert head.startswith("trip-to-prague run 0198f0aa-7ee7-7284-ab5f-cc8e3a352424 success · travel")
    # One line, however narrow the terminal, as for `grep`.
    assert head.endswith("tokens · 0.0203")
    drawn = shown[shown.index("graph travel") :].splitlines()
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
    first, second = (f"{(EPOCH + timedelta(seconds=NOW + at)).astimezone():%Y-%m-%d %H:%M:%S %Z}" for at in (10, 30))
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
