"""Two users on every route: what is the one's is neither seen, changed, deleted nor counted by the other.

The requests are made of the tables of routes. A route that is new fails by its name until it has a case here.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import quote

import httpx
import pytest
from langgraph.store.memory import InMemoryStore
from langgraph_sdk import Auth
from support.http import asking, chat, serving
from support.pages import Visitor, visiting
from support.record import Record

from langgraph_pgstate.inspector.routes import PAGES
from langgraph_pgstate.server import AgentServer
from langgraph_pgstate.server.routes import OPERATIONS

DAILY = "0 9 * * *"
REFUSED = (403, 404, 409)


@dataclass(frozen=True)
class Things:
    """Ids of what a user has made. The text of all of them is `secret-of-NAME`."""

    name: str
    thread: str
    copy: str
    asking: str
    run: str
    pending: str
    checkpoint: str
    interrupt: str
    feedback: str
    assistant: str
    cron: str
    thread_cron: str
    key: str

    @property
    def secret(self) -> str:
        """What nobody else may read."""
        return f"secret-of-{self.name}"

    @property
    def hello(self) -> dict[str, Any]:
        """An input."""
        return {"messages": [{"role": "user", "content": self.secret}]}

    @property
    def ids(self) -> list[str]:
        """All ids."""
        return [getattr(self, field.name) for field in fields(self)]


NOBODY = Things("nobody", *(f"no-{field.name}" for field in fields(Things)[1:]))

Request = dict[str, Any]
Case = Callable[[Things, Things], list[Request]]
"""Requests of the second of two users: the first names nothing of the first one, all others do."""


def plain(them: Things, me: Things) -> list[Request]:
    """No body and no query."""
    return [{}]


def query(**parameters: str) -> Case:
    """Queries that say the same to everybody."""
    return lambda them, me: [{}, {"params": parameters}]


def body(*make: Callable[[Things, Things], Any]) -> Case:
    """Bodies: one without anything of others, and those that have it."""
    return lambda them, me: [{"json": one(them, me)} for one in make]


def run_of(them: Things, me: Things) -> dict[str, Any]:
    return {"assistant_id": "chat", "input": me.hello}


def run_elsewhere(them: Things, me: Things) -> dict[str, Any]:
    """A run that names the other's thread, run and identity wherever a client may write something."""
    names = {"thread_id": them.thread, "checkpoint_id": them.checkpoint, "run_id": them.run, "user_id": them.name}
    names |= {"langgraph_auth_user_id": them.name, "langgraph_auth_user": {"identity": them.name}}
    names |= {"__pregel_checkpointer": them.thread, "owner": them.name, "assistant_id": them.assistant}
    return {
        **run_of(them, me),
        "thread_id": them.thread,
        "run_id": them.run,
        "user_id": them.name,
        "config": {"configurable": names, "metadata": names},
        "context": names,
        "metadata": names,
        "if_not_exists": "create",
    }


def run_from(them: Things, me: Things) -> dict[str, Any]:
    place = {"thread_id": them.thread, "checkpoint_id": them.checkpoint, "checkpoint_ns": "", "checkpoint_map": {}}
    command = {"resume": {them.interrupt: "yes"}, "update": {"messages": []}, "goto": []}
    return {"assistant_id": "chat", "command": command, "checkpoint": place, "checkpoint_id": them.checkpoint}


def run_as(them: Things, me: Things) -> dict[str, Any]:
    return {**run_of(them, me), "assistant_id": them.assistant}


def cron_of(them: Things, me: Things) -> dict[str, Any]:
    return {**run_of(them, me), "schedule": DAILY}


def cron_elsewhere(them: Things, me: Things) -> dict[str, Any]:
    return {**run_elsewhere(them, me), "schedule": DAILY, "on_run_completed": "keep", "cron_id": them.cron}


RUN = body(run_of, run_elsewhere, run_from, run_as)


def command(method: str, **params: Callable[[Things, Things], Any]) -> Callable[[Things, Things], Any]:
    return lambda them, me: {
        "id": 1,
        "method": method,
        "params": {name: value(them, me) for name, value in params.items()},
    }


def place_of(them: Things) -> dict[str, Any]:
    return {"checkpoint_id": them.checkpoint, "checkpoint_ns": "", "thread_id": them.thread}


