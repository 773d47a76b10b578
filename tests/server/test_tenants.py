"""Tenants of the server: each user reaches the rows of one, in every operation and page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.store.memory import InMemoryStore
from langgraph_sdk import Auth
from support.http import HELLO, chat, http, sdk
from support.tenants import Walled, open_walled

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.errors import TenantError
from langgraph_pgstate.server import create_app
from langgraph_pgstate.server.tenants import TenantParts, request_of

THREAD, OTHER = "7a5f2d0e-0000-4000-8000-000000000001", "7a5f2d0e-0000-4000-8000-000000000002"


@pytest.fixture(scope="module")
def walled(dsn: str) -> Iterator[Walled]:
    """A schema that keeps tenants apart."""
    with open_walled(dsn) as made:
        yield made


async def refusal(call: Awaitable[Any]) -> int:
    """The status of a request that is refused."""
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await call
    return refused.value.response.status_code


def people() -> Any:
    """Two users of two tenants, and one of none."""
    users = {
        "eve": {"identity": "same", "tenant_id": "srv-eve"},
        "bob": {"identity": "same", "tenant_id": "srv-bob", "permissions": ["pages:read"]},
        "nil": {"identity": "same"},
        "star": {"identity": "same", "tenant_id": "*"},
    }
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization not in users:
            raise Auth.exceptions.HTTPException(401, "who are you?")
        return users[authorization]

    return auth


@pytest.mark.slow
async def test_the_server_takes_the_tenant_from_the_user(walled: Walled) -> None:
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=3) as state:
        app = create_app(state, {"chat": chat()}, auth=people(), worker=False, inspector=True)
        async with app.lifespan():
            eve, bob, nil, star = (sdk(app, {"authorization": name}) for name in ("eve", "bob", "nil", "star"))
            async with eve as hers, bob as his, nil as nobodys, star as everybodys:
                for client in (nobodys, everybodys):
                    assert await refusal(client.threads.create(thread_id=THREAD)) == 403
                # pragma: allowlist nextline secret
                await hers.threads.create(thread_id=THREAD, metadata={"secret": "sesame", "graph_id": "chat"})
                await hers.threads.update_state(
                    THREAD, {"messages": [{"role": "user", "content": "sesame"}]}, as_node="speak"
                )
                await hers.store.put_item(["same"], "key", {"content": "sesame"})
                run = await hers.runs.create(THREAD, "chat", input=HELLO)
                assert await his.threads.search() == []
                assert await his.threads.count() == 0
                for thread_id in (THREAD, OTHER):
                    for call in (
                        his.threads.get(thread_id),
                        his.threads.get_state(thread_id),
                        his.threads.get_history(thread_id),
                        his.threads.copy(thread_id),
                        his.threads.update(thread_id, metadata={}),
                        his.threads.delete(thread_id),
                        his.runs.get(thread_id, run["run_id"]),
                        his.runs.cancel(thread_id, run["run_id"]),
                        his.runs.create(thread_id, "chat", input=HELLO),
                    ):
                        assert await refusal(call) == 404
                assert await his.store.get_item(["same"], "key") is None
                assert (await his.store.search_items(["same"]))["items"] == []
                # Hers are as they were, and his thread of the same id is another.
                await his.threads.create(thread_id=THREAD)
                assert (await his.threads.get_state(THREAD))["values"] in ([], {})
                state_of_hers = await hers.threads.get_state(THREAD)
                assert state_of_hers["values"]["messages"][0]["content"] == "sesame"  # type: ignore[call-overload, index]
                assert (await hers.runs.get(THREAD, run["run_id"]))["status"] == "pending"
                async with http(app, {"authorization": "bob"}) as browser:
                    page = await browser.get("/ui/threads")
                    assert page.status_code == 200
                    assert "sesame" not in page.text
                    assert (await browser.get(f"/ui/threads/{THREAD}")).status_code == 200


@pytest.mark.slow
async def test_pages_show_what_is_kept_of_the_own_tenant_alone(walled: Walled, tmp_path: Path) -> None:
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=3) as state:
        hers = state.for_tenant("srv-keep")
        for thread_id in ("sesame-held", "sesame-cold", "sesame-gone"):
            await hers.threads.create(thread_id, user_id=thread_id)
        await hers.threads.hold("sesame-held", "sesame", by="sesame")
        await hers.retention.put("sesame", delete_after=timedelta(days=1000))
        assert (await hers.archive.put(["sesame-cold"], to=f"file://{tmp_path}", idle_for=timedelta(0))).threads == 1
        erasure_id = (await hers.privacy.erase(user_id="sesame-gone")).erasure_id
        app = create_app(state, {"chat": chat()}, auth=people(), worker=False, inspector=True)
        async with app.lifespan(), http(app, {"authorization": "bob"}) as browser:
            for path in ("retention", "holds", "archive", "privacy", "threads"):
                page = await browser.get(f"/ui/{path}")
                assert page.status_code == 200
                assert "sesame" not in page.text
                assert str(erasure_id) not in page.text
            for path in ("policies/sesame", "threads/sesame-cold", f"privacy/receipts/{erasure_id}"):
                assert (await browser.get(f"/ui/{path}")).status_code == 404


@pytest.mark.slow
async def test_the_server_runs_its_own_worker_for_all_tenants(walled: Walled) -> None:
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=3) as state:
        app = create_app(state, {"chat": chat()}, auth=people(), worker={"poll": 0.05})
        async with app.lifespan():
            eve, bob = (sdk(app, {"authorization": name}) for name in ("eve", "bob"))
            async with eve as hers, bob as his:
                thread = "7a5f2d0e-0000-4000-8000-000000000003"
                for client in (hers, his):
                    await client.threads.create(thread_id=thread)
                found = await hers.runs.wait(thread, "chat", input=HELLO)
                assert found["messages"]
                assert (await his.threads.get_state(thread))["values"] in ([], {})
                assert await his.runs.list(thread) == []
                streamed = [part.event async for part in his.runs.stream(thread, "chat", input=HELLO)]
                assert "values" in streamed
                assert len(await hers.runs.list(thread)) == 1


def crowd() -> Any:
    """A user of a tenant for each name."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "same", "tenant_id": authorization}

    return auth


