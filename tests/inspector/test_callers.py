"""What callers may see of all threads: their own in every list, and no page about all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph_sdk import Auth
from support.http import serving
from support.pages import Visitor, state_of, travel, trip, visiting
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.server import AgentServer, create_app

USERS = {"eve": ["pages:act"], "bob": ["pages:read"], "root": ["pages:act"]}


def auth() -> Auth:
    """Everybody sees threads of their own; `root` all."""
    made = Auth()

    @made.authenticate
    async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
        if authorization not in USERS:
            raise Auth.exceptions.HTTPException(401)
        return {"identity": authorization, "permissions": USERS[authorization]}  # type: ignore[typeddict-unknown-key]

    @made.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, object]) -> dict[str, str] | None:
        return None if ctx.user.identity == "root" else {"owner": ctx.user.identity}

    return made


@pytest.fixture
async def server(dsn: str, schema: str) -> AsyncIterator[AgentServer]:
    async with serving(dsn, schema, graphs={"trip": trip()}, inspector=True, worker=False, auth=auth()) as server:
        yield server


@pytest.mark.slow
async def test_a_caller_sees_and_changes_what_belongs_to_the_caller(server: AgentServer, record: Record) -> None:
    state = state_of(server)
    for owner in ("eve", "bob"):
        await travel(state, owner, metadata={"owner": owner})
        await state.runs.enqueue("trip", {"messages": []}, thread_id=owner, run_id=f"run-{owner}")
        record.execution("k", thread_id=owner, status="unknown")
        record.span("s", "llm", thread_id=owner, run_id=f"run-{owner}", model="m", cost=1)
    record.connection.execute(f"UPDATE {record.schema}.spans SET started_at = now(), ended_at = now()")

    async def seen(visitor: Visitor) -> dict[str, set[str]]:
        queued = (await visitor.data("/queue"))["runs"]
        return {
            "runs": {one["thread_id"] for one in (await visitor.data("/runs"))["runs"]},
            "interrupts": {one["thread_id"] for one in (await visitor.data("/interrupts"))["threads"]},
            "tools": {one["thread_id"] for one in (await visitor.data("/tools"))["unknown"]},
            "recent": {one["thread_id"] for one in (await visitor.data("/tools", tool="pay"))["recent"]},
            "queue": {one["thread_id"] for one in queued},
        }

    for name, threads in (("eve", {"eve"}), ("bob", {"bob"}), ("root", {"eve", "bob"})):
        async with visiting(server, {"authorization": name}) as visitor:
            assert set(map(frozenset, (await seen(visitor)).values())) == {frozenset(threads)}, name
            calls = (await visitor.data("/costs"))["costs"]["total"]["calls"]
            assert calls == len(threads)
            for path in ("/database", "/queue?show=schedules"):
                status = (await visitor.client.get(f"/ui{path}")).status_code
                assert status == (200 if name == "root" else 403), (name, path)
    async with visiting(server, {"authorization": "eve"}) as eve:
        data = await eve.data("/queue")
        assert (data["counts"], data["workers"], (await eve.data("/tools"))["calls"]) == ([], [], [])
        for path in ("/runs/bob/run-bob", "/tools/bob/k"):
            assert (await eve.client.get(f"/ui{path}")).status_code == 404, path
        for path in ("/runs/bob/run-bob/cancel", "/tools/bob/k/settle", "/interrupts/bob/x/answer"):
            assert (await eve.act(path, decision="done", answer="yes", sure="1")).status_code == 404, path
        for path in ("/queue/workers/w/drain", "/queue/schedules/s/trigger", "/queue/schedules/s/pause"):
            assert (await eve.act(path, sure="1")).status_code == 403, path
    async with visiting(server, {"authorization": "bob"}) as bob:
        assert "Retry" not in await bob.page("/runs/bob/run-bob")
        assert (await bob.act("/runs/bob/run-bob/cancel", sure="1")).status_code == 403
    async with visiting(server) as nobody:
        assert (await nobody.client.get("/ui/runs")).status_code == 401


async def test_pages_of_runs_write_nothing(dsn: str, schema: str, record: Record) -> None:
    """On a standby every write is refused."""
    record.thread("t")
    record.run("r")
    record.span("s", "graph")
    record.execution("k", status="unknown")
    only_reads = f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20default_transaction_read_only%3Don"
    app = create_app(
        lambda: AsyncPGState.open(only_reads, schema=schema, recover_journal=False), {}, inspector=True, read_only=True
    )
    async with app.lifespan(), visiting(app) as visitor:
        for path in (
            *("/runs", "/runs/t/r", "/runs/t/r?span=s", "/interrupts", "/tools", "/tools/t/k", "/queue"),
            *("/queue?show=dead", "/queue?show=schedules", "/costs", "/database"),
        ):
            response = await visitor.client.get(f"/ui{path}")
            assert (response.status_code, 'method="post"' in response.text) == (200, False), path