def constant(value: Any) -> Callable[[Things, Things], Any]:
    return lambda them, me: value


def search(them: Things, me: Things) -> dict[str, Any]:
    return {"limit": 100}


OPERATION_CASES: dict[str, Case] = {
    "GET /ok": plain,
    "GET /info": plain,
    "GET /openapi.json": plain,
    "GET /metrics": plain,
    "GET /analytics": lambda them, me: [{}, {"params": {"user_id": them.name, "by": "user"}}],
    "POST /assistants/search": body(
        search, lambda them, me: {"name": "secret"}, lambda them, me: {"metadata": {"owner": them.name}}
    ),
    "POST /assistants/count": body(
        constant({}), lambda them, me: {"name": "secret"}, lambda them, me: {"metadata": {"owner": them.name}}
    ),
    "POST /assistants": body(
        lambda them, me: {"graph_id": "chat"},
        lambda them, me: {"graph_id": "chat", "assistant_id": them.assistant},
        lambda them, me: {"graph_id": "chat", "assistant_id": them.assistant, "if_exists": "do_nothing"},
        lambda them, me: {"graph_id": "chat", "metadata": {"owner": them.name, "owner_id": them.name}},
    ),
    "GET /assistants/{assistant_id}": plain,
    "PATCH /assistants/{assistant_id}": body(
        lambda them, me: {"name": "x"}, lambda them, me: {"metadata": {"assistant_id": them.assistant}}
    ),
    "DELETE /assistants/{assistant_id}": query(delete_threads="true"),
    "GET /assistants/{assistant_id}/graph": plain,
    "GET /assistants/{assistant_id}/schemas": plain,
    "GET /assistants/{assistant_id}/subgraphs": plain,
    "GET /assistants/{assistant_id}/subgraphs/{namespace}": plain,
    "POST /assistants/{assistant_id}/versions": body(search, lambda them, me: {"metadata": {"owner": them.name}}),
    "POST /assistants/{assistant_id}/latest": body(constant({"version": 1})),
    "POST /threads": body(
        lambda them, me: {},
        lambda them, me: {"thread_id": them.thread},
        lambda them, me: {"thread_id": them.thread, "if_exists": "do_nothing"},
        lambda them, me: {
            "thread_id": them.thread,
            "if_exists": "do_nothing",
            "supersteps": [{"updates": [{"values": me.hello, "as_node": "speak"}]}],
        },
        lambda them, me: {"metadata": {"owner": them.name, "thread_id": them.thread, "assistant_id": them.assistant}},
    ),
    "POST /threads/search": body(
        search,
        lambda them, me: {"ids": [them.thread, them.copy]},
        lambda them, me: {"metadata": {"owner": them.name}},
        lambda them, me: {"values": {"messages": []}, "select": ["thread_id"], "extract": {"x": "values.messages"}},
    ),
    "POST /threads/count": body(
        constant({}), lambda them, me: {"metadata": {"owner": them.name}}, constant({"status": "interrupted"})
    ),
    "POST /threads/prune": body(
        constant({"thread_ids": []}),
        lambda them, me: {"thread_ids": [them.thread, them.copy, them.asking]},
        lambda them, me: {"thread_ids": [them.thread, me.copy], "strategy": "keep_latest"},
    ),
    "GET /threads/{thread_id}": query(include="ttl"),
    "PATCH /threads/{thread_id}": body(
        lambda them, me: {"metadata": {"x": 1}},
        lambda them, me: {"metadata": {"owner": them.name, "thread_id": them.thread}, "ttl": {"ttl": 9999}},
    ),
    "DELETE /threads/{thread_id}": plain,
    "POST /threads/{thread_id}/copy": body(constant({}), lambda them, me: {"thread_id": them.thread}),
    "GET /threads/{thread_id}/state": query(subgraphs="true"),
    "POST /threads/{thread_id}/state": body(
        lambda them, me: {"values": {"messages": []}, "as_node": "speak"},
        lambda them, me: {"values": {"messages": []}, "as_node": "speak", "checkpoint": place_of(them)},
        lambda them, me: {"values": {"messages": []}, "as_node": "speak", "checkpoint_id": them.checkpoint},
    ),
    "POST /threads/{thread_id}/state/checkpoint": body(
        lambda them, me: {"checkpoint": {}}, lambda them, me: {"checkpoint": place_of(them)}
    ),
    "GET /threads/{thread_id}/state/{checkpoint_id}": plain,
    "GET /threads/{thread_id}/history": lambda them, me: [{}, {"params": {"before": them.checkpoint}}],
    "POST /threads/{thread_id}/history": body(
        constant({"limit": 100}),
        lambda them, me: {"checkpoint": place_of(them)},
        lambda them, me: {"before": {"configurable": place_of(them)}},
        lambda them, me: {"before": place_of(them), "metadata": {"owner": them.name}},
    ),
    "GET /threads/{thread_id}/stream": plain,
    "POST /threads/{thread_id}/commands": body(
        command("state.get", namespace=constant([])),
        command(
            "run.start", assistant_id=constant("chat"), input=lambda them, me: me.hello, config=lambda them, me: {}
        ),
        command(
            "run.start",
            assistant_id=lambda them, me: them.assistant,
            input=lambda them, me: me.hello,
            config=lambda them, me: run_elsewhere(them, me)["config"],
        ),
        command(
            "run.start",
            assistant_id=constant("chat"),
            input=lambda them, me: me.hello,
            config=lambda them, me: run_elsewhere(them, me)["config"],
        ),
        command("input.respond", responses=lambda them, me: [{"interrupt_id": them.interrupt, "response": me.secret}]),
        command("input.inject", message=constant({"role": "user", "content": "hello"})),
        command("state.listCheckpoints", namespace=constant([]), before=lambda them, me: them.checkpoint),
        command(
            "state.fork", checkpoint_id=lambda them, me: them.checkpoint, assistant_id=lambda them, me: them.assistant
        ),
        command("agent.getTree", run_id=lambda them, me: them.run),
    ),
    "POST /threads/{thread_id}/stream/events": body(constant({"channels": ["values"]})),
    "POST /runs/crons": body(cron_of, cron_elsewhere, lambda them, me: {**cron_of(them, me), **run_as(them, me)}),
    "POST /runs/crons/search": body(
        search,
        lambda them, me: {"thread_id": them.thread},
        lambda them, me: {"assistant_id": them.assistant},
        lambda them, me: {"metadata": {"owner": them.name}},
    ),
    "POST /runs/crons/count": body(
        constant({}),
        lambda them, me: {"thread_id": them.thread},
        lambda them, me: {"metadata": {"owner": them.name}},
    ),
    "POST /threads/{thread_id}/runs/crons": body(
        cron_of, cron_elsewhere, lambda them, me: {**cron_of(them, me), **run_as(them, me)}
    ),
    "PATCH /runs/crons/{cron_id}": body(
        lambda them, me: {"input": me.hello},
        lambda them, me: {"enabled": False},
        cron_elsewhere,
    ),
    "DELETE /runs/crons/{cron_id}": plain,
    "POST /runs": RUN,
    "POST /threads/{thread_id}/runs": RUN,
    "POST /runs/batch": lambda them, me: [
        {"json": [run_of(them, me)]},
        {"json": [run_of(them, me), {**run_of(them, me), "thread_id": them.thread}]},
        {"json": [run_as(them, me)]},
    ],
    "POST /runs/wait": RUN,
    "POST /threads/{thread_id}/runs/wait": RUN,
    "POST /runs/stream": RUN,
    "POST /threads/{thread_id}/runs/stream": RUN,
    "POST /runs/cancel": body(
        lambda them, me: {"thread_id": me.thread, "run_ids": []},
        lambda them, me: {"thread_id": them.thread, "run_ids": [them.pending, them.run]},
        lambda them, me: {"thread_id": me.thread, "run_ids": [them.pending]},
        lambda them, me: {"thread_id": them.thread, "status": "all"},
    ),
    "GET /threads/{thread_id}/runs": query(limit="100"),
    "GET /threads/{thread_id}/runs/{run_id}": plain,
    "DELETE /threads/{thread_id}/runs/{run_id}": plain,
    "GET /threads/{thread_id}/runs/{run_id}/join": query(cancel_on_disconnect="true"),
    "GET /threads/{thread_id}/runs/{run_id}/stream": lambda them, me: [
        {},
        {"headers": {"last-event-id": f"{them.run}:0"}},
    ],
    "POST /threads/{thread_id}/runs/{run_id}/cancel": query(action="rollback"),
    "POST /threads/{thread_id}/runs/{run_id}/feedback": body(
        lambda them, me: {"score": 0},
        lambda them, me: {"score": 0, "span_id": them.run, "created_by": them.name},
    ),
    "GET /threads/{thread_id}/runs/{run_id}/feedback": plain,
    "DELETE /threads/{thread_id}/runs/{run_id}/feedback/{feedback_id}": plain,
    "PUT /store/items": body(
        lambda them, me: {"namespace": [me.name, "notes"], "key": "k", "value": {"text": me.secret}},
        lambda them, me: {"namespace": [them.name, "notes"], "key": "k", "value": {}},
        lambda them, me: {"namespace": [them.name, me.name], "key": "k", "value": {}},
        lambda them, me: {"namespace": ["shared"], "key": "k", "value": {}},
    ),
    "GET /store/items": lambda them, me: [
        {"params": {"namespace": f"{me.name}.notes", "key": "k"}},
        {"params": {"namespace": f"{them.name}.notes", "key": "k"}},
    ],
    "DELETE /store/items": body(
        lambda them, me: {"namespace": [me.name, "notes"], "key": "other"},
        lambda them, me: {"namespace": [them.name, "notes"], "key": "k"},
    ),
    "POST /store/items/search": body(
        lambda them, me: {"namespace_prefix": [me.name]},
        lambda them, me: {"namespace_prefix": [them.name]},
        lambda them, me: {"namespace_prefix": []},
    ),
    "POST /store/namespaces": body(
        lambda them, me: {"prefix": [me.name]},
        lambda them, me: {},
        lambda them, me: {"prefix": [them.name]},
        lambda them, me: {"prefix": ["*"], "suffix": ["notes"]},
        lambda them, me: {"suffix": ["notes"], "max_depth": 1},
    ),
}
"""Requests of each operation, by method and path."""


