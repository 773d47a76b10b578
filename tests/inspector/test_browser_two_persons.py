"""Each action of pages in the browsers of two persons, of whom the second has an old page or a list that grows."""

from __future__ import annotations

from typing import Any

import pytest
from support.acting import CASES, Aim, Case

from langgraph_pgstate import AsyncPGState

from .test_browser_changes import refresh, two
from .test_browser_runs import CHROMIUM

pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (apt-get install chromium)"),
]


async def test_the_second_person_is_told_by_name(dsn: str, schema: str) -> None:
    async with two(dsn, schema) as (state, eve, adam):
        for name, case in CASES.items():
            async with case.prepare(state, name.replace(" ", "-")) as aim:
                await _one_after_the_other(state, eve, adam, case, aim)


async def _one_after_the_other(state: AsyncPGState, eve: Any, adam: Any, case: Case, aim: Aim) -> None:
    for page in (eve, adam):
        await page.goto(aim.page.removeprefix("/"))
    if case.grow is not None:
        # Rows arrive while Adam aims.
        button = adam.locator(f"{aim.row}>> {case.clicks[0]}")
        place = await button.bounding_box()
        await case.grow(state, f"a new row of {aim.place}")
        await refresh(adam)
        await adam.wait_for_selector("#news:visible")
        assert await button.bounding_box() == place, aim
    if await adam.locator(".live:visible").count():
        await adam.click(".live")
    await _press(eve, case, aim)
    await eve.wait_for_selector(".notice")
    assert await case.count(state, aim.place) == 1, aim
    await _press(adam, case, aim)
    await adam.wait_for_selector("h1:text-is('Not now'), h1:text-is('Not found'), [role=alert]")
    assert f"{case.verb} Eve" in await adam.inner_text("main"), aim
    assert await case.count(state, aim.place) == 1, aim
    await adam.evaluate("localStorage.clear()")


async def _press(page: Any, case: Case, aim: Aim) -> None:
    row = aim.row
    for one in case.clicks:
        name, is_text, text = one.partition("=")
        if is_text and name in case.fields:
            await page.fill(f"[name='{name}']", text)
        else:
            aimed = page.locator(f"{row}>> {one}" if row else one)
            # What comes before the last click may be refused already.
            await aimed.or_(page.locator("[role=alert]")).first.wait_for()
            if await page.locator("[role=alert]").count():
                return
            await aimed.click()
        # What asks first is another page.
        row = ""
