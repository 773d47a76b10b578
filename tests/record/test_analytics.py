"""Statistics of what agents did."""

from __future__ import annotations

from datetime import date

import pytest
from support.record import Parts, Record, ask, at

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record import statistics


async def test_threads_runs_and_feedback_of_a_time(parts: Parts, record: Record) -> None:
    record.thread("t", updated=100, agent="travel", user_id="eve", metadata={"owner": "eve"})
    record.thread("u", updated=300, agent="travel", status="interrupted")
    record.thread("v", updated=50, agent="billing", status="error", tenant_id="acme")
    day = 24 * 3600
    facts = {"agent": "travel", "steps": 3, "input_tokens": 10, "output_tokens": 5, "cost": 2, "user_id": "eve"}
    for number, (status, took) in enumerate(
        (("success", 1), ("success", 3), ("error", 2), ("timeout", 9), ("interrupted", 5), ("cancelled", 4))
    ):
        record.run(f"r{number}", took=took, status=status, release="1" if number else "2", **facts)
    record.run("running", took=None, status="running", thread_id="u", **facts)
    record.run("later", day, thread_id="v", agent="billing", tenant_id="acme")
    record.add("feedback", thread_id="t", run_id="r0", feedback_id="f", source="human", name="tone", score=4)
    record.add("feedback", thread_id="v", run_id="later", feedback_id="g", source="human", name="taste", score=2)

    found = await ask(parts.runs.analytics(since=None))
    assert [(one.agent, one.status, one.threads, one.mean_seconds) for one in found.threads] == [
        ("billing", "error", 1, 50),
        ("travel", "idle", 1, 100),
        ("travel", "interrupted", 1, 300),
    ]
    travel, billing = found.runs
    assert (travel.agent, travel.runs, travel.threads, travel.unfinished) == ("travel", 7, 2, 1)
    outcomes = (travel.success, travel.error, travel.timeout, travel.interrupted, travel.cancelled)
    assert (outcomes, travel.failure_rate) == ((2, 1, 1, 1, 1), 0.5)
    assert (travel.mean_seconds, travel.p50_seconds, travel.p95_seconds) == (4, 3.5, 8)
    assert (travel.steps, travel.input_tokens, travel.output_tokens, travel.cost) == (21, 70, 35, 14)
    assert (billing.runs, billing.failure_rate, billing.day) == (1, 0, None)
    assert [(one.name, one.agent, one.mean) for one in found.feedback] == [
        ("taste", "billing", 2),
        ("tone", "travel", 4),
    ]
    assert found.is_complete

    by_day = await ask(parts.runs.analytics(["day", "release"], since=None))
    assert [(one.day, one.release, one.runs) for one in by_day.runs] == [
        (date(2026, 3, 1), "1", 5),
        (date(2026, 3, 1), "2", 1),
        (date(2026, 3, 1), None, 1),
        (date(2026, 3, 2), None, 1),
    ]
    for filters, runs, names in (
        ({"scope": {"owner": "eve"}}, 6, ["tone"]),
        ({"agent": "billing"}, 1, ["taste"]),
        ({"user_id": "eve"}, 7, ["tone"]),
        ({"tenant_id": "acme"}, 1, ["taste"]),
        ({"until": at(day)}, 7, []),
    ):
        one = await ask(parts.runs.analytics((), since=None, **filters))
        assert [group.runs for group in one.runs] == [runs], filters
        assert [group.name for group in one.feedback] == names, filters
    mine = await ask(parts.runs.analytics(since=None, scope={"owner": "eve"}))
    assert [(group.threads, group.status) for group in mine.threads] == [(1, "idle")]
    nothing = await ask(parts.runs.analytics())
    assert (nothing.threads, nothing.runs, nothing.is_complete) == ((), (), True)
    with pytest.raises(ConfigurationError, match="agent, release, tenant, user, day"):
        await ask(parts.runs.analytics("model"))


async def test_what_was_not_read_is_told(parts: Parts, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        record.run(f"r{number}", agent=f"agent-{number}")
    assert (await ask(parts.runs.analytics(since=None, limit=4))).is_complete
    assert not (await ask(parts.runs.analytics(since=None, limit=2))).is_complete
    monkeypatch.setattr("langgraph_pgstate.record.feedback.MOST_ROWS", 2)
    monkeypatch.setattr(statistics, "MOST_ROWS", 2)
    found = await ask(parts.runs.analytics((), since=None))
    assert (found.runs[0].runs, found.is_complete) == (2, False)
