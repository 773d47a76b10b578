"""The queue as a whole, by both APIs: lists, dead letters, limits, workers."""

from __future__ import annotations

import psycopg
import pytest
from support.queue import STATES, Queue, call, open_state

from langgraph_pgstate import Rate
from langgraph_pgstate.errors import ConfigurationError


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


@pytest.mark.parametrize("api", STATES)
async def test_dead_letters_are_listed_retried_and_discarded(api: type, dsn: str, schema: str, queue: Queue) -> None:
    async with open_state(api, dsn, schema) as state:
        runs = state.runs
        for _ in range(2):
            await call(runs.enqueue, "graph", {})
        failed = queue.claim()
        for run in failed:
            queue.fail(run)
        page = await call(runs.dead_letters, limit=1)
        assert page.next is not None
        assert {page.items[0].run_id} < {run.run_id for run in failed}
        assert await call(runs.retry, *failed[0].key[:2])
        assert await call(runs.discard, *failed[1].key[:2])
        assert (await call(runs.dead_letters)).items == ()
        assert [run.run_id for run in (await call(runs.queued)).items] == [failed[0].run_id]
        (count,) = await call(runs.counts)
        assert (count.status, count.count, count.is_accepted) == ("pending", 1, False)
        assert await call(runs.repair) == 0
        assert (await call(runs.list, status="error")).items[0].run_id == failed[1].run_id


@pytest.mark.parametrize("api", STATES)
async def test_limits_are_set_listed_and_removed(api: type, dsn: str, schema: str) -> None:
    async with open_state(api, dsn, schema) as state:
        runs = state.runs
        await call(runs.limit, "default", concurrency=2)
        await call(runs.limit, "default", key="*", rate=Rate(3, 60))
        assert [(one.key, one.concurrency) for one in await call(runs.limits)] == [(None, 2), ("*", None)]
        await call(runs.limit, "default")
        assert [one.key for one in await call(runs.limits)] == ["*"]
        with pytest.raises(ConfigurationError):
            await call(runs.limit, "default", concurrency=-1)


@pytest.mark.parametrize("api", STATES)
async def test_a_worker_that_is_not_there_is_not_drained(api: type, dsn: str, schema: str) -> None:
    async with open_state(api, dsn, schema) as state:
        assert await call(state.runs.workers) == ()
        assert not await call(state.runs.drain, "host:1:none")
