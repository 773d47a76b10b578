"""Every code block and command of the README and of docs/ is run, and their lists are complete.

A block that cannot be run has a reason, in a comment before it that a reader does not see:
`<!-- test: not run, REASON -->`. An SQL block whose queries may find nothing in the small database of this test is
marked `<!-- test: may be empty -->`. All other blocks of a page run in order, with the same names and database.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import itertools
import json
import re
import shlex
import socket
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
import typer
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.postgres import PostgresStore
from langgraph.types import interrupt
from psycopg.conninfo import make_conninfo
from support import GUARD_SECONDS, wait_until
from typer.testing import CliRunner

from benchmarks import __main__ as benchmarks
from benchmarks import holding, serving
from benchmarks import pages as pages_benchmark
from benchmarks.queue import __main__ as queue_benchmarks
from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.cli import _with_options_first
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.paging import Page
from langgraph_pgstate.server.langgraph_platform import AgentServerSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Tests of their own type them from top to bottom.
TYPED = {ROOT / "docs" / "tutorial.md", ROOT / "docs" / "guides" / "testing.md"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# Take a minute, ask, or go on for ever; other tests run them.
ONLY_PARSED = {"inspect", "serve", "worker"}
pytestmark = pytest.mark.once

_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<marker>[^>]*?) -->\n+)?^```(?P<language>[a-z]*)(?: title=[^\n]+)?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PLACES = {"postgresql://localhost/app": "docs", "postgresql://localhost/old": "old"}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    code: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["code"],
            found["marker"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


class Trip(MessagesState):
    booking: dict[str, str]


def book(trip: Trip) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("The Astoria is a hotel with a river view.", id="answer")]))
    return {
        "messages": [model.invoke(trip["messages"])],
        "booking": {"hotel": "Astoria", "check_in": "2027-03-05"},
    }


def fail(trip: Trip) -> dict[str, Any]:
    raise ValueError("no room")


def ask(trip: Trip) -> dict[str, Any]:
    return {"booking": {"approved": str(interrupt({"question": "Book it?"}))}}


@tool
def charge(order_id: str, euros: int) -> str:
    """Charge a card."""
    return f"{euros} euros"


@tool
def search(words: str) -> str:
    """Search."""
    return words


def travel() -> StateGraph[Trip]:
    return StateGraph(Trip).add_node(book).add_edge(START, "book")


def fill(dsn: str) -> None:
    """Make the database that all pages begin with: a few threads, a failed run, a charge, and an open question."""
    prague = {"configurable": {"thread_id": "trip-1", "user_id": "eve", "tenant_id": "acme"}}
    with PGState.open(dsn, project=("booking",)) as state:
        state.setup()
        graph = state.record(travel().compile(checkpointer=state.saver, name="travel"))
        for text in ("A river view in Prague, please.", "And a hotel in March."):
            said = graph.invoke({"messages": [("user", text)]}, prague)["messages"]
        origin = {"thread_id": "trip-1", "message_id": said[0].id}
        state.memory.remember("Likes a river view.", "preference", key="view", user_id="eve", **origin)
        broken = StateGraph(Trip).add_node(fail).add_edge(START, "fail").compile(checkpointer=state.saver)
        with pytest.raises(ValueError, match="no room"):
            state.record(broken).invoke({"messages": []}, {"configurable": {"thread_id": "trip-2", "user_id": "eve"}})
        asking = StateGraph(Trip).add_node(ask).add_edge(START, "ask").compile(checkpointer=state.saver)
        for id in ("visa-1", "visa-2"):
            state.record(asking).invoke({"messages": []}, {"configurable": {"thread_id": id, "tenant_id": "acme"}})
        wish = {"name": "charge", "args": {"order_id": "17", "euros": 90}, "id": "call-1"}
        tools = StateGraph(Trip).add_node("tools", ToolNode([charge], wrap_tool_call=state.tools))
        paying = state.record(tools.add_edge(START, "tools").compile(checkpointer=state.saver))
        paying.invoke({"messages": [AIMessage("", tool_calls=[wish])]}, {"configurable": {"thread_id": "order-17"}})
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE pgstate.runs SET steps = 60 WHERE thread_id = 'trip-2'")
        connection.execute(
            "INSERT INTO pgstate.events (thread_id, event_id, kind, payload)"
            " VALUES ('trip-2', '1', 'handoff', '{\"from\": \"travel\", \"to\": \"office\"}')"
        )


@pytest.fixture(scope="module")
def databases(dsn: str) -> Iterator[Callable[[str], str]]:
    """Makes a copy of a database: `docs`, with this package's tables, or `old`, with LangGraph's own."""
    made = []
    with psycopg.connect(dsn, autocommit=True) as admin:

        def create(template: str) -> str:
            name = f"docs_{next(_numbers)}"
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
            made.append(name)
            return make_conninfo(dsn, dbname=name)

        templates = {"docs": create("template1"), "old": create("template1")}
        fill(templates["docs"])
        with PostgresStore.from_conn_string(templates["old"]) as store:
            store.setup()
            store.put(("user", "eve"), "home", {"text": "Eve lives in Vienna."})
        with PostgresSaver.from_conn_string(templates["old"]) as saver:
            saver.setup()
            travel().compile(checkpointer=saver).invoke(
                {"messages": [("user", "Hello.")]}, {"configurable": {"thread_id": "old-1"}}
            )
        names = dict(zip(templates, made, strict=True))
        yield lambda template: create(names[template])
        for name in made:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def found(value: Any) -> None:
    """Fail if what an example asks for is an empty list or page."""
    items = value.items if isinstance(value, Page) else value
    assert not isinstance(items, list | tuple) or items


class Runner:
    """Runs the blocks of one page on databases of its own."""

    def __init__(self, databases: Callable[[str], str]) -> None:
        self._databases = databases
        self._places: dict[str, str] = {}
        self.dsn = self._place("postgresql://localhost/app")
        self.names: dict[str, Any] = {"__name__": "docs_example", "dsn": self.dsn, "_found": found}

    def run(self, block: Block) -> None:
        """Run a block, or look at it if it is no program."""
        given = self.names.get("state")
        getattr(self, f"_run_{block.language}")(block)
        # The block may have opened one of its own, and closed it.
        self.names["state"] = given

    def _place(self, address: str) -> str:
        if address not in self._places:
            self._places[address] = self._databases(_PLACES[address])
        return self._places[address]

    def _here(self, code: str) -> str:
        for address in _PLACES:
            if address in code:
                code = code.replace(address, self._place(address))
        return code.replace("1f0a…", str(self.names.get("past", "")))

    def _run_python(self, block: Block) -> None:
        tree = ast.parse("\n" * block.line + self._here(block.code), block.page)
        for statement in tree.body:
            if isinstance(statement, ast.Expr):
                asked = ast.Call(ast.Name("_found", ast.Load()), [statement.value], [])
                statement.value = ast.fix_missing_locations(ast.copy_location(asked, statement.value))
        code = compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:

            async def run() -> None:
                await eval(code, self.names)

            asyncio.run(run())
        else:
            exec(code, self.names)

    def _run_diff(self, block: Block) -> None:
        lines = [line[1:] for line in block.code.splitlines() if not line.startswith("-")]
        self._run_python(Block(block.page, block.line, "python", "\n".join(lines), ""))

    def _run_sql(self, block: Block) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in re.sub(r"--.*$", "", self._here(block.code), flags=re.MULTILINE).split(";"):
                if statement.strip():
                    cursor = connection.execute(statement.encode())
                    if cursor.description and block.marker != "may be empty":
                        assert cursor.fetchall(), statement

    def _run_json(self, block: Block) -> None:
        found = json.loads(block.code)
        module, _, name = found["checkpointer"]["path"].partition(":")
        assert hasattr(importlib.import_module(module), name)
        AgentServerSettings.from_environment(found["env"])

    def _run_console(self, block: Block) -> None:
        for line in block.code.splitlines():
            if line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                getattr(self, f"_call_{words[0]}")([self._here(word) for word in words[1:]])

    def _call_pgstate(self, arguments: list[str]) -> None:
        if arguments[0] in ONLY_PARSED:
            COMMANDS[arguments[0]].make_context(arguments[0], arguments[1:])
            return
        result = CliRunner().invoke(app, _with_options_first(arguments), env={"PGSTATE_DSN": self.dsn})
        assert result.exit_code == 0, (arguments, result.output, result.exception)

    def _call_make(self, arguments: list[str]) -> None:
        assert {word for word in arguments if "=" not in word} <= TARGETS

    def _call_pip(self, arguments: list[str]) -> None:
        # There is no release to install by name.
        assert not any(name.startswith(PROJECT["name"]) for name in arguments)
        for name in arguments[1:]:
            if name.startswith("."):
                assert set(re.findall(r"\w+", name)) <= set(PROJECT["optional-dependencies"])


@pytest.fixture
def runner(databases: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A runner with the names that pages take as given: an open `state`, a `builder`, its `graph` and a `config`."""
    monkeypatch.chdir(tmp_path)
    runner = Runner(databases)
    with PGState.open(runner.dsn, project=("booking",)) as state:
        [newest, *_] = state.runs.list(thread_id="trip-1", limit=1).items
        runner.names |= {
            "state": state,
            "builder": travel(),
            "graph": state.record(travel().compile(checkpointer=state.saver)),
            "config": {"configurable": {"thread_id": "trip-1"}},
            "question": {"messages": [("user", "A river view.")]},
            "run_id": newest.run_id,
            "past": newest.last_checkpoint_id,
            "charge": charge,
            "search": search,
            "refund": lambda execution, result: None,
            "was_charged": lambda execution: False,
            "model": GenericFakeChatModel(messages=iter([])),
        }
        monkeypatch.setattr(PGState, "embedded", classmethod(lambda kind: kind.open(runner.dsn)))
        yield runner


