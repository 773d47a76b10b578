"""The page of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from langgraph_pgstate.admin.types import DatabaseOverview, MaintenanceNote
from langgraph_pgstate.inspector.drawing import line
from langgraph_pgstate.inspector.page import Page, PageCall, check_sees_all

_NOTES: Final = 15
_GROWTH: Final = timedelta(days=7)


async def database(call: PageCall) -> Page:
    """Show sizes, growth, migrations, results of maintenance, and the slowest statements."""
    await check_sees_all(call)
    found = await call.state.overview()
    before = note_before(found.maintenance, found.maintenance[0].maintained_at - _GROWTH) if found.maintenance else None
    oldest_first = found.maintenance[::-1]
    data: dict[str, Any] = {
        "overview": found,
        "notes": found.maintenance[:_NOTES],
        "done": {one.maintained_at: done(one) for one in found.maintenance[:_NOTES]},
        "growth": growth(found, before),
        "growth_since": None if before is None else before.maintained_at,
        "total": sum(one.bytes for one in found.tables),
        "line": line([float(sum(one.sizes.values())) for one in oldest_first]),
        "largest": max((one.bytes for one in found.tables), default=0),
    }
    # The JSON of the page has only the notes that the page shows.
    data["overview"] = replace(found, maintenance=data["notes"])
    return Page("database.html", "Database", data)


def note_before(notes: Sequence[MaintenanceNote], time: datetime) -> MaintenanceNote | None:
    """Return the newest note up to a time, or else the oldest; `None` if there are fewer than two notes."""
    if len(notes) < 2:
        return None
    return next((one for one in notes if one.maintained_at <= time), notes[-1])


def growth(found: DatabaseOverview, before: MaintenanceNote | None) -> dict[str, int]:
    """Return by how many bytes each table has grown since a note."""
    if before is None:
        return {}
    return {one.name: one.bytes - before.sizes[one.name] for one in found.tables if one.name in before.sizes}


def done(note: MaintenanceNote) -> list[str]:
    """Return the results of a `maintain` call as short sentences."""
    report = note.report
    policies = report.get("policies") or {}
    counted = {
        "partitions made": len(report.get("months_made") or ()),
        "months dropped": len(report.get("months_dropped") or ()),
        "days of events dropped": len(report.get("days_dropped") or ()),
        "runs of dead processes ended": report.get("runs_settled") or 0,
        "threads deleted by policies": policies.get("deleted", 0),
        "threads archived by policies": policies.get("archived", 0),
        "checkpoints pruned by policies": policies.get("checkpoints", 0),
        "contents removed by policies": policies.get("contents", 0),
        "policies with an error": policies.get("failed", 0),
        "expired memories deleted": report.get("memories_expired") or 0,
        "orphaned writes removed": report.get("orphan_writes") or 0,
        "old tombstones and leases removed": report.get("guards_swept") or 0,
    }
    return [f"{number:,} {text}" for text, number in counted.items() if number]
