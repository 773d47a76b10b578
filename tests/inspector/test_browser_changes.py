"""Two persons in two browsers: on the same row, on what the other has changed, on old pages, on lists that grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from support.http import failing, listening
from support.pages import inspected, state_of, travel, trip
from support.record import Record

from langgraph_pgstate import AsyncPGState, AsyncWorker
from langgraph_pgstate.errors import RunFailedError

from .test_browser_runs import CHROMIUM

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]


@asynccontextmanager
async def two(dsn: str, schema: str) -> AsyncIterator[tuple[AsyncPGState, Any, Any]]:
    """The state of a server, and a page in the browser of each of Eve and Adam."""
    graphs = {"trip": trip(), "failing": failing()}
    async with (
        inspected(dsn, schema, graphs=graphs) as (server, _),
        listening(server) as url,
        playwright.async_playwright() as started,
    ):
        browser = await started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            pages = []
            for name in ("Eve", "Adam"):
                context = await browser.new_context(viewport={"width": 1440, "height": 900}, base_url=f"{url}/ui/")
                await context.add_cookies([{"name": "pgstate_person", "value": name, "url": url}])
                pages.append(await context.new_page())
            yield state_of(server), *pages
        finally:
            await browser.close()


async def refresh(page: Any) -> None:
    """Let an open page ask the server, as it does every few seconds."""
    await page.evaluate("keepFresh()")


async def fail(state: AsyncPGState, *run_ids: str) -> None:
    """Runs that fail for good."""
    runs = [await state.runs.enqueue("failing", {"count": 1}, thread_id=one, run_id=one) for one in run_ids]
    async with AsyncWorker(state, {"failing": failing()}, poll=0.05):
        for run in runs:
            with pytest.raises(RunFailedError):
                await run.wait(30)


async def covered(page: Any) -> list[str]:
    """The texts over which the reason lies why a row is gone."""
    return list(
        await page.evaluate("""() => {
            const why = document.querySelector('.why'), place = why.getBoundingClientRect(), found = [];
            const texts = document.createTreeWalker(document.getElementById('main'), NodeFilter.SHOW_TEXT);
            const overlaps = (one) => one.left < place.right && one.right > place.left
                && one.top < place.bottom && one.bottom > place.top;
            while (texts.nextNode()) {
                const text = texts.currentNode, range = document.createRange();
                range.selectNodeContents(text);
                const isSeen = text.data.trim() && text.parentElement.checkVisibility({ visibilityProperty: true });
                if (isSeen && !why.contains(text) && [...range.getClientRects()].some(overlaps)) found.push(text.data);
            }
            return found;
        }""")
    )


async def test_nothing_moves_under_the_pointer(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, eve, adam):
        await fail(state, "first", "second")
        await eve.goto("queue?show=dead")
        await adam.goto("queue?show=dead")
        button = adam.locator("tr[data-row='letter first first'] button.danger")
        await button.hover()
        place = await button.bounding_box()
        await fail(state, "third")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('1 new, show')")
        assert await button.bounding_box() == place
        assert await adam.locator("tr[data-row]").count() == 2

        # Eve discards the row at which Adam aims.
        await eve.click("tr[data-row='letter first first'] >> text=Discard")
        await eve.click("button:text-is('Discard the run')")
        await eve.wait_for_selector("text=The run is no dead letter any more.")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('1 new, 1 gone, show')")
        assert await button.bounding_box() == place
        assert await button.is_disabled()
        await adam.wait_for_selector("tr.gone .why:text-is('Discarded just now by Eve')")
        assert await covered(adam) == []
        await adam.click("#news")
        assert await adam.locator("tr[data-row]").count() == 2
        assert await adam.locator("#news").is_hidden()

        # On a page that has not refreshed, the server says it.
        await adam.click("text=Live")
        await adam.wait_for_selector("text=Not live: paused")
        await eve.goto("queue?show=dead")
        await eve.click("tr[data-row='letter second second'] >> text=Retry")
        await adam.click("tr[data-row='letter second second'] >> text=Discard")
        await adam.click("button:text-is('Discard the run')")
        assert "retried just now by Eve" in await adam.inner_text("main")
        assert len(await queued(state)) == 1

        # Both cancel it. A page that was made within a second of the retry may not show it.
        await asyncio.sleep(1.1)
        for page in (eve, adam):
            await page.goto("queue")
            await page.click("text=Cancel")
        await eve.click("button:text-is('Cancel the run')")
        await eve.wait_for_selector("text=The run is cancelled, or ends soon.")
        await adam.click("button:text-is('Cancel the run')")
        assert "cancelled just now by Eve" in await adam.inner_text("main")
        assert await queued(state) == []


async def queued(state: AsyncPGState) -> list[str]:
    return [one.run_id for one in (await state.runs.queued()).items]


async def test_an_old_page_does_not_run_on(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, eve, adam):
        await travel(state)
        await state.interrupts.answer("t", "yes", by="Cain")
        for page in (eve, adam):
            await page.goto("threads/t")
            await page.click("text=Live")
            await page.click("#act-run summary")
        # A form is sent once, however often its button is pressed.
        await eve.dblclick("#act-run button")
        await eve.wait_for_selector("text=The run is in the queue.")
        await adam.click("#act-run button")
        assert "run on just now by Eve" in await adam.inner_text("main")
        assert len(await queued(state)) == 1


async def test_what_a_person_has_typed_and_unfolded_stays(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, _, adam):
        for thread_id in ("t", "u"):
            await travel(state, thread_id)
        await adam.goto("interrupts")
        form = adam.locator("article:has-text('u') textarea[name=answer]").first
        await form.fill("not yet")
        await travel(state, "v")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('1 new, show')")
        assert await form.input_value() == "not yet"
        await adam.click("#news")
        assert await adam.locator("article").count() == 3
        written = await adam.evaluate("[...document.querySelectorAll('textarea[name=answer]')].map((one) => one.value)")
        assert sorted(written) == ["", "", "not yet"]

        # A thread is not replaced under the pointer, and what was folded stays so.
        await adam.goto("threads/t?view=state")
        await adam.click("#channel-1 > summary")
        await adam.hover("#metadata")
        await state.interrupts.answer("t", "yes", by="Eve")
        await refresh(adam)
        await adam.wait_for_selector("#news:text-is('Changed, show')")
        assert "Answered by Eve" not in await adam.inner_text("main")
        await adam.click("#news")
        await adam.wait_for_selector("text=Answered by Eve")
        assert await adam.evaluate("document.getElementById('channel-1').open") is False

        # The page says when it is not live.
        await adam.route("**/threads/t?view=state", lambda route: route.abort())
        await refresh(adam)
        await adam.wait_for_selector("text=Not live: the server does not answer")
        await adam.unroute("**/threads/t?view=state")
        await refresh(adam)
        await adam.wait_for_selector(".live:text-is('Live')")


def asking() -> Any:
    """A graph that asks, as LangChain's middleware does, whether to call a tool."""

    def ask(state: MessagesState) -> dict[str, Any]:
        calls = [{"name": "send_email", "args": {"to": "eve", "copies": 2}, "description": "Ask **twice**."}]
        configs = [{"allowed_decisions": ["approve", "edit", "respond", "reject"]}]
        return {"messages": [HumanMessage(repr(interrupt({"action_requests": calls, "review_configs": configs})))]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END).compile()


