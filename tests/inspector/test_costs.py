"""The page of costs."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from support.pages import HOSTILE, state_of, statements
from support.record import Record

from langgraph_pgstate.inspector.costs import filled
from langgraph_pgstate.record.types import Costs, Usage

from .conftest import Place


async def test_costs_are_shown_by_day_agent_model_and_user(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    now = datetime.now(UTC)
    of_run = {"user_id": HOSTILE, "agent": HOSTILE, "cost": Decimal(3)}
    record.add("runs", thread_id="t", run_id="r", status="success", started_at=now, **of_run)
    for number, (agent, model, cost) in enumerate([(HOSTILE, "big", 2), ("desk", HOSTILE, 1), ("desk", "free", None)]):
        record.add(
            "spans",
            **{"thread_id": "t", "run_id": "r", "span_id": f"s{number}", "kind": "llm", "name": "m", "model": model},
            **{"started_at": now, "status": "success", "agent": agent, "cost": cost, "semconv_version": "1"},
        )
    with statements() as sent:
        page = await visitor.page("/costs")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in page
    assert "1 call of models without a price is" in page
    data = await visitor.data("/costs", agent=HOSTILE)
    assert (data["costs"]["total"]["calls"], data["costs"]["total"]["cost"]) == (3, 3.0)
    assert "Users" not in await visitor.page("/costs", model="big")
    assert "No model was called" in await visitor.page("/costs", user="nobody")
    assert (await visitor.client.get("/ui/costs", params={"since": "x"})).status_code == 422


async def test_a_cost_leads_to_its_runs(place: Place, record: Record) -> None:
    _, visitor = place
    for number, (user, cost) in enumerate((("eve", 3), ("eve", 7), ("adam", 1), ("eve", 0))):
        record.run(f"r{number}", number, number + 1 + 5 * (number == 2), user_id=user, agent="trip", cost=cost)
        record.span(f"s{number}", "llm", number, run_id=f"r{number}", model="gpt" if number else "opus", cost=cost)
    for table in ("runs", "spans"):
        record.connection.execute(f"UPDATE {record.schema}.{table} SET started_at = now() - interval '1 min'")
    page = await visitor.page("/costs", since="7d")
    links = {html.unescape(link) for link in re.findall(r'href="/ui(/runs\?[^"]+)"', page)}
    day = next(link for link in links if "day=" in link and f"{datetime.now(UTC).date()}" in link)
    asked = {
        "/runs?since=7d&by=cost": ["r1", "r0", "r2", "r3"],
        "/runs?user=eve&since=7d&by=cost": ["r1", "r0", "r3"],
        "/runs?model=opus&since=7d&by=cost": ["r0"],
        day: ["r1", "r0", "r2", "r3"],
    }
    assert asked.keys() <= links
    for link, ids in asked.items():
        response = await visitor.client.get(f"/ui{link}", headers={"accept": "application/json"})
        assert [one["run_id"] for one in response.json()["runs"]] == ids, link
    # Of one user's page, only hers.
    within = await visitor.page("/costs", since="7d", user="eve")
    assert "/ui/runs?user=eve&amp;model=gpt&amp;since=7d&amp;by=cost" in within


async def test_budgets_are_shown_with_what_was_spent(place: Place, record: Record) -> None:
    server, visitor = place
    await state_of(server).runs.budget(5, user=HOSTILE)
    page = await visitor.page("/costs")
    assert "Budgets of today" in page
    assert "5.00" in page
    assert "<script>alert" not in page
    (budget,) = (await visitor.data("/costs"))["budgets"]
    assert (budget["scope"], budget["spent"]) == ("user", 0)


def test_days_without_calls_are_days() -> None:
    def usage(**values: object) -> Usage:
        blank = dict.fromkeys(Usage.__dataclass_fields__)
        numbers = dict.fromkeys(("calls", "input_tokens", "output_tokens", "unpriced"), 0)
        return Usage(**{**blank, **numbers, "cost": Decimal(0), **values})  # type: ignore[arg-type]

    today = datetime(2026, 3, 10, tzinfo=UTC).date()
    day = today - timedelta(days=2)
    costs = Costs(usage(), (usage(day=day, calls=3),), (), (), ())
    found = filled(costs, timedelta(days=4), today)
    assert [(one, part.calls) for one, part in found] == [
        (today - timedelta(days=3), 0),
        (day, 3),
        (today - timedelta(days=1), 0),
        (today, 0),
    ]
    assert len(filled(Costs(usage(), (), (), (), ()), timedelta(days=1), today)) == 1
