"""Tools, effects and tokens, summed up."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest
from support.record import Parts, Record, ask, at

from langgraph_pgstate.errors import ConfigurationError

pytestmark = pytest.mark.smoke


async def test_tools_are_measured(parts: Parts, record: Record) -> None:
    for number in range(100):
        record.span(
            f"a{number}", "tool", number, number + 1, name="search", status="error" if number < 5 else "success"
        )
    record.span("b", "tool", 0, None, name="search", status="running")
    record.span("c", "tool", 500, 2, name="pay", agent="travel")
    record.span("d", "llm", 0)
    search, pay = await ask(parts.spans.tools(since=at(0)))
    assert (search.tool, search.calls, search.running, search.errors, search.unknown) == ("search", 101, 1, 5, 0)
    assert search.error_rate == pytest.approx(0.05)
    assert (search.mean, search.p50, search.p95) == pytest.approx((50.5, 50.5, 95.05))
    assert (pay.tool, pay.calls, pay.error_rate, pay.last_at) == ("pay", 1, 0.0, at(500))
    assert [item.tool for item in await ask(parts.spans.tools(since=at(400)))] == ["pay"]
    assert [item.tool for item in await ask(parts.spans.tools(since=None, agent="travel"))] == ["pay"]
    assert [item.tool for item in await ask(parts.spans.tools(since=None, limit=1))] == ["search"]
    assert await ask(parts.spans.tools(since=timedelta(seconds=1))) == ()
    rows = record.rows("SELECT tool, calls, errors, p95 FROM tool_statistics ORDER BY calls DESC")
    assert rows == [("search", 101, 5, pytest.approx(95.05)), ("pay", 1, 0, 2)]
    assert record.rows("SELECT count(*) FROM tool_calls WHERE seconds > 90") == [(10,)]


async def test_how_long_a_call_took_whose_process_died_is_not_known(parts: Parts, record: Record) -> None:
    for number, error in enumerate((None, "ProcessDied", "WorkerDied", "KeyError")):
        status = "success" if error is None else "error"
        record.span(f"s{number}", "tool", 0, 10 * number**2 + 2, name="pay", status=status, error_type=error)
    (pay,) = await ask(parts.spans.tools(since=at(0)))
    assert (pay.calls, pay.errors, pay.mean, pay.p50) == (4, 3, 47, 47)
    assert record.rows("SELECT calls, errors, mean, p50 FROM tool_statistics") == [(4, 3, 47, 47)]


async def test_a_call_that_took_effect_as_was_found_out_is_no_error(parts: Parts, record: Record) -> None:
    for number, (status, alive) in enumerate([("success", None), ("error", None), ("success", at(9)), (None, None)]):
        died = {"status": "error", "error_type": "ProcessDied", "tool_call_id": f"call {number}"}
        record.span(f"s{number}", "tool", number, name="pay", **died)
        if status is not None:
            record.execution(f"k{number}", number, status=status, alive_until=alive, tool_call_id=f"call {number}")
    (pay,) = await ask(parts.spans.tools(since=at(0)))
    assert (pay.calls, pay.errors, pay.unknown, pay.error_rate) == (4, 3, 0, 0.75)
    assert record.rows("SELECT calls, errors, unknown, error_rate FROM tool_statistics") == [(4, 3, 0, 0.75)]


async def test_a_call_that_timed_out_is_unknown_and_no_error(parts: Parts, record: Record) -> None:
    """Whatever its span says: when its run ends it is cut off, or fails with an error of the ledger's."""
    for number, (status, outcome) in enumerate(
        [("cancelled", "timeout"), ("error", "unknown"), ("error", "error"), ("success", "success"), ("error", None)]
    ):
        record.span(f"s{number}", "tool", number, name="pay", status=status, tool_call_id=f"call {number}")
        if outcome is not None:
            record.execution(f"k{number}", number, status=outcome, tool_call_id=f"call {number}")
    # Another thread's calls may have the same ids.
    record.execution("k", thread_id="other", status="timeout", tool_call_id="call 3")
    record.execution("without a call", 9, tool="mail", status="unknown")
    record.span("still going", "tool", 9, None, name="pay", status="running")
    (by_span,) = await ask(parts.spans.tools(since=at(0)))
    assert (by_span.calls, by_span.running, by_span.errors, by_span.unknown) == (6, 1, 2, 2)
    assert by_span.error_rate == pytest.approx(2 / 3)
    found = record.rows("SELECT calls, errors, unknown, error_rate FROM tool_statistics")
    assert found == [(6, 2, 2, pytest.approx(2 / 3))]
    executions = {item.tool: item for item in await ask(parts.spans.executions(since=at(0)))}
    pay = executions["pay"]
    assert (pay.calls, pay.errors, pay.unknown, pay.error_rate) == (5, 1, 3, 0.5)


