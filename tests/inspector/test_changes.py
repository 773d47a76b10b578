"""Two persons who act on the same thing: each action happens once or not at all, and the second is told by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from support.http import failing
from support.pages import Visitor, forms_of, inspected, state_of, travel, trip, visiting

from langgraph_pgstate import AsyncPGState, AsyncWorker
from langgraph_pgstate.errors import AlreadyDoneError, ConfigurationError, RunFailedError
from langgraph_pgstate.inspector import changes

Two = tuple[AsyncPGState, Visitor, Visitor]
RUN = "/threads/t/run"


@pytest.fixture
async def two(dsn: str, schema: str) -> AsyncIterator[Two]:
    async with persons(dsn, schema) as two:
        yield two


@asynccontextmanager
async def persons(dsn: str, schema: str, **options: Any) -> AsyncIterator[Two]:
    """Eve and Adam at a server, and its state."""
    graphs = {"trip": trip(), "failing": failing()}
    async with inspected(dsn, schema, graphs=graphs, **options) as (server, eve), visiting(server) as adam:
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        yield state_of(server), eve, adam


async def form(visitor: Visitor, page: str, path: str, **query: Any) -> Any:
    """What a form of a page holds."""
    return forms_of(await visitor.page(page, **query))[path]


async def together(*sent: Any) -> list[int]:
    """The statuses of forms that are sent at once, sorted."""
    return sorted(one.status_code for one in await asyncio.gather(*sent))


def refused(response: httpx.Response, *words: str) -> None:
    """Check that a person was refused, and told why."""
    assert response.status_code == 409, (response.status_code, response.headers.get("location"))
    for word in words:
        assert word in response.text


async def runs_of(state: AsyncPGState, thread_id: str) -> list[str]:
    """The runs that were enqueued on a thread."""
    return [one.run_id for one in (await state.runs.list(thread_id=thread_id)).items if one.enqueued_at]


async def names(state: AsyncPGState, thread_id: str) -> list[Any]:
    """What persons did to a thread, and who."""
    events = (await state.events.list(thread_id, kind="action")).items
    return [(one.payload["action"], one.payload["by"]) for one in events]


@pytest.mark.slow
async def test_one_of_two_persons_runs_on(two: Two) -> None:
    state, eve, adam = two
    await travel(state)
    await state.interrupts.answer("t", "yes", by="Cain")
    mine, his = await form(eve, "/threads/t", RUN), await form(adam, "/threads/t", RUN)
    assert mine["mode"] == "on"
    assert await together(eve.act(RUN, **mine), adam.act(RUN, **his)) == [303, 409]
    assert len(await runs_of(state, "t")) == 1
    ((_, first),) = await names(state, "t")
    second, fields = (adam, his) if first == "Eve" else (eve, mine)
    refused(await second.act(RUN, **fields), "is busy: run on just now by", first)
    # A form that is sent twice acts once, and says so twice.
    again = await (eve if first == "Eve" else adam).act(RUN, **(mine if first == "Eve" else his))
    assert again.headers["location"] == "/ui/threads/t?notice=thread.run"
    assert len(await runs_of(state, "t")) == 1


@pytest.mark.slow
async def test_a_page_that_is_old_neither_runs_on_nor_replays(dsn: str, schema: str) -> None:
    async with persons(dsn, schema, worker=True) as (state, eve, adam):
        ids = await travel(state)
        old = await form(adam, "/threads/t", RUN)
        replay = await form(adam, "/threads/t", RUN, at=ids[2])
        edit = await form(adam, "/threads/t/edit", "/threads/t/edit", at=ids[0])
        deletion = await form(adam, "/threads/t/delete", "/threads/t/delete")
        assert replay["mode"] == "replay"
        await state.interrupts.answer("t", "yes", by="Eve")
        run = (await eve.act(RUN, {"accept": "application/json"}, **await form(eve, "/threads/t", RUN))).json()
        assert (await state.runs.wait("t", run["run_id"], 30))["booking"] == {"approved": "yes"}
        before = await state.threads.get("t")
        for path, fields in (
            (RUN, old),
            (RUN, replay),
            ("/threads/t/edit", {**edit, "values": "{}", "run": "1"}),
            ("/threads/t/delete", deletion),
        ):
            refused(await adam.act(path, **fields), "has gone on: ", "by Eve", "just now")
        assert (await adam.act(RUN, **{**old, "mode": "replay"})).status_code == 422
        assert (await adam.act(RUN, **{**old, "nonce": "x"})).status_code == 422
        assert len(await runs_of(state, "t")) == 1
        after = await state.threads.get("t")
        assert after is not None
        assert before is not None
        assert after.head_checkpoint_id == before.head_checkpoint_id


@pytest.mark.slow
async def test_a_queued_run_that_goes_on_by_itself_is_not_run_on(two: Two) -> None:
    state, eve, _ = two
    await travel(state, "plain")
    for thread_id, is_queued in (("plain", False), ("queued", True)):
        if is_queued:
            async with asyncio.timeout(60):
                await interrupted_run(state, thread_id)
        (waiting,) = [one for one in (await eve.data("/interrupts"))["threads"] if one["thread_id"] == thread_id]
        path = f"/interrupts/{thread_id}/{waiting['interrupts'][0]['interrupt_id']}/answer"
        page = await eve.client.get((await eve.act(path, answer="yes")).headers["location"])
        assert (f'/threads/{thread_id}/run"' in page.text) is not is_queued
    stale = {"at": waiting["checkpoint_id"], "head": waiting["checkpoint_id"], "mode": "on"}
    refused(await eve.act("/threads/queued/run", **stale), "is busy: answered just now by Eve")


async def interrupted_run(state: AsyncPGState, thread_id: str) -> None:
    """A run of the queue that waits for an answer."""
    run = await state.runs.enqueue("trip", {"messages": []}, thread_id=thread_id, metadata={"graph_id": "trip"})
    async with AsyncWorker(state, {"trip": trip()}, poll=0.05):
        while await run.status() != "interrupted":
            await asyncio.sleep(0.02)


async def failed_run(state: AsyncPGState, thread_id: str) -> str:
    """A run of the queue that has failed, with a checkpoint."""
    await state.threads.create(thread_id, agent="failing", metadata={"graph_id": "failing"})
    run = await state.runs.enqueue("failing", {"count": 1}, thread_id=thread_id)
    async with AsyncWorker(state, {"failing": failing()}, poll=0.05):
        with pytest.raises(RunFailedError):
            await run.wait(30)
    return run.run_id


@pytest.mark.slow
async def test_a_failed_run_is_retried_or_run_on_but_not_both(two: Two) -> None:
    state, eve, adam = two
    path = f"/runs/f/{await failed_run(state, 'f')}"
    on = await form(adam, "/threads/f", "/threads/f/run")
    forms = forms_of(await adam.page(path))
    assert (await eve.act(f"{path}/retry", **forms[f"{path}/retry"])).status_code == 303
    refused(await adam.act("/threads/f/run", **on), "is busy: retried just now by Eve")
    for action in ("retry", "discard"):
        refused(await adam.act(f"{path}/{action}", **forms[f"{path}/{action}"], sure="1"), "retried just now by Eve")

    other = f"/runs/g/{await failed_run(state, 'g')}"
    forms, on = forms_of(await adam.page(other)), await form(eve, "/threads/g", "/threads/g/run")
    assert (await eve.act("/threads/g/run", **on)).status_code == 303
    refused(await adam.act(f"{other}/retry", **forms[f"{other}/retry"]), "has gone on: run on just now by Eve")
    assert len(await runs_of(state, "f")) == 1
    assert len(await runs_of(state, "g")) == 2


@pytest.mark.slow
async def test_a_run_is_cancelled_and_discarded_by_one_person(two: Two) -> None:
    state, eve, adam = two
    run = await state.runs.enqueue("trip", {"messages": []}, thread_id="t")
    path = f"/runs/t/{run.run_id}"
    page = await eve.act(f"{path}/cancel", back="queue")
    assert page.status_code == 200
    assert "Cancel this run?" in page.text
    assert await run.status() == "pending"
    sure = forms_of(page.text)[f"{path}/cancel"]
    assert sure == {"sure": "1", "back": "queue"}
    assert await together(eve.act(f"{path}/cancel", **sure), adam.act(f"{path}/cancel", **sure)) == [303, 409]
    ((_, first),) = await names(state, "t")
    refused(await (adam if first == "Eve" else eve).act(f"{path}/cancel", **sure), f"cancelled just now by {first}")
    forms = forms_of(await adam.page(path))
    discard = {**forms[f"{path}/discard"], "sure": "1"}
    assert await together(eve.act(f"{path}/discard", **discard), adam.act(f"{path}/discard", **discard)) == [303, 409]
    last = (await names(state, "t"))[-1][1]
    refused(await eve.act(f"{path}/discard", **discard), f"discarded just now by {last}")
    refused(await eve.act(f"{path}/retry", **forms[f"{path}/retry"]), f"discarded just now by {last}")
    ended = await failed_run(state, "f")
    refused(await eve.act(f"/runs/f/{ended}/cancel", sure="1"), "The run has ended already: error.")


@pytest.mark.slow
async def test_an_edit_is_made_once(two: Two) -> None:
    state, eve, adam = two
    ids = await travel(state)
    path, values = "/threads/t/edit", json.dumps({"booking": {"hotel": "Astoria"}})
    forms = [
        {**await form(one, path, path, at=ids[0]), "values": values, "as_node": "approve", "run": "1"}
        for one in (eve, adam)
    ]
    assert await together(eve.act(path, **forms[0]), adam.act(path, **forms[1])) == [303, 409]
    edits = [by for action, by in await names(state, "t") if action == "edit"]
    assert len(edits) == len(await runs_of(state, "t")) == 1
    first, second = (0, 1) if edits == ["Eve"] else (1, 0)
    refused(await (eve, adam)[second].act(path, **forms[second]), f"by {edits[0]}")
    assert (await (eve, adam)[first].act(path, **forms[first])).status_code == 303
    assert len((await state.threads.tree("t")).nodes) == len(ids) + 1
    assert len(await runs_of(state, "t")) == 1


async def test_a_fork_is_made_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    state, eve, adam = two
    ids = await travel(state)
    path = "/threads/t/fork"
    mine, his = await form(eve, "/threads/t", path, at=ids[1]), await form(adam, "/threads/t", path, at=ids[1])
    assert await together(*(eve.act(path, **mine, run="1") for _ in range(2))) in ([303, 303], [303, 409])
    made = (await eve.act(path, **mine, run="1")).headers["location"]
    assert len(await runs_of(state, mine["nonce"])) == 1
    assert made == f"/ui/threads/{mine['nonce']}?notice=thread.fork"
    refused(await adam.act(path, **his, run="1"), "forked just now by Eve", mine["nonce"])
    # Whoever has looked since, forks it again.
    monkeypatch.setattr(changes, "MOMENT", timedelta(0))
    assert (await adam.act(path, **await form(adam, "/threads/t", path, at=ids[1]))).status_code == 303
    assert len((await state.threads.list()).items) == 3


async def test_labels_and_deletions_name_who_was_first(two: Two) -> None:
    state, eve, adam = two
    ids = await travel(state)
    path = "/threads/t/label"
    old = await form(adam, "/threads/t", path)
    assert (await eve.act(path, **old, label="before booking")).status_code == 303
    refused(await adam.act(path, **old, label="mine"), "labelled just now by Eve", "before booking")
    assert [one.label for one in await state.threads.labels("t")] == ["before booking"]
    deletion = await form(adam, "/threads/t/delete", "/threads/t/delete")
    assert (await eve.act("/threads/t/delete", **deletion)).status_code == 303
    for action, fields in (("delete", deletion), ("label", old), ("run", {"at": ids[0], "head": ids[0], "mode": "on"})):
        gone = await adam.act(f"/threads/t/{action}", **fields)
        assert (gone.status_code, "was deleted just now by Eve" in gone.text) == (404, True)


async def test_workers_and_schedules_are_changed_by_one_person(two: Two) -> None:
    state, eve, adam = two
    await state.schedules.put("nightly", "trip", {"messages": []}, cron="0 3 * * *")
    schedule = "/queue/schedules/nightly"
    forms = forms_of(await adam.page("/queue", show="schedules"))
    assert (await eve.act(f"{schedule}/pause")).status_code == 303
    refused(await adam.act(f"{schedule}/pause", **forms[f"{schedule}/pause"]), "paused just now by Eve")
    begun = await eve.act(f"{schedule}/trigger", **forms[f"{schedule}/trigger"])
    again = await eve.act(f"{schedule}/trigger", **forms[f"{schedule}/trigger"])
    assert begun.headers["location"] == again.headers["location"]
    other = {**forms[f"{schedule}/trigger"], "nonce": ""}
    refused(await adam.act(f"{schedule}/trigger", **other), "run just now by Eve")
    assert len((await state.runs.queued()).items) == 1

    async with AsyncWorker(state, {"trip": trip()}, queues=["other"]) as worker:
        path = f"/queue/workers/{worker.worker_id.replace('/', '~2F')}/drain"
        assert "Drain this worker?" in (await eve.act(path)).text
        assert await together(eve.act(path, sure="1"), adam.act(path, sure="1")) == [303, 409]
        ((_, first),) = await names(state, f"worker:{worker.worker_id}")
        refused(await (adam if first == "Eve" else eve).act(path, sure="1"), f"asked to drain just now by {first}")


@pytest.mark.slow
async def test_an_old_page_does_not_cancel_what_was_retried(two: Two) -> None:
    state, eve, adam = two
    run = await state.runs.enqueue("trip", {"messages": []}, thread_id="t")
    path = f"/runs/t/{run.run_id}"
    old = [await form(adam, page, f"{path}/cancel") for page in (path, "/queue")]
    for _ in range(2):
        await run.cancel()
        assert (await eve.act(f"{path}/retry", **await form(eve, path, f"{path}/retry"))).status_code == 303
        for page, given in zip((path, "/queue"), old, strict=True):
            refused(await adam.act(f"{path}/cancel", **given, sure="1"), "retried just now by Eve")
            assert await run.status() == "pending"
            # Who has looked since cancels it, however soon.
            new = await form(adam, page, f"{path}/cancel")
            assert (await adam.act(f"{path}/cancel", **new, sure="1")).status_code == 303
            assert await run.status() == "cancelled"
            assert (await eve.act(f"{path}/retry", **await form(eve, path, f"{path}/retry"))).status_code == 303
    wrong = await adam.act(f"{path}/cancel", **{**old[0], "enqueued": "yesterday"}, sure="1")
    assert (wrong.status_code, "Enqueued must be a time" in wrong.text) == (422, True)


async def test_a_run_is_cancelled_before_or_after_a_retry_by_another_process(two: Two) -> None:
    state, _, _ = two
    run = await state.runs.enqueue("trip", {"messages": []}, thread_id="t", run_id="r")
    ((seen,),) = [[one.enqueued_at for one in (await state.runs.queued()).items]]
    await run.cancel()
    # The lock on the thread is the one that a retry takes: what it writes is seen.
    retried, cancelled = await asyncio.gather(
        state.runs.retry("t", "r", by="Eve"),
        state.runs.cancel("t", "r", by="Adam", unless_retried_after=seen),
        return_exceptions=True,
    )
    assert retried is True
    assert cancelled == "cancelled" or isinstance(cancelled, AlreadyDoneError)
    assert await run.status() == "pending"
    with pytest.raises(AlreadyDoneError, match="retry was done"):
        await state.runs.cancel("t", "r", by="Adam", unless_retried_after=seen)
    with pytest.raises(ConfigurationError, match="time zone"):
        await state.runs.cancel("t", "r", unless_retried_after=datetime(2027, 1, 1))
    assert await run.status() == "pending"


async def test_a_run_without_checkpoints_is_not_retried_behind_one_that_was_run_on(two: Two) -> None:
    state, eve, adam = two
    await travel(state)
    run = await state.runs.enqueue("trip", {"messages": []}, thread_id="t", queue="of nobody")
    await run.cancel()
    path = f"/runs/t/{run.run_id}"
    retry, on = await form(adam, path, f"{path}/retry"), await form(eve, "/threads/t", RUN)
    sent = await asyncio.gather(eve.act(RUN, **on), adam.act(f"{path}/retry", **retry))
    assert sorted(one.status_code for one in sent) == [303, 409]
    assert len((await state.runs.queued()).items) == 1


async def test_an_old_page_does_not_delete_a_thread_that_runs(two: Two) -> None:
    state, eve, adam = two
    await travel(state)
    path = "/threads/t/delete"
    old, on = await form(adam, path, path), await form(eve, "/threads/t", RUN)
    assert (await eve.act(RUN, **on)).status_code == 303
    refused(await adam.act(path, **old), "is busy: run on just now by Eve")
    assert await state.threads.get("t") is not None
    # Who was warned of the run may delete it with the thread.
    assert (await adam.act(path, **await form(adam, path, path))).status_code == 303


async def test_the_name_of_who_deleted_a_thread_stays_if_it_is_deleted_again(two: Two) -> None:
    state, _, _ = two
    await travel(state)
    await state.saver.adelete_thread("t", by="Eve")
    await state.saver.adelete_thread("t", by="Adam")
    await state.saver.adelete_thread("t")
    assert await names(state, "t") == [("delete", "Eve")]