@pytest.mark.slow
async def test_parts_of_many_tenants_are_closed_but_for_the_last_and_those_in_use(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TenantParts.__init__, "__defaults__", (3,))
    opened: list[AsyncPGState] = []
    closed: list[AsyncPGState] = []
    over, close = AsyncPGState.over.__func__, AsyncPGState.close  # type: ignore[attr-defined]

    def counted_over(cls: Any, *arguments: Any) -> Any:
        opened.append(over(cls, *arguments))
        return opened[-1]

    async def counted_close(self: AsyncPGState) -> None:
        await close(self)
        closed.append(self)

    monkeypatch.setattr(AsyncPGState, "over", classmethod(counted_over))
    monkeypatch.setattr(AsyncPGState, "close", counted_close)
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=3) as state:
        opened.clear()
        app = create_app(state, {"chat": chat()}, auth=crowd(), worker=False)
        async with app.lifespan(), http(app) as client:
            before = len(asyncio.all_tasks())

            async def serve(number: int) -> None:
                headers = {"authorization": f"many{number}"}
                body = {"thread_id": THREAD, "if_exists": "do_nothing", "metadata": {"of": number}}
                assert (await client.post("/threads", json=body, headers=headers)).status_code == 200
                found = (await client.post("/threads/search", json={}, headers=headers)).json()
                assert [one["metadata"]["of"] for one in found] == [number]

            async def wait(number: int) -> None:
                headers = {"authorization": f"many{number}"}
                run = await client.post(
                    f"/threads/{THREAD}/runs", json={"assistant_id": "chat", "input": HELLO}, headers=headers
                )
                await client.get(f"/threads/{THREAD}/runs/{run.json()['run_id']}/join", headers=headers)

            await serve(0)
            waiting = asyncio.create_task(wait(0))
            await asyncio.sleep(0.3)
            for _ in range(2):
                for number in range(1, 12):
                    await serve(number)
                await asyncio.gather(*(serve(number) for number in range(1, 12)))
            parts = app.service.tenants._parts  # type: ignore[union-attr]
            assert len(parts) == 3
            # The one that a request uses, however long ago it came.
            assert parts["many0"].users == 1
            waiting.cancel()
            await asyncio.wait([waiting])
            assert {part.users for part in parts.values()} == {0}
            for number in range(1, 4):
                await serve(number)
            assert set(parts) == {"many1", "many2", "many3"}
            for _ in range(200):
                if len(opened) - len(closed) == 3:
                    break
                await asyncio.sleep(0.05)
            assert len(opened) - len(closed) == 3
            assert len(asyncio.all_tasks()) <= before + 3 * 2
        assert len(opened) == len(closed) > 20


class Closable:
    """Parts whose closing waits for an event, and fails for tenant `bad`."""

    def __init__(self, most: int) -> None:
        self.may_close = asyncio.Event()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.parts: TenantParts[str] = TenantParts(self._open, most)

    def _open(self, tenant: str, stack: AsyncExitStack) -> str:
        self.opened.append(tenant)
        stack.push_async_callback(self._close, tenant)
        if tenant == "unusable":
            raise ValueError(tenant)
        return tenant

    async def _close(self, tenant: str) -> None:
        await self.may_close.wait()
        self.closed.append(tenant)
        if tenant == "bad":
            raise OSError(tenant)

    def use(self, *tenants: str) -> None:
        """Take the part of each tenant in a request of its own."""
        for tenant in tenants:
            scope: dict[str, Any] = {}
            with request_of(scope):
                assert self.parts.take(tenant, scope) == tenant


async def test_parts_are_closed_once_however_the_server_ends() -> None:
    made = Closable(most=2)
    # `a` is being closed when it is taken again; `bad` then is the least recently used.
    made.use("a", "bad", "c", "a")
    assert list(made.parts._parts) == ["c", "a"]
    with pytest.raises(ValueError, match="unusable"):
        made.use("unusable")
    closing = asyncio.create_task(made.parts.close())
    for _ in range(3):
        await asyncio.sleep(0)
        closing.cancel()
    made.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert sorted(made.closed) == sorted(made.opened) == ["a", "a", "bad", "c", "unusable"]


async def test_a_part_that_a_request_takes_after_the_end_is_closed_with_the_request() -> None:
    made = Closable(most=2)
    made.may_close.set()
    await made.parts.close()
    made.use("late")
    for _ in range(10):
        await asyncio.sleep(0)
    assert made.closed == ["late"]


async def test_the_server_refuses_what_tenants_would_share(walled: Walled) -> None:
    async with AsyncPGState.open(walled.app, schema=walled.schema) as state:
        for options, reason in (
            ({"worker": False}, "auth must be given"),
            ({"worker": False, "auth": people(), "store": InMemoryStore()}, "store must not be given"),
        ):
            app = create_app(state, {"chat": chat()}, **options)  # type: ignore[arg-type]
            with pytest.raises(TenantError, match=reason):
                async with app.lifespan():
                    pass
