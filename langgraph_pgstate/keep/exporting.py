"""The export of all that is stored about a user, page by page, as JSON lines. Archived threads are read in place."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import orjson

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.getting import get_tuple
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, load_tuple
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Packed
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.encryption.columns import KEYS
from langgraph_pgstate.errors import ArchiveError, NotFoundError, PGStateError, SchemaOutdatedError
from langgraph_pgstate.files.operations import get_version
from langgraph_pgstate.keep.packing import Columns, Manifest, Rows, transpose, values_of
from langgraph_pgstate.keep.restoring import Source, find_sources, portions, read_rows
from langgraph_pgstate.keep.tables import THREADS, Table, Tables, list_tables
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import Queries, migrations

_PAGE: Final = 200
# Kinds of events that name the acting person.
_BY_PERSONS: Final = frozenset({"action", "answer"})
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


class Line(NamedTuple):
    """A line of an export. `problem` says what of the row could not be read, and why."""

    data: bytes
    problem: str | None = None


Cursor = tuple[str, str]
"""Table and key of the last row of a page."""

START: Final[Cursor] = ("", "")

_WORDS: Final = frozenset({
    *("user", "users", "agent", "agents", "tenant", "tenants", "memories", "notes", "files", "threads"),
})  # fmt: skip


def label_of(user_id: str) -> dict[str, str | None]:
    """Return the parameters of statements that find a user's namespaces.

    The parameter `label` finds namespaces that have the user's id as a label. If the id is also a fixed label, such as
    `memories`, `label` is `None`, because namespaces of all users may have it.
    """
    return {"user_id": user_id, "label": None if user_id in _WORDS else user_id}


async def export_user(
    runner: Runner, queries: Queries, codec: ValueCodec, user_id: str, tenant: str | None
) -> AsyncIterator[Line]:
    """Yield all that is stored about a user, page by page, also in archives."""
    thread_id: str | None = ""
    while (thread_id := await runner.run(next_thread, queries, user_id, thread_id or "")) is not None:
        async for line in _thread(runner, queries, codec, thread_id, tenant):
            yield line
    seen: set[str] = set()
    async for line in _acts(runner, queries, user_id, tenant, seen):
        yield line
    cursor: Cursor | None = START
    while cursor is not None:
        found, cursor = await runner.run(user_page, queries, user_id, cursor)
        for one in found:
            yield one if isinstance(one, Line) else await runner.run(file_line, queries, codec, one)
    # Read archives again, because other threads may have been archived while the rows above were read.
    async for line in _acts(runner, queries, user_id, tenant, seen):
        yield line


async def _thread(
    runner: Runner, queries: Queries, codec: ValueCodec, thread_id: str, tenant: str | None
) -> AsyncIterator[Line]:
    """Yield the rows of a thread, and its newest state."""
    for line in await runner.run(left_in_journal, queries, thread_id):
        yield line
    source = await _find(runner, queries, thread_id, tenant)
    cursor: Cursor | None = START
    while cursor is not None:
        lines, cursor = await runner.run(thread_page, queries, thread_id, cursor)
        for line in lines:
            yield line
    state: list[Line] = []
    if source is None:
        state = await runner.run(newest_state, queries, codec, thread_id)
        # Look for an archive again, because the thread may have been archived while its rows were read.
        source = await _find(runner, queries, thread_id, tenant)
    if source is None:
        for line in state:
            yield line
    elif isinstance(source, Line):
        yield source
    else:
        async for line in _archived(runner, queries, source, thread_id, codec=codec):
            yield line


async def _acts(
    runner: Runner, queries: Queries, user_id: str, tenant: str | None, seen: set[str]
) -> AsyncIterator[Line]:
    """Yield what a user did in other users' archived threads, except the threads in `seen`."""
    after: str | None = ""
    while (after := await runner.run(next_archived, queries, user_id, after or "")) is not None:
        if after in seen:
            continue
        source = await _find(runner, queries, after, tenant)
        if isinstance(source, Line):
            yield source
        elif source is not None:
            async for line in _archived(runner, queries, source, after, user_id=user_id):
                yield line
        if source is not None:
            seen.add(after)