async def test_two_persons_answer(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, eve, adam):
        await state.threads.create("t", agent="mail")
        await (
            asking().copy({"checkpointer": state.saver}).ainvoke({"messages": []}, {"configurable": {"thread_id": "t"}})
        )
        (pending,) = await state.interrupts.list("t")
        await eve.goto("interrupts?agent=mail")
        await adam.goto(f"interrupts?thread=t&id={pending.interrupt_id}")
        await adam.click("text=Live")
        await adam.click("summary:text-is('Reject…')")
        await adam.fill("textarea[name=reject-0]", "not now")
        place = await eve.locator("summary:text-is('Edit…')").bounding_box()
        await eve.click("summary:text-is('Edit…')")
        assert await eve.locator("summary:text-is('Edit…')").bounding_box() == place
        await eve.fill("textarea[name=argument-0-1]", "3")
        await eve.click("button:text-is('Send as edited')")
        await eve.wait_for_selector("text=Answered just now by Eve: edit")
        assert "agent=mail" in eve.url
        await adam.click("button:text-is('Reject')")
        assert "by Eve: edit. Your answer was not sent." in await adam.inner_text("main")
        (answer,) = await state.interrupts.answers("t")
        (decision,) = answer.value["decisions"]
        assert (answer.answered_by, decision["edited_action"]["args"]) == ("Eve", {"to": "eve", "copies": 3})


