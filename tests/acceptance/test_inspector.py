"""The inspector in a real browser: every screen and action, by mouse and by keys, without an error of the console."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_sdk import Auth
from support.http import listening
from support.pages import HOSTILE, inspected, state_of, travel
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.inspector.page import segment
from langgraph_pgstate.inspector.thread import VIEWS
from langgraph_pgstate.runs import tending
from langgraph_pgstate.schema.queries import queries

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [pytest.mark.once, pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")]
async_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")


class Screen:
    """A page of the browser, whose errors are collected.

    Args:
        page: The page.
        url: Address of the pages.
        state: The state of the server.
    """

    def __init__(self, page: Any, url: str, state: AsyncPGState) -> None:
        self.page, self.url, self.state = page, url, state
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))

    async def open(self, path: str) -> None:
        """Open a page."""
        response = await self.page.goto(f"{self.url}{path}")
        assert response.status == 200, path

    async def is_too_wide(self) -> bool:
        """Whether the page is wider than the window."""
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """A browser."""
    async with async_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def screen(dsn: str, schema: str) -> AsyncIterator[Screen]:
    """A browser on a server with a worker. At the end there must have been no error."""
    async with inspected(dsn, schema, worker=True) as (server, _), listening(server) as url, chromium() as browser:
        screen = Screen(await browser.new_page(), f"{url}/ui", state_of(server))
        yield screen
    assert screen.errors == []


def paths(thread_id: str) -> list[str]:
    """All screens."""
    thread = f"/threads/{segment(thread_id)}"
    views = [f"{thread}?view={view}" for view in VIEWS]
    kept = ["/threads?hold=1", "/retention", "/retention/new", "/holds", "/archive", "/privacy"]
    return ["/threads", "/threads?user=nobody", *kept, *views, f"{thread}/delete", "/person"]


@pytest.mark.slow
async def test_every_screen_fits_every_window_in_light_and_dark(screen: Screen) -> None:
    ids = await travel(screen.state, title="A weekend with a very long title " * 5, user_id="u" * 200)
    for width, scheme in ((320, "dark"), (900, "light"), (3840, "dark")):
        await screen.page.set_viewport_size({"width": width, "height": 800})
        await screen.page.emulate_media(color_scheme=scheme)
        for path in [*paths("t"), f"/threads/t/edit?at={ids[0]}"]:
            await screen.open(path)
            assert not await screen.is_too_wide(), (path, width)


@pytest.mark.slow
async def test_script_that_is_planted_everywhere_does_not_run(screen: Screen) -> None:
    names: Any = dict.fromkeys(("user_id", "tenant_id", "title"), HOSTILE)
    ids = await travel(screen.state, HOSTILE, metadata={HOSTILE: HOSTILE, "graph_id": "trip"}, **names)
    await screen.state.threads.label({"configurable": {"thread_id": HOSTILE}}, HOSTILE)
    await screen.state.events.add(HOSTILE, HOSTILE, {HOSTILE: HOSTILE, "by": HOSTILE})
    for path in [*paths(HOSTILE), f"/threads/{segment(HOSTILE)}/edit?at={ids[0]}", f"/threads?q={segment(HOSTILE)}"]:
        await screen.open(path)
        assert await screen.page.locator("img").count() == 0
        assert await screen.page.evaluate("document.querySelectorAll('script:not([src])').length") == 0


@pytest.mark.slow
async def test_a_person_forks_labels_edits_and_deletes_by_mouse(screen: Screen) -> None:
    page = screen.page
    await travel(screen.state)
    await screen.open("/threads")
    await page.click("td.main a")
    await page.click("text=Say who you are to act")
    await page.fill("input[name=name]", "Eve")
    await page.click("button:text-is('Keep')")
    await page.wait_for_url(re.compile(r"/threads/t(\?.*)?$"))
    await page.click(".tree >> text=tools")
    await page.click("summary:text-is('Label')")
    await page.fill("input[name=label]", "before booking")
    await page.click("button:text-is('Set')")
    await page.wait_for_selector(".tag.label:text-is('before booking')")
    await page.click("summary:text-is('Fork')")
    await page.fill("input[name=to]", "forked")
    await page.click("button:text-is('Fork and run')")
    await page.wait_for_url(re.compile(r"/threads/forked(\?.*)?$"))
    await page.click("a:text-is('Edit')")
    await page.click("#unset summary")
    await page.fill("[name='any [\"booking\"]']", json.dumps({"hotel": "Astoria"}))
    await page.select_option("select[name=as_node]", "approve")
    await page.click("button:text-is('Preview the change')")
    await page.click("button:text-is('Change')")
    await page.wait_for_selector("text=The state is changed.")
    await page.click(".tabs >> text=State")
    await page.wait_for_selector("text=Astoria")
    await page.click("a:text-is('Delete')")
    await page.click("text=Delete the thread")
    await page.wait_for_selector("text=The thread is deleted.")
    assert await screen.state.threads.get("forked") is None
    (event, *_) = (await screen.state.events.list("t", kind="action")).items
    assert event.payload["by"] == "Eve"


@pytest.mark.slow
async def test_keys_alone_reach_a_fork_that_runs(screen: Screen) -> None:
    page = screen.page
    await travel(screen.state)
    await screen.state.threads.create("other")
    await screen.open("/person")
    await page.keyboard.type("Eve")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/threads(\?.*)?$"))
    await page.keyboard.press("?")
    assert "Next row" in await page.inner_text("dialog[open]")
    await page.keyboard.press("Escape")
    for key in ("j", "j", "k", "j"):
        await page.keyboard.press(key)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/threads/t")
    await page.keyboard.press("b")
    await page.wait_for_url("**at=*")
    await page.keyboard.press("f")
    await page.keyboard.type("forked")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/threads/forked*")
    await page.keyboard.press("5")
    await page.wait_for_url("**view=events*")
    assert "Eve" in await page.inner_text("table")
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await page.wait_for_url("**/threads")
    await page.keyboard.press("/")
    await page.keyboard.type("lisbon")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/threads?q=lisbon")
    assert await page.locator("tr[data-row]").count() == 2


@pytest.mark.slow
async def test_an_open_page_shows_what_is_new_and_does_not_disturb(screen: Screen) -> None:
    page = screen.page
    await screen.state.threads.create("first")
    await screen.open("/threads")
    await page.focus("td.main a")
    await screen.state.threads.create("second")
    await page.wait_for_selector("text=1 new, show")
    assert await page.evaluate("document.activeElement.closest('td.main') !== null")
    await page.keyboard.press(".")
    await page.wait_for_selector("td >> text=second")
    await page.keyboard.press("l")
    assert await page.inner_text(".live") == "Not live: paused"
    assert await page.get_attribute(".live", "aria-pressed") == "false"


@pytest.mark.slow
async def test_an_open_page_keeps_its_head_true(screen: Screen) -> None:
    page, state = screen.page, screen.state
    await state.threads.create("idle", title="Before")
    await screen.open("/threads/idle?notice=thread.label")
    assert "notice" not in page.url
    await state.threads.set_title("idle", "After")
    await page.wait_for_selector("h1 >> text=After")
    assert (await page.title()).startswith("After")
    await state.runs.enqueue("trip", {"messages": []}, thread_id="t", run_id="r", queue="of nobody")
    await screen.open("/runs/t/r")
    assert await page.locator(".head .status").inner_text() == "pending"
    await state.runs.cancel("t", "r", by="Eve")
    await page.wait_for_selector(".head .status.cancelled")
    await page.wait_for_selector(".live", state="hidden")


@pytest.mark.slow
async def test_pages_are_read_without_scripts(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, _), listening(server) as url, chromium() as browser:
        await travel(state_of(server))
        page = await (await browser.new_context(java_script_enabled=False)).new_page()
        for path in paths("t"):
            await page.goto(f"{url}/ui{path}")
            assert await page.locator(".scripted:visible").count() == 0
        await page.goto(f"{url}/ui/threads")
        await page.click("td.main a")
        await page.click(".tree >> text=plan")
        assert "at=" in page.url


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    try:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
        subprocess.run(command, check=True, timeout=60, capture_output=True)
    except (subprocess.SubprocessError, OSError):
        pytest.skip("axe-core cannot be fetched from npm")
    return (Path(folder) / "node_modules/axe-core/axe.min.js").read_text()


def approval() -> Any:
    """A graph that asks about two calls of LangChain's middleware at once, or about one."""

    def ask(state: MessagesState) -> dict[str, Any]:
        calls = [
            {
                "name": "send_email",
                "args": {"to": "eve@example.com", "copies": 2, "draft": True},
                "description": "**Send**",
            },
            {"name": "pay", "args": {"amount": 180.5, "lines": [{"sku": "a"}]}, "description": ""},
        ][: 1 + len(state["messages"])]
        allowed = {"allowed_decisions": ["approve", "edit", "respond", "reject"]}
        interrupt({"action_requests": calls, "review_configs": [allowed] * len(calls)})
        return {}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def works_of_all_kinds(state: AsyncPGState, record: Record) -> list[str]:
    """The screens of a run, a span, a dead letter, a failed webhook, an unknown effect, approvals and a worker."""
    (run,) = (await state.runs.list(thread_id="t")).items
    spans = (await state.spans.timeline("t", run.run_id)).spans
    graph = approval().copy({"checkpointer": state.saver})
    for thread_id, messages in (("one", []), ("two", [("user", "Pay.")])):
        await state.threads.create(thread_id, agent="mail")
        await graph.ainvoke({"messages": messages}, {"configurable": {"thread_id": thread_id}})
    await state.runs.enqueue("trip", {"messages": []}, thread_id="dead", run_id="dead", queue="of nobody")
    await state.runs.cancel("dead", "dead")
    record.connection.execute(
        f"UPDATE {record.schema}.runs SET status = 'error', error_type = 'builtins.ValueError', error_message = 'no' "
        "WHERE run_id = 'dead'"
    )
    await state.runs.enqueue("trip", {"messages": []}, thread_id="waits", run_id="waits", queue="of nobody")
    await state.runs.limit("of nobody", key="*", concurrency=0)
    await state._database.run(tending.put_worker, queries(state.schema), "host/1", ["default"], ["trip"], 5)
    given: dict[str, Any] = {"thread_id": "dead", "run_id": "dead", "run": {}, "deliver_after": None, "attempts": 9}
    record.add("webhooks", **given, url="https://a.example/hook", last_error="503 Service Unavailable")
    record.execution("k", status="unknown", run_id=run.run_id, arguments={"card": 1})
    for city in ("Prague", "Vienna"):
        await state.memory.remember(f"Lives in {city}.", key="home", user_id="eve", thread_id="t", message_id="human")
        await state.files.write(("ada",), "/plan.md", f"# Move\n\n* to {city}\n")
    await (await state.memory.notes("move", user_id="eve")).save(goal="Move", completed=["Found a flat"])
    return [
        f"/runs/t/{run.run_id}",
        *(f"/runs/t/{run.run_id}?span={span.span_id}" for span in spans[-1:]),
        "/runs/dead/dead",
        "/runs/waits/waits",
        "/queue?show=dead",
        "/queue?show=webhooks",
        "/tools/t/k",
        "/interrupts?thread=one",
        "/interrupts?thread=two",
        "/memory?user=eve",
        "/memory?thread=t",
        "/memory/memories~2Fuser~2Feve/home?a=1&b=2",
        "/memory/notes~2Fuser~2Feve/move",
        "/files?namespace=ada",
        "/files/ada/~2Fplan.md",
        "/files/ada/~2Fplan.md?a=1&b=2",
    ]