async def _find(runner: Runner, queries: Queries, thread_id: str, tenant: str | None) -> Source | Line | None:
    """Return a thread's archive, a line if the archive cannot be read, or `None` if the thread is not archived."""
    try:
        return await _find_source(runner, queries, thread_id, tenant)
    except PGStateError as error:
        return _away(thread_id, error)


async def _archived(
    runner: Runner,
    queries: Queries,
    source: Source,
    thread_id: str,
    *,
    user_id: str | None = None,
    codec: ValueCodec | None = None,
) -> AsyncIterator[Line]:
    """Yield the archived rows of a thread. With `user_id`, yield only what this user did.

    With a codec, also yield the thread's newest state.
    """
    columns, run_ids = source.manifest.columns, set[str]()
    try:
        rows = (await read_rows(runner, source, [source.manifest.frames[thread_id]]))[thread_id]
        tables = await runner.run(list_exported, queries, source.manifest)
        for table, part in parts_of(tables, rows):
            for row in await runner.run(decode, queries, table, columns[table.name], part):
                if user_id is None or _is_act(table.name, row, user_id, run_ids):
                    yield _line(table.name, row)
        if codec is not None:
            for line in await runner.run(archived_state, queries, codec, thread_id, rows, columns):
                yield line
    except PGStateError as error:
        yield _away(thread_id, error)


def _away(thread_id: str, error: PGStateError) -> Line:
    """Return the line of a thread whose archive cannot be read. Raise errors of the database again."""
    if error.retryable and not isinstance(error, ArchiveError):
        raise error
    return _line("archived_threads", {"thread_id": thread_id}, f"its archive cannot be read here: {error}")


def _is_act(table: str, row: dict[str, Any], user_id: str, run_ids: set[str]) -> bool:
    """Return whether `export_user_rows` would return a row of another user's thread. Runs must come before messages."""
    if table == "runs" and row["user_id"] == user_id:
        # Leave out the output, which has content of other users.
        row.pop("output")
        run_ids.add(row["run_id"])
        return True
    if table == "messages":
        return row["run_id"] in run_ids
    if table == "events":
        payload = row["payload"]
        return row["kind"] in _BY_PERSONS and isinstance(payload, dict) and payload.get("by") == user_id
    return user_id in (row.get("created_by"), row.get("answered_by"))


async def next_thread(db: Connection, queries: Queries, user_id: str, after: str) -> str | None:
    """Return a user's next thread by id, or `None` at the end. Its journal entries are moved to the tables first."""
    rows = await db.fetch(queries.list_threads_of_user, {"user_id": user_id, "cursor_id": after, "page_size": 1})
    if not rows:
        return None
    found: str = rows[0][0]
    await journal.write(db, queries, [found])
    return found


async def next_archived(db: Connection, queries: Queries, user_id: str, after: str) -> str | None:
    """Return the next archived thread, by id, that another user owns and that this user owned earlier or acted in."""
    while rows := await db.fetch(
        queries.list_archived_threads_of_user, {"user_id": user_id, "cursor_id": after, "page_size": 1}
    ):
        after = rows[0][0]
        owners = await db.fetch(queries.get_owner_of, {"thread_id": after})
        if owners and owners[0][0] != user_id:
            return after
    return None


async def left_in_journal(db: Connection, queries: Queries, thread_id: str) -> list[Line]:
    """Return a line with an error if this process cannot read the journal entries of a thread."""
    if await journal.is_kept(db, queries, thread_id):
        return [_line("journal", {"thread_id": thread_id}, "its entries cannot be read here")]
    return []


async def thread_page(
    db: Connection, queries: Queries, thread_id: str, cursor: Cursor
) -> tuple[list[Line], Cursor | None]:
    """Return a page of the rows of a thread as lines, and the position after it; `None` at the end."""
    where = {"cursor_name": cursor[0], "cursor_key": cursor[1], "page_size": _PAGE}
    rows = await db.fetch(queries.export_thread_rows, {"thread_id": thread_id, **where})
    return [_line(name, content) for name, _, content in rows], _after(rows)


