"""The page of costs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.inspector.drawing import columns
from langgraph_pgstate.inspector.page import PERIODS, Page, PageCall, period_of, scope_of
from langgraph_pgstate.record.types import Costs, Usage

_ROWS: Final = 12
_BUDGETS: Final = 50


async def costs(call: PageCall) -> Page:
    """Show what model calls cost, by day, agent, model and user."""
    name, since = period_of(call, "30d")
    filters: dict[str, Any] = {
        "agent": call.query("agent"),
        "model": call.query("model"),
        "user_id": call.query("user"),
        "tenant_id": call.query("tenant"),
    }
    scope = await scope_of(call)
    found = await call.state.runs.costs(since=since, scope=scope, limit=_ROWS, **filters)
    days = filled(found, since, datetime.now(UTC).date())
    data: dict[str, Any] = {
        "costs": found,
        # Show budgets only to callers who may see all threads, because budgets concern all users.
        "budgets": (await call.state.runs.budgets())[:_BUDGETS] if scope is None else [],
        "since": name,
        "periods": tuple(one for one in PERIODS if one != "1h"),
        "plots": {
            "cost": columns([(day, float(one.cost)) for day, one in days]),
            "tokens": columns([(day, float(one.input_tokens + one.output_tokens)) for day, one in days]),
        },
        "filters": {title: value for title, value in filters.items() if value is not None},
    }
    return Page("costs.html", "Cost", data)


def filled(found: Costs, since: timedelta, today: date) -> list[tuple[date, Usage]]:
    """Return the usage of each day of a period, also of days without calls."""
    known = {one.day: one for one in found.by_day if one.day is not None}
    empty = Usage(None, None, None, None, None, None, 0, 0, 0, 0, 0, found.total.cost * 0, 0)
    first = min([today - since + timedelta(days=1), *known])
    count = (max([today, *known]) - first).days + 1
    days = [first + timedelta(days=number) for number in range(count)]
    return [(day, known.get(day, empty)) for day in days]
