"""Notifications that wake workers."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
from support_queue import STATES, Queue, call, open_state


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize("api", STATES)
async def test_workers_that_listen_are_notified_a_hundred_times_a_second_at_most(
    api: type, dsn: str, schema: str, queue: Queue
) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgstate_queue")
        async with open_state(api, dsn, schema) as state:
            started = time.monotonic()
            for _ in range(30):
                await call(state.runs.enqueue, "graph", {})
            seconds = time.monotonic() - started
            await asyncio.sleep(0.1)
            assert len(queue.rows()) == 30
        found = [*listener.notifies(timeout=0.2)]
    assert 1 <= len(found) <= seconds * 100 + 3
