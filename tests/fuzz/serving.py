"""Requests of a server, in this process, on a real database: any request gets an answer of its protocol.

An answer has a status below 500 (or 501), and a body of its type. No request takes long, logs a traceback, imports,
executes or writes to a file, and a refused one writes nothing. Requests come in episodes: each begins with the same
rows, so that a finding is found again by its seed alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

import psycopg
from langgraph_sdk import Auth
from psycopg import sql
from support.encryption import MASTER
from support.http import asking, chat
from support.keep import make_rich_thread
from support.pages import travel, trip

from langgraph_pgstate import AsyncPGState, Encryption, PGState
from langgraph_pgstate.server import AgentServer, create_app

from . import guard
from .requests import Request, Requests, path_of

EPISODE: Final = 500
"""Requests of an episode."""
_SECONDS: Final = 30
_STREAM_SECONDS: Final = 0.005
_QUIET_SECONDS: Final = 0.2
_VARIANTS: Final = ("open", "open", "open", "auth", "auth", "encrypted", "encrypted", "read-only")
# Without those of the record, to which another connection moves what was journalled before, and of reads of memories.
_TABLES: Final = (
    *("threads", "checkpoints", "writes", "segments", "queue", "runs", "assistants", "assistant_versions", "schedules"),
    *("feedback", "webhooks", "leases", "tombstones", "labels", "holds", "answers", "retention_policies"),
)
# LangGraph makes models of a graph's own types.
_ALLOWED: Final = {("assistants.get_schemas", "exec"), ("assistants.get_subgraphs", "exec")}
_KEPT: Final = ("migrations", "prices", "data_keys")


class Hang(BaseException):
    """The event loop stands still."""


class Response(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Findings:
    """What was found, and what was done.

    Attributes:
        statuses: Number of answers by status.
        warned: Number of logged warnings, by logger and text.
        found: Number of findings by kind.
        slowest: The slowest requests.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)

    def add(self, kind: str, where: str, shown: str) -> None:
        """Count a finding, and print the first of its kind."""
        self.found[kind] += 1
        if self.found[kind] <= 2:
            print(f"FOUND {kind}\n  {where}\n{shown[:4000]}\n", flush=True)  # noqa: T201


