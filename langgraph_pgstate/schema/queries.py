"""Named queries and migrations, read from `.sql` files.

A query file holds statements like

    -- name: delete_thread
    -- Delete every row of a thread.
    DELETE FROM /*schema*/checkpoints WHERE thread_id = :thread_id;

`/*schema*/` precedes every table and leaves the file valid SQL. `:parameter` names become `$1 … $n` in the order of
their first use. A statement is parsed at its first use, once for all schemas.

The loader puts `pg_catalog.` before operators and function calls (plain names directly before a parenthesis). Otherwise
PostgreSQL may prefer an operator or function that another role has made in a schema of the `search_path`.

A line `-- plan: at each call` below the purpose makes the server plan the statement for its arguments each time. With
conditions like `:name IS NULL OR name = :name`, only such a plan uses the right index.

Lines below the purpose that begin with `-- seals: `, `-- opens: `, `-- matches: `, `-- searches: ` or `-- leaves: ` say
what the statement does with content that may be encrypted; see `db/contents.py`.

A condition that several statements share is written once, as a statement of its own:

    -- condition: is_wanted
    -- Whether …
    SELECT FROM /*schema*/memories m WHERE m.kind = ANY(:kinds);

The statements that use it write `/*is_wanted*/true`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain, zip_longest
from typing import Any, Final, Literal, NamedTuple

from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.encryption.columns import VECTORS
from langgraph_pgstate.options import check_schema_name

_PACKAGE: Final = "langgraph_pgstate"
_MARKER = "/*schema*/"
_SCHEMA_NAME = "/*schema_name*/pgstate"
_DOES = "(?:seals|opens|matches|searches|leaves): "
_HEADER = re.compile(
    rf"^-- name: (\w+)\n((?:-- (?!plan: |{_DOES}).*\n)+)((?:-- {_DOES}.*\n)*)(-- plan: at each call\n)?", re.MULTILINE
)
_CONDITION = re.compile(r"^-- condition: (\w+)\n(?:-- .*\n)+SELECT FROM .* WHERE\s+([^;]*);", re.MULTILINE)
_USED_CONDITION = re.compile(r"/\*(\w+)\*/true\b")
_INSERTED = re.compile(r"\bINTO /\*schema\*/(\w+)")
_PERIOD = re.compile(r"[0-9]{4,}_[0-9]{2}(_[0-9]{2})?")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


# Matches what must be qualified: calls, and operators whose precedence then stays the same. Also matches comments,
# strings and `unnest` of several arrays, which are not changed. Other operators need no qualification, because
# `pg_catalog` has them for exactly these types.
_QUALIFIED = re.compile(
    r"--[^\n]*|'[^']*'|(?<![\w.\"])unnest\((?=(?:[^(),[]|\([^()]*\)|\[[^]]*\])*\))"
    r"|(?<![\w.\"])(?<!\*/)(?!unnest\()[a-z_]\w*\("
    r"|(?=[-|@&?!~])(?:->>|->|\|\||@>|@@|&&|\?|!?~\*?)"
)
# Calls that are PostgreSQL's syntax, not functions of a schema.
GRAMMAR: Final = ("coalesce(", "extract(", "greatest(", "grouping(", "least(", "nullif(", "position(", "substring(")


class NamedQuery(NamedTuple):
    """One statement for one schema.

    Attributes:
        name: The name in the `.sql` file.
        purpose: The sentences below the name.
        text: The statement with `$n` placeholders.
        parameters: Parameter names in placeholder order.
        is_planned_each_time: Whether the statement is never prepared, but planned for its arguments each time.
        contents: The statement's use of content that may be encrypted; `None` for none.
    """

    name: str
    purpose: str
    text: bytes
    parameters: tuple[str, ...]
    is_planned_each_time: bool = False
    contents: Contents | None = None


Statement = tuple[NamedQuery, Mapping[str, Any]]
"""A named query with its parameters."""


class Queries:
    """The named queries of one schema, as attributes, from all packages or from one folder."""

    def __init__(self, schema: str, folder: str = "") -> None:
        self.schema, self._folder = check_schema_name(schema), folder
        _sources(folder)

    def __getattr__(self, name: str) -> NamedQuery:
        if name.startswith("_") or name not in _sources(self._folder):
            raise AttributeError(f"no query is named {name!r}")
        parsed = _parsed(self._folder, name)
        query = parsed._replace(text=_in_schema(parsed.text.decode(), self.schema).encode())
        if query.contents is not None:
            query = query._replace(contents=query.contents.of_schema(queries(self.schema).get_data_keys))
        self.__dict__[name] = query
        return query

    @cached_property
    def all(self) -> dict[str, NamedQuery]:
        """All queries by name."""
        return {name: getattr(self, name) for name in _sources(self._folder)}


class Migration(NamedTuple):
    """One numbered step of the schema.

    Attributes:
        version: The number, from 1.
        name: A description, from the file's name.
        up: SQL with the schema marker, one transaction.
        down: SQL that reverts the migration.
        checksum: SHA-256 of `up`, to detect a changed migration.
        is_additive: Whether programs of the previous version work with the result; `up` begins with `-- additive`.
    """

    version: int
    name: str
    up: str
    down: str
    checksum: str
    is_additive: bool = False

    def rendered(self, schema: str, *, down: bool = False) -> str:
        """Return the SQL for one schema, to be run in a transaction."""
        text = _in_schema(_qualify(self.down if down else self.up), schema)
        return "\n".join([_read("begin_step.sql"), text, _read("end_step.sql")])


@cache
def queries(schema: str) -> Queries:
    """Return the queries of `schema`."""
    return Queries(schema)


@cache
def langgraph_queries(schema: str) -> Queries:
    """Return the queries on the tables of LangGraph's own PostgreSQL saver and store in `schema`."""
    return Queries(schema, "schema/langgraph")