def form(*make: Callable[[Things, Things], dict[str, str]]) -> Case:
    return lambda them, me: [{"data": {"sure": "1", **one(them, me)}} for one in make]


def at(them: Things, me: Things) -> dict[str, str]:
    return {"at": me.checkpoint}


def there(them: Things, me: Things) -> dict[str, str]:
    return {"at": them.checkpoint}


def filters(them: Things, me: Things) -> list[Request]:
    return [{}, {"params": {"user": them.name}}, {"params": {"metadata": f"owner={them.name}", "q": "secret"}}]


PAGE_CASES: dict[str, Case] = {
    "threads": filters,
    "threads.hold": form(
        constant({"reason": "case 7"}), lambda them, me: {"reason": "case 7", "thread 1": them.thread}
    ),
    "runs": filters,
    "run": lambda them, me: [{}, {"params": {"span": them.run, "forks": "1"}}],
    "run.cancel": form(constant({"how": "rollback"})),
    "run.retry": form(constant({})),
    "run.discard": form(constant({})),
    "interrupts": filters,
    "interrupt.answer": form(constant({"answer": "yes"})),
    "tools": lambda them, me: [{}, {"params": {"tool": "pay"}}],
    "tool.action": plain,
    "tool.settle": form(constant({"decision": "done"})),
    "queue": lambda them, me: [{"params": {"show": show}} for show in ("runs", "dead", "schedules")],
    "worker.drain": form(constant({})),
    "schedule.pause": form(constant({})),
    "schedule.resume": form(constant({})),
    "schedule.trigger": form(constant({})),
    "costs": filters,
    "database": plain,
    "retention": plain,
    "policy.new": plain,
    "policy": lambda them, me: [{}, {"params": {"dry_run": "1"}}],
    "policy.store": form(
        constant({"name": "p", "expected": "0", "delete_after": "1s", "sure": "1"}),
        lambda them, me: {"name": them.cron, "expected": "0", "delete_after": "1s", "user_id": them.name},
    ),
    "policy.delete": form(constant({"expected": "1", "sure": "1"})),
    "holds": lambda them, me: [{}, {"params": {"thread": them.thread}}],
    "holds.release": form(
        constant({"hold 1": '["none", "case 7", "2026-01-01T00:00:00+00:00"]', "sure": "1"}),
        lambda them, me: {"hold 1": f'["{them.thread}", "case 7", "2026-01-01T00:00:00+00:00"]', "sure": "1"},
    ),
    "archive": lambda them, me: [{}, {"params": {"user": them.name}}, {"params": {"check": them.thread}}],
    "privacy": lambda them, me: [{}, {"params": {"user": them.name}}, {"params": {"thread": them.thread}}],
    "privacy.erase": form(
        constant({"user": "eve", "rows": "1"}), lambda them, me: {"thread": them.thread, "rows": "1"}
    ),
    "receipt": lambda them, me: [{}, {"params": {"user": them.name}}],
    "receipt.download": plain,
    "thread.value": lambda them, me: [
        {"params": {"channel": "messages"}},
        {"params": {"channel": "messages", "at": them.checkpoint}},
    ],
    "thread.fork": form(at, there, lambda them, me: {"at": me.checkpoint, "to": them.thread}),
    "thread.run": form(at, there),
    "thread.ask_for_edit": lambda them, me: [
        {"params": {"at": me.checkpoint}},
        {"params": {"at": them.checkpoint}},
        {"params": {"at": them.checkpoint, "head": me.checkpoint}},
    ],
    "thread.edit": form(
        *(
            lambda them, me, step=step, mine=mine: {  # type: ignore[misc]
                **{"at": me.checkpoint if mine else them.checkpoint, "step": step, 'add ["messages"]': "x"},
                **{"head": them.checkpoint if mine else me.checkpoint},
            }
            for step in ("preview", "form", "apply")
            for mine in (True, False)
        ),
        lambda them, me: {"at": me.checkpoint, "values": '{"messages": []}', "as_node": "speak"},
        lambda them, me: {"at": them.checkpoint, "values": '{"messages": []}', "as_node": "speak"},
    ),
    "thread.label": form(
        lambda them, me: {"at": me.checkpoint, "label": "x"}, lambda them, me: {"at": them.checkpoint, "label": "x"}
    ),
    "thread.ask_for_deletion": plain,
    "thread.hold": form(constant({"reason": "case 7"})),
    "thread.release": form(constant({"reason": "case 7", "since": "2026-01-01T00:00:00+00:00", "sure": "1"})),
    "thread.restore": form(constant({})),
    "thread.delete": form(constant({})),
    "thread": lambda them, me: [
        {},
        *(
            {"params": {"view": view, "at": at, "to": them.checkpoint}}
            for view in ("conversation", "state", "changes", "origin", "events")
            for at in (me.checkpoint, them.checkpoint)
        ),
    ],
    "memory": lambda them, me: [{}, {"params": {"user_id": them.name, "q": "secret"}}],
    "memory.item": plain,
    "memory.edit": form(constant({"content": "x", "version": "1"})),
    "memory.forget": form(constant({"version": "1"})),
    "memory.restore": form(constant({"version": "1", "newest": "1"})),
    "files": plain,
    "file": plain,
    "file.restore": form(constant({"version": "1", "newest": "1"})),
    "person": lambda them, me: [{}, {"params": {"back": f"/ui/threads/{them.thread}"}}],
    "person.keep": form(constant({"name": "eve"})),
}
"""Requests of each page and action, by the name of its route."""

