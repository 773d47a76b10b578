"""The tables with rows of threads, found in PostgreSQL's catalogue, and statements on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import NamedQuery, Queries

THREADS: Final = "threads"
"""The table in which the row of an archived thread stays as a stub."""

NOT_ARCHIVED: Final[Mapping[str, str]] = {
    "archived_threads": "says which archives have a copy of the thread",
    "event_chains": "stay, because they prove that events are unchanged, also archived events",
    "event_hashes": "as event_chains",
    "file_versions": "a file is of no thread; its versions name the thread that wrote them",
    "holds": "a thread that is held is not archived; one that is archived can be held",
    "journal": "moved into the tables first; a thread with rows in it is not archived",
    "leases": "of processes that run the thread; a thread with a lease is not archived",
    "memories": "a memory is of no thread; it names the thread that it comes from",
    "memory_versions": "as memories",
    "queue": "a thread with runs in the queue is not archived",
    "schedules": "a schedule is of no thread; one that is to fire on a thread keeps it from being archived",
    "span_exports": "a thread with spans that are to be exported is not archived",
    "tombstones": "of deleted threads",
    "webhooks": "are delivered, whatever becomes of the thread",
}
"""The tables with a `thread_id` that an archive leaves out, and why. All other tables are archived, also new tables."""


class Table(NamedTuple):
    """A table with rows of threads.

    Attributes:
        name: Its name.
        columns: Name and type of its columns.
        read: Statement that returns the rows of some threads, each with its thread.
        digest: Statement that returns, for each of some threads, the number and the digest of its rows.
        delete: Statement that deletes the rows of some threads, and returns the same as `digest`.
        insert: Statement that inserts rows, given by column.
        decode: Statement that returns rows, given by column, as `export_thread_rows` does. It reads no table.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    read: NamedQuery
    digest: NamedQuery
    delete: NamedQuery
    insert: NamedQuery
    decode: NamedQuery


class Tables(NamedTuple):
    """All tables with rows of threads.

    Attributes:
        all: The tables. A table comes before the tables that refer to it.
        measure: Statement that returns number and bytes of the rows of some threads, one row for each thread and table.
        find: Statement that returns which of some threads have a row in any table except `threads`.
    """

    all: tuple[Table, ...]
    measure: NamedQuery
    find: NamedQuery

    @property
    def columns(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """Name and type of the columns by table."""
        return {table.name: table.columns for table in self.all}


async def list_tables(
    db: Connection, queries: Queries, columns: Mapping[str, Collection[tuple[str, str]]] | None = None
) -> Tables:
    """Return the tables with rows of threads, with all columns or only the given ones. One round trip."""
    named = None if columns is None else [f"{table}.{name}" for table, found in columns.items() for name, _ in found]
    parameters = {
        "threads": f'"{queries.schema}".threads',
        "excepted": [*NOT_ARCHIVED],
        "columns": named,
    }
    rows = await db.fetch(queries.list_thread_tables, parameters)
    contents = queries.export_thread_rows.contents
    found = [_table(contents, *row[:8]) for row in rows]
    return Tables(tuple(found), _query("measure_threads", rows[0][8], 1), _query("find_rows", rows[0][9], 1))


def _table(
    contents: Contents | None,
    name: str,
    columns: Sequence[str],
    types: Sequence[str],
    read: str,
    digest: str,
    delete: str,
    insert: str,
    decode: str,
) -> Table:
    return Table(
        name,
        tuple(zip(columns, types, strict=True)),
        _query(f"read_{name}", read, 1),
        _query(f"digest_{name}", digest, 1),
        _query(f"delete_{name}", delete, 1),
        _query(f"insert_{name}", insert, len(columns)),
        _query(f"decode_{name}", decode, len(columns))._replace(contents=contents),
    )


def _query(name: str, text: str, parameters: int) -> NamedQuery:
    names = ("thread_ids",) if parameters == 1 else tuple(f"p{number}" for number in range(parameters))
    return NamedQuery(name, "Made from PostgreSQL's catalogue.", text.encode(), names)
