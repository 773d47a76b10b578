"""The benchmarks' own machinery: a process for each case, and a case that does not depend on what ran before it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest

from benchmarks import __main__ as program
from benchmarks.cases import CASES
from benchmarks.measure import CaseResult, MismatchError, Plan
from benchmarks.server import Server
from benchmarks.workers import run_apart

PLAN = Plan(quick=True, rounds=1)
pytestmark = pytest.mark.once


def looks_around(server: Server, plan: Plan) -> CaseResult:
    """Tells its process and the order that its contestants would have."""
    result = CaseResult(plan.case, "a case that looks around")
    result.notes += [str(os.getpid()), "".join(plan.shuffled("abcdefgh")), str("matplotlib" in sys.modules)]
    result.metric("wal", "a position", "bytes").add("pgstate", server.wal_position())
    result.curves["WAL"] = {"pgstate": [(1.0, 2.0)]}
    return result


def disagrees(server: Server, plan: Plan) -> CaseResult:
    """A case whose savers differ."""
    raise MismatchError(f"{plan.case}: pgstate and upstream differ")


def dies(server: Server, plan: Plan) -> CaseResult:
    """A case that is killed, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_each_case_has_a_process_and_an_order_of_its_own(dsn: str) -> None:
    alone = run_apart("chat", looks_around, dsn, PLAN)
    other = run_apart("threads", looks_around, dsn, PLAN)
    assert len({str(os.getpid()), alone.notes[0], other.notes[0]}) == 3
    assert alone.notes[1] == "".join(replace(PLAN, case="chat").shuffled("abcdefgh")) != other.notes[1]
    assert alone.notes[2] == "False"
    assert alone.name == "chat"
    assert alone.metrics["chat/wal"].samples["pgstate"] < other.metrics["threads/wal"].samples["pgstate"]
    assert alone.curves == {"WAL": {"pgstate": [(1.0, 2.0)]}}


def measures(server: Server, plan: Plan) -> CaseResult:
    """Measures one size."""
    result = CaseResult(plan.case, "a case with sizes")
    result.metric(f"size/{plan.size}", "a process", "").add("pgstate", os.getpid())
    result.notes.append("said once")
    return result


def test_each_size_has_a_process_of_its_own(dsn: str) -> None:
    result = run_apart("lists", measures, dsn, PLAN)
    assert list(result.metrics) == ["lists/size/200", "lists/size/1000"]
    assert len({metric.samples["pgstate"][0] for metric in result.metrics.values()}) == 2
    assert result.notes == ["said once"]


@pytest.mark.parametrize(
    ("case", "said"),
    [(disagrees, "The savers disagree, so nothing is reported. lists:"), (dies, "the process of lists was killed")],
)
def test_a_run_ends_with_the_case_that_fails(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path, case, said: str
) -> None:
    arguments = ["--quick", "--dsn", dsn, "--out", str(tmp_path), "--case", "lists", "--case", "round_trips"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setitem(CASES, "lists", case)
    assert program.main() == 1
    assert said in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
