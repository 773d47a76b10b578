"""Handoffs, counted."""

from __future__ import annotations

import pytest
from support.record import Parts, Record, ask, at

pytestmark = pytest.mark.smoke


async def test_handoffs_are_counted(parts: Parts, record: Record) -> None:
    for thread in ("t", "u"):
        for number, (source, target) in enumerate([("boss", "flights"), ("flights", "boss"), ("boss", "flights")]):
            payload = {"from": source, "to": target, "reason": "because"}
            record.event(f"e{number}", "handoff", 10 * number**2, thread_id=thread, payload=payload)
    record.event("e9", "status", 5)
    there, back = await ask(parts.events.handoffs(since=None))
    assert (there.source, there.target, there.count, there.threads) == ("boss", "flights", 4, 2)
    assert (there.mean, there.p50, there.last_at) == (10, 10, at(40))
    assert (back.source, back.count, back.mean) == ("flights", 2, 30)
    assert await ask(parts.events.handoffs()) == ()
    rows = record.rows(
        "SELECT source, reason, seconds_to_next FROM handoffs WHERE thread_id = %s ORDER BY event_id", "t"
    )
    assert rows == [("boss", "because", 10), ("flights", "because", 30), ("boss", "because", None)]
