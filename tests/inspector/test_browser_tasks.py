"""Tasks of persons in a browser, and the clicks that they take from the start of the pages."""

from __future__ import annotations

from typing import Any

import pytest
from support.pages import travel
from support.record import Record

from .test_browser_runs import CHROMIUM, browsing, open_page

pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]


async def clicks(page: Any, *selectors: str) -> int:
    """Click one after the other, and return the number of clicks."""
    for selector in selectors:
        await page.click(selector)
    return len(selectors)


async def test_tasks_take_few_clicks(dsn: str, schema: str, record: Record) -> None:
    async with browsing(dsn, schema, record) as (url, browser, state):
        page, complaints = await open_page(browser, url)
        # Fork before a failure, and run again with a changed state. The click into the field counts, too.
        await page.goto(f"{url}/ui/threads")
        count = await clicks(page, "nav >> text=Runs", "td.main a[href$='/failed/bad']")
        count += await clicks(page, "button:text-is('Fork before it, and edit')")
        await page.wait_for_selector("text=This is the new thread.")
        forked = page.url.partition("?")[0].split("/")[-2]
        count += await clicks(page, "input[name='number [\"count\"]']")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("5")
        count += await clicks(page, "button:text-is('Preview the change')", "button:text-is('Change and run on')")
        await page.wait_for_selector("text=The state is changed.")
        assert count <= 6
        assert page.url.partition("?")[0].endswith(f"/{forked}")
        assert forked != "failed"
        assert len((await state.runs.list(thread_id=forked)).items) == 1

        # Answer an interrupt.
        for thread_id in ("asks", "asks-too", "asks-also"):
            await travel(state, thread_id)
        await page.set_viewport_size({"width": 1280, "height": 400})
        await page.goto(f"{url}/ui/threads")
        count = await clicks(page, "nav >> text=Interrupts")
        form = page.locator("#thread-asks form.written")
        await form.locator("textarea[name=answer]").fill("yes")
        await form.locator("button").click()
        await page.wait_for_selector(".notice")
        # The page is at the next question, and what was done stays in sight.
        place = "const {top, bottom} = document.querySelector('.notice').getBoundingClientRect();"
        assert await page.evaluate(f"() => {{ {place} return scrollY > 0 && top >= 0 && bottom <= innerHeight }}")
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert count + 1 == 2
        assert [one.answered_by for one in await state.interrupts.answers("asks")] == ["Eve"]

        # Why a user cost that much: her most expensive run, with its spans.
        record.run("dear", 0, 100, user_id="Ada", agent="trip", cost=70)
        record.connection.execute(f"UPDATE {record.schema}.runs SET started_at = now() WHERE run_id = 'dear'")
        await page.goto(f"{url}/ui/threads")
        count = await clicks(page, "nav >> text=Cost", "tr:has-text('Ada') td.number a")
        count += await clicks(page, "td.main a.id >> nth=0")
        await page.wait_for_selector("h2:text-is('Spans')")
        assert page.url.endswith("/runs/t/dear")
        assert count == 3
        assert complaints == []