async def test_an_open_form_says_when_another_person_edits(dsn: str, schema: str) -> None:
    first = 'textarea[name=\'text ["messages",0,"content"]\']'
    async with two(dsn, schema) as (state, eve, adam):
        (at, *_) = await travel(state)
        for page, text in ((eve, "A weekend in **Porto**."), (adam, "A month in **Lisbon**.")):
            await page.goto(f"threads/t/edit?at={at}")
            await page.fill(first, text)
        places = [await adam.locator(one).bounding_box() for one in (first, "button:text-is('Preview the change')")]
        await eve.click("button:text-is('Preview the change')")
        await eve.wait_for_selector("del:text-is('Lisbon')")
        await eve.click("button:text-is('Change')")
        await eve.wait_for_selector("text=The state is changed.")
        await adam.focus(first)
        await refresh(adam)
        await adam.wait_for_selector(".meanwhile :text('This thread was edited just now by Eve.')")
        # Nothing has moved, and what was typed is there.
        assert places == [
            await adam.locator(one).bounding_box() for one in (first, "button:text-is('Preview the change')")
        ]
        assert await adam.input_value(first) == "A month in **Lisbon**."
        assert await adam.evaluate(f"document.activeElement.matches({first!r})")
        # Who leaves by a slip is asked.
        asked = []
        adam.on("dialog", lambda dialog: (asked.append(dialog.type), asyncio.ensure_future(dialog.dismiss())))
        await adam.click("nav >> text=Runs", no_wait_after=True)
        while not asked:
            await asyncio.sleep(0.05)
        await adam.click("button:text-is('Preview the change')")
        await adam.wait_for_selector("[role=alert]:has-text('edited just now by Eve')")
        await adam.wait_for_selector("pre:has-text('A weekend in **Porto**.')")
        async with adam.expect_navigation():
            await adam.click("button:text-is('Make my change on top')")
        await adam.wait_for_selector("text=The state is changed.")
        assert asked == ["beforeunload"]
        edits = [one.payload["by"] for one in (await state.events.list("t", kind="action")).items]
        assert edits == ["Eve", "Adam"]
        found = await state.threads.state_at({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
        assert found.values["messages"][0].text == "A month in **Lisbon**."


async def test_a_card_that_is_gone_says_who_answered(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, eve, adam):
        await travel(state)
        for page in (eve, adam):
            await page.goto("interrupts")
        await adam.fill("textarea[name=answer]", "no, because")
        await eve.fill("textarea[name=answer]", "yes")
        await eve.click("button:text-is('Answer')")
        await eve.wait_for_selector(".notice:has-text('Answered just now by Eve: yes')")
        await refresh(adam)
        await adam.wait_for_selector("article.gone .why:text-is('Answered just now by Eve: yes')")
        assert await adam.locator("article button").first.is_disabled()
        # Nothing is covered, and what was typed can be copied.
        assert await covered(adam) == []
        assert await adam.input_value("article.gone textarea") == "no, because"
        assert await adam.locator("article.gone textarea").evaluate("(one) => one.readOnly && !one.disabled")
        # Both run it on: from the notice, and from the list of answers.
        await adam.click("text=Answered, not run on")
        await adam.wait_for_selector("button:text-is('Run on')")
        await eve.click(".notice button:text-is('Run on')")
        await eve.wait_for_selector("text=The run is in the queue.")
        await adam.click("button:text-is('Run on')")
        await adam.wait_for_selector("h1:text-is('Not now')")
        assert "run on just now by Eve" in await adam.inner_text("main")
        assert len(await queued(state)) == 1


async def test_two_persons_settle(dsn: str, schema: str, record: Record) -> None:
    record.thread("t")
    record.execution("k", status="unknown", tool="pay")
    async with two(dsn, schema) as (state, eve, adam):
        for page in (eve, adam):
            await page.goto("tools/t/k")
        await eve.click("text=It took effect.")
        await eve.click("button:text-is('Settle')")
        await eve.wait_for_selector("text=Settled just now by Eve")
        await adam.click("text=Do not run it again.")
        await adam.click("button:text-is('Settle')")
        assert "settled just now by Eve" in await adam.inner_text("main")
        found = await state.tools.get("t", "k")
        assert found is not None
        assert found.status == "success"