PARAMETERS: dict[str, Callable[[Things], str]] = {
    "thread_id": lambda one: one.thread,
    "run_id": lambda one: one.run,
    "checkpoint_id": lambda one: one.checkpoint,
    "assistant_id": lambda one: one.assistant,
    "cron_id": lambda one: one.cron,
    "feedback_id": lambda one: one.feedback,
    "interrupt_id": lambda one: one.interrupt,
    "key": lambda one: one.key,
    "worker_id": lambda one: one.run,
    "name": lambda one: one.cron,
    "namespace": lambda one: "none",
    "erasure_id": lambda one: one.run,
}
"""Parameters of paths. A parameter that is new fails by its name."""

OTHERS: dict[str, list[Callable[[Things], str]]] = {
    "thread_id": [lambda one: one.copy, lambda one: one.asking],
    "run_id": [lambda one: one.pending],
    "cron_id": [lambda one: one.thread_cron],
    "name": [lambda one: one.thread_cron],
}
"""Other things of the same kind."""

ENDLESS = {"GET /threads/{thread_id}/stream", "POST /threads/{thread_id}/stream/events"}
"""Streams that end with the thread alone, and wait for one: tests of their own in `test_thread_streams` read them."""


LENIENT = {"GET /threads/{thread_id}/state/{checkpoint_id}"}
"""Routes that answer with something empty what a thread of the caller's own does not have."""


