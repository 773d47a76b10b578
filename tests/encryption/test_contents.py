"""What statements do with content: each says it, and a column that holds content is forgotten by none."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import langgraph_pgstate
from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.encryption.columns import CONTENTS, KEYS
from langgraph_pgstate.memory.indexes import statements_of
from langgraph_pgstate.schema.queries import queries

GUIDE = Path(langgraph_pgstate.__file__).parents[1] / "docs" / "guides" / "encryption.md"
_KEYWORDS = {
    *("set", "where", "select", "on", "using", "values", "cross", "left", "join", "for", "order", "as"),
    *("returning", "inner", "group", "limit", "union", "full", "right"),
}


def touched(text: str) -> set[str]:
    """The columns with content that a statement names, of the tables that it names."""
    text = re.sub(r"--[^\n]*|'[^']*'", "", text)
    # Sizes are readable.
    text = re.sub(r"(octet_length|pg_column_size)\((\w+\.)?\w+\)", "", text)
    tables: set[str] = set()
    names: dict[str, set[str]] = {}
    for table, alias in re.findall(r'"pgstate"\.(\w+)(?: (?:AS )?(\w+))?', text):
        tables.add(table)
        names.setdefault(table, set()).add(table)
        if alias and alias.lower() not in _KEYWORDS:
            names.setdefault(alias, set()).add(table)
    found = set()
    for alias, column in re.findall(r"(?:(\w+)\.)?\b([a-z_]+)\b", text):
        # The name of a sub-select may stand for any of them.
        for table in names.get(alias) or tables:
            found.add(f"{table}.{column}")
    return found & CONTENTS.keys()


def test_every_statement_says_what_it_does_with_content() -> None:
    """Guard: without its line a column would be stored in plain text, or not be read."""
    forgotten = {}
    for name, query in {**queries("pgstate").all, **statements_of("pgstate").all}.items():
        said = query.contents.columns if query.contents is not None else frozenset()
        if found := touched(query.text.decode()) - said:
            forgotten[name] = sorted(found)
    assert forgotten == {}


def test_the_search_finds_columns() -> None:
    """The test above rests on it."""
    assert touched('SELECT s.data, w.idx FROM "pgstate".segments s, "pgstate".writes w') == {"segments.data"}
    assert touched('UPDATE "pgstate".checkpoints SET state = $1') == {"checkpoints.state"}
    assert touched('SELECT octet_length(state) FROM "pgstate".checkpoints') == set()


def test_tables_with_content_have_their_keys() -> None:
    assert {name.partition(".")[0] for name in CONTENTS} == KEYS.keys()


# Columns of the types of content that hold none, by what they hold.
READABLE = {
    "ids": (
        "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id run_id segment_id next_checkpoint_id task_id "
        "task_path forked_from_thread_id forked_from_checkpoint_id interrupt_id answer_id holder_id entry_id event_id "
        "first_checkpoint_id last_checkpoint_id span_id parent_span_id message_id tool_call_id key_id feedback_id "
        "archive_id traceparent export_id worker_id idempotency_key intent_id root_checkpoint_id origin_thread_id "
        "origin_thread_ids compensates change_id assistant_id owner_id last_thread_id last_run_id index_fields "
        "deleted_by"
    ),
    "names of persons, agents, graphs, nodes, files, tools, models, keys of the queue, labels and reasons of holds": (
        "user_id tenant_id agent answered_by created_by name node provider model channel role key label reason held_by "
        "namespace path operation changed_by scope master_id queue graph release semconv_version tool url "
        "cron timezone missed"
    ),
    "statuses and kinds": (
        "status source kind change ttl_strategy multitask_strategy error_type value_type cancel version result_type"
    ),
}


def test_every_column_of_these_tables_is_encrypted_or_readable_for_a_reason(
    schema: str, connection: psycopg.Connection
) -> None:
    """Times, numbers and flags are readable."""
    rows = connection.execute(
        """
        SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
            JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND a.attnum > 0 AND NOT a.attisdropped AND c.relname = ANY(%s)
        """,
        [schema, [*KEYS]],
    ).fetchall()
    readable = {name for names in READABLE.values() for name in names.split()}
    held = {
        f"{table}.{column}" for table, column, type in rows if type in ("text", "jsonb", "bytea", "tsvector", "text[]")
    }
    assert {name for name in held if name.partition(".")[2] not in readable} == CONTENTS.keys() | {
        # Where a webhook is sent; and graph, owner, retries and time limits of an enqueued run.
        "runs.webhook",
        "run_requests.options",
        "schedules.options",
        # Why a tick could not be enqueued.
        "schedules.last_error",
    }


def test_every_table_that_holds_content_is_encrypted(schema: str, connection: psycopg.Connection) -> None:
    """Guard: a new table is encrypted, or named here with what it holds."""
    rows = connection.execute(
        "SELECT DISTINCT table_name FROM information_schema.columns "
        "WHERE table_schema = %s AND data_type IN ('jsonb', 'bytea') AND table_name !~ '_(default|[0-9]{4}_[0-9_]+)$' "
        "AND table_name NOT IN (SELECT table_name FROM information_schema.views WHERE table_schema = %s)",
        [schema, schema],
    ).fetchall()
    without_content = {
        "data_keys": "wrapped keys",
        "event_chains": "digests",
        "event_chain_ends": "digests",
        "event_hashes": "digests and salts",
        "erasures": "receipts without personal data",
        "maintenance": "counts and sizes",
        "memory_indexes": "parameters of indexes",
        "retention_policies": "filters on metadata: readable keys and digests",
        "workers": "versions of graphs",
        "webhooks": "metadata and errors of runs, encrypted as in `runs`",
        "archives": "what archives have: ids, sizes, digests",
    }
    assert {row[0] for row in rows} - KEYS.keys() - without_content.keys() == set()


def described() -> str:
    """The table of the guide."""
    lines, first = [], {}
    for name, content in CONTENTS.items():
        readable = ", ".join(f"`{key}`" for key in sorted(content.readable))
        if readable and first.setdefault(readable, name) != name:
            readable = f"those of `{first[readable]}`"
        lines.append(f"| `{name}` | {content.says} | {readable} |")
    return "\n".join(["| column | content | keys that stay readable |", "|---|---|---|", *lines])


def test_the_guide_lists_what_is_encrypted() -> None:
    """Paste what it shows between the marks."""
    text = GUIDE.read_text("utf-8")
    begin, end = text.index("<!-- generated: contents -->"), text.index("<!-- end -->")
    assert text[begin:end].partition("\n")[2].strip() == described()


@pytest.mark.parametrize("line", ["seals: threads.no_such_column", "opens: checkpoints.state form data", "hides: it"])
def test_a_line_that_says_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="a line about content must have"):
        Contents([line])