@pytest.mark.parametrize("page", [page for page in PAGES if page not in TYPED], ids=lambda page: page.stem)
def test_every_block_runs(page: Path, runner: Runner) -> None:
    for block in blocks_of(page):
        if block.marker.startswith("not run, ") or block.language in ("mermaid", "text"):
            continue
        try:
            runner.run(block)
        except BaseException as error:
            error.add_note(f"in the block at {block}")
            raise


def test_the_service(databases: Callable[[str], str]) -> None:
    """Run the service of the guide; a client disconnects in the middle of a run, and another goes on."""
    uvicorn = pytest.importorskip("uvicorn")
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    dsn = databases("docs")
    [code] = [block.code for block in blocks_of(ROOT / "docs/guides/applications.md") if "FastAPI(" in block.code]
    # The types of a state are looked up in its module.
    sys.modules["service"] = module = ModuleType("service")
    exec(code.replace("postgresql://localhost/app", dsn), module.__dict__)
    # The first run waits until its client has disconnected, however slow this machine is.
    waits = iter([GUARD_SECONDS])
    module.__dict__["asyncio"] = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(next(waits, 0)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(module.app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started, "the service's start")
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/threads/desk-1/runs"
            with httpx.Client(timeout=GUARD_SECONDS) as client:
                with client.stream("POST", url, params={"text": "A hotel?"}) as response:
                    lines = response.iter_lines()
                    assert "A hotel?" in next(lines)
                    assert httpx.post(url, timeout=GUARD_SECONDS).status_code == 409
                answers = []

                def goes_on() -> bool:
                    answers.append(client.post(url))
                    return answers[-1].status_code == 200

                wait_until(goes_on, "the thread to be free")
                last = json.loads(answers[-1].text.splitlines()[-1])
                assert last["offer"] == {"hotel": "Astoria", "euros": 90}
                assert [message["type"] for message in last["messages"]] == ["human", "ai"]
                assert client.post(url.replace("desk-1", "desk-2")).status_code == 422
                assert client.post(url.replace("desk-1", "desk-1%00"), params={"text": "A hotel?"}).status_code == 422
        finally:
            server.should_exit = True
            thread.join(GUARD_SECONDS)
    with PGStateSaver.from_conn_string(dsn) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": "desk-1"}})
    del sys.modules["service"]
    assert found is not None
    values = found.checkpoint["channel_values"]
    assert values["offer"] == module.Offer("Astoria", 90)  # type: ignore[attr-defined]
    assert [message.text for message in values["messages"]] == ["A hotel?", "The Astoria has a room for 90 euros."]
    with psycopg.connect(dsn) as connection:
        ends = connection.execute("SELECT status FROM pgstate.runs WHERE thread_id = 'desk-1' ORDER BY started_at")
        assert [status for (status,) in ends] == ["cancelled", "success"]


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text().split()) <= 800


