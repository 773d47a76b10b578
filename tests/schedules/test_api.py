"""`state.schedules` of both APIs, and workers that fire them and give default answers."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support import loop_graph, wait_until
from support.queue import STATES, Queue, call, open_state
from support.worker import WORKERS, worker

from langgraph_pgstate import DefaultAnswer, PGState
from langgraph_pgstate.errors import ConfigurationError, NotFoundError


class Said(TypedDict):
    said: str


def make_due(queue: Queue) -> None:
    """Let the next tick of all schedules be one that has come."""
    queue.execute("UPDATE {}.schedules SET next_at = date_trunc('second', now())")


@pytest.mark.parametrize("api", STATES)
async def test_schedules_are_put_listed_fired_triggered_and_deleted(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    queue = Queue(connection, schema)
    async with open_state(api, dsn, schema, graphs=["agent"]) as state:
        part = state.schedules
        made = await call(part.put, "s", "agent", {"x": 1}, cron="0 9 * * 1-5", timezone="Europe/Prague", thread_id="t")
        assert (made.timezone, made.missed, made.thread_id) == ("Europe/Prague", "skip", "t")
        assert made == await call(part.get, "s")
        assert (await call(part.list)).items == (made,)
        assert (await call(part.list, graph="other")).items == ()
        assert await call(part.fire) == ()
        make_due(queue)
        (run,) = await call(part.fire)
        assert (run.thread_id, run.is_new, await call(run.status)) == ("t", True, "pending")
        assert (await call(part.get, "s")).last_run_id == run.run_id
        assert (await call(part.pause, "s")).next_at is None
        triggered = await call(part.trigger, "s")
        assert [row[1] for row in queue.rows()] == [run.run_id, triggered.run_id]
        await call(part.put, "unknown", "agent", {"x": 1}, cron="0 9 * * *")
        queue.execute("UPDATE {}.schedules SET timezone = 'Mars/Olympus', next_at = now() WHERE name = 'unknown'")
        for _ in range(2):
            assert await call(part.fire) == (), "left to another machine"
        assert "Mars/Olympus" in (await call(part.get, "unknown")).last_error
        assert await call(part.delete, "unknown")
        assert (await call(part.resume, "s")).next_at == made.next_at
        assert [await call(part.delete, "s") for _ in range(2)] == [True, False]
        assert await call(part.get, "s") is None
        with pytest.raises(NotFoundError):
            await call(part.trigger, "s")
        with pytest.raises(ConfigurationError, match="no graph 'other'"):
            await call(part.put, "s", "other", cron="0 9 * * *")


@pytest.mark.parametrize("api", STATES)
async def test_a_schedule_whose_thread_is_being_made_does_not_keep_others_from_their_runs(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    queue = Queue(connection, schema)
    async with open_state(api, dsn, schema) as state:
        for name in ("new", "other"):
            await call(state.schedules.put, name, "agent", cron="0 9 * * *", thread_id=name)
        make_due(queue)
        with psycopg.connect(dsn) as mine:
            mine.execute("SELECT 1")
            Queue(mine, schema).add("new")
            assert [run.thread_id for run in await call(state.schedules.fire)] == ["other"]
        assert [run.thread_id for run in await call(state.schedules.fire)] == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_gives_the_default_answer_and_goes_on(kind: type, dsn: str, schema: str) -> None:
    asking = StateGraph(Said).add_node("ask", lambda state: {"said": interrupt("go on?")}).add_edge(START, "ask")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, {"agent": asking}):
        answer = DefaultAnswer("deny", after=timedelta(seconds=1))
        run = state.runs.enqueue("agent", {"said": ""}, thread_id="t", default_answer=answer)
        assert [one.value for one in run.wait(60)["__interrupt__"]] == ["go on?"]
        wait_until(lambda: len(state.runs.list(thread_id="t").items) == 2, "the default answer")
        resuming = next(one for one in state.runs.list(thread_id="t").items if one.run_id != run.run_id)
        assert state.runs.wait("t", resuming.run_id, 60) == {"said": "deny"}
        (event,) = state.events.list("t", kind="answer").items
        assert event.payload["is_default"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_schedule_that_cannot_be_fired_here_keeps_a_worker_from_nothing(
    kind: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Of a newer version, or in a time zone that this machine does not know."""
    queue = Queue(connection, schema)
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, {"agent": loop_graph(1)}):
        for name in ("a", "b"):
            state.schedules.put(name, "agent", {"items": [], "count": 0}, cron="0 0 1 1 *")
        queue.execute("UPDATE {}.schedules SET timezone = 'Mars/Olympus' WHERE name = 'a'")
        make_due(queue)
        done = "SELECT 1 FROM {}.runs WHERE status = 'success'"
        wait_until(lambda: bool(queue.execute(done)), "the run of the other")
        assert queue.execute("SELECT name FROM {}.schedules WHERE next_at <= now()") == [("a",)]
        (unknown,) = [one for one in state.schedules.list().items if one.name == "a"]
        assert "not 'Mars/Olympus'" in (unknown.last_error or "")