@dataclass(frozen=True)
class Walked:
    """A route, as this test walks it."""

    key: str
    method: str
    path: str
    is_read: bool
    case: Case

    def parameters(self) -> list[str]:
        """The names in its path, but for those that name nobody's thing."""
        return [name for name in re.findall(r"\{(\w+)\}", self.path) if name not in ("namespace", "path")]

    def at(self, ids: dict[str, str]) -> str:
        """Its path with ids."""
        return re.sub(r"\{(\w+)\}", lambda match: quote(ids.get(match[1], "none"), safe=""), self.path)

    def mixtures(self, them: Things, me: Things) -> Iterator[dict[str, str]]:
        """Ids for its path, of which one at least is another's."""
        names = self.parameters()
        for chosen in itertools.product((them, me), repeat=len(names)):
            if them in chosen:
                yield {name: PARAMETERS[name](one) for name, one in zip(names, chosen, strict=True)}
        for name in names:
            for other in OTHERS.get(name, ()):
                yield {**{one: PARAMETERS[one](them) for one in names}, name: other(them)}

    def own(self, me: Things) -> dict[str, str]:
        """Ids of the caller's things."""
        return {name: PARAMETERS[name](me) for name in self.parameters()}


def routes() -> list[Walked]:
    """All routes that have a case."""
    operations = [
        Walked(key, one.method, one.path, one.is_read, OPERATION_CASES[key])
        for one in OPERATIONS
        if (key := f"{one.method} {one.path}") in OPERATION_CASES
    ]
    pages = [
        Walked(f"page {one.name}", one.method, f"/ui{one.path}", one.is_read, PAGE_CASES[one.name])
        for one in PAGES
        if one.name in PAGE_CASES
    ]
    return [*operations, *pages]


