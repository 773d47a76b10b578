"""Open pages: nothing moves where a person may aim, what a person does stays, and the page says when it is not live."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.pages import travel

from langgraph_pgstate import AsyncPGState

from .test_browser_changes import refresh, two
from .test_browser_runs import CHROMIUM

pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]
PLACES = "[...document.querySelectorAll('#live button, #live a')].map((one) => one.getBoundingClientRect().y)"
HIDE = """(value) => {
    Object.defineProperty(document, "hidden", {value, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
IDLE = "movedAt = 0"


async def _fail(status: int, route: Any) -> None:
    await route.fulfill(status=status, body="")


async def _enqueue(state: AsyncPGState, *ids: str) -> None:
    for one in ids:
        await state.runs.enqueue("trip", {"messages": []}, thread_id=one, run_id=one, queue="of nobody")


async def test_cells_that_grow_move_no_button(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, _, adam):
        for thread_id in ("t", "u"):
            await travel(state, thread_id)
        await adam.goto("threads")
        places = await adam.evaluate(PLACES)
        await state.threads.set_title("u", "A title of many words " * 12)
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('Changed, show')")
        assert await adam.evaluate(PLACES) == places
        # What moves nothing is shown in its place.
        await adam.click("#news")
        await _enqueue(state, "t")
        await refresh(adam)
        await adam.wait_for_selector("tr[data-row='t'] .status.busy")

        # Above the view, a longer head moves nothing, either.
        await adam.goto("threads/t")
        await adam.hover(".tabs a >> nth=1")
        places = await adam.evaluate(PLACES)
        await state.threads.set_title("t", "Another title of many words " * 12)
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('Changed, show')")
        assert await adam.evaluate(PLACES) == places
        await adam.click("#news")
        await adam.wait_for_selector("h1:has-text('Another title')")


async def test_the_focus_of_a_keyboard_stays(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, _, adam):
        for thread_id in ("t", "u"):
            await state.threads.create(thread_id)
        await adam.goto("threads")
        for key in ("j", "j"):
            await adam.keyboard.press(key)
        focused = await adam.evaluate("document.activeElement.textContent")
        await state.threads.create("v")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('1 new, show')")
        assert await adam.evaluate("document.activeElement.textContent") == focused
        await adam.keyboard.press(".")
        await adam.wait_for_selector("tr[data-row='v']")
        assert await adam.evaluate("document.activeElement.textContent") == focused

        # A thread is not replaced while an element of it has the focus.
        await travel(state, "w")
        await adam.goto("threads/w")
        await adam.focus("#act-fork summary")
        await adam.evaluate(IDLE)
        await state.interrupts.answer("w", "yes", by="Eve")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('Changed, show')")
        await adam.keyboard.press(".")
        await adam.wait_for_selector("text=Answered by Eve")
        assert await adam.evaluate("document.activeElement.closest('#act-fork') !== null")


async def test_a_finger_finds_what_it_saw(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, _, adam):
        await travel(state)
        browser = adam.context.browser
        context = await browser.new_context(viewport={"width": 360, "height": 800}, has_touch=True, is_mobile=True)
        page = await context.new_page()
        await adam.goto("threads")
        await page.goto(f"{adam.url}/t")
        await page.evaluate(IDLE)
        places = await page.evaluate(PLACES)
        await state.interrupts.answer("t", "yes", by="Eve")
        await refresh(page)
        await page.wait_for_selector("#news:text-is('Changed, show')")
        assert await page.evaluate(PLACES) == places
        await page.tap("#news")
        await page.wait_for_selector("text=Answered by Eve")
        await page.evaluate("sayLive('Not live: the server does not answer')")
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


async def test_a_page_says_when_it_is_not_live(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, _, adam):
        await state.threads.create("t")
        await adam.goto("threads")
        pattern = "**/ui/threads"
        # The server is dead; its session has ended; it fails.
        await adam.route(pattern, lambda route: route.abort())
        await refresh(adam)
        await adam.wait_for_selector(".live.stopped:text-is('Not live: the server does not answer')")
        for status, text in ((401, "you are signed out. Reload the page"), (500, "the server answers 500")):
            await adam.unroute(pattern)
            await adam.route(pattern, partial(_fail, status))
            await refresh(adam)
            await adam.wait_for_selector(f".live.stopped:text-is('Not live: {text}')")
        await adam.unroute(pattern)
        await refresh(adam)
        await adam.wait_for_selector(".live:text-is('Live')")
        # The line swallows what is sent: a request is on its way, and has no answer.
        await adam.route(pattern, lambda route: None)
        await adam.evaluate("void keepFresh()")
        await adam.evaluate("answeredAt -= 15000; noticeSilence()")
        await adam.wait_for_selector(".live.stopped:text-is('Not live: the server does not answer')")
        # The computer slept, and has not asked yet.
        await adam.goto("person")
        await adam.unroute(pattern)
        await adam.goto("threads")
        await adam.evaluate("answeredAt -= 3600000; noticeSilence()")
        assert await adam.inner_text(".live") == "Not live: the server does not answer"
        await refresh(adam)
        await adam.wait_for_selector(".live:text-is('Live')")
        # The tab sleeps.
        await adam.evaluate(HIDE, True)
        await adam.wait_for_selector(".live.stopped:text-is('Not live: in the background')")
        await adam.evaluate(HIDE, False)
        await adam.wait_for_selector(".live:text-is('Live')")