class _Log(logging.Handler):
    """Everything that is logged as a warning or worse while a request is answered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def users() -> Auth:
    """Return two users, of whom each sees what is theirs, and one who sees all."""
    auth = Auth()
    permissions = ["pages:read", "pages:act", "metrics:read"]

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization not in ("eve", "bob", "admin"):
            raise Auth.exceptions.HTTPException(401, "who are you?")
        return {"identity": authorization, "permissions": permissions}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        if ctx.user.identity == "admin":
            return True
        value.setdefault("metadata", {})
        if isinstance(value["metadata"], dict):
            value["metadata"]["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    return auth


def _empty(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p')"
            " AND NOT relispartition AND relname <> ALL(%s)",
            [schema, [*_KEPT]],
        ).fetchall()
        names = sql.SQL(", ").join(sql.Identifier(schema, name) for (name,) in found)
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))


def set_up(dsn: str, schema: str) -> None:
    """Make the tables."""
    with PGState.open(dsn, schema=schema) as state:
        state.setup()


@asynccontextmanager
async def _opened(dsn: str, schema: str, variant: str) -> AsyncIterator[tuple[AgentServer, AsyncPGState]]:
    """Provide a server on the rows that every episode begins with."""
    given: Any = {"schema": schema}
    if variant == "encrypted":
        readable = ("case", "graph_id")
        given["encryption"] = Encryption(MASTER, readable=readable, searchable=("n",), search="words")
    await asyncio.to_thread(_empty, dsn, schema)
    await asyncio.to_thread(_prepare_blocking, dsn, given)
    async with AsyncPGState.open(dsn, **given) as state:
        await _prepare(state)
        options: dict[str, Any] = {"inspector": True, "worker": False}
        options |= {"auth": users()} if variant == "auth" else {}
        options |= {"read_only": True} if variant == "read-only" else {}
        graphs = {"chat": chat(), "asking": asking(), "trip": trip()}
        server = create_app(state, graphs, receipt_key=bytes(16), **options)
        async with server.lifespan():
            yield server, state


def _prepare_blocking(dsn: str, given: dict[str, Any]) -> None:
    with PGState.open(dsn, **given) as state:
        for thread_id in ("rich", "archived"):
            make_rich_thread(state, thread_id)
        state.threads.create("held", agent="trip")
        state.threads.hold("held", "case 7", by="Eve")
        state.archive.put(["archived"], to="memory://fuzz", idle_for=timedelta(0))


async def _prepare(state: AsyncPGState) -> None:
    ids = await travel(state, user_id="eve", metadata={"owner": "eve", "graph_id": "trip", "n": 1})
    await state.threads.fork("t", ids[1], "fork")
    await state.threads.create("u", agent="chat", metadata={"owner": "bob", "graph_id": "chat"})
    await state.runs.enqueue("trip", {"messages": []}, thread_id="queued", run_id="q")
    await state.runs.enqueue("chat", {"messages": []}, thread_id="t", run_id="r", metadata={"owner": "eve"})
    await state.memory.aput(("a", "b"), "key", {"text": "value"})
    await state.memory.aput(("eve",), "k", {"text": "value", "n": 1})
    await state.files.write(("a", "b"), "/notes.md", "# Notes\n", by="eve")
    await state.schedules.put("daily", "chat", {"messages": []}, cron="0 9 * * *")
    await state.assistants.create("own", graph="chat", name="own", metadata={"owner": "eve"})
    await state.retention.put("keep", by="Eve", agent="trip", prune_after=timedelta(days=30))


async def respond(app: AgentServer, request: Request) -> Response:
    """Return the answer to a request. The client disconnects after the first part of a stream."""
    path, _, query = request.target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": path_of(request.target),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"localhost"), *request.headers],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "state": {},
    }
    parts = [*request.body] or [b""]
    goes, sent = asyncio.Event(), list[Any]()

    async def receive() -> Any:
        if parts:
            part = parts.pop(0)
            if request.ends_early and not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(parts)}
        await goes.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        # A run that nobody executes says nothing.
        asyncio.get_running_loop().call_later(_STREAM_SECONDS, goes.set)

    if request.ends_early:
        goes.set()
    await app(scope, receive, send)  # type: ignore[arg-type]
    starts = [one for one in sent if one["type"] == "http.response.start"]
    if len(starts) != 1 or sent[0] is not starts[0]:
        raise AssertionError(f"an answer has one start, not {[one['type'] for one in sent]}")
    for name, value in starts[0]["headers"]:
        if type(name) is not bytes or type(value) is not bytes or {*b"\r\n\0"} & {*name, *value}:
            raise AssertionError(f"header {name!r} is {value!r}")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in starts[0]["headers"]}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return Response(starts[0]["status"], headers, body)


def complaint(request: Request, response: Response) -> str | None:
    """Return what is wrong with an answer; `None` if nothing is."""
    status, headers, body = response
    kind = headers.get("content-type", "").partition(";")[0]
    if status >= 500 and status != 501:
        return f"status {status}"
    if b"Traceback (most recent" in body and request.is_page is False:
        return "a traceback"
    if "content-length" in headers and int(headers["content-length"]) != len(body) and request.method != "HEAD":
        return "another length than it states"
    if status in (204, 304) or not body:
        return None
    try:
        match kind:
            case "application/json":
                found = json.loads(body, parse_constant=_refuse)
                # A page that shows its form again says what is wrong with it.
                if status >= 400 and not isinstance(found.get("detail") or found.get("problem"), str):
                    return "a refusal without its reason"
            case "text/event-stream":
                for line in body.decode().splitlines():
                    if line.startswith("data: "):
                        json.loads(line[6:], parse_constant=_refuse)
                    elif line and not line.startswith((":", "event: ", "id: ", "retry: ")):
                        return f"a line of a stream that is none: {line[:100]!r}"
            case "text/html":
                text = body.decode().rstrip()
                # A part of a page is no document.
                if text.startswith("<!doctype") and not text.endswith("</html>"):
                    return "a page that ends early"
            case _:
                body.decode()
    except (ValueError, RecursionError, AttributeError) as error:
        return f"a body that is not {kind}: {error}"
    return None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _hang(number: int, frame: Any) -> None:
    raise Hang("".join(traceback.format_stack(frame, 8)))


class Server:
    """A server that is asked, request by request.

    Args:
        dsn: The database.
        schema: A schema with its tables, which are emptied.
        findings: Takes what is found.
    """

    def __init__(self, dsn: str, schema: str, findings: Findings) -> None:
        self._dsn, self._schema, self._findings = dsn, schema, findings
        self._log = _Log()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        counts = [sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(schema, name)) for name in _TABLES]
        self._counts = sql.SQL("SELECT {}").format(sql.SQL(", ").join(counts))

    async def run(self, seed: str, requests: int, *, is_watched: bool = True) -> None:
        """Send the requests of an episode."""
        dice = random.Random(seed)
        variant = dice.choice(_VARIANTS)
        made = Requests(dice)
        async with (
            await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as self._connection,
            _opened(self._dsn, self._schema, variant) as (app, _),
        ):
            before: Any = None
            await self._introduce(app, made)
            self._tasks = asyncio.all_tasks()
            for number in range(requests):
                if variant == "auth":
                    made.identity = dice.choice(("eve", "eve", "bob", "admin"))
                request = made.next()
                where = f"seed {seed}, request {number}, {variant}: {request}"
                counts = not (request.is_read or request.is_page)
                if counts and before is None:
                    before = await self._rows()
                with guard.watched() if is_watched else _unwatched() as seen:
                    response = await self._ask(app, request, where)
                done = [one for one in seen if (request.name, one.partition(" ")[0]) not in _ALLOWED]
                if done:
                    kind = f"{request.name}: {done[0].partition(' ')[0]}"
                    self._findings.add(kind, where, "\n".join(done[:5]))
                self._heard(where)
                if response is None:
                    before = None
                    continue
                self._findings.statuses[response.status] += 1
                self._findings.names[request.name] += response.status < 400
                if (wrong := complaint(request, response)) is not None:
                    kind = f"{request.name}: {wrong}"[:160]
                    self._findings.add(kind, where, response.body[:600].decode("utf-8", "replace"))
                if before is not None and counts and response.status >= 400:
                    after = await self._rows()
                    # A run that is refused may have made its thread.
                    first = int("runs" in request.name)
                    if after is not None and after[first:] != before[first:]:
                        self._findings.add(f"{request.name}: a refusal that writes", where, f"{before}\n{after}")
                    before = after
                elif not request.is_read or request.name.startswith("runs.join"):
                    # Joining can cancel a run at the end of the stream.
                    before = None
                if response.status < 300 and len(response.body) < 300_000:
                    made.learn(response.body, "text/html" in response.headers.get("content-type", ""))
        if gc.isenabled():
            gc.collect()
        self._heard(f"seed {seed}, {variant}: the end of the episode")

    async def _introduce(self, app: AgentServer, made: Requests) -> None:
        """Get the cookies of pages, and look at each page once."""
        made.identity = "eve"
        for target in (b"/ui/person", b"/ui/threads", b"/ui/runs", b"/ui/threads/t", b"/ui/interrupts", b"/ui/queue"):
            identity = [(b"authorization", b"eve")]
            page = await respond(app, Request("page", "GET", target, identity, is_page=True))
            cookie = page.headers.get("set-cookie", "")
            if cookie.startswith("pgstate_token="):
                made.token = cookie.partition("=")[2].partition(";")[0]
            made.learn(page.body, is_page=True)
        made.identity = ""
        made.cookie = f"pgstate_token={made.token}; pgstate_person=Eve".encode()

    async def _rows(self) -> Any:
        """Return the number of rows of each table; `None` while something goes on after an answer."""
        assert self._connection is not None
        # As what follows the disconnect of a client.
        if going_on := asyncio.all_tasks() - self._tasks:
            await asyncio.wait(going_on, timeout=_QUIET_SECONDS)
        if asyncio.all_tasks() - self._tasks:
            return None
        cursor = await self._connection.execute(self._counts)
        return await cursor.fetchone()

    async def _ask(self, app: AgentServer, request: Request, where: str) -> Response | None:
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            async with asyncio.timeout(_SECONDS - 5):
                return await respond(app, request)
        except Hang as hang:
            self._findings.add(f"{request.name}: the loop stands still", where, str(hang))
        except TimeoutError as error:
            self._findings.add(f"{request.name}: no answer", where, _shown(error))
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{request.name}: {type(error).__name__} at {at.name}"
            self._findings.add(kind, where, _shown(error))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            took = time.monotonic() - began
            slowest = self._findings.slowest
            if took > 0.5 and (len(slowest) < 5 or took > slowest[-1][0]):
                slowest[:] = sorted([*slowest, (took, where[:300])], reverse=True)[:5]
        return None

    def _heard(self, where: str) -> None:
        """Count what was logged: a traceback or an error is a finding."""
        records, self._log.records = self._log.records, []
        for record in records:
            text = record.getMessage()
            if record.exc_info or record.levelno >= logging.ERROR or "Traceback" in text:
                shown = logging.Formatter().format(record)
                last = shown.strip().splitlines()[-1][:100]
                self._findings.add(f"logged by {record.name}: {record.msg[:60]}: {last}", where, shown[-3500:])
            else:
                self._findings.warned[f"{record.name}: {record.msg[:100]}"] += 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take what is logged, and what is warned of."""
        root = logging.getLogger()
        root.addHandler(self._log)
        shown = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            level = logging.ERROR if issubclass(category, RuntimeWarning | ResourceWarning) else logging.WARNING
            logging.getLogger("py.warnings").log(level, "%s: %s", category.__name__, message)

        warnings.showwarning = show
        unraisable = sys.unraisablehook
        sys.unraisablehook = lambda one: logging.getLogger("py.unraisable").error(
            "%s", one.err_msg, exc_info=(one.exc_type, one.exc_value or one.exc_type(), one.exc_traceback)
        )
        try:
            yield
        finally:
            warnings.showwarning, sys.unraisablehook = shown, unraisable
            root.removeHandler(self._log)


@contextmanager
def _unwatched() -> Iterator[list[str]]:
    yield []


def _shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-12))[-4000:]


def run(dsn: str, schema: str, seed: str, requests: int, *, is_watched: bool = True) -> Findings:
    """Send requests, and return what was found.

    Args:
        dsn: The database.
        schema: The schema, which is made and emptied.
        seed: Which requests, like `1`; `1.12` are those from episode 12 of seed 1 on.
        requests: How many.
        is_watched: Whether the audit hook watches. It stays in this process.
    """
    findings = Findings()
    set_up(dsn, schema)
    server = Server(dsn, schema, findings)
    signal.signal(signal.SIGALRM, _hang)
    number, _, first = seed.partition(".")
    with asyncio.Runner() as runner, server.listening():
        if is_watched:
            # What is imported and compiled at the first use is so now.
            for one in range(2):
                runner.run(server.run(f"first.{one}", EPISODE, is_watched=False))
            guard.install()
        episode = int(first or 0)
        while requests > 0:
            runner.run(server.run(f"{number}.{episode}", min(EPISODE, requests), is_watched=is_watched))
            requests -= EPISODE
            episode += 1
    return findings
