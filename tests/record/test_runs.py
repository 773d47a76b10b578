"""Runs that failed, and threads that ran away."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from support.record import Parts, Record, ask, at, every_page

from langgraph_pgstate.errors import ConfigurationError

pytestmark = pytest.mark.smoke


async def test_failed_runs_are_those_that_ended_in_error_or_died(parts: Parts, record: Record) -> None:
    record.run("a", 0)
    record.run("b", 10, 2.5, status="error", error_type="ValueError", error_message="no room")
    record.run("c", 20, None, status="running", alive_until=at(31))
    record.run("d", 30, None, status="running", alive_until=datetime.max.replace(tzinfo=at(0).tzinfo))
    record.run("e", 40, None, status="running")
    record.run("f", 5, status="error", error_type="ProcessDied")
    pages = await every_page(parts.runs.failed, since=at(0), limit=1)
    crashed, failed, settled = (page[0] for page in pages)
    assert (crashed.run_id, crashed.status, crashed.is_crashed, crashed.duration) == ("c", "running", True, None)
    assert (failed.run_id, failed.error_message, failed.duration) == ("b", "no room", timedelta(seconds=2.5))
    assert not failed.is_crashed
    assert (settled.run_id, settled.status, settled.is_crashed) == ("f", "error", True)
    assert (await ask(parts.runs.failed())).items == ()
    shown = record.rows("SELECT run_id, is_crashed FROM failed_runs ORDER BY run_id")
    assert shown == [("b", False), ("c", True), ("f", True)]
    assert (await ask(parts.runs.get("t", "c"))) == crashed
    assert (await ask(parts.runs.get("t", "f"))) == settled
    for filters in ({}, {"thread_id": "t"}, {"status": "error"}):
        found = (await ask(parts.runs.list(**filters))).items
        assert settled in found
        assert {item.run_id for item in found if item.is_crashed} <= {"c", "f"}
    assert not (await ask(parts.runs.get("t", "e"))).is_crashed
    assert await ask(parts.runs.get("t", "x")) is None


async def test_an_unknown_run_status_is_refused(parts: Parts) -> None:
    with pytest.raises(ConfigurationError, match="status must be one of"):
        await ask(parts.runs.list(status="failed"))


async def test_threads_that_ran_away(parts: Parts, record: Record) -> None:
    for thread, run, steps in [("t", "a", 26), ("t", "b", 90), ("u", "c", 25), ("v", "d", 40), ("w", "e", 40)]:
        record.run(run, steps, thread_id=thread, steps=steps, cost=Decimal(steps), agent=run, user_id=f"user {run}")
    pages = await every_page(parts.threads.runaway, limit=1)
    found = [page[0] for page in pages]
    assert [(item.thread_id, item.runs, item.most_steps) for item in found] == [
        ("t", 2, 90),
        ("v", 1, 40),
        ("w", 1, 40),
    ]
    assert (found[0].run_id, found[0].agent, found[0].user_id) == ("b", "b", "user b")
    assert (found[0].cost, found[0].last_started_at) == (Decimal(116), at(90))
    assert [item.thread_id for item in (await ask(parts.threads.runaway(40))).items] == ["t"]
    assert [item.thread_id for item in (await ask(parts.threads.runaway(since=at(40)))).items] == ["t", "v", "w"]
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.runaway(24))
    rows = record.rows("SELECT thread_id, runs, most_steps FROM runaway_threads ORDER BY most_steps DESC, 1")
    assert rows == [("t", 2, 90), ("v", 1, 40), ("w", 1, 40)]


async def test_sums_are_those_of_the_newest_runs_that_pass(
    parts: Parts, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"kind": "llm", "input_tokens": 10, "output_tokens": 2}
    for number in range(6):
        thread_id = f"t{number % 3}"
        record.run(f"r{number}", number * 10, thread_id=thread_id, user_id="eve" if number else "adam")
        for model, cost in (("a", number), ("b", 1), (None, None)):
            key = {"thread_id": thread_id, "run_id": f"r{number}", "model": model, "cost": cost}
            record.span(f"{number}{model}", started=number * 10, **key, **used)
        record.span(f"{number}n", "node", started=number * 10, thread_id=thread_id, run_id=f"r{number}", cost=100)
    found = await ask(parts.runs.sums(user_id="eve"))
    assert (found.runs, found.is_complete, found.total.cost, found.total.input_tokens) == (5, True, Decimal(20), 150)
    assert [(one.name, one.runs, one.cost) for one in found.by_thread] == [("t2", 2, 9), ("t1", 2, 7), ("t0", 1, 4)]
    assert [(one.name, one.runs, one.cost) for one in found.by_model] == [("a", 5, 15), ("b", 5, 5), (None, 5, 0)]
    found = await ask(parts.runs.sums(since=at(30), until=at(50), model="a", limit=1))
    assert (found.runs, found.total.cost, [one.name for one in found.by_thread]) == (2, Decimal(7), ["t1"])
    assert [one.name for one in found.by_model] == ["a"]
    nothing = await ask(parts.runs.sums(user_id="nobody"))
    assert (nothing.runs, nothing.total.cost, nothing.by_thread, nothing.by_model) == (0, Decimal(0), (), ())
    # An attempt that was retried counts with what it cost before.
    record.connection.execute(
        f"UPDATE {record.schema}.runs SET first_started_at = started_at, started_at = started_at + interval '5 s'"
    )
    assert (await ask(parts.runs.sums(user_id="eve"))).total.cost == Decimal(20)
    monkeypatch.setattr("langgraph_pgstate.record.runs.SUMMED", 2)
    found = await ask(parts.runs.sums(by="cost"))
    assert (found.runs, found.is_complete, found.total.cost) == (2, False, Decimal(11))
    with pytest.raises(ConfigurationError):
        await ask(parts.runs.sums(status="lost"))