async def test_tool_executions_are_measured(parts: Parts, record: Record) -> None:
    for number, status in enumerate(["success", "error", "timeout", "unknown", "running", "success"]):
        record.execution(f"k{number}", number, None if status == "running" else 2, status=status)
    record.execution("other", tool="mail", status="pending", took=None)
    record.execution("found by a person", 0, 900, alive_until=None)
    record.execution("k0", thread_id="forked", is_copy=True)
    pay, mail = await ask(parts.spans.executions(since=at(0)))
    assert (pay.tool, pay.calls, pay.running, pay.errors, pay.unknown) == ("pay", 7, 1, 1, 2)
    assert (pay.error_rate, pay.p50, pay.p95) == (pytest.approx(1 / 4), 2, 2)
    assert (mail.running, mail.error_rate, mail.mean) == (1, None, None)


async def test_usage_is_summed_up(parts: Parts, record: Record) -> None:
    record.run("r", agent="travel", user_id="eve", tenant_id="acme")
    record.run("q", agent="sales", user_id="bob")
    record.span("a", "llm", model="big", provider="p", cost=Decimal("0.25"), input_tokens=100, output_tokens=10)
    record.span("b", "llm", 86400, model="big", provider="p", cost=Decimal("0.50"), cache_read_tokens=3)
    record.span("c", "llm", run_id="q", model="small", provider="p", reasoning_tokens=2)
    record.span("d", "llm", run_id="q", model="small", agent="helper", cost=Decimal("0.1"))
    record.span("e", "tool")
    found = await ask(parts.runs.usage(since=at(0)))
    shown = [(item.agent, item.provider, item.model, item.calls, item.cost, item.unpriced) for item in found]
    assert shown == [
        ("travel", "p", "big", 2, Decimal("0.75"), 0),
        ("helper", None, "small", 1, Decimal("0.1"), 0),
        ("sales", "p", "small", 1, Decimal(0), 1),
    ]
    assert (found[0].input_tokens, found[0].output_tokens, found[0].cache_read_tokens) == (100, 10, 3)
    assert (found[2].reasoning_tokens, found[0].user_id, found[0].day) == (2, None, None)
    by_user = await ask(parts.runs.usage("user", since=at(0)))
    assert [(item.user_id, item.cost, item.agent) for item in by_user] == [
        ("eve", Decimal("0.75"), None),
        ("bob", Decimal("0.1"), None),
    ]
    by_day = await ask(parts.runs.usage(["day", "tenant"], since=at(1)))
    assert [(item.day, item.tenant_id, item.calls) for item in by_day] == [(date(2026, 3, 2), "acme", 1)]
    (total,) = await ask(parts.runs.usage([], since=None))
    assert (total.calls, total.cost, total.unpriced) == (4, Decimal("0.85"), 1)
    rows = record.rows("SELECT model, sum(cost) FROM usage_by_day GROUP BY model ORDER BY model")
    assert rows == [("big", Decimal("0.75")), ("small", Decimal("0.1"))]
    with pytest.raises(ConfigurationError, match="agent, model, tenant, user, day"):
        await ask(parts.runs.usage("api"))


