"""Events that are added."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.operations.record.new_events import add_event, request_event
from langgraph_pgstate.sql import queries

pytestmark = pytest.mark.smoke


async def test_an_event_that_is_added_again_after_a_lost_connection_is_one(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    known = queries(schema)
    with Database.open(dsn, schema=schema, pool=False) as database:
        parameters = request_event("t", "action", {"by": "eve"}, None, None)
        for _ in range(2):
            database.run(add_event, known, parameters)
        database.run(add_event, known, request_event("t", "action", {"by": "eve"}, None, None))
    row = connection.execute(f"SELECT count(*) FROM {schema}.events".encode()).fetchone()
    assert row == (2,)
