"""Pages in a real browser, as somebody reads them: exact times, keys that are switched off."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from support.http import listening
from support.pages import inspected, state_of, travel
from support.record import Record

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.runs import tending
from langgraph_pgstate.schema.queries import queries

from .test_browser_runs import CHROMIUM

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]
EXACT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \+05:30 · \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC")


@asynccontextmanager
async def reading(dsn: str, schema: str) -> AsyncIterator[Any]:
    """A page of a browser with a touch screen, in India, and a thread to read."""
    async with (
        inspected(dsn, schema) as (server, _),
        listening(server) as url,
        playwright.async_playwright() as started,
    ):
        await travel(state_of(server))
        browser = await started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            window: Any = {"viewport": {"width": 360, "height": 700}, "has_touch": True, "timezone_id": "Asia/Kolkata"}
            context = await browser.new_context(base_url=f"{url}/ui/", **window)
            await context.add_cookies([{"name": "pgstate_person", "value": "Eve", "url": url}])
            await context.grant_permissions(["clipboard-read", "clipboard-write"])
            yield await context.new_page()
        finally:
            await browser.close()


async def test_times_are_exact_on_hover_on_touch_and_in_copies(dsn: str, schema: str) -> None:
    async with reading(dsn, schema) as page:
        await page.goto("threads")
        time = page.locator("tbody time").last
        title = await time.get_attribute("title")
        assert EXACT.fullmatch(title)
        # A refresh of the open page finds nothing new in it.
        await page.evaluate("keepFresh()")
        assert await page.locator("#news").is_hidden()

        await time.tap()
        assert await page.inner_text(".told") == title
        box = await page.locator(".told").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        await page.locator("h1").tap()
        assert await page.locator(".told").count() == 0

        await page.evaluate("getSelection().selectAllChildren(document.querySelector('tbody tr'))")
        await page.keyboard.press("Control+c")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert f"({title})" in copied
        assert "idle" in copied or "interrupted" in copied
        assert title not in await page.inner_text("tbody")


async def test_keys_can_be_switched_off(dsn: str, schema: str) -> None:
    async with reading(dsn, schema) as page:
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto("threads/t")
        await page.keyboard.press("2")
        await page.wait_for_url("**view=state*")
        await page.keyboard.press("?")
        await page.uncheck("#keys-on")
        await page.click("dialog button")
        for key in ("3", "j", "?"):
            await page.keyboard.press(key)
        assert "view=state" in page.url
        assert not await page.locator("dialog[open]").count()
        assert not await page.evaluate("Boolean(document.activeElement.closest('[data-row]'))")
        # On all pages, until they are switched on again.
        await page.goto("runs")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        assert page.url.endswith("/runs")
        await page.click("button:has-text('Keys')")
        await page.check("#keys-on")
        await page.click("dialog button")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/threads")


async def test_words_are_whole_and_no_table_is_cut(dsn: str, schema: str, record: Record) -> None:
    given: dict[str, Any] = {"thread_id": "t", "run_id": "r", "run": {}, "deliver_after": None, "attempts": 9}
    record.add("webhooks", **given, url="https://hooks.example.com/agents/production/runs/ended", last_error="503")
    async with reading(dsn, schema) as page, AsyncPGState.open(dsn, schema=schema) as state:
        worker = "ip-10-0-12-34.eu-central-1.compute.internal/4711/018f2c7a9b3e"
        await state._database.run(tending.put_worker, queries(schema), worker, ["default"], ["trip"], 5)
        name = "customer-support-production-018f2c7a-9b3e-7c4d-8f21-a1b2c3d4e5f6"
        await state.runs.enqueue("classification", {"messages": []}, thread_id=name, key="subsidiaries")
        cut = "[...document.querySelectorAll('.table')].filter(one => one.scrollWidth > one.clientWidth).length"
        for path in ("queue", "queue?show=webhooks", "runs", "threads"):
            await page.set_viewport_size({"width": 360, "height": 900})
            await page.goto(path)
            assert await page.evaluate(cut) == 0, path
            await page.set_viewport_size({"width": 1280, "height": 900})
            assert await page.evaluate(cut) == 0, path
            for word in ("classification", "subsidiaries"):
                lines = "all => all.map(one => one.getClientRects().length)"
                found = await page.locator(f"td bdi:text-is('{word}')").evaluate_all(lines)
                assert set(found) <= {1}, (path, word)


async def test_a_decision_shows_what_it_needs(dsn: str, schema: str) -> None:
    calls = [{"name": name, "args": {"to": "eve"}, "description": ""} for name in ("mail", "pay")]
    allowed = {"allowed_decisions": ["approve", "edit", "respond", "reject"]}

    def ask(state: MessagesState) -> dict[str, Any]:
        interrupt({"action_requests": calls, "review_configs": [allowed, allowed]})
        return {}

    async with reading(dsn, schema) as page, AsyncPGState.open(dsn, schema=schema) as state:
        await state.threads.create("mail", agent="mail")
        graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=state.saver)
        await graph.ainvoke({"messages": []}, {"configurable": {"thread_id": "mail"}})
        await page.goto("interrupts?thread=mail")
        needs = {"approve": [], "edit": ["argument-1-0"], "respond": ["respond-1"], "reject": ["reject-1"]}
        for decision, names in needs.items():
            await page.check(f"input[name=decision-1][value={decision}]")
            for name in ("argument-1-0", "respond-1", "reject-1"):
                assert await page.locator(f"textarea[name={name}]").is_visible() == (name in names), (decision, name)
            assert not await page.locator("textarea[name=reject-0]").is_visible()


async def test_a_narrow_window_has_the_state_in_its_first_half(dsn: str, schema: str) -> None:
    async with reading(dsn, schema) as page:
        await page.goto("threads/t?view=state")
        tops = "document.querySelector('{}').getBoundingClientRect().top + scrollY"
        # The question that waits comes first.
        assert await page.evaluate(tops.format(".card.waits")) < 350
        rows = page.locator(".drawn li")
        assert not await rows.first.is_visible()
        await page.tap("label.fold bdi:text-is('Checkpoints')")
        assert await rows.first.is_visible()
        await rows.nth(1).locator("a").tap()
        await page.wait_for_url("**at=*")
        assert await page.evaluate(tops.format(".cards")) < 350
        # By keys, too; and in a window that has room, nothing is folded.
        await page.focus("#unfold-tree")
        await page.keyboard.press("Space")
        assert await rows.first.is_visible()
        await page.keyboard.press("Space")
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert await rows.first.is_visible()
        assert not await page.locator("label.fold").is_visible()


async def test_a_phone_shows_the_list_first_and_the_filters_on_demand(dsn: str, schema: str, record: Record) -> None:
    record.run("cheap", 0, user_id="eve", cost=1)
    record.span("call", "llm", run_id="cheap", model="gpt", cost=1)
    async with reading(dsn, schema) as page:
        for path, label in (("runs", "Filter"), ("runs?user=eve&by=cost", "Filter: eve, cost"), ("threads", "Filter")):
            await page.goto(path)
            top = "document.querySelector('#live tbody tr').getBoundingClientRect().top"
            assert await page.evaluate(top) < 260, path
            assert not await page.locator("input[name=user]").is_visible()
            await page.tap(f"label.fold bdi:text-is('{label}')")
            assert await page.locator("input[name=user]").is_visible()
        await page.goto("runs?user=eve&by=cost")
        await page.tap("label.fold bdi:text-is('Sums: 1.00')")
        assert "gpt" in await page.inner_text(".sums")
        cut = "[...document.querySelectorAll('.table')].filter(one => one.scrollWidth > one.clientWidth).length"
        assert await page.evaluate(cut) == 0
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert await page.locator("input[name=user]").is_visible()
        assert await page.locator(".sums").is_visible()
