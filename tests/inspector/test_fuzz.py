"""Any request of a page is answered: none fails, whatever its path, query, headers and form are."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from random import Random
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from support import GUARD_SECONDS, examples
from support.pages import Visitor, forms_of, inspected, state_of, travel

from langgraph_pgstate.inspector.routes import PAGES

_TEXTS: Final = (
    *("", " ", "\0", "a\0b", "\u0301", "日本🙂", "%", "_", "\\", "'", '"', "-1", "0", "1", "2", "\n", "\r\n"),
    *(
        "x" * 5000,
        "9" * 5000,
        "²",
        "/",
        "..",
        "a.b",
        "a|b",
        "a:b",
        "__x",
        "[0]",
        str(2**31),
        str(2**63),
        "1e400",
    ),
    *("nan", "on"),
    *("9999-12-31T23:59:59+14:00", "0001-01-01", "2026-01-01", "[" * 3000, '{"a":' * 3000, "{}", "null", '"x"', "[]"),
    *("<script>", "//host/", "json", "state", "csv", "true", "acme", "trip", "Eve", "human", "messages", "\x7f", "*"),
)
_NAMES: Final = re.findall(
    r"\w+",
    "add answered archive archived as_node ascending asked at back before by channel check check_all "
    "checkpoint cursor day days decision directory dry_run edit ended expected expects fields forks format "
    "from graph head hold how id item kind label limit message metadata mode model name namespace nonce notice "
    "ns offset part person place purge q query queue reason result rows run saw_busy show since sort span "
    "status step sure tenant thread to token tool until user value version view agent key values ",
)
_HEADERS: Final = ("accept", "referer", "origin", "sec-fetch-site", "if-none-match", "cookie", "accept-language", "x-a")
_LINK: Final = re.compile(r'href="(/ui/[^"#]*)"')


class _Requests:
    """Requests of all pages, from a seed. They name what pages have linked to, and what none has."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.links: list[str] = ["/ui/threads/t"]
        self.forms: dict[str, Any] = {}
        self.known: set[str] = {"t"}

    def learn(self, html: str) -> None:
        """Remember the links, the forms and the ids of a page."""
        self.links = [*{*self.links, *(link.replace("&amp;", "&") for link in _LINK.findall(html))}][-400:]
        self.forms.update(forms_of(html))
        self.known = {*self.known, *(part for link in self.links for part in link.split("?")[0].split("/")[3:])}

    def text(self) -> str:
        """Return a text."""
        match self.random.randrange(4):
            case 0:
                return self.random.choice(sorted(self.known))
            case 1:
                return "".join(map(chr, self.random.choices(range(1, 0x2FFF), k=self.random.randrange(8))))
            case _:
                return self.random.choice(_TEXTS)

    def fields(self, most: int) -> dict[str, str]:
        """Return fields of a query or a form."""
        return {self.random.choice(_NAMES): self.text() for _ in range(self.random.randrange(most))}

    def next(self) -> tuple[str, str, dict[str, str], dict[str, str]]:
        """Return a method, a target, headers and the fields of a form."""
        headers = {self.random.choice(_HEADERS): quote(self.text())[:200]} if self.random.random() < 0.2 else {}
        if self.random.random() < 0.3:
            headers["accept"] = "application/json"
        if self.random.random() < 0.3:
            link = self.random.choice(self.links)
            return "GET", f"{link}{'&' if '?' in link else '?'}{urlencode(self.fields(3))}", headers, {}
        if self.forms and self.random.random() < 0.3:
            path = self.random.choice(sorted(self.forms))
            return "POST", f"/ui{path}", headers, {**self.forms[path], **self.fields(3)}
        page = self.random.choice(PAGES)
        path = re.sub(r"{[^}]+}", lambda _: self._part(), page.path)
        form = {} if page.is_read else {**self.fields(5), **({"sure": "1"} if self.random.random() < 0.7 else {})}
        return page.method, f"/ui{path}?{urlencode(self.fields(5))}", headers, form

    def _part(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(sorted(self.known)) or "t"
        return quote(self.text(), safe="") or "t"


async def _prepare(server: Any, visitor: Visitor) -> None:
    """Make what pages show: a thread with an interrupt, its fork, a queued run, a memory."""
    state = state_of(server)
    if not (await state.threads.list()).items:
        ids = await travel(state)
        await state.threads.fork("t", ids[1], "fork")
        await state.runs.enqueue("trip", {"messages": []}, thread_id="queued", run_id="r")
        await state.memory.aput(("a", "b"), "key", {"text": "value"})
    await visitor.introduce()


async def _fuzz(dsn: str, schema: str, number: int, seed: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    requests = _Requests(seed)
    async with inspected(dsn, schema) as (server, visitor):
        for count in range(number):
            if count % 200 == 0:
                await _prepare(server, visitor)
                for page in PAGES:
                    if page.is_read and "{" not in page.path:
                        requests.learn(await visitor.page(page.path))
            method, target, headers, form = requests.next()
            where = f"seed {seed}: {method} {target} {headers} {form}"
            async with asyncio.timeout(GUARD_SECONDS):
                if method == "GET":
                    response = await visitor.client.get(target, headers=headers)
                else:
                    response = await visitor.act(target.removeprefix("/ui"), headers, **form)
            assert response.status_code < 500 or response.status_code == 501, f"{where}\n{response.text}"
            statuses[response.status_code] += 1
            if response.status_code == 200 and "html" in response.headers["content-type"]:
                requests.learn(response.text)
    return statuses


async def test_some_requests_are_answered(dsn: str, schema: str) -> None:
    statuses = await _fuzz(dsn, schema, 100, 1)
    assert statuses[200] > 10


@pytest.mark.slow
async def test_any_request_is_answered(dsn: str, schema: str) -> None:
    number = examples(3000)
    statuses = await _fuzz(dsn, schema, number, 2)
    assert statuses[200] > number / 5
    assert statuses[303] > 0
