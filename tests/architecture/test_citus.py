"""The form of statements that Citus accepts if a schema is distributed; see "Rules" in docs/internals.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

import langgraph_pgstate
from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.schema.queries import Queries, queries

pglast = pytest.importorskip("pglast", reason="pglast, which parses SQL, is not installed")
ast, parse_sql = pglast.ast, pglast.parse_sql

VECTORS = "memory/vectors"
assert (Path(langgraph_pgstate.__file__).parent / VECTORS).is_dir()
# Functions of several volatilities that are immutable for the types that they are called with.
IMMUTABLE = {"timezone", "to_timestamp", "extract"}


@pytest.fixture(scope="module")
def statements() -> dict[str, Any]:
    """The parsed statements by name."""
    texts = {**queries("pgstate").all, **Queries("pgstate", VECTORS).all}
    return {name: parse_sql(query.text.decode())[0].stmt for name, query in texts.items()}


@pytest.fixture
def mutable(connection: psycopg.Connection) -> set[str]:
    """Names of functions that are not immutable."""
    found = connection.execute("SELECT DISTINCT proname FROM pg_proc WHERE provolatile <> 'i'")
    return {name for (name,) in found} - IMMUTABLE


@pytest.fixture
def defaults(saver: PGStateSaver, connection: psycopg.Connection) -> Mapping[str, set[str]]:
    """The columns of each table whose default calls a function."""
    found = connection.execute(
        "SELECT c.relname, a.attname FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid"
        " JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum"
        " WHERE c.relnamespace = %s::regnamespace AND a.attgenerated = ''"
        r" AND pg_get_expr(d.adbin, d.adrelid) ~ '\w\('",
        [saver.schema],
    )
    columns: dict[str, set[str]] = {}
    for table, column in found:
        columns.setdefault(table, set()).add(column)
    assert columns["threads"] == {"created_at", "updated_at"}
    return columns


def nodes(node: Any) -> Iterator[Any]:
    """Every node of a parsed statement, itself first."""
    if isinstance(node, ast.Node):
        yield node
        for name in node:
            yield from nodes(getattr(node, name))
    elif isinstance(node, tuple | list):
        for item in node:
            yield from nodes(item)


def inserts(node: Any, ctes: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Every INSERT … SELECT of a statement, with the common table expressions that it may name."""
    if isinstance(node, ast.Node):
        clause = getattr(node, "withClause", None)
        if clause is not None:
            ctes = {**ctes, **{cte.ctename: cte for cte in clause.ctes}}
        if isinstance(node, ast.InsertStmt) and node.selectStmt is not None and not node.selectStmt.valuesLists:
            yield node, ctes
        for name in node:
            yield from inserts(getattr(node, name), ctes)
    elif isinstance(node, tuple | list):
        for item in node:
            yield from inserts(item, ctes)


def read_by(select: Any, ctes: Mapping[str, Any], seen: set[str]) -> tuple[bool, list[Any]]:
    """Whether a SELECT reads a table, also through what it names; and all that the server may evaluate as part of it.

    A materialized expression is evaluated before, and so is one that changes rows.
    """
    has_table, parts = False, [select]
    for node in nodes(select):
        if not isinstance(node, ast.RangeVar):
            continue
        if node.schemaname:
            has_table = True
        elif node.relname in ctes and node.relname not in seen:
            seen.add(node.relname)
            cte = ctes[node.relname]
            reads, within = read_by(cte.ctequery, ctes, seen)
            has_table = has_table or reads
            if isinstance(cte.ctequery, ast.SelectStmt) and cte.ctematerialized.name != "CTEMaterializeAlways":
                parts += within
    return has_table, parts


def called(node: Any, mutable: set[str]) -> set[str]:
    """The functions in a part of a statement that are not immutable."""
    found = {part.funcname[-1].sval for part in nodes(node) if isinstance(part, ast.FuncCall)} & mutable
    return found | {"CURRENT_…" for part in nodes(node) if isinstance(part, ast.SQLValueFunction)}


def faults_of(statement: Any, mutable: set[str], defaults: Mapping[str, set[str]]) -> list[str]:
    """What a distributed schema refuses in a statement's INSERT … SELECT."""
    found = []
    for insert, ctes in inserts(statement, {}):
        has_table, parts = read_by(insert.selectStmt, ctes, set())
        if has_table:
            table = insert.relation.relname
            found += [f"{table}: {name}()" for part in parts for name in sorted(called(part, mutable))]
            omitted = defaults.get(table, set()) - {column.name for column in insert.cols}
            found += [f"{table}.{column} is left to its default" for column in sorted(omitted)]
    return found