def test_the_figures_are_those_of_the_last_benchmark() -> None:
    table = (ROOT / "benchmarks" / "results" / "TABLE.md").read_text()
    for page, shown in ((ROOT / "docs" / "performance.md", table), (PAGES[0], benchmarks.readme_table(table))):
        assert f"{benchmarks._TABLE_BEGINS}\n{shown}{benchmarks._TABLE_ENDS}" in page.read_text()


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            assert goal.exists(), (page.name, target)
            if anchor:
                headings = re.findall(r"^#+ (.*)$", goal.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, (page.name, target)
    # From the README, or from the first page of the documents.
    linked = {
        page.parent / target for page in PAGES[:2] for target in re.findall(r"\(([\w/-]+\.md)[)#]", page.read_text())
    }
    assert set(PAGES[1:]) <= linked


def test_blocks_that_are_not_run_say_why() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in ("python", "sql", "console", "json", "diff", "mermaid", "text") or (
                block.marker.startswith("not run, ")
            ), str(block)
            assert not block.marker or re.match(r"not run, \w+|may be empty$|second terminal", block.marker), str(block)


def test_commands_in_sentences_exist() -> None:
    for page in PAGES:
        text = page.read_text()
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks_of(page)), page.name
        for span in re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text)):
            program, *words = span.split()
            if program == "make":
                assert words[0] in TARGETS, (page.name, span)
            elif program == "pgstate" and words and not words[0].startswith("-"):
                command = COMMANDS.get(words[0])
                assert command is not None or words[0] == "COMMAND", (page.name, span)
                known = {option for parameter in command.params for option in parameter.opts} if command else {"--help"}
                assert {word for word in words if word.startswith("--")} <= known, (page.name, span)


