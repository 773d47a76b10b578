"""Reading of archived threads without restoring them, for exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments
from langgraph_pgstate.db.protocol import Connection, Packed
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import NotFoundError, SchemaOutdatedError
from langgraph_pgstate.keep.packing import Columns, Manifest, Rows, transpose, values_of
from langgraph_pgstate.keep.restoring import Source, find_sources, portions
from langgraph_pgstate.keep.tables import THREADS, Table, Tables, list_tables
from langgraph_pgstate.schema.queries import Queries, migrations

EXPORTED: Final[Mapping[str, frozenset[str]]] = {
    THREADS: frozenset(),
    "checkpoints": frozenset({"state", "segment_ids", "revision"}),
    "labels": frozenset(),
    "messages": frozenset(),
    "answers": frozenset({"value"}),
    "runs": frozenset(),
    "feedback": frozenset({"value"}),
    "spans": frozenset(),
    "tool_executions": frozenset({"result"}),
    "events": frozenset(),
    "projections": frozenset(),
}
"""The archived tables that `export_thread_rows` returns, and the columns that it leaves out."""
_STATE: Final = ("kind", "a", "b", "c", "n", "data", "ids", "state_version")


async def find_source(runner: Runner, queries: Queries, thread_id: str, tenant: str | None) -> Source | None:
    """Return the archive that the stub of a thread names; `None` if the thread is not archived.

    Raises:
        ArchiveError: If the manifest of the archive is damaged.
        TenantError: If the archive belongs to another tenant.
    """
    try:
        (source,) = await find_sources(runner, queries, [thread_id], tenant)
    except NotFoundError:
        return None
    return source


async def list_exported(db: Connection, queries: Queries, manifest: Manifest) -> Tables:
    """Return the archived tables and columns that an export has. One round trip.

    Raises:
        SchemaOutdatedError: If the archive has columns that the tables lack.
    """
    wanted = {
        name: tuple((column, type) for column, type in columns if column not in EXPORTED[name])
        for name, columns in manifest.columns.items()
        if name in EXPORTED
    }
    tables = await list_tables(db, queries, wanted)
    if tables.columns != wanted:
        raise SchemaOutdatedError(queries.schema, migrations()[-1].version, manifest.schema_version)
    return tables


def parts_of(tables: Tables, rows: Rows) -> Iterator[tuple[Table, list[bytes]]]:
    """Yield parts of a thread's rows, except its row in `threads`. Parts of runs come first."""
    for table in sorted(tables.all, key=lambda one: one.name != "runs"):
        for part in portions(rows.get(table.name, ())) if table.name != THREADS else ():
            yield table, part


async def decode(
    db: Connection, queries: Queries, table: Table, columns: Sequence[tuple[str, str]], rows: Sequence[bytes]
) -> list[dict[str, Any]]:
    """Return archived rows as `export_thread_rows` returns rows. One round trip."""
    values = await db.compute(transpose, rows, len(columns))
    named = dict(zip((name for name, _ in columns), values, strict=True))
    given = {f"p{number}": Packed(named[name]) for number, (name, _) in enumerate(table.columns)}
    return [row[2] for row in await db.fetch(table.decode, given)]


async def newest_checkpoint(
    db: Connection, queries: Queries, thread_id: str, rows: Rows, columns: Columns
) -> tuple[CheckpointRow, Segments] | None:
    """Return the newest checkpoint of an archived thread, decrypted, with its segments; `None` if it has none."""
    newest: dict[str, Any] = {"checkpoint_id": b""}
    for row in values_of(rows.get("checkpoints", ()), columns.get("checkpoints", ())):
        if not row["checkpoint_ns"] and (row["checkpoint_id"] or b"") > newest["checkpoint_id"]:
            newest = row
    if not newest["checkpoint_id"]:
        return None
    id, ids = newest["checkpoint_id"].decode(), [int(one) for one in newest["segment_ids"][1:-1].split(b",") if one]
    version = newest["state_version"] and int.from_bytes(newest["state_version"], "big")
    found: list[tuple[Any, ...]] = [(0, id, None, "{}", 0, newest["state"], ids, version)]
    for segment in values_of(rows.get("segments", ()), columns.get("segments", ())):
        number = int.from_bytes(segment["segment_id"] or b"", "big")
        if number in ids:
            found.append((1, None, None, None, number, segment["data"], None, None))
    contents = copy(queries.get_latest_checkpoint.contents)
    if db.keys is not None and contents is not None:
        contents.places = {name: place for place, name in enumerate(_STATE)}
        found = await db.compute(contents.open, db.keys, found, {"thread_id": thread_id, "checkpoint_ns": ""})
    state, *segments = found
    head = CheckpointRow(Address(thread_id, "", id), None, "{}", state[5], ids, 0, version)
    return head, Segments([(row[4], row[5]) for row in segments])
