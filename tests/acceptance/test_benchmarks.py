"""The benchmarks' own machinery: a process for each case, and a case that does not depend on what ran before it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest

from benchmarks import __main__ as program
from benchmarks.cases import CASES
from benchmarks.measure import OURS, CaseResult, MismatchError, Plan
from benchmarks.queue import claims, throughput
from benchmarks.queue.claims import EMPTY
from benchmarks.queue.graphs import INVOKED, run_through
from benchmarks.queue.report import markdown
from benchmarks.queue.targets import outcomes
from benchmarks.report import Environment
from benchmarks.server import Server, open_server
from benchmarks.workers import run_apart

PLAN = Plan(quick=True, rounds=1)
pytestmark = [pytest.mark.once, pytest.mark.slow]


def looks_around(server: Server, plan: Plan) -> CaseResult:
    """Tells its process and the order that its contestants would have."""
    result = CaseResult(plan.case, "a case that looks around")
    result.notes += ["".join(plan.shuffled("abcdefgh")), str("matplotlib" in sys.modules)]
    result.metric(f"process/{plan.size}", "a process", "").add("pgstate", os.getpid())
    result.metric(f"wal/{plan.size}", "a position", "bytes").add("pgstate", server.wal_position())
    result.curves["WAL"] = {"pgstate": [(1.0, 2.0)]}
    return result


def disagrees(server: Server, plan: Plan) -> CaseResult:
    """A case whose savers differ."""
    raise MismatchError(f"{plan.case}: pgstate and upstream differ")


def dies(server: Server, plan: Plan) -> CaseResult:
    """A case that is killed, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_each_size_of_a_case_has_a_process_of_its_own_and_each_case_an_order(dsn: str) -> None:
    result = run_apart("lists", looks_around, dsn, PLAN)
    assert result.name == "lists"
    assert list(result.metrics) == [f"lists/{what}/{size}" for size in (200, 1000) for what in ("process", "wal")]
    processes = [result.metrics[f"lists/process/{size}"].samples["pgstate"][0] for size in (200, 1000)]
    assert len({os.getpid(), *processes}) == 3
    assert result.metrics["lists/wal/200"].samples["pgstate"] < result.metrics["lists/wal/1000"].samples["pgstate"]
    small, large = ("".join(replace(PLAN, case="lists", size=size).shuffled("abcdefgh")) for size in (200, 1000))
    assert small != "".join(replace(PLAN, case="threads", size=200).shuffled("abcdefgh"))
    # What both sizes say is said once.
    assert result.notes == [small, "False", large]
    assert result.curves == {"WAL": {"pgstate": [(1.0, 2.0)]}}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (disagrees, "The contestants disagree, so nothing is reported. lists:"),
        (dies, "the process of lists was killed"),
    ],
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


def test_jobs_of_the_queue_are_measured_with_and_without_a_graph(dsn: str) -> None:
    with open_server(dsn) as server:
        result = throughput.measure(server, PLAN, [OURS], 20, 5)
        environment = Environment.of(server, PLAN)
    assert [*result.metrics] == ["jobs/both", "jobs/enqueue", "jobs/work", "jobs/graph"]
    for metric in result.metrics.values():
        assert {name: len(rates) for name, rates in metric.samples.items()} == {OURS: 1}
        assert all(rate > 0 for rates in metric.samples.values() for rate in rates)
    assert "jobs/s" in markdown(environment, {result.name: result})


def test_claims_and_a_graph_through_the_queue_are_measured_against_what_is_beside_them(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "pick", lambda plan, full, quick: min(quick, 50))
    with open_server(dsn) as server:
        results = [claims.run(server, PLAN), run_through(server, PLAN)]
    found = {one.target.metric: one.value for one in outcomes(results) if one.metric is not None}
    assert found.keys() == {"claims/in order", "claims/scattered", "graph/time"}
    assert all(found.values())
    beside = {name for result in results for metric in result.metrics.values() for name in metric.samples}
    assert beside == {OURS, EMPTY, INVOKED}