def test_every_command_argument_and_option_has_a_help_text() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", (name, parameter.name)


def test_the_reference_has_every_setting_of_the_agent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = importlib.import_module("reference").settings()
    read = set(re.findall(r"PGSTATE_[A-Z_]+", inspect.getsource(AgentServerSettings))) | {"PGSTATE_DSN"}
    assert read <= set(re.findall(r"^\| `(PGSTATE_[A-Z_]+)`", page, re.MULTILINE))


def test_the_reference_has_every_table_and_column_with_its_comment(
    connection: psycopg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = importlib.import_module("reference").tables()
    rows = connection.execute(
        "SELECT c.relname, a.attname, col_description(c.oid, a.attnum), c.relkind = 'v',"
        " replace(format_type(a.atttypid, NULL), 'timestamp with time zone', 'timestamptz')"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition",
        [schema],
    )
    expected: dict[str, set[tuple[str, str, str]]] = {}
    for table, column, comment, is_view, kind in rows:
        text = comment.replace("|", "\\|")
        expected.setdefault(table, set()).add((f"`{column}`", "" if is_view else kind, text))
    found: dict[str, set[tuple[str, str, str]]] = {}
    for line in page.splitlines():
        if heading := re.match(r"### `(\w+)`", line):
            columns = found[heading[1]] = set()
        elif row := re.match(r"\| (`\w+`) \| (.*?) \| (.+) \|$", line):
            columns.add((row[1], row[2], row[3]))
    assert found == expected


def test_the_page_about_sql_names_every_view(connection: psycopg.Connection, schema: str) -> None:
    views = connection.execute("SELECT viewname FROM pg_views WHERE schemaname = %s", [schema])
    table = (ROOT / "docs" / "sql.md").read_text().partition("## Which view")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(name for (name,) in views)


@pytest.mark.parametrize("benchmark", [serving, holding, pages_benchmark])
def test_the_figures_of_the_server_are_those_of_the_last_benchmark(benchmark: Any) -> None:
    table = benchmark.table(json.loads(benchmark.RESULT.read_text()))
    assert f"{benchmark.BEGINS}\n{table}{benchmark.ENDS}" in benchmark.DOCUMENT.read_text()


def test_the_figures_of_runs_are_those_of_the_last_benchmark() -> None:
    table = (ROOT / "benchmarks" / "results" / "QUEUE_TABLE.md").read_text()
    assert f"{queue_benchmarks.BEGINS}\n{table}{queue_benchmarks.ENDS}" in (ROOT / "docs" / "runs.md").read_text()
