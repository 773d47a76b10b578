"""The page of the queue: runs, dead letters, schedules and workers, and what may be done to them."""

from __future__ import annotations

import json
import re
from typing import Any

from support.pages import HOSTILE, inspected, state_of, statements, without_bdi
from support.record import Record

from langgraph_pgstate.runs import tending
from langgraph_pgstate.schema.queries import queries

from .conftest import Place


async def test_the_queue_shows_what_waits_and_who_works(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        run, queued = state._database.run, queries(schema)
        await run(tending.put_worker, queued, "host/1", ["default"], ["trip"], 5)
        first = await state.runs.enqueue("trip", {"messages": []}, thread_id="t", key=HOSTILE)
        await state.runs.enqueue("trip", {"messages": []}, thread_id="t")
        await state.runs.enqueue("unknown", {"messages": []}, thread_id=HOSTILE)
        await state.runs.limit("default", key="*", concurrency=0)
        for show in ("runs", "dead", "schedules"):
            with statements() as sent:
                html = await visitor.page("/queue", show=show)
            assert len(sent) <= 5, (show, sent)
            assert "<script>alert" not in html
        html = await visitor.page("/queue")
        assert "behind another run" in html
        assert "no worker" in html
        data = await visitor.data("/queue")
        assert data["runs"][0]["run_id"] == first.run_id
        assert [(one["worker_id"], one["is_alive"]) for one in data["workers"]] == [("host/1", True)]
        assert len((await visitor.data("/queue", graph="unknown"))["runs"]) == 1
        for query in ({"show": "x"}, {"status": "x"}):
            assert (await visitor.client.get("/ui/queue", params=query)).status_code == 422
        # Actions.
        assert (await visitor.act("/queue/workers/host~2F1/drain")).status_code == 403
        await visitor.introduce("Eve")
        assert "/queue/workers/host~2F1/drain" in await visitor.page("/queue")
        assert (await visitor.act("/queue/workers/host~2F1/drain", sure="1")).status_code == 303
        assert "drains" in await visitor.page("/queue")
        assert (await visitor.act("/queue/workers/none/drain", sure="1")).status_code == 404
        (event,) = (await state.events.list("worker:host/1")).items
        assert (event.payload["action"], event.payload["by"]) == ("drain", "Eve")


async def test_the_question_says_what_is_cancelled_or_drained(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    await state.threads.create("t", title="Pay <b>", user_id="eve")
    await state.runs.enqueue("trip", {"messages": []}, thread_id="t", run_id="r", metadata={"started_by": "Adam"})
    await state._database.run(tending.put_worker, queries(state.schema), "host/1", ["default"], ["trip"], 5)
    await visitor.introduce("Eve")
    here = {"referer": "http://localhost/ui/queue?show=runs"}
    asked = await visitor.act("/runs/t/r/cancel", here, back="queue")
    page = without_bdi(asked.text)
    for part in ("<strong>trip</strong>", "Pay &lt;b&gt;", 'href="/ui/threads/t"', "pending</span>, enqueued", "Adam"):
        assert part in page, part
    # It belongs to the page that it came from, and says what its buttons do.
    assert re.findall('href="([^"]+)" aria-current="page"', page) == ["/ui/queue"]
    assert '<button class="button danger">Cancel the run</button>' in page
    assert 'href="/ui/queue?show=runs">Leave it</a>' in page
    page = (await visitor.act("/runs/t/r/cancel", {"referer": "http://localhost/ui/runs/t/r"})).text
    assert re.findall('href="([^"]+)" aria-current="page"', page) == ["/ui/runs"]
    page = without_bdi((await visitor.act("/queue/workers/host~2F1/drain", here)).text)
    for part in ("trip from default", "0 of 5", "host/1", "Drain the worker"):
        assert part in page, part
    assert (await visitor.act("/runs/t/none/cancel", here)).status_code == 404
    assert (await visitor.act("/runs/none/r/discard", here)).status_code == 404
    assert (await visitor.act("/queue/workers/none/drain", here)).status_code == 200
    (run,) = (await state.runs.list(thread_id="t")).items
    assert run.status == "pending"


async def test_schedules_are_paused_resumed_and_triggered_by_name(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        name = "a/b <b>"
        await state.schedules.put(name, "trip", {"messages": []}, cron="0 9 * * *")
        await visitor.introduce("Eve")
        html = await visitor.page("/queue", show="schedules")
        assert "a/b &lt;b&gt;" in html
        path = "/queue/schedules/a~2Fb%20%3Cb%3E"
        assert f'action="/ui{path}/pause"' in html
        assert (await visitor.act(f"{path}/pause")).status_code == 303
        assert "paused" in await visitor.page("/queue", show="schedules")
        assert (await visitor.act(f"{path}/resume")).status_code == 303
        triggered = await visitor.act(f"{path}/trigger")
        assert triggered.headers["location"].startswith("/ui/runs/")
        (run,) = (await state.runs.queued()).items
        assert (await visitor.act("/queue/schedules/none/trigger")).status_code == 404
        events = [
            (one.payload["action"], one.payload["by"])
            for thread_id in (f"schedule:{name}", run.thread_id)
            for one in (await state.events.list(thread_id, kind="action")).items
        ]
        assert events == [("pause", "Eve"), ("resume", "Eve"), ("trigger", "Eve"), ("trigger", "Eve")]


async def test_webhooks_that_failed_are_shown_without_secrets(place: Place, record: Record) -> None:
    _, visitor = place
    given: dict[str, Any] = {"thread_id": "t", "run_id": "r", "run": {}, "deliver_after": None, "attempts": 9}
    record.add("webhooks", **given, url="https://a.example/hook?token=secret", last_error=HOSTILE)
    with statements() as sent:
        page = await visitor.page("/queue", show="webhooks")
    assert len([name for name in sent if name != "find_entries"]) <= 5, sent
    assert "https://a.example/hook" in page
    assert "secret" not in page
    assert "<script>alert" not in page
    assert "secret" not in json.dumps(await visitor.data("/queue", show="webhooks"))


async def test_an_empty_queue_says_what_to_do(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, read_only=True) as (_, visitor):
        html = await visitor.page("/queue")
        for text in ("The queue is empty", "No worker runs", "No run waits or runs"):
            assert text in html
        assert "No dead letters" in await visitor.page("/queue", show="dead")
        assert "No schedules" in await visitor.page("/queue", show="schedules")
