"""Crons: schedules by LangGraph's client."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, NotFoundError, UnprocessableEntityError
from langgraph_sdk.schema import Thread
from support.http import HELLO, http, sdk, serving
from support.queue import Queue

from langgraph_pgstate.server import AgentServer

DAILY = "0 9 * * *"


async def test_a_cron_is_created_found_changed_and_deleted(client: LangGraphClient) -> None:
    crons = client.crons
    end = datetime.now(UTC) + timedelta(days=3)
    made: dict = await crons.create(  # type: ignore[assignment]
        "chat",
        schedule=DAILY,
        timezone="Europe/Prague",
        input=HELLO,
        metadata={"a": 1},
        config={"tags": ["x"], "configurable": {"b": 1, "__c": 1}},
        context={"seconds": 1},
        interrupt_before=["speak"],
        stream_mode="values",
        end_time=end,
    )
    id = made["cron_id"]
    assert (made["schedule"], made["timezone"], made["enabled"]) == (DAILY, "Europe/Prague", True)
    assert (made["thread_id"], made["on_run_completed"], made["metadata"]) == (None, "delete", {"a": 1})
    payload = made["payload"]
    assert payload["input"] == HELLO
    assert payload["config"] == {"tags": ["x"], "configurable": {"b": 1, "seconds": 1, "cron_id": id}}
    assert (payload["context"], payload["interrupt_before"], payload["metadata"]) == (
        {"seconds": 1, "b": 1},
        ["speak"],
        {"a": 1},
    )
    assert (await crons.search())[0] == made
    changed = await crons.update(id, schedule="0 10 * * *", metadata={"n": 2}, on_run_completed="keep", end_time=None)
    assert (changed["schedule"], changed["end_time"], changed["on_run_completed"]) == ("0 10 * * *", None, "keep")
    assert (changed["metadata"], changed["payload"]["input"]) == ({"a": 1, "n": 2}, HELLO)
    assert (await crons.update(id, enabled=False))["next_run_date"] is None
    assert [one["cron_id"] for one in await crons.search(enabled=False)] == [id]
    assert await crons.search(enabled=True) == []
    assert (await crons.update(id, enabled=True))["next_run_date"] == changed["next_run_date"]
    await crons.delete(id)
    with pytest.raises(NotFoundError):
        await crons.delete(id)
    with pytest.raises(NotFoundError):
        await crons.update(id, enabled=False)


@pytest.mark.slow
async def test_crons_are_searched(client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]
    for number, name in enumerate(("chat", "slow", "chat")):
        await client.crons.create(name, schedule=DAILY, metadata={"n": number})
    await client.crons.create_for_thread(thread, "chat", schedule=DAILY, multitask_strategy="interrupt")
    numbers = [one["metadata"] for one in await client.crons.search(sort_by="created_at", sort_order="asc")]
    assert numbers == [{"n": 0}, {"n": 1}, {"n": 2}, {}]
    assert len(await client.crons.search(limit=2, offset=1)) == 2
    assert (await client.crons.search(thread_id=thread, select=["thread_id"])) == [{"thread_id": thread}]
    assert await client.crons.count() == 4
    assert await client.crons.count(assistant_id="chat") == 3
    assert await client.crons.count(assistant_id="chat", metadata={"n": 2}) == 1
    assert await client.crons.search(assistant_id="nothing") == []


LATE: dict[str, Any] = {"schedule": DAILY, "end_time": datetime.fromisoformat("9999-12-31T23:59:59-14:00")}


async def test_what_is_no_cron_is_refused(client: LangGraphClient) -> None:
    for options in ({"schedule": "nonsense"}, {"schedule": DAILY, "timezone": "Mars/Olympus"}, LATE):
        with pytest.raises(UnprocessableEntityError):
            await client.crons.create("chat", **options)
    for call in (
        client.crons.create("nothing", schedule=DAILY),
        client.crons.create_for_thread("unknown", "chat", schedule=DAILY),
    ):
        with pytest.raises(NotFoundError):
            await call
    made: dict = await client.crons.create("chat", schedule=DAILY)  # type: ignore[assignment]
    with pytest.raises(APIStatusError):
        await client.crons.update(made["cron_id"])
    assert await client.crons.count() == 1


@pytest.mark.slow
async def test_crons_of_others_are_not_seen_and_their_threads_are(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return str(authorization)

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict) -> dict:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    async with (
        serving(dsn, schema, auth=auth) as server,
        sdk(server, {"authorization": "eve"}) as eve,
        sdk(server, {"authorization": "adam"}) as adam,
    ):
        thread = (await eve.threads.create())["thread_id"]
        made: dict = await eve.crons.create("chat", schedule=DAILY, input=HELLO, on_run_completed="keep")  # type: ignore[assignment]
        with pytest.raises(NotFoundError):
            await adam.crons.create_for_thread(thread, "chat", schedule=DAILY)
        await eve.crons.create_for_thread(thread, "chat", schedule=DAILY, input=HELLO)
        assert (await eve.crons.count(), await adam.crons.count(), await adam.crons.search()) == (2, 0, [])
        for call in (adam.crons.delete(made["cron_id"]), adam.crons.update(made["cron_id"], enabled=False)):
            with pytest.raises(NotFoundError):
                await call
        assert made["user_id"] == "eve"
        assert "langgraph_auth_user" not in str(await eve.crons.search())
        Queue(connection, schema).execute("UPDATE {}.schedules SET next_at = date_trunc('second', now())")
        found = await _threads(eve, 2)
        assert {one["metadata"]["owner"] for one in found} == {"eve"}
        assert await adam.threads.search() == []


async def _threads(client: LangGraphClient, number: int) -> list[Thread]:
    """Wait until a user has some threads that have run."""
    async with asyncio.timeout(60):
        while True:
            found = await client.threads.search(status="idle", metadata={"graph_id": "chat"})
            if len(found) == number and all(one["values"] for one in found):
                return found
            await asyncio.sleep(0.1)


async def test_a_cron_of_a_lone_surrogate_is_refused(server: AgentServer) -> None:
    """Guard: pydantic cannot write it as JSON."""
    body = {"assistant_id": "chat", "schedule": "0 0 1 1 *"}
    async with http(server, {"content-type": "application/json"}) as client:
        made = await client.post("/runs/crons", content=json.dumps(body))
        context = {"context": {"a": {"\ud800": 1}}}
        for refused in (
            await client.post("/runs/crons", content=json.dumps({**body, **context})),
            await client.patch(f"/runs/crons/{made.json()['cron_id']}", content=json.dumps(context)),
        ):
            assert (refused.status_code, "surrogates" in refused.text) == (422, True)