@cache
def extension_queries(schema: str) -> Queries:
    """Return the queries on views of extensions that are in `schema`."""
    return Queries(schema, "schema/extensions")


def langgraph_tables(schema: str, *, create_schema: bool = True) -> str:
    """Return SQL that creates the tables of LangGraph's own PostgreSQL saver as its `setup()` does; idempotent."""
    return _created(schema, "langgraph_tables.sql", create_schema)


def langgraph_store_tables(schema: str, *, create_schema: bool = True) -> str:
    """Return SQL that creates the table of items of LangGraph's own store as its `setup()` does; idempotent."""
    return _created(schema, "langgraph_store.sql", create_schema)


def langgraph_vectors_table(schema: str, extension: str, vector_type: str, dims: int) -> str:
    """Return SQL that creates the table of embeddings of LangGraph's own store; idempotent.

    `extension` is the schema of pgvector.
    """
    type = f'"{extension}".{vector_type} ({dims:d})'
    return _created(schema, "langgraph_vectors.sql", False).replace(" vector (3)", f" {type}")


def snapshot() -> str:
    """Return SQL that makes the transaction read-only, with a single snapshot."""
    return _read("snapshot.sql")


def preload(schema: str) -> None:
    """Read all files for `schema`, so that an event loop never waits for a file."""
    queries(schema)
    _conditions()
    migrations()
    for entry in resources.files(__package__).iterdir():
        if entry.name.endswith(".sql"):
            _read(entry.name)


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this package, in order. The first one creates the tables of `schema.sql`."""
    folder = resources.files(__package__).joinpath("migrations")
    found = []
    for name in sorted(entry.name.removesuffix(".down.sql") for entry in folder.iterdir() if ".down." in entry.name):
        number, _, words = name.partition("_")
        source = (
            folder.joinpath(f"{name}.up.sql")
            if int(number) > 1
            else resources.files(__package__).joinpath("schema.sql")
        )
        up, down = source.read_text("utf-8"), folder.joinpath(f"{name}.down.sql").read_text("utf-8")
        checksum = hashlib.sha256(up.encode()).hexdigest()
        found.append(Migration(int(number), words, up, down, checksum, up.startswith("-- additive\n")))
    return tuple(found)


def bootstrap(schema: str, *, create_schema: bool = True) -> str:
    """Return the SQL that setup runs before its first migration; idempotent."""
    return _created(schema, "bootstrap.sql", create_schema)


def metadata_index(schema: str) -> str:
    """Return SQL that creates the optional index on all metadata; idempotent."""
    return _in_schema(_read("metadata_index.sql"), schema)


def walls(schema: str) -> str:
    """Return SQL that adds row-level security for tenants; idempotent."""
    return wall_tenants(schema) + _in_schema(_read("wall.sql"), schema)


def wall_tenants(schema: str) -> str:
    """Return SQL that makes the table of tenants; idempotent."""
    return _in_schema(_read("wall_tenants.sql"), schema)


def move(schema: str, step: Literal["prepare", "rows", "lock", "end", "undo"]) -> str:
    """Return the SQL of one step of the move of rows to tenants."""
    return _in_schema(_read(f"move_{step}.sql"), schema)


def analyze(schema: str, table: str) -> str:
    """Return SQL that gathers statistics of a table."""
    return _in_schema(_read("move_analyze.sql").replace("/threads", f'/"{table}"'), schema)


def drop_built_key(schema: str, name: str) -> str:
    """Return SQL that drops an index which a move has left incomplete."""
    return _in_schema(_read("move_drop.sql").replace("pgstate_move_key", f'"{name}"'), schema)


def partition(schema: str, table: str, column: str, period: str, first: str, following: str) -> list[str]:
    """Return the statements that create a partition for a month or a day. Citus needs each statement sent alone.

    Args:
        schema: The schema.
        table: The partitioned table.
        column: The column of the partition key, a time.
        period: The month or day, such as `2026_01` or `2026_01_31`.
        first: The first day, such as `2026-01-01`.
        following: The first day after the period.
    """
    text = _read("partition.sql").replace("spans_2000_01", _partition(table, period)).replace("started_at", column)
    text = re.sub(r"\bspans(?=\b|_default)", table, text)
    text = _in_schema(text.replace("2000-01-01", first).replace("2000-02-01", following), schema)
    return [statement for statement in text.split(";\n") if statement]


def open_default(schema: str, table: str) -> str:
    """Return SQL that lets the owner see all tenants' rows in a default partition, so that they can be moved."""
    return _in_schema(_read("open_default.sql").replace("spans_default", f"{table}_default"), schema)


