"""Handoffs, counted."""

from __future__ import annotations

import psycopg
import pytest
from support_record import Parts, Record, ask, at

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.operations.record import events
from langgraph_pgstate.sql import queries

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


async def test_an_event_that_is_added_again_after_a_lost_connection_is_one(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    known = queries(schema)
    with Database.open(dsn, schema=schema, pool=False) as database:
        parameters = events.request_event("t", "action", {"by": "eve"}, None, None)
        for _ in range(2):
            database.run(events.add_event, known, parameters)
        database.run(events.add_event, known, events.request_event("t", "action", {"by": "eve"}, None, None))
    row = connection.execute(f"SELECT count(*) FROM {schema}.events".encode()).fetchone()
    assert row == (2,)
