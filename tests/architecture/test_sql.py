"""The SQL files: valid, prepared by the server, bound to their schema, and answered from indexes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from psycopg import sql
from psycopg.pq import ExecStatus
from support import check_each, config_of, put_arguments

import langgraph_pgstate
from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints import getting
from langgraph_pgstate.checkpoints.hooks import PutHooks
from langgraph_pgstate.checkpoints.planning import PutPlan, plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.sending import build_put
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db import database
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.record.message_hook import MessageHook
from langgraph_pgstate.record.messages import open_pages
from langgraph_pgstate.record.projections import ProjectionHook
from langgraph_pgstate.schema.queries import GRAMMAR, NamedQuery, Queries, bootstrap, migrations, queries
from langgraph_pgstate.threads.prune import next_threads

TABLES = (
    "threads",
    "checkpoints",
    "segments",
    "writes",
    "migrations",
    "data_keys",
    "projections",
    "runs",
    "spans",
    "spans_default",
    "span_exports",
    "exporters",
    "tool_executions",
    "messages",
    "events",
    "event_chaining",
    "event_chains",
    "event_hashes",
    "event_chain_ends",
    "erasures",
    "prices",
    "journal",
    "queue",
    "run_requests",
    "workers",
    "stream_batches",
    "stream_batches_default",
    "schedules",
    "queue_limits",
    "queue_keys",
    "budgets",
    "deleted_costs",
    "maintenance",
    "webhooks",
    "assistants",
    "assistant_versions",
    "feedback",
    "files",
    "file_texts",
    "file_versions",
    "memories",
    "memory_versions",
    "large_namespaces",
    "memory_indexes",
    "archives",
    "archived_threads",
    "retention_policies",
)
NAMES = sorted(queries("pgstate").all)
SQL = Path(langgraph_pgstate.__file__).parent
FILES = sorted(
    str(path.relative_to(SQL))
    for path in SQL.rglob("*.sql")
    if path.parent.name not in ("langgraph", "extensions", "vectors", "walled", "trigrams")
)
CONDITIONS = [
    name
    for file in FILES
    for name in re.findall(r"^-- condition: (\w+)$", (SQL / file).read_text("utf-8"), re.MULTILINE)
]
QUERY_FILES = [file for file in FILES if "\n-- name: " in f"\n{(SQL / file).read_text('utf-8')}"]


def puts() -> list[str]:
    """The statements that puts are sent as, whatever they inherit and bring."""

    class Recording:
        def before_put(self, plan: PutPlan, config: Any) -> list[Any]:
            assert plan.journal_entry is not None
            plan.journal_entry.events.append(b"{}")
            return []

        def after_put(self, plan: PutPlan) -> None: ...

    codec = ValueCodec(None)
    request = request_put(codec, *put_arguments(config_of("t"), 1))
    plan = plan_put(codec, request, None)
    found = set()
    for bases, segments in product(range(3), range(3)):
        plan = replace(
            plan,
            base_revisions={f"c{number}": number for number in range(bases)},
            new_segments=dict.fromkeys(range(segments), b""),
        )
        for request.touches_thread, replaces, hook in product([False, True], [False, True], [None, Recording()]):
            batch = build_put(queries("pgstate"), plan, replaces, hook)
            query, parameters = batch.statements[batch.position]
            assert parameters.keys() >= set(query.parameters)
            found.add(query.name)
    return sorted(found)


PUTS = puts()
THREADS = 10_000
Crowd = tuple[psycopg.Connection, Queries, dict[str, dict[str, Any]]]


def read(name: str) -> str:
    return (SQL / name).read_text("utf-8")


def without_parameters(text: str) -> str:
    return re.sub(r"(?<![:\w]):[a-z_]+", "NULL", text)


def test_a_file_is_valid_sql_as_it_stands(connection: psycopg.Connection) -> None:
    """Only named parameters are replaced; the server parses a message whole before it runs its first statement."""

    def check(name: str) -> None:
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(f"SELECT 1 / 0;\n{without_parameters(read(name))}".encode())
        assert isinstance(raised.value, psycopg.errors.DivisionByZero), raised.value

    check_each(check, FILES)


def test_a_query_file_works_without_the_schema_marker(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """With the schema on search_path a file can be pasted into psql, where `/*schema*/` is a comment."""
    connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(saver.schema)))
    check_each(lambda name: prepare_each(name, connection), QUERY_FILES)


def prepare_each(name: str, connection: psycopg.Connection) -> None:
    statements = [part for part in re.split(r"^(?=-- name: )", read(name), flags=re.MULTILINE) if part.strip()]
    assert statements
    for statement in statements:
        order: list[str] = []

        def number(match: re.Match[str], order: list[str] = order) -> str:
            order.append(match[1]) if match[1] not in order else None
            return f"${order.index(match[1]) + 1}"

        prepare(connection, re.sub(r"(?<![:\w]):([a-z_]+)", number, statement).encode())


def prepare(connection: psycopg.Connection, text: bytes) -> None:
    result = connection.pgconn.prepare(b"", text)
    assert result.status == ExecStatus.COMMAND_OK, result.error_message.decode()


def test_the_server_prepares_the_query_with_nothing_on_search_path(
    saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    connection.execute("SET search_path = ''")
    known = queries(saver.schema).all
    check_each(lambda name: prepare(connection, known[name].text), NAMES)


def test_a_literal_means_the_same_whatever_a_role_has_set() -> None:
    """Guard: `standard_conforming_strings = off` gives backslashes a meaning in '...', and refuses U&'...'."""

    def check(name: str) -> None:
        text = re.sub(r"--.*", "", read(name))
        literals = re.findall(r"(E|U&)?'((?:[^'\\]|''|\\.)*)'", text)
        assert [text for kind, text in literals if kind == "U&" or (kind == "" and "\\" in text)] == []

    check_each(check, FILES)


def test_a_query_says_what_it_is_for() -> None:
    purposes = {name: query.purpose for name, query in queries("pgstate").all.items()}
    assert {name: text for name, text in purposes.items() if not re.fullmatch(r"[A-Z].*\.", text)} == {}


def test_every_table_carries_the_schema_marker() -> None:
    check_each(check_markers, [file for file in FILES if "create_schema" not in file])


def check_markers(name: str) -> None:
    text = re.sub(r"--.*", "", read(name))
    verbs = r"FROM|JOIN|INTO|UPDATE|TABLE|TABLE IF NOT EXISTS|ON|ONLY|USING|REFERENCES"
    assert re.findall(rf"\b(?:{verbs})\s+(?:{'|'.join(TABLES)})\b", text) == []
    assert len(re.findall(rf"/\*schema\*/\w+|/\*({'|'.join(CONDITIONS)})\*/true\b", text)) == len(
        re.findall(r"/\*", text)
    )


def test_every_condition_is_used_and_stands_in_no_statement_by_itself() -> None:
    written = "\n".join(path.read_text("utf-8") for path in SQL.rglob("*.sql"))
    assert CONDITIONS
    assert {name for name in CONDITIONS if f"/*{name}*/true" not in written} == set()
    for query in queries("pgstate").all.values():
        assert "*/true" not in query.text.decode(), query.name


def test_query_names_are_unique_over_all_files() -> None:
    found = [name for file in FILES for name in re.findall(r"^-- name: (\w+)$", read(file), re.MULTILINE)]
    assert sorted(found) == NAMES


def test_puts_use_each_of_their_statements() -> None:
    assert [name for name in NAMES if re.fullmatch(r"put_checkpoint(_.*)?|replace_checkpoint", name)] == PUTS


def test_every_statement_of_a_query_file_has_a_name() -> None:
    for file in QUERY_FILES:
        text = re.sub(r"--.*|'[^']*'", "", read(file))
        statements = [part for part in text.split(";") if part.strip()]
        assert len(statements) == len(re.findall(r"^-- name: ", read(file), re.MULTILINE)), file


def test_every_query_is_used() -> None:
    code = "\n".join(path.read_text("utf-8") for path in SQL.rglob("*.py"))
    used = {*re.findall(r"queries(?:\([^()]*\))?\.(\w+)", code), *re.findall(r'"(\w+)"', code)}
    assert {*NAMES} - used == set()


def test_an_unknown_query_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_query"):
        _ = queries("pgstate").no_such_query


def test_thread_id_is_the_first_column_of_every_key(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """What lets a distributed PostgreSQL keep a thread on one node; some tables are of no thread."""
    rows = connection.execute(
        """
        SELECT i.indexrelid::regclass::text, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
        WHERE c.relnamespace = %s::regnamespace AND (i.indisunique OR i.indisprimary OR i.indisexclusion)
            AND c.relkind IN ('r', 'p') AND c.relname NOT IN (
                'migrations', 'prices', 'workers', 'schedules', 'queue_limits', 'queue_keys', 'budgets',
                'deleted_costs', 'exporters', 'event_chaining', 'event_chain_ends', 'erasures', 'data_keys',
                'maintenance', 'assistants', 'assistant_versions', 'memories', 'memory_versions', 'large_namespaces',
                'memory_indexes', 'archives', 'retention_policies', 'files', 'file_texts', 'file_versions')
        """,
        [saver.schema],
    ).fetchall()
    assert len(rows) >= 4
    assert {first for _, first in rows} == {"thread_id"}, rows
    foreign = connection.execute(
        """
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = %s::regnamespace AND contype = 'f'
        """,
        [saver.schema],
    ).fetchall()
    assert all(definition.startswith("FOREIGN KEY (thread_id") for _, definition in foreign), foreign


def test_no_index_repeats_the_beginning_of_another(saver: PGStateSaver, connection: psycopg.Connection) -> None:
    """Of the same rows: a partial index finds few among many."""
    rows = connection.execute(
        """
        SELECT i.indexrelid::regclass::text, (i.indrelid, pg_get_expr(i.indpred, i.indrelid))::text,
            string_to_array(i.indkey::text, ' ')
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = %s::regnamespace
        """,
        [saver.schema],
    ).fetchall()
    repeated = [
        (one, other)
        for one, indexed, columns in rows
        for other, other_indexed, other_columns in rows
        if one != other and indexed == other_indexed and other_columns[: len(columns)] == columns
    ]
    assert repeated == []


@pytest.fixture(scope="module")
def crowd(dsn: str) -> Iterator[Crowd]:
    """A schema with 10,000 threads of two or three checkpoints, their segments and writes, analyzed."""
    schema = "crowd"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        PGStateSaver(connection, schema=schema).setup()
        connection.execute(f"SET search_path = {schema}")
        connection.execute(
            """
            INSERT INTO threads (thread_id, agent, user_id, created_at, updated_at)
            SELECT 'thread-' || t, 'agent', 'user-' || t %% 100, now(), now() - t * interval '1 second'
            FROM generate_series(1, %(threads)s::integer) AS t;
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO checkpoints (
                thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, segment_ids,
                metadata, state
            )
            SELECT 'thread-' || t, '', 'c' || to_char(t * 3 + c, 'FM000000'),
                CASE WHEN c > 1 THEN 'c' || to_char(t * 3 + c - 1, 'FM000000') END,
                'run-' || t, CASE c WHEN 1 THEN 'input' ELSE 'loop' END, c - 2, ARRAY[c],
                jsonb_build_object('step', c - 2), repeat('x', 200)::bytea
            FROM generate_series(1, %(threads)s::integer) AS t, generate_series(1, 2 + t %% 2) AS c
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO segments (thread_id, segment_id, data)
            SELECT 'thread-' || t, s, repeat('x', 200)::bytea
            FROM generate_series(1, %(threads)s::integer) AS t, generate_series(1, 3) AS s
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, data)
            SELECT 'thread-' || t, '', 'c' || to_char(t * 3 + c, 'FM000000'), 'task', 0, '', 'run-' || t, '\\x00'
            FROM generate_series(1, %(threads)s::integer) AS t, generate_series(1, 2) AS c
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO runs (thread_id, run_id, status, started_at)
            SELECT 'thread-' || t, 'run-' || t, 'success', now() FROM generate_series(1, %(threads)s::integer) AS t
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO messages (
                thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, run_id, role, content
            )
            SELECT 'thread-' || t, 'm' || m, 'c' || to_char(t * 3 + 1, 'FM000000'), '', 'messages', m, 'added',
                'run-' || t, 'human', 'text ' || m
            FROM generate_series(1, %(threads)s::integer) AS t, generate_series(1, 2) AS m
            """,
            {"threads": THREADS},
        )
        connection.execute(
            """
            INSERT INTO projections (thread_id, checkpoint_id, state)
            SELECT 'thread-' || t, 'c' || to_char(t * 3 + 1, 'FM000000'), jsonb_build_object('number', t)
            FROM generate_series(1, %(threads)s::integer) AS t
            """,
            {"threads": THREADS},
        )
        for table in ("threads", "checkpoints", "segments", "writes", "runs", "messages", "projections"):
            connection.execute(f"ANALYZE {table}")
        connection.execute("SET search_path = ''")
        yield connection, queries(schema), record_calls(connection, schema)
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


# What the saver sends in daily use; `record_calls` has to reach every one of them.
HOT = [
    "put_checkpoint_on_base_segment",
    "put_checkpoint_segments",
    "replace_checkpoint",
    "get_checkpoint",
    "get_latest_checkpoint",
    "put_writes",
    "get_writes",
    "get_values",
    "get_newest",
    "get_bare_checkpoint",
    "get_segments_of",
    "list_in_namespace",
    "list_in_thread",
    "list_everywhere",
    "list_of_run",
    "get_lineage",
    "get_states",
    "scan_states",
    "find_runs",
    "delete_runs",
    "list_thread_ids",
    "get_outline",
    "delete_checkpoints",
    "count_checkpoints",
    "delete_unreferenced_segments",
    "count_unreferenced_segments",
    "find_strangers",
    "copy_thread",
    "count_thread",
    "delete_thread",
    "delete_record",
    "add_messages",
    "reconcile_messages",
    "delete_messages",
    "put_projection",
]


def record_calls(connection: psycopg.Connection, schema: str) -> dict[str, dict[str, Any]]:
    """Use a saver in every way, on a thread that stays and on a copy of it; the arguments each query was sent with."""
    calls: dict[str, dict[str, Any]] = {}

    class RecordingPort(BlockingConnection):
        async def fetch(self, query: Any, parameters: Any) -> Any:
            calls[query.name] = dict(parameters)
            return await super().fetch(query, parameters)

        async def execute(self, query: Any, parameters: Any) -> int:
            calls[query.name] = dict(parameters)
            return await super().execute(query, parameters)

        async def execute_together(self, statements: Any) -> Any:
            calls.update((query.name, dict(parameters)) for query, parameters in statements)
            return await super().execute_together(statements)

    def run(operation: Any, *arguments: Any) -> Any:
        return run_blocking(operation(RecordingPort(connection), queries(schema), *arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "BlockingConnection", RecordingPort)
        known = queries(schema)
        hook = PutHooks(MessageHook(), ProjectionHook(known, ["big"]))
        saver = PGStateSaver(connection, schema=schema, hook=hook)
        config: Any = config_of("kept")
        for step in range(12):
            text = f"{step} " * 100
            arguments = put_arguments(config, step, messages=[HumanMessage(text)] * step, big=text * 10)
            arguments[2]["run_id"] = "run-kept"
            config = saver.put(*arguments)
            saver.put_writes(config, [("messages", text)], f"task-{step}")
            saver.put_writes(config, [("messages", text), ("other", text)], f"task-{step}")
        run(open_pages, ValueCodec(), None, Address("kept", "", None), "messages", ())
        # Another branch, which has lost messages and is left behind by a prune.
        saver.copy_thread("kept", "copy")
        unaccompanied = PGStateSaver(connection, schema=schema)
        alone: Any = config_of("alone")
        for step in range(2):
            alone = unaccompanied.put(*put_arguments(alone, step, messages=[HumanMessage("long " * 1000)] * (step + 1)))
        # It is there already, and so are its segments; sent again it is another.
        for name in ("put_checkpoint_on_base_segment", "replace_checkpoint"):
            sent = calls[name]
            ids = {
                key: [-id for id in sent[key]] if key == "new_ids" else -sent[key] for key in sent if "new_id" in key
            }
            sent.update(checkpoint_id=sent["checkpoint_id"] + "-2", **ids)
        for ids in ("ab", "b"):
            messages = [HumanMessage(id, id=id) for id in ids]
            fork: Any = {"configurable": {**config["configurable"], "thread_id": "copy"}}
            fork = saver.put(*put_arguments(fork, 12, messages=messages))
            fork = saver.put(*put_arguments(fork, 13, messages=messages[1:]))
        saver.prune(["copy"])
        saver.delete_thread("copy")
        for found in saver.list(config_of("kept")), saver.list({"configurable": {"thread_id": "kept"}}):
            assert len(list(found)) == 12
        assert len(list(saver.list(None, limit=20, metadata_only=True))) == 20
        assert len(list(saver.list(None, filter={"run_id": "run-kept"}, metadata_only=True))) == 12
        latest = getting.get_latest
        assert len(saver._run(latest, saver._queries, ["kept", "absent"], 1000).found) == 1
        saver.get_delta_channel_history(config=config_of("kept"), channels=["messages", "absent"])
        saver.copy_thread("kept", "copy")
        # A process that knows nothing of the parent stores a checkpoint that inherits a value it does not have.
        _, checkpoint, metadata, _ = put_arguments(config, 12, messages=["new"])
        checkpoint["channel_versions"]["big"] = f"{12:032}.{0:016}"
        metadata["run_id"] = "run-copy"
        copied = {"configurable": {**config["configurable"], "thread_id": "copy"}}
        for parent in (copied, config_of("copy")):
            PGStateSaver(connection, schema=schema).put(parent, checkpoint, metadata, {})
        for dry_run in (True, False):
            saver.prune(["copy"], keep_last=3, dry_run=dry_run)
        saver.delete_for_runs(["run-copy", "run-unknown"])
        saver.prune(["copy"], strategy="delete", dry_run=True)
        saver.delete_thread("copy")
        assert saver.get_tuple(config_of("kept")) is not None
        assert saver.get_tuple(config) is not None
        run(next_threads, "thread-5000")
    # What was done to the copy is planned, and rolled back, for the thread that is still there.
    return {
        name: {
            key: value.replace("copy", "kept")
            if isinstance(value, str) and key != "target_id"
            else [item.replace("copy", "kept") if isinstance(item, str) else item for item in value]
            if isinstance(value, list)
            else value
            for key, value in parameters.items()
        }
        for name, parameters in calls.items()
    }


# Most rows a page or a thread's data can make these queries look at, here; a scan of any table is thousands.
MOST_ROWS = 1_200


def plan_of(
    connection: psycopg.Connection, query: NamedQuery, values: dict[str, Any], *, generic: bool, analyze: bool
) -> list[dict[str, Any]]:
    """Every node of the plan the server makes for a prepared statement."""
    arguments = [sql.Literal(values[name]) for name in query.parameters]
    with connection.transaction(force_rollback=True):
        mode = "force_generic_plan" if generic else "force_custom_plan"
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        connection.execute(b"PREPARE hot AS " + query.text)
        try:
            call = sql.SQL("hot({})").format(sql.SQL(", ").join(arguments)) if arguments else sql.SQL("hot")
            options = sql.SQL("ANALYZE, TIMING OFF, " if analyze else "")
            explain = sql.SQL("EXPLAIN ({}FORMAT JSON) EXECUTE {}").format(options, call)
            (found,) = connection.execute(explain).fetchone() or ("[]",)
        finally:
            connection.execute("DEALLOCATE hot")
    top = found if isinstance(found, list) else json.loads(found)
    return list(nodes(top[0]["Plan"]))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def touched_rows(node: dict[str, Any]) -> int:
    if "Scan" not in node["Node Type"] or node.get("Relation Name") not in TABLES:
        return 0
    loops = node.get("Actual Loops", 0)
    keys = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return int(sum(node.get(key, 0) for key in keys) * loops)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_a_hot_query_never_scans_a_table(generic: bool, crowd: Crowd) -> None:
    """Planned with and without knowledge of its arguments, as a long-lived connection comes to do."""
    connection, known, calls = crowd

    def check(name: str) -> None:
        plan = plan_of(connection, known.all[name], calls[name], generic=generic, analyze=False)
        scans = [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan" and "Relation Name" in node]
        assert scans == []

    check_each(check, HOT)


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_a_hot_query_touches_few_rows(generic: bool, crowd: Crowd) -> None:
    """An index walked from end to end is no better than a sequential scan, and EXPLAIN alone does not tell."""
    connection, known, calls = crowd

    def check(name: str) -> None:
        plan = plan_of(connection, known.all[name], calls[name], generic=generic, analyze=True)
        assert any(node.get("Relation Name") in TABLES for node in plan)
        assert sum(map(touched_rows, plan)) <= MOST_ROWS

    check_each(check, HOT)


def test_a_hot_query_appends_its_parts_in_one_step(crowd: Crowd) -> None:
    """Guard: parts of a UNION ALL whose columns differ in collation are appended in two steps."""
    connection, known, calls = crowd

    def check(name: str) -> None:
        plan = plan_of(connection, known.all[name], calls[name], generic=True, analyze=False)
        unions = [node for node in plan if node["Node Type"] == "Append"]
        inner = [part["Node Type"] for union in unions for part in union["Plans"] if part["Node Type"] == "Result"]
        assert inner == []

    check_each(check, HOT)


def test_the_plan_reader_would_notice_a_scan(crowd: Crowd) -> None:
    """The two tests above rest on it."""
    connection, known, _ = crowd
    table = f'"{known.schema}".checkpoints'
    query = NamedQuery("scan", "", f"SELECT count(*) FROM {table} WHERE octet_length(state) > $1".encode(), ("size",))
    plan = plan_of(connection, query, {"size": 5}, generic=False, analyze=True)
    assert any(node["Node Type"] == "Seq Scan" for node in plan)
    assert sum(map(touched_rows, plan)) > MOST_ROWS


def test_migrations_render_into_any_schema_without_leaving_a_marker() -> None:
    for step in migrations():
        for text in (step.rendered("tenant_a"), step.rendered("tenant_a", down=True)):
            assert "/*schema*/" not in text
            assert '"tenant_a".' in text


def test_every_call_of_a_function_names_its_schema() -> None:
    """A function of another role, in a schema of the path, whose types fit better would be called instead."""
    texts = [query.text.decode() for query in queries("pgstate").all.values()]
    texts += [step.rendered("pgstate", down=down) for step in migrations() for down in (False, True)]
    for text in texts:
        plain = re.sub(r"'[^']*'|--[^\n]*", "''", text)
        called = set(re.findall(r"(?<![\w.\"])[a-z_]\w*\(", plain))
        # Of several arrays, `unnest` is PostgreSQL's own.
        assert called <= {*GRAMMAR, "unnest("}, text


# Types of columns and parameters, and others that these are cast to without being asked.
SPIED = (
    "text text[] integer integer[] bigint smallint numeric float8 jsonb bytea timestamptz interval boolean date name"
)


@pytest.mark.once
def test_no_statement_runs_what_another_role_has_made(dsn: str, connection: psycopg.Connection) -> None:
    """Whatever fits the types of a statement better than what PostgreSQL has: operators of all types, and functions."""
    if connection.info.server_version < 160000:
        pytest.skip("EXPLAIN takes no parameters")
    types = [*SPIED.split(), '"char"', "varchar"]
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE SCHEMA spies; CREATE ROLE victim; SET search_path = spies")
        for left, right in product(types, types):
            body = "LANGUAGE sql AS 'SELECT true'"
            connection.execute(f"CREATE FUNCTION spy(a {left}, b {right}) RETURNS boolean {body}".encode())
        for array in ("text[]", "integer[]", "bigint[]", "bytea[]"):
            connection.execute(
                f"CREATE FUNCTION unnest({array}) RETURNS SETOF text LANGUAGE sql AS 'SELECT 1'".encode()
            )
        connection.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA spies FROM public")
        found = connection.execute(
            "SELECT format('CREATE OPERATOR %%s (FUNCTION = spy, LEFTARG = %%s, RIGHTARG = %%s)', o, l, r)"
            " FROM pg_catalog.unnest('{=,<>,<,>,<=,>=,+,-,*,/,%%,||,->,->>,@>,&&,?,~,~~,!~~,@@,#>>}'::text[]) o,"
            " pg_catalog.unnest(%(types)s::text[]) l, pg_catalog.unnest(%(types)s::text[]) r"
            " WHERE NOT EXISTS (SELECT FROM pg_operator p"
            " WHERE (p.oprname, p.oprleft::regtype, p.oprright::regtype) = (o, l::regtype, r::regtype))",
            {"types": types},
        )
        connection.execute(";".join(text for (text,) in found).encode())
        # Made beside them, no table, view or index depends on one.
        connection.execute("CREATE SCHEMA ours")
        for text in (bootstrap("ours"), *(step.rendered("ours") for step in migrations())):
            connection.execute(text.encode())
        assert connection.execute("SHOW search_path").fetchone() == ("spies",)
        connection.execute(
            "GRANT USAGE ON SCHEMA ours, spies TO victim;"
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ours TO victim; SET ROLE victim"
        )
        known = queries("ours").all

        def check(name: str) -> None:
            with connection.transaction():
                connection.execute(b"EXPLAIN (GENERIC_PLAN) " + known[name].text)

        check_each(check, NAMES)