async def user_page(
    db: Connection, queries: Queries, user_id: str, cursor: Cursor
) -> tuple[list[Line | dict[str, Any]], Cursor | None]:
    """Return a page of a user's other rows as lines, and the position after it; `None` at the end.

    A file with encoded content stays a row, which `file_line` turns into a line.
    """
    where = {"cursor_name": cursor[0], "cursor_key": cursor[1], "page_size": _PAGE}
    rows = await db.fetch(queries.export_user_rows, {**label_of(user_id), **where})
    found: list[Line | dict[str, Any]] = []
    for name, _, row in rows:
        is_encoded = name == "file_versions" and row.pop("is_encoded") and row["content"] is None
        found.append(row if is_encoded else _line(name, row))
    return found, _after(rows)


async def file_line(db: Connection, queries: Queries, codec: ValueCodec, row: dict[str, Any]) -> Line:
    """Return a version of a file as a line, with its decoded content: bytes in base64, or why it cannot be read."""
    try:
        file = await get_version(db, queries, codec, tuple(row["namespace"]), row["path"], row["version"])
    except PGStateError as error:
        if error.retryable:
            raise
        return _line("file_versions", row, f"its content cannot be read here: {type(error).__name__}")
    content = None if file is None else file.content
    if isinstance(content, bytes):
        encoded = base64.b64encode(content).decode()
        return _line("file_versions", {**row, "content": encoded, "content_encoding": "base64"})
    return _line("file_versions", {**row, "content": content})


async def newest_state(db: Connection, queries: Queries, codec: ValueCodec, thread_id: str) -> list[Line]:
    """Return the newest state of a thread as a line, with its channels as JSON. Custom types become plain data."""
    reader = codec.without_types()
    try:
        found = await get_tuple(db, queries, reader, Address(thread_id, "", None))
        return [] if found is None else [_state(reader, found[0], found[1], found[3])]
    except (PGStateError, TypeError, ValueError) as error:
        return [_unread(thread_id, error)]


async def archived_state(
    db: Connection, queries: Queries, codec: ValueCodec, thread_id: str, rows: Rows, columns: Columns
) -> list[Line]:
    """Return the newest state of an archived thread as `newest_state` does."""
    try:
        found = await newest_checkpoint(db, queries, thread_id, rows, columns)
        return [] if found is None else [_state(codec.without_types(), *found)]
    except (PGStateError, TypeError, ValueError) as error:
        return [_unread(thread_id, error)]


def _state(codec: ValueCodec, row: CheckpointRow, segments: Segments, sends: Sequence[Any] = ()) -> Line:
    loaded, _ = load_tuple(codec, row, segments, (), sends)
    values, id = to_json(loaded.checkpoint["channel_values"])[0], loaded.checkpoint["id"]
    return _line("states", {"thread_id": row.address.thread_id, "checkpoint_id": id, "values": values})


def _unread(thread_id: str, error: Exception) -> Line:
    if getattr(error, "retryable", False):
        raise error
    return _line("states", {"thread_id": thread_id}, f"it cannot be read here: {type(error).__name__}")


def _after(rows: Sequence[Any]) -> Cursor | None:
    return (rows[-1][0], rows[-1][1]) if len(rows) == _PAGE else None


def _line(table: str, row: dict[str, Any], error: str | None = None) -> Line:
    """Return a row as a line. If parts of it cannot be read, the line has an `error` that names them."""
    why = [] if error is None else [error]
    for name, value in row.items():
        if isinstance(value, Exception):
            row[name] = None
            why.append(f"{name} cannot be read here: {value}")
        elif isinstance(value, dict):
            for inner, one in value.items():
                if isinstance(one, Exception):
                    value[inner] = None
                    why.append(f"{name}.{inner} cannot be read here: {one}")
    if not why:
        return Line(_dumps({"table": table, "row": row}))
    named = " ".join(str(row[name]) for name in KEYS.get(table, ("thread_id", "run_id")) if name in row)
    told = "; ".join(why)
    return Line(_dumps({"table": table, "row": {**row, "error": told}}), f"{table} {named}: {told}")


def _dumps(line: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str)
    except TypeError:
        # orjson refuses integers of more than 64 bits, and texts that are no UTF-8.
        return json.dumps(line, default=str, separators=(",", ":")).encode()


async def _find_source(runner: Runner, queries: Queries, thread_id: str, tenant: str | None) -> Source | None:
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
