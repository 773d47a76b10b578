"""The rules of the house: who may import whom, where SQL is, what an operation may do, and that both savers agree."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command, Interrupt
from support import check_each, config_of, put_arguments

import langgraph_pgstate
from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.admin.types import MaintenanceReport
from langgraph_pgstate.arguments import Address, address_of
from langgraph_pgstate.assistants import operations as assistants
from langgraph_pgstate.call_site import Origin
from langgraph_pgstate.checkpoints.journal_entry import WRITTEN
from langgraph_pgstate.checkpoints.listing import request_list
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.reading import load_tuple
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.checkpoints.writes import put_writes, request_writes
from langgraph_pgstate.codec.states import Run
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.files import operations as files
from langgraph_pgstate.files import searching as files_searching
from langgraph_pgstate.files.contents import encode_content
from langgraph_pgstate.files.paths import place_of
from langgraph_pgstate.interrupts import answers
from langgraph_pgstate.interrupts.answers import request_answer
from langgraph_pgstate.interrupts.pending import request_interrupted
from langgraph_pgstate.keep import archiving, deleting, erasing
from langgraph_pgstate.keep.erasing import EraseRequest
from langgraph_pgstate.keep.exporting import START
from langgraph_pgstate.keep.packing import Frame, People, pack, unpack
from langgraph_pgstate.keep.redacting import Redaction
from langgraph_pgstate.keep.redaction import clear_runs
from langgraph_pgstate.keep.retention import list_policies, put_policy, request_policy
from langgraph_pgstate.keep.tables import list_tables
from langgraph_pgstate.keep.types import PolicyReport
from langgraph_pgstate.otlp.exports import Export
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.budgets import Owner, request_budget
from langgraph_pgstate.record.events import request_event
from langgraph_pgstate.record.feedback import request_feedback
from langgraph_pgstate.record.messages import Pages, request_conversation
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from langgraph_pgstate.record.spans import request_timeline
from langgraph_pgstate.record.statistics import request_analytics, request_costs
from langgraph_pgstate.record.types import Price
from langgraph_pgstate.runs.claiming import claim
from langgraph_pgstate.runs.enqueue import enqueue
from langgraph_pgstate.runs.queue import request_limit
from langgraph_pgstate.runs.requests import RunRequest, request_run
from langgraph_pgstate.runs.types import Delivery, EventBatch, RunKey, Wanted, WantedRuns, Webhook
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.schedules.rows import ScheduleRequest, request_schedule
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads.branches import request_fork
from langgraph_pgstate.threads.expiry import request_ttl
from langgraph_pgstate.threads.prune import request_prune
from langgraph_pgstate.threads.rows import request_thread
from langgraph_pgstate.threads.search import request_change
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.executions import Intent, Outcome, Recorded

PACKAGE = Path(langgraph_pgstate.__file__).parent


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The package's modules by their path."""
    # To look for garbage among them takes half a second, again and again.
    gc.disable()
    found = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    }
    gc.freeze()
    gc.enable()
    return found


@functools.cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a module, each before what is in it."""
    return [*ast.walk(tree)]


def is_operation(node: ast.AST) -> bool:
    """Whether it is a function that takes a connection."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and bool(node.args.args) and node.args.args[0].arg == "db"


# They know of threads or tasks, or of runners.
NOT_OPERATIONS = (
    "admin/maintenance",
    "db/",
    "encryption/keys",
    "leases/registry",
    "leases/taking",
    "runs/following",
)


@functools.cache
def operation_modules() -> dict[str, ast.Module]:
    """The modules that have operations."""
    return {
        name: tree
        for name, tree in modules().items()
        if not name.startswith(NOT_OPERATIONS) and any(map(is_operation, tree.body))
    }