@pytest.mark.slow
async def test_axe_finds_nothing_serious(screen: Screen, axe: str, record: Record) -> None:
    ids = await travel(screen.state, title="A weekend")
    works = await works_of_all_kinds(screen.state, record)
    await screen.state.threads.hold("t", "case 7", by="Adam")
    await screen.state.retention.put("chats", delete_after=timedelta(days=30))
    works += ["/policies/chats?dry_run=1"]
    edit = {"action": "edit", "by": "Eve", "edited": ids[1], "channels": ["messages"]}
    await screen.state.events.add("t", "action", edit, checkpoint_id=ids[0])
    await screen.open("/person")
    await screen.page.fill("input[name=name]", "Eve")
    await screen.page.keyboard.press("Enter")
    await screen.page.wait_for_url(re.compile(r"/threads(\?.*)?$"))
    found = []
    lists = [
        f"/{name}" for name in ("runs", "interrupts", "tools", "queue", "queue?show=schedules", "costs", "database")
    ]
    lists += ["/memory", "/files"]
    gone = ("/interrupts#gone", "/queue#gone")
    for width, scheme in ((360, "light"), (1280, "light"), (1280, "dark"), (2560, "light")):
        await screen.page.set_viewport_size({"width": width, "height": 900})
        await screen.page.emulate_media(color_scheme=scheme)
        for path in [*gone, *paths("t"), *lists, *works, f"/threads/t/edit?at={ids[0]}"]:
            await screen.open(path)
            if path in gone:
                # As a refresh shows rows that another person has dealt with.
                await screen.page.evaluate("all('[data-row]').forEach((one) => disable(one, 'Answered by Eve: yes'))")
            await screen.page.evaluate(axe)
            result = await screen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            found += [
                (path, width, scheme, one["id"], one["nodes"][0]["html"][:200])
                for one in result["violations"]
                if one["impact"] in ("serious", "critical")
            ]
    assert found == []


@pytest.mark.slow
async def test_a_viewer_sees_no_action(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "vera", "permissions": ["pages:read"]}

    async with inspected(dsn, schema, auth=auth) as (server, _), listening(server) as url, chromium() as browser:
        await travel(state_of(server))
        page = await browser.new_page()
        for path in paths("t")[:-2]:
            await page.goto(f"{url}/ui{path}")
            assert await page.locator("form[method=post]").count() == 0
        assert "vera" in await page.inner_text(".about")