async def test_costs_have_a_part_for_days_agents_models_and_users(parts: Parts, record: Record) -> None:
    day = 24 * 3600
    record.thread("t", metadata={"owner": "a"})
    record.run("r", user_id="eve", agent="travel", cost=Decimal("2.5"))
    record.run("q", user_id="adam", agent="desk", cost=Decimal(1))
    for number, (run_id, started, model, cost) in enumerate(
        [("r", 0, "big", "2"), ("r", day, "small", "0.5"), ("q", day + 1, "big", "1"), ("q", day + 2, "free", None)]
    ):
        usage = {"input_tokens": 10, "output_tokens": 1, "cost": cost and Decimal(cost)}
        record.span(f"s{number}", "llm", started, run_id=run_id, model=model, **usage)
    found = await ask(parts.runs.costs(since=None))
    assert (found.total.calls, found.total.cost, found.total.unpriced) == (4, Decimal("3.5"), 1)
    assert [(one.day, one.cost) for one in found.by_day] == [(date(2026, 3, 1), 2), (date(2026, 3, 2), Decimal("1.5"))]
    assert [(one.name, one.cost) for one in found.by_agent] == [("travel", Decimal("2.5")), ("desk", 1)]
    assert [(one.model, one.cost, one.input_tokens) for one in found.by_model] == [
        ("big", 3, 20),
        ("small", Decimal("0.5"), 10),
        ("free", 0, 10),
    ]
    assert [(one.name, one.runs, one.cost) for one in found.by_user] == [("eve", 1, Decimal("2.5")), ("adam", 1, 1)]
    assert [one.model for one in (await ask(parts.runs.costs(since=None, limit=1))).by_model] == ["big"]
    one = await ask(parts.runs.costs(since=None, user_id="adam", model="big"))
    assert (one.total.cost, len(one.by_day), one.by_user) == (1, 1, ())
    # The cost of an agent's runs has the calls of the agents that it calls, in the list and as a filter.
    record.connection.execute(f"UPDATE {record.schema}.spans SET agent = 'helper' WHERE span_id = 's1'")
    for owner in ({}, {"scope": {"owner": "a"}}):
        of_agent = await ask(parts.runs.costs(since=None, agent="travel", **owner))
        assert of_agent.total.cost == of_agent.by_agent[0].cost == Decimal("2.5")
    half = await ask(parts.runs.costs(since=at(day), until=at(day + 1)))
    assert [(one.day, one.calls, one.cost) for one in half.by_day] == [(date(2026, 3, 2), 1, Decimal("0.5"))]
    assert (await ask(parts.runs.costs(since=None, scope={"owner": "a"}))).total.calls == 4
    nobody = await ask(parts.runs.costs(since=None, scope={"owner": "b"}))
    assert (nobody.total.calls, nobody.total.cost, nobody.by_day, nobody.by_user) == (0, 0, (), ())


async def test_without_calls_there_are_no_costs(parts: Parts, record: Record) -> None:
    found = await ask(parts.runs.costs())
    assert (found.total.calls, found.total.cost, found.by_day, found.by_user) == (0, 0, (), ())


async def test_statistics_may_read_the_newest_calls_only(parts: Parts, record: Record) -> None:
    for number in range(10):
        record.span(f"s{number}", "tool", number, name="old" if number < 8 else "new")
        record.execution(f"k{number}", number, tool="old" if number < 8 else "new", compensated_at=at(number))
    for statistics in (parts.spans.tools, parts.spans.executions):
        found = await ask(statistics(since=None, newest=4))
        assert {one.tool: one.calls for one in found} == {"old": 2, "new": 2}
    assert [one.compensated for one in found] == [2, 2]
    with pytest.raises(ConfigurationError):
        await ask(parts.spans.tools(newest=0))