SQL = re.compile(
    r"^\s*(SELECT|INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|CREATE|ALTER|DROP|TRUNCATE|LOCK\s+TABLE|WITH\s+\w+\s+AS)\b"
)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string a module holds, f-strings in one piece, but no docstrings."""
    docstrings = set()
    # A function comes before what is in it.
    for node in nodes_of(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.body and isinstance(node.body[0], ast.Expr):
                docstrings.add(id(node.body[0].value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            yield node.lineno, node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def name_of(tree: ast.AST) -> str | None:
    """The name that an expression is."""
    return tree.id if isinstance(tree, ast.Name) else None


def imported(tree: ast.AST) -> set[str]:
    """Root names of all a module imports."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_imports_point_downward_only() -> None:
    """import-linter's contracts in pyproject.toml."""
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sql_is_in_sql_files_only() -> None:
    found = {name: [each for each in strings(tree) if SQL.match(each[1])] for name, tree in modules().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_search_for_sql_finds_it() -> None:
    """The test above rests on it."""
    source = (
        "def f(n):\n    '''SELECT in a docstring'''\n    return f'SELECT {n}', b'UPDATE t SET x = 1', 'Select a file'"
    )
    assert [text for _, text in strings(ast.parse(source)) if SQL.match(text)] == ["UPDATE t SET x = 1", "SELECT "]


def test_psycopg_is_imported_in_db_only() -> None:
    users = {name for name, tree in modules().items() if imported(tree) & {"psycopg", "psycopg_pool"}}
    assert {name for name in users if not name.startswith("db/")} == set()


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Names that another package keeps private: modules and names that are imported, attributes, LangGraph's keys."""
    for node in nodes_of(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("langgraph_pgstate"):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr not in own else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("__pregel_"):
            yield node.value
        elif isinstance(node, ast.Call) and name_of(node.func) in {"getattr", "setattr", "attrgetter"}:
            given = (each.value for each in node.args if isinstance(each, ast.Constant))
            names = [each for each in given if isinstance(each, str) and each not in own]
        yield from (name for name in names if re.match("_(?!_)", name))


def names_assigned(tree: ast.AST) -> set[str]:
    """Names of all attributes, functions, variables and modules that a module defines."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name_of(node.value) == "self":
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


# `NamedTuple` and the standard library have no public names for these.
STANDARD = {"_asdict", "_replace", "_exit", "_initializing", "_is_protocol"}
MAY_TOUCH = {"langgraph_compat.py", "db/embedded.py"}


def test_private_names_of_others_stand_in_one_module() -> None:
    """But for those of the embedded PostgreSQL's library."""
    others = {name: tree for name, tree in modules().items() if name not in MAY_TOUCH}
    own = STANDARD.union(*map(names_assigned, others.values()))
    assert {name: found for name, tree in others.items() if (found := set(private_names(tree, own)))} == {}


def test_the_search_for_private_names_finds_them() -> None:
    source = """
from langgraph._internal import _constants
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot
import langgraph.pregel._loop
frame = sys._getframe(1)
hook = getattr(serde, "_unpack_ext_hook")
lazy._counter = 1
super()._reviver(value)
prefix = "__pregel_"
self._mine, other._mine = 1, 2
"""
    tree = ast.parse(source)
    assert {*private_names(tree, names_assigned(tree))} == {
        *("_internal", "_constants", "_DeltaSnapshot", "_loop", "_getframe", "_unpack_ext_hook", "_counter"),
        *("_reviver", "__pregel_"),
    }


def undocumented(module: str) -> Iterator[str]:
    """Public classes, functions and methods without a docstring; an override may go by that of its base."""
    dotted = "langgraph_pgstate." + module.removesuffix(".py").removesuffix("__init__").replace("/", ".")
    loaded = importlib.import_module(dotted.rstrip("."))
    for node in modules()[module].body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            is_public = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_")
            if is_public and not inspect.getdoc(getattr(getattr(loaded, node.name), inner.name)):
                yield f"{node.name}.{inner.name}"


def test_everything_public_says_what_it_is() -> None:
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []
    assert {name: found for name in modules() if (found := list(undocumented(name)))} == {}


def methods(cls: type) -> dict[str, Any]:
    """What a class and its own bases in this package define in public, and how it is made."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("langgraph_pgstate"):
            found.update({name: value for name, value in vars(base).items() if not name.startswith("_")})
    return {**found, "__init__": cls.__init__}  # type: ignore[misc]


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    """Names, kinds, defaults and types, with the two APIs of psycopg taken for one."""
    signature = inspect.signature(getattr(function, "__func__", function))
    return [
        (item.name, item.kind, item.default, str(item.annotation).replace("Async", ""))
        for item in signature.parameters.values()
    ]


def test_both_savers_have_the_same_methods() -> None:
    # The server reads pages of threads.
    assert methods(AsyncPGStateSaver).keys() - methods(PGStateSaver).keys() == {"read_latest", "load_latest"}
    assert methods(PGStateSaver).keys() <= methods(AsyncPGStateSaver).keys()


def test_both_savers_take_the_same_arguments() -> None:
    for name, blocking in methods(PGStateSaver).items():
        suspending = methods(AsyncPGStateSaver)[name]
        if callable(getattr(blocking, "__func__", blocking)):
            assert parameters(blocking) == parameters(suspending), name
        else:
            assert type(blocking) is type(suspending), name


def test_both_ledgers_have_the_same_methods_with_the_same_arguments() -> None:
    blocking, suspending = methods(ToolLedger), methods(AsyncToolLedger)
    assert blocking.keys() == suspending.keys()
    for name in blocking:
        assert parameters(blocking[name]) == parameters(suspending[name]), name


@pytest.mark.parametrize("cls", [PGStateSaver, AsyncPGStateSaver])
def test_every_method_has_an_async_twin_with_its_arguments(cls: type) -> None:
    """`setup` alone is of one kind in each class, as in LangGraph's own savers."""
    own = methods(cls)
    twins = {name for name in own if f"a{name}" in own}
    assert twins == {
        "get_tuple",
        "list",
        "put",
        "put_writes",
        "delete_thread",
        "revive_thread",
        "delete_for_runs",
        "copy_thread",
        "prune",
        "get_delta_channel_history",
        "close",
    }
    for name in twins:
        assert parameters(own[name]) == parameters(own[f"a{name}"]), name
        assert not inspect.iscoroutinefunction(own[name]), name
        assert inspect.iscoroutinefunction(own[f"a{name}"]) or inspect.isasyncgenfunction(own[f"a{name}"]), name


def test_the_savers_override_all_that_langgraph_would_refuse() -> None:
    """LangGraph's base class raises NotImplementedError from these, and the Agent Server looks for them."""
    base = PGStateSaver.__mro__[2]
    assert base.__name__ == "BaseCheckpointSaver"
    wanted = [
        name
        for name, value in vars(base).items()
        if inspect.isfunction(value) and "raise NotImplementedError" in inspect.getsource(value)
    ]
    assert len(wanted) >= 16
    for cls in (PGStateSaver, AsyncPGStateSaver):
        assert [name for name in wanted if getattr(cls, name) is getattr(base, name)] == []


def operation_functions() -> dict[str, ast.AST]:
    """Every function that takes a connection."""
    return {
        f"{module.removesuffix('.py').replace('/', '.')}.{node.name}": node
        for module, tree in operation_modules().items()
        for node in tree.body
        if is_operation(node)
    }


def has_db(call: ast.AST) -> bool:
    return isinstance(call, ast.Call) and bool(call.args) and ast.unparse(call.args[0]) == "db"


def test_an_operation_is_async_and_awaits_nothing_but_its_connection() -> None:
    """Its awaits are methods of its connection, and other operations or helpers that are given the same connection."""
    functions = operation_functions()
    check_each(lambda name: awaits_its_connection_only(functions[name]), functions)


def awaits_its_connection_only(node: ast.AST) -> None:
    assert isinstance(node, ast.AsyncFunctionDef)
    assert not any(isinstance(inner, ast.AsyncFor | ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
    awaited = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Await)]
    awaited += [
        item.context_expr for inner in ast.walk(node) if isinstance(inner, ast.AsyncWith) for item in inner.items
    ]
    assigned = [inner for inner in ast.walk(node) if isinstance(inner, ast.Assign) and has_db(inner.value)]
    helpers = {ast.unparse(inner.targets[0]) for inner in assigned}
    for call in awaited:
        of_db = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        assert has_db(call) or (of_db and ast.unparse(call.func.value) in {"db", *helpers}), ast.unparse(call)


def test_operations_know_nothing_of_loops_threads_and_clocks() -> None:
    known = {"asyncio", "threading", "time", "concurrent", "anyio", "queue"}
    assert {name: found for name, tree in operation_modules().items() if (found := imported(tree) & known)} == {}


async def clear_runs_of(db: Any, queries: Any, erasure_id: str | None) -> Any:
    return await clear_runs(db, queries, "t", ["run"])


class Bench:
    """A connection with a thread of three checkpoints, for running any operation by hand."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self.queries = queries(schema)
        self.codec = ValueCodec(None)
        self.db = BlockingConnection(connection)
        saver = PGStateSaver(connection, schema=schema)
        config: Any = config_of("t")
        for step in range(3):
            config = saver.put(*put_arguments(config, step))
        self.config = config
        self.address = address_of(config)

    def tables(self) -> Any:
        return run_blocking(list_tables(self.db, self.queries))

    def month(self) -> dict[str, Any]:
        now = datetime.now(UTC)
        cursor = {"cursor_thread": "", "cursor_id": ""}
        return {"first_at": now, "last_at": now, "content": True, "page_size": 10, **cursor}

    def copies(self) -> deleting.Copies:
        manifest = self.packed()[1]
        given: Any = (self.tables(), "memory://a", manifest, 1, {"t": People()})
        run_blocking(archiving.begin_archive(self.db, self.queries, *given))
        run_blocking(deleting.claim_archive(self.db, self.queries, manifest.archive_id, "deletion"))
        return deleting.Copies(manifest.archive_id, "memory://a", manifest.root, ["t"], {"t": People()})

    def rewriting(self) -> Any:
        given: Any = ("memory://a", replace(self.packed()[1], archive_id="b"), 1, {"t": People()})
        run_blocking(archiving.add_archive(self.db, self.queries, *given))
        return self.copies(), "deletion", "b", ["t"]

    def policy(self) -> Any:
        fields: Any = {"content_after": timedelta(days=1), "prune_after": timedelta(days=1)}
        run_blocking(put_policy(self.db, self.queries, request_policy("p", fields)))
        return run_blocking(list_policies(self.db, self.queries))[0]

    def packed(self) -> Any:
        tables = self.tables()
        rows, _ = run_blocking(archiving.read_threads(self.db, self.queries, tables, ["t"]))
        facts: Any = {"archive_id": "a", "created_at": "", "schema_version": 1, "tenant": None}
        return pack(rows, tables.columns, **facts)

    def unpacked(self) -> Any:
        data, manifest = self.packed()
        return [manifest.frames["t"]], {"t": unpack(manifest.frames["t"], data, "a")}

    def archived(self) -> Any:
        rows, manifest = self.unpacked()[1]["t"], self.packed()[1]
        table = next(one for one in self.tables().all if one.name == "checkpoints")
        return table, manifest.columns["checkpoints"], rows["checkpoints"], rows, manifest.columns

    def plan(self) -> Any:
        return plan_put(self.codec, request_put(self.codec, *put_arguments(self.config, 9)), None)

    def erasing(self) -> Any:
        request = EraseRequest("user", "eve")
        run_blocking(erasing.begin(self.db, self.queries, "erasure", request))
        return "erasure", request, None

    def chained(self) -> tuple[()]:
        run_blocking(self.db.execute(self.queries.begin_chaining, {}))
        return ()

    def listing(self) -> Any:
        return request_list(config_of("t"), None, None, None, False)

    def queue(self) -> WriteQueue:
        queue = WriteQueue(RecorderSettings())
        tracker = Tracker(queue)
        root = uuid4()
        tracker.begin("chain", "graph", root, None, [], {"thread_id": "t"}, {})
        # A graph that does nothing yet may still be refused.
        tracker.begin("chain", "node", uuid4(), root, [], {}, {})
        return queue

    def note(self) -> Any:
        pending = self.queue().collect()
        assert pending is not None
        return pending.journal_entry

    def written(self) -> bytes:
        address = self.address
        said = request_writes(self.codec, self.config, [("messages", HumanMessage("hi", id="h"))], "task", "")
        run_blocking(put_writes(self.db, self.queries, said))
        noted = {**address._asdict(), "parent_checkpoint_id": address.checkpoint_id, "run_id": None}
        return orjson.dumps({**noted, "channel": "messages", "hears_remove_all": True})

    def asked(self) -> str:
        question = [("__interrupt__", (Interrupt("go on?", id="0" * 32),))]
        run_blocking(put_writes(self.db, self.queries, request_writes(self.codec, self.config, question, "task", "")))
        return "t"

    def answered(self) -> tuple[str, str]:
        """A thread whose interrupt has an answer, and its newest checkpoint."""
        request = request_answer(self.codec, "yes", None, None)
        given = run_blocking(answers.answer(self.db, self.queries, self.codec, self.asked(), request))
        return given.thread_id, given.checkpoint_id

    def writes(self) -> Any:
        return request_writes(self.codec, self.config, [("messages", "x")], "task", "")

    def schedule(self) -> ScheduleRequest:
        return request_schedule("s", request_run(self.codec, "graph"), {}, cron="0 9 * * *")

    def scheduled(self) -> str:
        """A schedule whose tick has come."""
        run_blocking(schedules.put(self.db, self.queries, self.schedule()))
        key = {"name": "s", "next_at": datetime(2026, 1, 1, tzinfo=UTC), "is_paused": False}
        run_blocking(self.db.execute(self.queries.set_next_tick, key))
        return "s"

    def fields(self) -> dict[str, Any]:
        return assistants.request_fields(self.codec, {"graph": "graph"}, is_new=True)

    def assistant(self) -> str:
        run_blocking(assistants.create(self.db, self.queries, self.codec, "a", self.fields(), refuses=False))
        return "a"

    def delivery(self) -> Delivery:
        return Delivery("t", "r", datetime(2026, 1, 1, tzinfo=UTC), "https://example.com", 1, {}, datetime.now(UTC))

    def webhook(self) -> Webhook:
        return Webhook("t", "r", datetime(2026, 1, 1, tzinfo=UTC), "https://example.com", 1, None)

    def enqueued(self) -> RunRequest:
        request = request_run(self.codec, "graph", {"x": 1}, thread_id="t")
        run_blocking(enqueue(self.db, self.queries, [request]))
        return request

    def feedback(self) -> dict[str, Any]:
        run = self.enqueued()
        return request_feedback(self.codec, run.thread_id, run.run_id, "score", 1, None, None, None, "human", None)

    def claimed(self) -> RunKey:
        queue = self.enqueued().queue
        return run_blocking(claim(self.db, self.queries, "worker", queue, ["graph"], 1, 12.0)).runs[0].key

    def intent(self) -> Intent:
        address = self.address
        return Intent(
            "t",
            "key",
            None,
            "intent",
            "tool",
            "{}",
            task_id="task",
            checkpoint_ns="",
            checkpoint_id=address.checkpoint_id,
            root_checkpoint_id=address.checkpoint_id,
        )

    def recorded(self) -> Recorded:
        run_blocking(tool_executions.begin(self.db, self.queries, self.intent(), "holder", 15.0))
        found = run_blocking(tool_executions.get(self.db, self.queries, "t", "key"))
        assert found is not None
        return found


# How each operation is called, after its connection and the queries.
NAMED = {
    "tools.executions.mark_unknown": {"is_gone": True},
    "tools.executions.settle": {"is_gone": True, "answers": 0},
    "tools.executions.take_over": {"is_gone": True, "answers": 0},
    "otlp.exports.read_spans": {"with_content": True},
    "keep.retention.age_thread": {"dry_run": False},
}


CALLS: dict[str, Callable[[Bench], tuple[Any, ...]]] = {
    "checkpoints.sending.put": lambda bench: (bench.codec, bench.plan()),
    "checkpoints.sending.plan_from_database": lambda bench: (bench.codec, bench.plan().request),
    "checkpoints.getting.get_tuple": lambda bench: (bench.codec, bench.address),
    "checkpoints.getting.get_latest": lambda bench: (["t", "u"], 1000),
    "checkpoints.getting.read_values": lambda bench: ("t", "", ["c1"], [1, 2]),
    "checkpoints.getting.read_writes": lambda bench: ("t", "", ["c1"]),
    "checkpoints.getting.read_pending_sends": lambda bench: (bench.codec, []),
    "checkpoints.listing.list_page": lambda bench: (bench.codec, bench.listing()),
    "checkpoints.delta_channels.get_delta_channel_history": lambda bench: (
        bench.codec,
        Address("t", "", None),
        ["messages"],
    ),
    "checkpoints.writes.put_writes": lambda bench: (bench.writes(),),
    "threads.rows.delete_thread": lambda bench: ("t",),
    "threads.rows.delete_for_runs": lambda bench: (["run"],),
    "threads.rows.delete_runs_of": lambda bench: ("t", ["run"]),
    "threads.rows.copy_thread": lambda bench: ("t", "u"),
    "threads.branches.get_lineage": lambda bench: (bench.address,),
    "threads.branches.read_checkpoint": lambda bench: (bench.codec, bench.address),
    "record.messages.open_pages": lambda bench: (bench.codec, None, bench.address, "messages", ()),
    "record.messages.read_older": lambda bench: (bench.codec, Pages(bench.address, "messages", 0, [Run(1, 0, 1)])),
    "threads.branches.put_label": lambda bench: (bench.address, "before"),
    "threads.branches.delete_label": lambda bench: (bench.address,),
    "threads.branches.find_checkpoint": lambda bench: ("t", str(bench.address.checkpoint_id)),
    "threads.branches.list_labels": lambda bench: ("t",),
    "threads.branches.fork_thread": lambda bench: (bench.codec, request_fork("t", None, "u")),
    "checkpoints.differences.read_states": lambda bench: (bench.codec, bench.address, Address("t", "", None)),
    "checkpoints.differences.read_state": lambda bench: (bench.codec, bench.address),
    "threads.rows.create_thread": lambda bench: (request_thread(None, metadata={"a": 1}),),
    "threads.search.get_thread": lambda bench: ("t",),
    "threads.search.settle_thread": lambda bench: ("t", "idle"),
    "threads.search.change_thread": lambda bench: ("t", request_change({"a": 1}, None, "title")),
    "record.runs.get_run": lambda bench: ("t", "run"),
    "record.spans.get_timeline": lambda bench: (request_timeline("t", "run"),),
    "record.spans.get_span": lambda bench: ("t", "run", "span"),
    "record.spans.get_tree": lambda bench: ("t", "run"),
    "record.spans.get_provenance": lambda bench: (Address("t", "", None),),
    "record.messages.get_conversation": lambda bench: (request_conversation("t", "messages", None, None, None),),
    "record.messages.last_changes": lambda bench: ("t", None),
    "record.conversations.compare_thread": lambda bench: (bench.codec, "t"),
    "record.conversations.backfill_thread": lambda bench: (bench.codec, "t"),
    "threads.rows.release_messages": lambda bench: ("t", [bench.address.checkpoint_id]),
    "checkpoints.event_chains.is_chained": lambda bench: (),
    "checkpoints.event_chains.chain": lambda bench: ([("t", "e")],),
    "checkpoints.event_chains.insert_events": lambda bench: (
        bench.queries.add_event,
        request_event("t", "action", {"by": "eve"}, None, None),
    ),
    "checkpoints.event_chains.release_events": lambda bench: ("t", ["e"], "deleted"),
    "checkpoints.event_chains.release_runs": lambda bench: ("t", ["run"]),
    "checkpoints.event_chains.end_chain": lambda bench: ("t", "deleted"),
    "checkpoints.event_chains.adopt": lambda bench: ("t",),
    "record.audit.list_threads": lambda bench: ("",),
    "record.audit.require_chaining": lambda bench: bench.chained(),
    "record.audit.verify_thread": lambda bench: ("t",),
    "record.audit.export_page": lambda bench: ("t", 0),
    "record.audit.compare_exported": lambda bench: ([],),
    "record.audit.adopt_thread": lambda bench: ("t", "eve"),
    "record.events.note_action": lambda bench: ("cancel", "eve", "t"),
    "record.events.check_not_done": lambda bench: ("fork", "t", timedelta(hours=1)),
    "record.events.add_event": lambda bench: (request_event("t", "action", {"by": "eve"}, None, None),),
    "record.feedback.put_feedback": lambda bench: (bench.codec, bench.feedback()),
    "record.feedback.delete_feedback": lambda bench: ("t", "run", "feedback"),
    "record.statistics.analyze": lambda bench: (request_analytics("day", None, None, 10, None, None, None, None),),
    "record.statistics.sum_costs": lambda bench: (
        request_costs(**dict.fromkeys(("since", "until", "agent", "model", "user_id", "tenant_id", "scope")), limit=10),
    ),
    "threads.prune.count_visited_threads": lambda bench: (),
    "threads.prune.next_threads": lambda bench: ("",),
    "threads.prune.prune_thread": lambda bench: (request_prune(None, "keep_latest", 1, None, False), "t"),
    "tools.executions.begin": lambda bench: (bench.intent(), "holder", 15.0),
    "tools.executions.is_reached": lambda bench: (bench.intent(),),
    "tools.executions.get": lambda bench: ("t", "key"),
    "tools.executions.find": lambda bench: ("t", "key"),
    "tools.executions.finish": lambda bench: (bench.intent(), Outcome("success")),
    "tools.executions.mark_unknown": lambda bench: (bench.recorded(),),
    "tools.executions.note_answers": lambda bench: (bench.recorded(), 1),
    "tools.executions.is_committed": lambda bench: (bench.intent(), 5.0),
    "tools.executions.limit_transaction": lambda bench: (5.0,),
    "tools.executions.renew": lambda bench: ("t", {"intent": "key"}, 15.0),
    "tools.executions.renew_all": lambda bench: ({"t": {"intent": "key"}}, 15.0),
    "tools.executions.settle": lambda bench: (bench.recorded(), Outcome("error"), "other"),
    "tools.executions.take_over": lambda bench: (bench.intent(), bench.recorded(), "holder", 15.0),
    "tools.executions.task_interrupts": lambda bench: ("t", "task"),
    "tools.executions.list_executions": lambda bench: ("t", None, 10),
    "tools.executions.list_effects": lambda bench: ("t", None, bench.address.checkpoint_id),
    "runs.enqueue.adopt": lambda bench: (bench.codec, lambda holder: False),
    "runs.enqueue.enqueue": lambda bench: ([request_run(bench.codec, "graph", {"x": 1}, thread_id="t")],),
    "runs.enqueue.notify": lambda bench: (),
    "runs.claiming.claim": lambda bench: ("worker", bench.enqueued().queue, ["graph"], 1, 12.0),
    "runs.claiming.open_keys": lambda bench: ("default", ["graph"]),
    "runs.claiming.choose_isolated": lambda bench: ("default", ["graph"]),
    "runs.queue.put_limit": lambda bench: (request_limit("default", None, 1, None),),
    "runs.queue.list_limits": lambda bench: (),
    "threads.holds.hold": lambda bench: ("t", "case", "eve"),
    "threads.holds.release": lambda bench: ("t", "case", "eve"),
    "threads.holds.holds_of": lambda bench: ("t",),
    "threads.holds.keep_source": lambda bench: ("t",),
    "threads.holds.refuse_held": lambda bench: ("t",),
    "threads.holds.check_not_held": lambda bench: ("t",),
    "threads.holds.is_kept": lambda bench: ("t", "not deleted"),
    "runs.ending.notify": lambda bench: (["run"],),
    "runs.ending.finish": lambda bench: (bench.claimed(), "success"),
    "runs.ending.finish_together": lambda bench: ([bench.claimed()], "success"),
    "runs.ending.give_back": lambda bench: (bench.claimed(),),
    "runs.ending.roll_back": lambda bench: (bench.claimed(),),
    "runs.ending.sweep": lambda bench: (),
    "runs.tending.put_worker": lambda bench: ("worker", ["default"], ["graph"], 10),
    "runs.tending.ask_drain": lambda bench: ("worker", "eve"),
    "runs.tending.is_drain_asked": lambda bench: ("worker",),
    "runs.tending.delete_worker": lambda bench: ("worker",),
    "runs.tending.tend": lambda bench: ("worker", [bench.claimed()], 12.0),
    "runs.tending.recover": lambda bench: (1 if bench.claimed() else 0, 3, lambda worker_id: True),
    "runs.tending.make_due": lambda bench: (),
    "runs.tending.repair": lambda bench: (),
    "runs.cancelling.cancel": lambda bench: ("t", bench.enqueued().run_id, "rollback", "eve", datetime.now(UTC)),
    "runs.cancelling.supersede": lambda bench: ("t", "interrupt"),
    "runs.cancelling.promote_and_set_status": lambda bench: ("t",),
    "runs.cancelling.retry": lambda bench: ("t", bench.enqueued().run_id),
    "runs.cancelling.discard": lambda bench: ("t", bench.enqueued().run_id),
    "runs.queue.list_workers": lambda bench: (),
    "runs.queue.count_queue": lambda bench: (),
    "runs.streams.append": lambda bench: ([EventBatch(bench.claimed(), 1, 0, 1, 0, b"")],),
    "runs.streams.read": lambda bench: ([Wanted("t", "run", 0)], 10),
    "runs.streams.read_threads": lambda bench: ([WantedRuns("t", None, None)],),
    "runs.outcomes.get_status": lambda bench: ("t", bench.enqueued().run_id),
    "runs.outcomes.get_outcome": lambda bench: (bench.codec, None, "t", bench.enqueued().run_id),
    "runs.outcomes.resumption": lambda bench: (bench.codec, "t", bench.enqueued().run_id, "new", Command(resume=1)),
    "assistants.operations.create": lambda bench: (bench.codec, "a", bench.fields()),
    "assistants.operations.update": lambda bench: (bench.codec, bench.assistant(), {"name": "other"}),
    "assistants.operations.set_version": lambda bench: (bench.codec, bench.assistant(), 1),
    "assistants.operations.delete": lambda bench: (bench.assistant(),),
    "assistants.operations.get": lambda bench: (bench.codec, bench.assistant()),
    "assistants.operations.get_existing": lambda bench: (bench.codec, bench.assistant()),
    "files.operations.get_head": lambda bench: (("ada",), "/a"),
    "files.operations.get_files": lambda bench: (bench.codec, ("ada",), ["/a"]),
    "files.operations.get_version": lambda bench: (bench.codec, ("ada",), "/a", 1),
    "files.operations.put": lambda bench: (
        files.request_change(("ada",), "/a", 0, "write", Origin(), None),
        encode_content(bench.codec, "text"),
    ),
    "files.operations.delete": lambda bench: (files.request_deletion(("ada",), "/", Origin(), None),),
    "files.operations.list_versions": lambda bench: (files.request_history(("ada",), "/a", 10, None),),
    "files.operations.list_namespaces": lambda bench: (files.request_namespaces(10, None),),
    "files.operations.list_changes": lambda bench: (files.request_changes("t", None, None, 10, None),),
    "files.operations.purge": lambda bench: (files.request_purge(("ada",), "/", None),),
    "files.searching.list_directory": lambda bench: (("ada",), place_of("/")),
    "files.searching.list_matching": lambda bench: (("ada",), "/", files_searching.Pattern("*.md")),
    "files.searching.search": lambda bench: (
        bench.codec,
        ("ada",),
        "/",
        None,
        files_searching.request_search("text", False, 10),
    ),
    "runs.webhook_rows.claim": lambda bench: (10, 60.0),
    "runs.webhook_rows.end": lambda bench: (bench.delivery(),),
    "runs.webhook_rows.retry": lambda bench: (bench.webhook(),),
    "runs.webhook_rows.discard": lambda bench: (bench.webhook(),),
    "runs.webhook_rows.sweep": lambda bench: (),
    "schedules.rows.put": lambda bench: (bench.schedule(),),
    "schedules.rows.get": lambda bench: ("s",),
    "schedules.rows.get_existing": lambda bench: (bench.scheduled(),),
    "schedules.rows.change": lambda bench: (
        bench.codec,
        schedules.request_changes(bench.codec, bench.scheduled(), {"cron": "0 8 * * *"}),
    ),
    "schedules.rows.pause": lambda bench: (bench.scheduled(),),
    "schedules.rows.resume": lambda bench: (bench.scheduled(),),
    "schedules.rows.delete": lambda bench: (bench.scheduled(),),
    "schedules.firing.trigger": lambda bench: (bench.codec, bench.scheduled(), "run"),
    "schedules.firing.find_due": lambda bench: (),
    "schedules.firing.fire": lambda bench: (bench.codec, bench.scheduled()),
    "schedules.firing.set_error": lambda bench: (bench.scheduled(), "no"),
    "schema.setup.get_status": lambda bench: (),
    "schema.setup.setup": lambda bench: (),
    "schema.setup.check_version": lambda bench: (),
    "schema.setup.migrate_to": lambda bench: (0,),
    "record.journal.put_entry": lambda bench: (journal.entry_of(("t", "run"), "entry", bench.note()), lambda: 60.0),
    "record.journal.write": lambda bench: (["t"], bench.note(), bool),
    "record.journal.is_kept": lambda bench: ("t",),
    "record.journal.recover": lambda bench: (),
    "record.journal.write_pending": lambda bench: (bench.queue(), bool, "holder", 15.0),
    "record.journal.renew_runs": lambda bench: ([("t", "run")], "holder", 15.0),
    "record.journal.tell_time": lambda bench: (),
    "threads.expiry.set_expiry": lambda bench: ("t", request_ttl(timedelta(days=1))),
    "threads.expiry.sweep": lambda bench: (),
    "threads.expiry.sweep_each": lambda bench: (),
    "threads.expiry.list_held": lambda bench: (),
    "threads.expiry.list_copied": lambda bench: (None, 10),
    "threads.expiry.end_expired": lambda bench: ("t",),
    "record.delta_messages.resolve_written": lambda bench: ([(WRITTEN, bench.written())],),
    "schema.partitions.make_months": lambda bench: (5,),
    "schema.partitions.find_partition": lambda bench: ("spans", "2026_01"),
    "schema.partitions.list_old_months": lambda bench: (12,),
    "schema.partitions.drop_months": lambda bench: ([],),
    "schema.partitions.digest_month": lambda bench: ("2026_01",),
    "schema.partitions.make_days": lambda bench: (5,),
    "schema.partitions.list_old_days": lambda bench: (timedelta(days=1),),
    "schema.partitions.drop_days": lambda bench: ([],),
    "admin.maintenance.note": lambda bench: (1.5, MaintenanceReport()),
    "record.dead_runs.find_running": lambda bench: (["t"],),
    "record.dead_runs.list_running": lambda bench: (),
    "record.dead_runs.correct_statuses": lambda bench: (),
    "record.dead_runs.settle_runs": lambda bench: ("t", [("t", "run", None, True)]),
    "interrupts.pending.list_interrupted": lambda bench: (bench.codec, request_interrupted()),
    "interrupts.pending.get_interrupted": lambda bench: (bench.codec, bench.asked()),
    "interrupts.pending.read_interrupted": lambda bench: (bench.codec, bench.asked()),
    "interrupts.pending.find_answered": lambda bench: (bench.codec, bench.asked(), "interrupt"),
    "interrupts.pending.list_answered": lambda bench: (bench.codec, bench.asked(), ["checkpoint"], 1000),
    "interrupts.answers.answer": lambda bench: (
        bench.codec,
        bench.asked(),
        request_answer(bench.codec, "yes", None, None),
    ),
    "interrupts.answers.resume": lambda bench: (bench.codec, *bench.answered(), "graph", {}, "default"),
    "interrupts.answers.enqueue_answers": lambda bench: (
        bench.codec,
        {"0" * 32: None},
        request_run(bench.codec, "graph", command=Command(resume="yes"), thread_id=bench.asked()),
    ),
    "interrupts.answers.find_due_defaults": lambda bench: (["graph"],),
    "interrupts.answers.answer_by_default": lambda bench: (bench.codec, bench.asked(), "run"),
    "interrupts.answers.postpone_default": lambda bench: (bench.asked(), "run"),
    "checkpoints.getting.get_good_ancestor": lambda bench: (
        bench.codec,
        bench.address,
        CorruptStateError("it", "damaged"),
        lambda found: load_tuple(bench.codec, *found)[0],
    ),
    "admin.upcasting.refuse_newer_state": lambda bench: ("t",),
    "admin.upcasting.upcast_thread": lambda bench: (bench.codec, StateVersions(2, {2: dict}), "t", False),
    "leases.guards.has_child": lambda bench: (bench.address,),
    "leases.guards.lock_for_deletion": lambda bench: ("t",),
    "leases.guards.store_tombstone": lambda bench: ("t", 60.0),
    "leases.guards.revive_thread": lambda bench: ("t",),
    "leases.guards.refuse_deleted": lambda bench: ("t",),
    "leases.guards.refuse_archived": lambda bench: ("t",),
    "keep.tables.list_tables": lambda bench: (),
    "keep.archiving.check_held": lambda bench: (["t"],),
    "keep.archiving.explain": lambda bench: (["t"], timedelta(0)),
    "keep.archiving.inspect": lambda bench: (bench.tables(), ["t"], timedelta(0)),
    "keep.archiving.read_threads": lambda bench: (bench.tables(), ["t"]),
    "keep.archiving.begin_archive": lambda bench: (bench.tables(), "memory://a", bench.packed()[1], 1, {"t": People()}),
    "keep.archiving.add_archive": lambda bench: ("memory://a", bench.packed()[1], 1, {"t": People()}),
    "keep.archiving.delete_archived": lambda bench: (bench.tables(), bench.packed()[1], timedelta(0)),
    "keep.deleting.find_copies": lambda bench: (deleting.Wanted(["t"]),),
    "keep.archiving.delete_unused": lambda bench: ("x",),
    "keep.deleting.claim_archive": lambda bench: ("a", "deletion"),
    "keep.deleting.begin_deletion": lambda bench: (bench.copies(), "deletion"),
    "keep.deleting.begin_rewriting": lambda bench: (bench.copies(), "deletion", bench.packed()[1], 1),
    "keep.deleting.move_stubs": lambda bench: bench.rewriting(),
    "keep.deleting.list_unfinished": lambda bench: ("",),
    "keep.deleting.claim_unfinished": lambda bench: ("a", "deletion"),
    "keep.deleting.end_archive": lambda bench: (bench.copies(), "deletion", "eve"),
    "keep.retention.put_policy": lambda bench: (request_policy("p", {"delete_after": timedelta(days=1)}),),
    "keep.retention.list_policies": lambda bench: (),
    "keep.retention.delete_policy": lambda bench: ("p",),
    "keep.retention.list_idle": lambda bench: ("p", timedelta(days=1), ""),
    "keep.retention.list_aging": lambda bench: (bench.policy(), "", timedelta(0)),
    "keep.retention.note_visit": lambda bench: ("p", "", False),
    "keep.retention.note_applied": lambda bench: (bench.policy(), PolicyReport("p")),
    "keep.retention.age_thread": lambda bench: (bench.policy(), "t"),
    "keep.parquet.list_months": lambda bench: (),
    "keep.parquet.fetch_page": lambda bench: ("export_runs", bench.month()),
    "keep.restoring.find_archives": lambda bench: (["t"],),
    "keep.restoring.find_restored": lambda bench: (["t"],),
    "keep.restoring.find_roots": lambda bench: (["a"],),
    "keep.restoring.check_keys": lambda bench: ([Frame("t", 0, 0, "", ())],),
    "keep.exporting.list_exported": lambda bench: (bench.packed()[1],),
    "keep.exporting.decode": lambda bench: bench.archived()[:3],
    "keep.exporting.newest_checkpoint": lambda bench: ("t", *bench.archived()[3:]),
    "keep.exporting.next_archived": lambda bench: ("eve", ""),
    "keep.exporting.archived_state": lambda bench: (bench.codec, "t", *bench.archived()[3:]),
    "keep.exporting.next_thread": lambda bench: ("eve", ""),
    "keep.exporting.left_in_journal": lambda bench: ("t",),
    "keep.exporting.thread_page": lambda bench: ("t", START),
    "keep.exporting.user_page": lambda bench: ("eve", START),
    "keep.exporting.file_line": lambda bench: (bench.codec, {"namespace": ["a"], "path": "/a", "version": 1}),
    "keep.exporting.newest_state": lambda bench: (bench.codec, "t"),
    "keep.erasing.begin": lambda bench: ("erasure", EraseRequest("user", "eve")),
    "keep.erasing.data_keys_of": lambda bench: ("eve",),
    "keep.erasing.find_open": lambda bench: (EraseRequest("user", "eve"),),
    "keep.erasing.finish": lambda bench: bench.erasing(),
    "keep.erasing.in_erasure": lambda bench: ("erasure", clear_runs_of),
    "keep.redaction.lock_unused": lambda bench: ("t",),
    "keep.redaction.find_message_ids": lambda bench: ("t",),
    "keep.redaction.find_versions": lambda bench: ("t", frozenset({"m"})),
    "keep.redaction.has_message": lambda bench: ("t", "m"),
    "keep.redaction.redact_thread": lambda bench: ("t", Redaction(frozenset({"m"}), ("a text of some length",))),
    "keep.redaction.clear_runs": lambda bench: ("t", ["run"]),
    "keep.restoring.store_threads": lambda bench: (bench.tables(), "a", *bench.unpacked()),
    "leases.guards.sweep": lambda bench: (),
    "leases.holding.take": lambda bench: ("t", "holder", 60.0),
    "leases.holding.renew": lambda bench: ([("t", 1)], 60.0),
    "leases.holding.release": lambda bench: ("t", 1),
    "record.prices.set_price": lambda bench: (Price("model", "", None, Decimal(1), Decimal(2)),),
    "record.budgets.put_budget": lambda bench: (request_budget(1, user="a"),),
    "record.budgets.list_budgets": lambda bench: (),
    "record.budgets.read_spending": lambda bench: ([Owner("user", "a")], tuple),
    "record.budgets.gather_costs": lambda bench: ("t",),
    "record.budgets.keep_costs": lambda bench: ("t", ["r"]),
    "record.budgets.forget_deleted_costs": lambda bench: (),
    "record.prices.list_prices": lambda bench: (),
    "record.prices.delete_price": lambda bench: ("model",),
    "otlp.exports.hold": lambda bench: ("holder", "http://localhost", 30.0),
    "otlp.exports.release": lambda bench: ("holder",),
    "otlp.exports.note_caught_up": lambda bench: ("holder",),
    "otlp.exports.queue_runs": lambda bench: (timedelta(days=1),),
    "otlp.exports.list_exports": lambda bench: (10,),
    "otlp.exports.read_spans": lambda bench: ([("t", "run", "span", datetime.now(UTC))],),
    "otlp.exports.confirm": lambda bench: ([Export("t", "export", "run", [], [])],),
    "otlp.exports.forget": lambda bench: (),
    "schema.resealing.bind_copy": lambda bench: ("t", "u"),
}


def test_every_operation_of_the_saver_is_called_here() -> None:
    # Tenants have a schema of their own, an index of files needs pg_trgm, and what encrypts again has keys.
    left_out = (
        *("admin.", "assistants.", "files.searching.make_file_index", "memory.", "runs.claiming.find_work"),
        *("schema.resealing.reseal_", "schema.tenancy.", "threads.prune.sweep_orphans"),
    )
    public = {name for name in operation_functions() if not name.startswith(left_out) and "._" not in name}
    assert public - CALLS.keys() == set()


def test_an_operation_never_suspends_over_a_blocking_connection(
    schemas: Any, schema: str, connection: psycopg.Connection
) -> None:
    """`run_blocking` raises if it does."""

    def check(name: str) -> None:
        module, _, function = name.rpartition(".")
        operation = getattr(__import__(f"langgraph_pgstate.{module}", fromlist=["*"]), function)
        bench = Bench(connection, schema)
        run_blocking(operation(bench.db, bench.queries, *CALLS[name](bench), **NAMED.get(name, {})))
        schemas.empty(schema)

    # The last has no tables left.
    check_each(check, sorted(CALLS, key="schema.setup.migrate_to".__eq__))


def test_no_wait_hides_a_cancellation() -> None:
    """As `asyncio.wait_for` does before Python 3.12: use `asyncio.timeout`, or `pause` in a background task."""
    for name, tree in modules().items():
        calls = [node for node in nodes_of(tree) if isinstance(node, ast.Attribute) and node.attr == "wait_for"]
        assert "asyncio.wait_for" not in map(ast.unparse, calls), name


def test_a_reading_names_a_statement_that_there_is() -> None:
    makers = {"Read", "read_all", "read_page"}
    calls = [node for tree in modules().values() for node in nodes_of(tree) if isinstance(node, ast.Call) and node.args]
    named = [call.args[0] for call in calls if name_of(call.func) in makers]
    found = {one.value for name in named for one in ast.walk(name) if isinstance(one, ast.Constant)}
    assert len(found) > 5
    assert {name for name in found if isinstance(name, str)} <= queries("pgstate").all.keys()
