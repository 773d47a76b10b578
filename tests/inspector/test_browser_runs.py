"""The pages of runs, tools, interrupts, the queue, costs and the database in a real browser."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.http import failing, listening
from support.pages import inspected, state_of, travel, trip
from support.record import Record, at

from langgraph_pgstate import AsyncPGState

playwright = pytest.importorskip("playwright.async_api")

CHROMIUM = Path(os.environ.get("PGSTATE_TEST_CHROMIUM", "/usr/bin/chromium"))
pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]
SCREENS = (
    *("/runs", "/runs/failed/bad", "/runs/t/wide?span=s7", "/interrupts", "/tools", "/tools/t/k1", "/queue"),
    *("/queue?show=dead", "/queue?show=schedules", "/costs", "/database"),
)


async def furnish(state: AsyncPGState, record: Record) -> None:
    """Something for each screen."""
    await travel(state, "t")
    await state.threads.set_title("t", "A trip")
    await state.runs.enqueue(
        "failing", {"count": 1}, thread_id="failed", run_id="bad", metadata={"graph_id": "failing"}
    )
    await state.threads.update_metadata("failed", {"graph_id": "failing"})
    await state.schedules.put("nightly", "trip", {"messages": []}, cron="0 3 * * *")
    record.execution("k1", status="unknown", tool="pay", arguments={"amount": 180})
    record.span("call", "tool", name="pay", status="error", error_type="TimeoutError", run_id="tools")
    for table in ("tool_executions", "spans"):
        record.connection.execute(
            f"UPDATE {record.schema}.{table} SET started_at = now(), ended_at = now() + interval '12.5 s'"
        )
    record.run("wide", 0, 100)
    for number in range(200):
        record.span(f"s{number}", "node" if number else "graph", number, parent_span_id="s0" if number else None)
        record.connection.execute(
            f"UPDATE {record.schema}.spans SET run_id = 'wide', input = '\"x\"' WHERE span_id = %s", [f"s{number}"]
        )
    record.add(
        "spans",
        **{"thread_id": "t", "run_id": "wide", "span_id": "m", "kind": "llm", "name": "m", "model": "gpt", "cost": 1},
        **{"started_at": at(0), "status": "success", "semconv_version": "1"},
    )
    record.connection.execute(f"UPDATE {record.schema}.spans SET started_at = now() WHERE span_id = 'm'")


@asynccontextmanager
async def browsing(dsn: str, schema: str, record: Record) -> AsyncIterator[tuple[str, Any, AsyncPGState]]:
    """The address of a server with a worker, a browser, and the server's state."""
    graphs = {"trip": trip(), "failing": failing()}
    async with inspected(dsn, schema, graphs=graphs, worker={"concurrency": 2}) as (server, _):
        state = state_of(server)
        await furnish(state, record)
        with pytest.raises(Exception, match="no such hotel"):
            await state.runs.wait("failed", "bad", 60)
        async with listening(server) as url, playwright.async_playwright() as started:
            browser = await started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
            try:
                yield url, browser, state
            finally:
                await browser.close()


async def open_page(browser: Any, url: str, width: int = 1440, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page of a visitor whose name is known, and what its console complains of."""
    context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    await context.add_cookies([{"name": "pgstate_person", "value": "Eve", "url": url}])
    page = await context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, complaints


@pytest.mark.slow
async def test_screens_fit_and_people_act(dsn: str, schema: str, record: Record) -> None:
    async with browsing(dsn, schema, record) as (url, browser, state):
        for width, scheme in ((320, "light"), (1440, "dark")):
            page, complaints = await open_page(browser, url, width, scheme)
            for screen in SCREENS:
                response = await page.goto(f"{url}/ui{screen}")
                assert response.status == 200, screen
                overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert overflow <= 0, (screen, width)
            assert complaints == []

        # Statistics of tools fit a phone; other tables scroll in their own box.
        page, _ = await open_page(browser, url, 360)
        await page.goto(f"{url}/ui/tools")
        widths = "[...document.querySelectorAll('.table')].map((one) => one.scrollWidth - one.clientWidth)"
        assert await page.evaluate(widths) == [0, 0, 0, 0]

        page, complaints = await open_page(browser, url)
        # From a failed run to the checkpoint before it, forked and run again: four clicks.
        await page.goto(f"{url}/ui/runs?status=failed")
        await page.click("tbody a.id")
        await page.click("text=Checkpoint before the failure")
        await page.click("#act-fork summary")
        await page.click("text=Fork and run")
        await page.wait_for_selector("text=This is the new thread.")
        forked = page.url.partition("?")[0].rpartition("/")[2]
        assert (await state.runs.list(thread_id=forked)).items

        # The same by keys.
        await page.goto(f"{url}/ui/threads")
        for key in ("g", "r"):
            await page.keyboard.press(key)
        await page.wait_for_url("**/ui/runs")
        await page.goto(f"{url}/ui/runs?status=failed&user=")
        for key in ("j", "Enter"):
            await page.keyboard.press(key)
        await page.wait_for_selector("text=Checkpoint before the failure")
        await page.keyboard.press("b")
        await page.wait_for_selector("#act-fork")
        for key in ("f", "Tab", "Enter"):
            await page.keyboard.press(key)
        await page.wait_for_selector("text=This is the new thread.")

        await page.goto(f"{url}/ui/interrupts")
        await page.fill("textarea[name=answer]", "yes")
        await page.click("button:text-is('Answer')")
        await page.wait_for_selector("text=Answered just now by Eve: yes")
        assert [one.answered_by for one in await state.interrupts.answers("t")] == ["Eve"]

        await page.goto(f"{url}/ui/tools")
        await page.click("tbody a >> nth=0")
        await page.check("input[value=done]")
        await page.click("button:has-text('Settle')")
        await page.wait_for_selector("text=The outcome is settled.")

        await page.goto(f"{url}/ui/queue?show=schedules")
        await page.click("button:has-text('Pause')")
        await page.wait_for_selector("text=The schedule is paused.")
        await page.click("button:has-text('Run now')")
        await page.wait_for_selector("text=A run is enqueued.")

        await page.goto(f"{url}/ui/queue?show=dead")
        await page.click("button:has-text('Discard')")
        await page.click("button:text-is('Discard the run')")
        await page.wait_for_selector("text=The run is no dead letter any more.")
        assert complaints == []

        # Without scripts pages can be read.
        plain = await (await browser.new_context(java_script_enabled=False)).new_page()
        await plain.goto(f"{url}/ui/runs/t/wide")
        await plain.click("text=Next")
        assert "151–201 of 201 spans" in await plain.inner_text("main")