def test_every_route_has_a_case() -> None:
    assert {*OPERATION_CASES} == {f"{one.method} {one.path}" for one in OPERATIONS}
    assert {*PAGE_CASES} == {one.name for one in PAGES}
    assert {name for route in routes() for name in route.parameters()} <= {*PARAMETERS}
    bodies = {f"{one.method} {one.path}" for one in OPERATIONS if one.body is not None and one.method != "GET"}
    without = {key for key in bodies if "json" not in OPERATION_CASES[key](NOBODY, NOBODY)[0]}
    assert without == set()


Closing = Literal["threads", "all"]


def auth(closing: Closing) -> Auth:
    """Everybody owns what they make: said of threads alone, or of everything. Both may use pages."""
    made = Auth()

    @made.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization not in ("eve", "bob"):
            raise Auth.exceptions.HTTPException(401)
        return {"identity": authorization, "permissions": ["pages:read", "pages:act"]}

    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        mine = {"owner": ctx.user.identity}
        return {"$or": [mine, {"guests": {"$contains": ctx.user.identity}}]} if closing == "threads" else mine

    if closing == "threads":
        made.on.threads(own)
        return made
    made.on(own)

    @made.on.store
    async def own_items(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
        return bool((value["namespace"] or ())[:1] == (ctx.user.identity,))

    return made


class User:
    """A user with a browser.

    Args:
        name: The user.
        visitor: The browser.
    """

    def __init__(self, name: str, visitor: Visitor) -> None:
        self.name, self._visitor = name, visitor
        self.client = visitor.client

    async def send(self, route: Walked, ids: dict[str, str], request: Request) -> httpx.Response:
        """Send a request to a route; to an action with the token of the browser."""
        given = {**request}
        if "data" in given:
            given["data"] = {**given["data"], "token": self.client.cookies["pgstate_token"]}
        return await self.client.request(route.method, route.at(ids), **given)

    async def make(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Make something of one's own."""
        response = await self.client.request(method, path, **given)
        assert response.is_success, (path, response.text)
        return response

    async def settle_in(self, record: Record) -> Things:
        """Make a thing of each kind."""
        name, secret = self.name, f"secret-of-{self.name}"
        hello = {"messages": [{"role": "user", "content": secret}]}
        run = {"assistant_id": "chat", "input": hello, "metadata": {"note": secret}}
        thread = f"/threads/{name}-thread"
        await self.make("POST", "/threads", json={"thread_id": f"{name}-thread", "metadata": {"note": secret}})
        ran = await self.make("POST", f"{thread}/runs/wait", json=run)
        run_id = ran.headers["content-location"].rpartition("/")[2]
        state = (await self.make("GET", f"{thread}/state")).json()
        pending = (await self.make("POST", f"{thread}/runs", json={**run, "after_seconds": 86_400})).json()
        feedback = await self.make("POST", f"{thread}/runs/{run_id}/feedback", json={"comment": secret, "score": 1})
        asked = {"assistant_id": "asking", "input": {"count": 1}, "if_not_exists": "create"}
        await self.make("POST", f"/threads/{name}-asking/runs/wait", json=asked)
        interrupts = (await self.make("GET", f"/threads/{name}-asking")).json()["interrupts"]
        copy = (await self.make("POST", f"{thread}/copy")).json()["thread_id"]
        config = {"configurable": {"prompt": secret}}
        made = {"graph_id": "chat", "name": secret, "config": config}
        assistant = (await self.make("POST", "/assistants", json=made)).json()["assistant_id"]
        await self.make("PATCH", f"/assistants/{assistant}", json={"description": secret})
        cron = (await self.make("POST", "/runs/crons", json={**run, "schedule": DAILY})).json()["cron_id"]
        on_thread = (await self.make("POST", f"{thread}/runs/crons", json={**run, "schedule": DAILY})).json()["cron_id"]
        item = {"namespace": [name, "notes"], "key": "k", "value": {"text": secret}}
        await self.make("PUT", "/store/items", json=item)
        record.execution(f"{name}-key", thread_id=f"{name}-thread", status="unknown", arguments={"note": secret})
        await self.client.get("/ui/person")
        return Things(
            name=name,
            thread=f"{name}-thread",
            copy=copy,
            asking=f"{name}-asking",
            run=run_id,
            pending=pending["run_id"],
            checkpoint=state["checkpoint"]["checkpoint_id"],
            interrupt=next(iter(interrupts.values()))[0]["id"],
            feedback=feedback.json()["feedback_id"],
            assistant=assistant,
            cron=cron,
            thread_cron=on_thread,
            key=f"{name}-key",
        )

    async def reads(self, me: Things) -> dict[str, Any]:
        """What the user reads of all that there is, by route."""
        found = {}
        for route in routes():
            if not route.is_read or route.key in (*ENDLESS, "GET /openapi.json"):
                continue
            for number, request in enumerate(route.case(NOBODY, me)):
                given = {**request, "headers": {**request.get("headers", {}), "accept": "application/json"}}
                response = await self.send(route, route.own(me), given)
                # Times that pass are told in words.
                text = re.sub(r"Ended (\d+ \w+ ago|just now)", "Ended", response.text)
                found[f"{route.key} {number}"] = (response.status_code, text)
        return found


class Place:
    """A server with two users.

    Args:
        server: The server.
        store: LangGraph's store.
        record: Rows that are written by hand.
        eve: The first user.
        bob: The second.
    """

    def __init__(self, server: AgentServer, store: InMemoryStore, record: Record, eve: User, bob: User) -> None:
        self.server, self.store, self.record = server, store, record
        self.eve, self.bob = eve, bob

    def rows(self, of: Things) -> dict[str, Any]:
        """All that is stored of a user, by table."""
        schema, connection = self.record.schema, self.record.connection
        names = connection.execute(
            "SELECT DISTINCT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition "
            "AND a.attname = 'thread_id' ORDER BY 1",
            [schema],
        ).fetchall()
        found: dict[str, Any] = {}
        for (table,) in names:
            rows = f"SELECT to_jsonb(r)::text FROM {schema}.{table} r WHERE thread_id = ANY(%s) ORDER BY 1"
            found[table] = connection.execute(rows, [[of.thread, of.copy, of.asking]]).fetchall()
        for table in ("assistants", "assistant_versions"):
            rows = f"SELECT to_jsonb(r)::text FROM {schema}.{table} r WHERE assistant_id = %s ORDER BY 1"
            found[table] = connection.execute(rows, [of.assistant]).fetchall()
        rows = f"SELECT to_jsonb(r)::text FROM {schema}.schedules r WHERE name = ANY(%s) ORDER BY 1"
        found["schedules"] = connection.execute(rows, [[of.cron, of.thread_cron]]).fetchall()
        found["store"] = [(one.namespace, one.key, one.value) for one in self.store.search((of.name,))]
        return found

    async def until_idle(self) -> None:
        """Wait until no run is under way."""
        assert self.server.service is not None
        async with asyncio.timeout(60):
            query = f"SELECT count(*) FROM {self.record.schema}.queue WHERE is_ready OR status = 'running'"
            while self.record.connection.execute(query).fetchone() != (0,):
                await asyncio.sleep(0.02)
        await self.server.service.state.flush()


@pytest.fixture(params=["threads", pytest.param("all", marks=pytest.mark.slow)])
async def place(request: pytest.FixtureRequest, dsn: str, record: Record) -> AsyncIterator[Place]:
    store = InMemoryStore()
    options: Any = {"graphs": {"chat": chat(), "asking": asking()}, "inspector": True, "store": store}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(dsn, record.schema, auth=auth(request.param), **options))
        users = [
            User(name, await stack.enter_async_context(visiting(server, {"authorization": name})))
            for name in ("eve", "bob")
        ]
        yield Place(server, store, record, *users)


def blamed(response: httpx.Response, ids: dict[str, str]) -> tuple[int, str]:
    """What a refusal says, without ids."""
    text = response.text
    for id in sorted({*ids.values()}, key=len, reverse=True):
        text = text.replace(quote(id, safe=""), "ID").replace(id, "ID")
    return response.status_code, re.sub(r"\b(eve|bob|no)-\w+|secret-of-\w+", "ID", text)


def is_refused(route: Walked, response: httpx.Response) -> bool:
    if route.path.endswith("/commands"):
        return response.status_code in REFUSED or response.json()["type"] == "error"
    return response.status_code in REFUSED


@pytest.mark.slow
async def test_nothing_of_another_user_is_reached_by_any_route(place: Place) -> None:
    eve, bob, record = place.eve, place.bob, place.record
    mine = await bob.settle_in(record)
    await place.until_idle()
    alone = await bob.reads(mine)
    theirs = await eve.settle_in(record)
    await place.until_idle()
    # Counted: there is more now, and the second user reads the same.
    assert await bob.reads(mine) == alone
    before, read = place.rows(theirs), await eve.reads(theirs)
    assert {"runs", "checkpoints", "writes", "queue", "feedback", "tool_executions"} <= {
        table for table, rows in before.items() if rows
    }
    sent = 0
    for route in routes():
        if route.key in ENDLESS:
            continue
        requests = route.case(theirs, mine)
        for ids in route.mixtures(theirs, mine):
            # Of another user's thing, or of none: the answer is the same.
            missing = {name: id if id in mine.ids else getattr(NOBODY, _kind(name)) for name, id in ids.items()}
            accepting = {**requests[0], "headers": {"accept": "application/json"}}
            responses = [await bob.send(route, chosen, accepting) for chosen in (ids, missing)]
            assert blamed(responses[0], ids) == blamed(responses[1], missing), (route.key, ids)
            for request in requests:
                response = await bob.send(route, ids, request)
                sent += 1
                if route.key not in LENIENT or theirs.thread in ids.values():
                    assert is_refused(route, response), (route.key, ids, request, response.text[:300])
                assert theirs.secret not in response.text, (route.key, ids, request)
        for request in requests[1:]:
            response = await bob.send(route, route.own(mine), request)
            sent += 1
            assert response.status_code < 500, (route.key, request, response.text)
            assert theirs.secret not in response.text, (route.key, request)
        assert place.rows(theirs) == before, route.key
    assert sent > 400
    await place.until_idle()
    assert place.rows(theirs) == before
    # Nothing was put among what is the first user's, either.
    assert await eve.reads(theirs) == read


def _kind(parameter: str) -> str:
    return {
        "thread_id": "thread",
        "run_id": "run",
        "checkpoint_id": "checkpoint",
        "assistant_id": "assistant",
        "cron_id": "cron",
        "feedback_id": "feedback",
        "interrupt_id": "interrupt",
        "key": "key",
        "worker_id": "run",
        "name": "cron",
        "erasure_id": "run",
    }[parameter]
