"""Events that are added."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import AlreadyDoneError
from langgraph_pgstate.record.events import add_event, check_not_done, note_action, request_event
from langgraph_pgstate.schema.queries import queries

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


async def test_of_two_who_do_the_same_at_once_one_is_refused(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    known = queries(schema)

    async def act(person: str, action: str, within: timedelta) -> str | None:
        async with AsyncDatabase.open(dsn, schema=schema, pool=False) as database:

            async def body(db: Any) -> None:
                async with db.transaction():
                    await check_not_done(db, known, action, "t", within)
                    # Both have begun before one has ended.
                    await asyncio.sleep(0.05)
                    await note_action(db, known, action, person, "t")

            try:
                await database.run(body)
            except AlreadyDoneError as error:
                return error.done_by
            return None

    hour = timedelta(hours=1)
    told = await asyncio.gather(act("eve", "fork", hour), act("adam", "fork", hour), act("cain", "label", hour))
    assert told[2] is None
    assert set(told[:2]) in ({None, "eve"}, {None, "adam"})
    connection.execute(f"UPDATE {schema}.events SET event_id = '2020' || substr(event_id, 5)".encode())
    assert await act("abel", "fork", hour) is None