def test_a_time_is_a_value_where_rows_that_were_read_are_inserted(
    statements: dict[str, Any], mutable: set[str], defaults: Mapping[str, set[str]]
) -> None:
    """It is read first in a MATERIALIZED expression, and every column that would be given the time is named."""
    found = {name: faults_of(statement, mutable, defaults) for name, statement in statements.items()}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO s.labels (created_at) SELECT now() FROM s.threads",
        "INSERT INTO s.labels (created_at) SELECT $1 WHERE EXISTS (SELECT 1 FROM s.leases WHERE expires_at > now())",
        "WITH c AS (SELECT now() AS at FROM s.threads) INSERT INTO s.labels (created_at) SELECT c.at FROM c",
        "INSERT INTO s.labels (label) SELECT title FROM s.threads",
        "WITH a AS (INSERT INTO s.labels (label) SELECT title FROM s.threads) SELECT 1",
        "WITH a AS (UPDATE s.threads SET title = '' RETURNING title) INSERT INTO s.labels (label) SELECT title FROM a",
    ],
)
def test_what_is_refused_would_be_found(text: str, mutable: set[str], defaults: Mapping[str, set[str]]) -> None:
    """The test above rests on it."""
    assert faults_of(parse_sql(text)[0].stmt, mutable, defaults) != []


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO s.labels (label) VALUES ('')",
        "INSERT INTO s.labels (created_at) SELECT now()",
        "WITH c AS MATERIALIZED (SELECT now() AS at FROM s.threads) INSERT INTO s.labels (created_at) SELECT at FROM c",
        "WITH a AS (UPDATE s.threads SET title = '' RETURNING updated_at AS at)"
        " INSERT INTO s.labels (created_at) SELECT at FROM a",
    ],
)
def test_what_is_accepted_is_not_found(text: str, mutable: set[str], defaults: Mapping[str, set[str]]) -> None:
    assert faults_of(parse_sql(text)[0].stmt, mutable, defaults) == []


def test_an_upsert_takes_times_from_the_row_it_was_to_insert(statements: dict[str, Any], mutable: set[str]) -> None:
    """`excluded.x` instead of `now()` in DO UPDATE."""
    found = {
        name: called(node, mutable)
        for name, statement in statements.items()
        for node in nodes(statement)
        if isinstance(node, ast.OnConflictClause)
    }
    assert {name: names for name, names in found.items() if names} == {}


def test_no_condition_of_a_change_calls_for_the_time(statements: dict[str, Any], mutable: set[str]) -> None:
    """Neither CASE nor `coalesce` in UPDATE and DELETE; what is set may be `now()`, and no other such function."""
    found: dict[str, set[str]] = {}
    for name, statement in statements.items():
        for change in nodes(statement):
            if not isinstance(change, ast.UpdateStmt | ast.DeleteStmt):
                continue
            targets = getattr(change, "targetList", None) or ()
            conditional = [
                node
                for node in nodes([*targets, change.whereClause])
                if isinstance(node, ast.CaseExpr | ast.CoalesceExpr)
            ]
            wrong = called(conditional, mutable) | called([target.val for target in targets], mutable) - {"now"}
            if wrong:
                found[name] = wrong
    assert found == {}


def test_an_insert_names_its_columns(statements: dict[str, Any]) -> None:
    unnamed = {
        name
        for name, statement in statements.items()
        for node in nodes(statement)
        if isinstance(node, ast.InsertStmt) and not node.cols
    }
    assert unnamed == set()


# They look for the first position of a queue, which has runs of many threads, or for what has come from a thread.
ACROSS_THREADS = {
    "recover_run": {"queue o"},
    "requeue_run": {"queue o"},
    "erase_thread_rest": {"tool_executions tool_executions", "threads threads"},
}


def level_of(node: Any, is_top: bool = True) -> Iterator[Any]:
    """The nodes of a SELECT, UPDATE or DELETE, without those of others within it."""
    if isinstance(node, ast.Node):
        if is_top or not isinstance(node, ast.SelectStmt | ast.InsertStmt | ast.UpdateStmt | ast.DeleteStmt):
            yield node
            for name in node:
                yield from level_of(getattr(node, name), False)
    elif isinstance(node, tuple | list):
        for item in node:
            yield from level_of(item, False)


def test_a_statement_of_one_thread_names_it_for_every_table(
    statements: dict[str, Any], saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """So that each arm is sent to the node of the thread, and none to all."""
    rows = connection.execute(
        "SELECT i.indrelid::regclass::text FROM pg_index i JOIN pg_attribute a"
        " ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] JOIN pg_class c ON c.oid = i.indrelid"
        " WHERE i.indisprimary AND a.attname = 'thread_id' AND c.relnamespace = %s::regnamespace",
        [saver.schema],
    )
    tables = {table.rpartition(".")[2] for (table,) in rows}
    assert "queue" in tables
    found: dict[str, set[str]] = {}
    for name, query in queries("pgstate").all.items():
        if "thread_id" not in query.parameters:
            continue
        for statement in nodes(statements[name]):
            if not isinstance(statement, ast.SelectStmt | ast.UpdateStmt | ast.DeleteStmt):
                continue
            level = [*level_of(statement)]
            compared = {
                tuple(part.sval for part in column.fields if isinstance(part, ast.String))
                for node in level
                if isinstance(node, ast.A_Expr)
                for column in level_of(node)
                if isinstance(column, ast.ColumnRef)
            }
            for node in level:
                if isinstance(node, ast.RangeVar) and node.schemaname and node.relname in tables:
                    alias = node.alias.aliasname if node.alias else node.relname
                    if not compared & {("thread_id",), (alias, "thread_id")}:
                        found.setdefault(name, set()).add(f"{node.relname} {alias}")
    assert found == ACROSS_THREADS