def open_holds(schema: str) -> str:
    """Return SQL that lets the owner see all tenants' legal holds and spans, to find held spans of a month."""
    return _in_schema(_read("open_holds.sql"), schema)


def drop_partition(schema: str, table: str, period: str) -> str:
    """Return SQL that drops a partition."""
    return _in_schema(_read("drop_partition.sql").replace("spans_2000_01", _partition(table, period)), schema)


def read_contents(schema: str, table: str, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return SQL that reads a page of a thread's rows of a table, in key order after a cursor."""
    text = _without_comments("read_contents.sql")
    listed, after = ", ".join([*keys, *columns]), ", ".join(keys[1:])
    places = ", ".join(f"${number}" for number in range(2, len(keys) + 1))
    text = text.replace("(thread_id) > ($2)", f"({after}) > ({places})" if after else "true")
    text = text.replace("ORDER BY thread_id", f"ORDER BY {after or keys[0]}")
    return _in_schema(text.replace("thread_id, title", listed).replace("threads", table), schema)


def write_content(schema: str, table: str, keys: Sequence[str], column: str) -> str:
    """Return SQL that replaces a value in one row."""
    text = _without_comments("write_content.sql")
    named = " AND ".join(f"{name} = ${number}" for number, name in enumerate(keys, 2))
    text = text.replace("thread_id = $2 AND title = $3", f"{named} AND {column} = ${len(keys) + 2}")
    return _in_schema(text.replace("title", column).replace("threads", table), schema)


def scan_contents(schema: str, table: str, keys: Sequence[str], heads: Sequence[str], *, is_first: bool) -> str:
    """Return SQL that reads a page of a table after a cursor: keys, and beginnings and sizes of contents."""
    text = _without_comments("scan_contents.sql")
    text = text.replace("thread_id, title", ", ".join([*keys, *map(_qualify, heads)]))
    return _in_schema(_after(text, keys, is_first).replace("threads", table), schema)


def range_contents(schema: str, table: str, keys: Sequence[str], columns: Sequence[str], *, is_first: bool) -> str:
    """Return SQL that reads contents of a table between two keys."""
    text = _without_comments("range_contents.sql")
    text = text.replace("thread_id, title", ", ".join([*keys, *columns]))
    start = 1 if is_first else len(keys) + 1
    upto = ", ".join(f"${number}" for number in range(start, start + len(keys)))
    text = text.replace("(thread_id) <= ($2)", f"({', '.join(keys)}) <= ({upto})")
    return _in_schema(_after(text, keys, is_first).replace("threads", table), schema)


def _after(text: str, keys: Sequence[str], is_first: bool) -> str:
    places = ", ".join(f"${number}" for number in range(1, len(keys) + 1))
    condition = "true" if is_first else f"({', '.join(keys)}) > ({places})"
    text = text.replace("(thread_id) > ($1)", condition)
    return text.replace("ORDER BY thread_id", f"ORDER BY {', '.join(keys)}")


def _without_comments(name: str) -> str:
    return "\n".join(line for line in _read(name).splitlines() if not line.startswith("--"))


def lock_partition(schema: str, table: str, period: str) -> str:
    """Return SQL that keeps rows from being added to a partition until the transaction ends."""
    return _in_schema(_read("lock_partition.sql").replace("spans_2000_01", _partition(table, period)), schema)


def recording(schema: str, migration: Migration) -> str:
    """Return the statement that records a migration as applied, with its values as literals."""
    query = queries(schema).record_migration
    text = query.text.decode()
    values = {
        "version": str(migration.version),
        "name": f"'{migration.name}'",
        "checksum": f"'{migration.checksum}'",
        "is_additive": str(migration.is_additive).lower(),
    }
    for number, parameter in enumerate(query.parameters, 1):
        text = text.replace(f"${number}", values[parameter])
    return text + ";\n"


def _partition(table: str, period: str) -> str:
    if not _PERIOD.fullmatch(period):
        raise ValueError(f"period must be a month or a day, got {period!r}")
    return f"{table}_{period}"


def _created(schema: str, name: str, create_schema: bool) -> str:
    quoted = f'"{check_schema_name(schema)}"'
    first = [_read("create_schema.sql").replace(_SCHEMA_NAME, quoted)] if create_schema else []
    return "\n".join([*first, _in_schema(_read(name), schema)])


@cache
def _read(name: str) -> str:
    return _qualify(resources.files(__package__).joinpath(name).read_text("utf-8"))


@cache
def _sources(folder: str) -> dict[str, NamedQuery]:
    """Return the statements of all files of a folder by name, unchanged."""
    found: dict[str, NamedQuery] = {}
    for entry in _files(folder):
        text = entry.read_text("utf-8")
        headers = list(_HEADER.finditer(text))
        for header, following in zip_longest(headers, headers[1:]):
            name, body = header.group(1), text[header.end() : following.start() if following else len(text)]
            purpose = " ".join(line.removeprefix("-- ") for line in header.group(2).splitlines())
            lines = [line.removeprefix("-- ") for line in header.group(3).splitlines()]
            has_vectors = not VECTORS.isdisjoint(_INSERTED.findall(body))
            contents = Contents(lines, has_vectors=has_vectors) if lines or has_vectors else None
            text_of = body.strip().rstrip(";").encode()
            found[name] = NamedQuery(name, purpose, text_of, (), bool(header.group(4)), contents)
    return found


@cache
def _conditions() -> dict[str, str]:
    """Return the conditions of all packages by name."""
    return dict(chain.from_iterable(_CONDITION.findall(entry.read_text("utf-8")) for entry in _files("")))


@cache
def _parsed(folder: str, name: str) -> NamedQuery:
    """Return a statement with the schema marker."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        parameter = match.group(1)
        if parameter not in order:
            order.append(parameter)
        return f"${order.index(parameter) + 1}"

    source = _sources(folder)[name]
    text = _USED_CONDITION.sub(lambda match: f"({_conditions()[match.group(1)]})", source.text.decode())
    text = _PARAMETER.sub(number, _qualify(text))
    # Interned names make lookups in dictionaries faster.
    return source._replace(text=text.encode(), parameters=tuple(map(sys.intern, order)))


def _files(folder: str) -> Iterator[Traversable]:
    """Yield the SQL files of a folder, or of all packages, in order of their names."""
    if folder:
        folders = [resources.files(_PACKAGE).joinpath(folder)]
    else:
        folders = [entry for entry in resources.files(_PACKAGE).iterdir() if entry.is_dir()]
    for entry in sorted(folders, key=lambda item: item.name):
        yield from sorted((file for file in entry.iterdir() if file.name.endswith(".sql")), key=lambda item: item.name)


def _in_schema(text: str, schema: str) -> str:
    return text.replace(_MARKER, f'"{check_schema_name(schema)}".')


def _qualify(text: str) -> str:
    return _QUALIFIED.sub(_qualified, text)


def _qualified(match: re.Match[str]) -> str:
    found = match.group()
    if found[0] == "'" or found.startswith("--") or found in GRAMMAR:
        return found
    return f"pg_catalog.{found}" if found[-1] == "(" else f"OPERATOR(pg_catalog.{found})"
