"""Visitors of the inspector's pages, and threads for them."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from html.parser import HTMLParser
from typing import Any, Final

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.db.adapters import AsyncConnection
from langgraph_pgstate.server import AgentServer
from support import GUARD_SECONDS
from support.http import serving

_FORM: Final = re.compile(r'<form method="post" action="/ui([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
_HIDDEN: Final = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Trip(MessagesState, total=False):
    """The state of `trip`."""

    booking: dict[str, Any]


def trip() -> Any:
    """Return a graph that plans, asks a person and answers, without a model."""

    def plan(state: Trip) -> dict[str, Any]:
        call = {"name": "search", "args": {"city": "Lisbon"}, "id": "c1"}
        return {"messages": [AIMessage("", id="plan", tool_calls=[call])]}

    def tools(state: Trip) -> dict[str, Any]:
        return {"messages": [ToolMessage("found it", id="tool", tool_call_id="c1", name="search")]}

    def approve(state: Trip) -> dict[str, Any]:
        return {"booking": {"approved": interrupt({"question": "Book it?"})}}

    builder = StateGraph(Trip)
    for node in (plan, tools, approve):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "plan").add_edge("plan", "tools").add_edge("tools", "approve").add_edge("approve", END)
    return builder.compile()


class Visitor:
    """A browser without scripts: it keeps cookies, and sends forms with their token.

    Args:
        client: A client of the server.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def page(self, path: str, /, **query: Any) -> str:
        """Return the HTML of a page, `without_bdi`."""
        response = await self.client.get(f"/ui{path}", params=query)
        assert response.status_code == 200, response.text
        assert len(response.content) <= 300_000
        return without_bdi(response.text)

    async def data(self, path: str, /, **query: Any) -> Any:
        """Return the data of a page."""
        response = await self.client.get(f"/ui{path}", params=query, headers={"accept": "application/json"})
        assert response.status_code == 200, response.text
        return response.json()

    async def act(self, path: str, headers: Mapping[str, str] | None = None, **fields: str) -> httpx.Response:
        """Return the answer to a form."""
        if "pgstate_token" not in self.client.cookies:
            await self.client.get("/ui/person")
        token = self.client.cookies.get("pgstate_token", "")
        return await self.client.post(f"/ui{path}", data={"token": token, **fields}, headers=headers)

    async def introduce(self, name: str = "Eve") -> None:
        """Set the visitor's name."""
        assert (await self.act("/person", name=name)).status_code == 303


def without_bdi(page: str) -> str:
    """Return a page without the elements that only isolate text of another direction."""
    return re.sub("</?bdi>", "", page)


def forms_of(page: str) -> dict[str, Any]:
    """Return the hidden fields of a page's forms, without the token, by the path to which they are sent."""
    return {
        html.unescape(path): {
            html.unescape(name): html.unescape(value) for name, value in _HIDDEN.findall(form) if name != "token"
        }
        for path, form in _FORM.findall(page)
    }


class _Fields(HTMLParser):
    """The fields of a form, as a browser sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._name = self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "input" and (given.get("type") not in ("checkbox", "radio") or "checked" in given):
            self.found[given.get("name", "")] = given.get("value", "")
        elif tag == "textarea":
            self._name = given["name"]
            self.found[self._name] = ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.found):
            self.found[self._select] = given.get("value", "")
            self._name = "" if "value" in given else self._select

    def handle_data(self, data: str) -> None:
        if self._name:
            self.found[self._name] += data if self._name == self._select else data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("textarea", "option"):
            self._name = ""


def fields_of(page: str, path: str) -> dict[str, str]:
    """Return all fields of a form of a page, without the token, as a browser sends them unchanged."""
    form = next(form for found, form in _FORM.findall(page) if html.unescape(found) == path)
    parser = _Fields()
    parser.feed(form)
    return {name: value for name, value in parser.found.items() if name != "token"}


@asynccontextmanager
async def visiting(
    server: AgentServer, headers: Mapping[str, str] | None = None, client: str = "127.0.0.1", host: str = "localhost"
) -> AsyncIterator[Visitor]:
    """Provide a visitor of a server, from an address."""
    transport = httpx.ASGITransport(server, raise_app_exceptions=False, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers, timeout=60) as made:
        yield Visitor(made)


@asynccontextmanager
async def inspected(dsn: str, schema: str, **options: Any) -> AsyncIterator[tuple[AgentServer, Visitor]]:
    """Provide a server with pages and the graph `trip`, and a visitor on the same machine."""
    given = {"graphs": {"trip": trip()}, "inspector": True, "worker": False, **options}
    async with serving(dsn, schema, **given) as server, visiting(server) as visitor:
        yield server, visitor


async def travel(state: AsyncPGState, thread_id: str = "t", **thread: Any) -> list[str]:
    """Return a thread of `trip` that waits for an answer; the ids of its checkpoints, newest first."""
    await state.threads.create(thread_id, **{"agent": "trip", **thread})
    graph = state.record(trip().copy({"checkpointer": state.saver}))
    config: Any = {"configurable": {"thread_id": thread_id}}
    await graph.ainvoke({"messages": [HumanMessage("A weekend in **Lisbon**.", id="human")]}, config)
    await state.flush()
    tree = await state.threads.tree(thread_id)
    return [node.checkpoint_id for node in tree.nodes]


def read_together(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the first two calls of an async function return only after both have read the same state."""
    read, both = getattr(owner, name), asyncio.Event()
    calls = 0

    async def reading(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        found = await read(*arguments, **options)
        calls += 1
        if calls >= 2:
            both.set()
        await asyncio.wait_for(both.wait(), GUARD_SECONDS)
        return found

    monkeypatch.setattr(owner, name, reading)


def state_of(server: AgentServer) -> AsyncPGState:
    """Return the state of a server that runs."""
    assert server.service is not None
    return server.service.state


@contextmanager
def statements() -> Iterator[list[str]]:
    """Provide the names of the statements that are sent on asynchronous connections meanwhile."""
    names: list[str] = []

    def noting(method: Any, name_of: Any) -> Any:
        async def sent(self: Any, *arguments: Any) -> Any:
            # A notification of an earlier run may come later.
            names.extend(name for name in name_of(*arguments) if name != "notify_queue")
            return await method(self, *arguments)

        return sent

    with pytest.MonkeyPatch.context() as patch:
        for method in ("fetch", "execute"):
            patch.setattr(
                AsyncConnection, method, noting(getattr(AsyncConnection, method), lambda query, _: [query.name])
            )
        together = noting(AsyncConnection.execute_together, lambda statements: [query.name for query, _ in statements])
        patch.setattr(AsyncConnection, "execute_together", together)
        yield names
