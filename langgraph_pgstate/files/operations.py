"""Storage of files in versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from langgraph_pgstate.arguments import since_of, text_of, thread_id_of
from langgraph_pgstate.call_site import Origin
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Row, Rows
from langgraph_pgstate.errors import ArgumentTypeError, FileChangedError
from langgraph_pgstate.files.contents import Content, decode_content
from langgraph_pgstate.files.paths import directory_of, namespace_of, path_of, place_of
from langgraph_pgstate.files.types import File, FileVersion, Namespace, Operation
from langgraph_pgstate.heavy import HEAVY_BYTES
from langgraph_pgstate.paging import FIRST, Page, decode_cursor, page_of, page_size
from langgraph_pgstate.schema.queries import Queries

_VERSIONS: Final = "file versions"
_CHANGES: Final = "file changes"
_NAMESPACES: Final = "file namespaces"
MOST_VERSIONS: Final = 2**31 - 1


class Head(NamedTuple):
    """The newest version of a file.

    Attributes:
        version: Number of the version; 0 if the file has never existed.
        is_deleted: Whether the file does not exist now.
        thread_id: Thread of the run that wrote the version.
        checkpoint_ns: Namespace of the graph that wrote the version.
    """

    version: int
    is_deleted: bool
    size: int
    is_text: bool
    thread_id: str | None
    checkpoint_ns: str | None


ABSENT: Final = Head(0, True, 0, False, None, None)


class Change(NamedTuple):
    """A version to store, without its content.

    Attributes:
        expected: Number of the newest version, which this version follows; 0 if there is none.
        origin: The run that writes the version.
        by: Name of the person who writes the version.
        restored: Number of the version that a restore copies.
        change_id: Random id, by which a repeated statement finds the version that an earlier attempt has stored.
    """

    namespace: Namespace
    path: str
    expected: int
    operation: Operation
    origin: Origin
    by: str | None
    restored: int | None
    change_id: str


def request_change(
    namespace: Sequence[str],
    path: str,
    expected: int,
    operation: Operation,
    origin: Origin,
    by: str | None,
    restored: int | None = None,
) -> Change:
    """Validate a change."""
    labels = namespace_of(namespace)
    path = path_of(labels, path)
    version = version_of("expected_version", expected, 0)
    return Change(labels, path, version, operation, origin, text_of("by", by), restored, uuid4().hex)


def version_of(name: str, version: int, least: int = 1) -> int:
    """Return a validated version number."""
    if isinstance(version, bool) or not isinstance(version, int) or not least <= version < MOST_VERSIONS:
        raise ArgumentTypeError(f"{name} must be an integer from {least}, got {version!r}")
    return version


async def get_head(db: Connection, queries: Queries, namespace: Namespace, path: str) -> Head:
    """Return the newest version of a file. One round trip."""
    rows = await db.fetch(queries.get_file_head, {"namespace": [*namespace], "path": path})
    return Head(*rows[0]) if rows else ABSENT


async def get_files(
    db: Connection, queries: Queries, codec: ValueCodec, namespace: Namespace, paths: Sequence[str]
) -> dict[str, File]:
    """Return the newest versions of files by path. Files that do not exist are left out. One round trip."""
    rows = await db.fetch(queries.get_files, {"namespace": [*namespace], "paths": [*paths]})
    return {file.path: file for file in await _files(db, codec, rows)}


async def get_version(
    db: Connection, queries: Queries, codec: ValueCodec, namespace: Namespace, path: str, version: int
) -> File | None:
    """Return a version of a file, or `None` if there is none or it is a deletion. One round trip."""
    key = {"namespace": [*namespace], "path": path, "version": version}
    files = await _files(db, codec, await db.fetch(queries.get_file_version, key))
    return files[0] if files else None


async def put(db: Connection, queries: Queries, change: Change, content: Content) -> FileVersion:
    """Store a version that follows the newest version. One statement; safe to repeat.

    Raises:
        FileChangedError: If another version has become the newest. Nothing was written.
    """
    version = change.expected + 1
    key = {"namespace": [*change.namespace], "path": change.path, "version": version, "change_id": change.change_id}
    facts = {
        "directory": directory_of(change.path),
        "operation": change.operation,
        "size": content.size,
        "line_count": content.line_count,
        "is_text": content.is_text,
        "value_type": content.value_type,
        "data": content.data,
        # Encrypted files are searched by this package, not in SQL.
        "content": content.text if db.keys is None else None,
        "restored_version": change.restored,
        **_author(change.origin, change.by),
    }
    rows = await db.fetch(queries.put_file, {**key, **facts}) or await db.fetch(queries.get_file_change, key)
    if not rows:
        head = await get_head(db, queries, change.namespace, change.path)
        raise FileChangedError(change.namespace, change.path, change.expected, head.version)
    return FileVersion(
        change.namespace,
        change.path,
        version,
        change.operation,
        rows[0][0],
        content.size,
        content.line_count,
        content.is_text,
        change.restored,
        change.by,
        *_places(change.origin),
    )


def request_range(namespace: Sequence[str], path: str) -> dict[str, Any]:
    """Validate a path, and return the query parameters that select the file, or all files in the directory."""
    labels = namespace_of(namespace)
    place = place_of(path)
    return {"namespace": [*labels], "path": place.first[:-1] or "/", "first": place.first, "after": place.after}


def request_deletion(namespace: Sequence[str], path: str, origin: Origin, by: str | None) -> dict[str, Any]:
    """Validate a deletion, and return its query parameters."""
    return {**request_range(namespace, path), "change_id": uuid4().hex, **_author(origin, text_of("by", by))}


async def delete(db: Connection, queries: Queries, parameters: dict[str, Any]) -> tuple[str, ...]:
    """Delete a file, or all files in a directory, and return their paths. One statement; safe to repeat."""
    rows = await db.fetch(queries.delete_files, parameters) or await db.fetch(queries.get_deleted_files, parameters)
    return tuple(path for (path,) in rows)


def request_history(namespace: Sequence[str], path: str, limit: int, cursor: str | None) -> dict[str, Any]:
    """Validate a request for versions of a file, and return its query parameters."""
    labels = namespace_of(namespace)
    (before,) = decode_cursor(_VERSIONS, cursor, (MOST_VERSIONS,))
    key = {"namespace": [*labels], "path": path_of(labels, path)}
    return {**key, "before": before, "page_size": page_size(limit) + 1}


async def list_versions(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[FileVersion]:
    """Return a page of versions of a file, newest first. One round trip."""
    rows = await db.fetch(queries.list_file_versions, parameters)
    return page_of(rows, parameters["page_size"] - 1, _version, _VERSIONS, lambda found: (found.version,))


def request_namespaces(limit: int, cursor: str | None) -> dict[str, Any]:
    """Validate a request for namespaces, and return its query parameters."""
    (labels,) = decode_cursor(_NAMESPACES, cursor, ([],))
    return {"after": [*namespace_of(labels, may_be_empty=True)], "page_size": page_size(limit) + 1}


async def list_namespaces(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Namespace]:
    """Return a page of namespaces. One round trip."""
    rows = await db.fetch(queries.list_file_namespaces, parameters)
    return page_of(rows, parameters["page_size"] - 1, lambda row: tuple(row[0]), _NAMESPACES, lambda one: ([*one],))


def request_changes(
    thread_id: str, run_id: str | None, checkpoint_id: str | None, limit: int, cursor: str | None
) -> dict[str, Any]:
    """Validate a request for the versions that a thread has written, and return its query parameters."""
    at, labels, path, version = decode_cursor(_CHANGES, cursor, (FIRST, [], "", 0))
    return {
        "thread_id": thread_id_of(thread_id),
        "run_id": text_of("run_id", run_id),
        "checkpoint_id": text_of("checkpoint_id", checkpoint_id),
        "cursor_at": at,
        "cursor_namespace": [*namespace_of(labels, may_be_empty=True)],
        "cursor_path": path,
        "cursor_version": version,
        "page_size": page_size(limit) + 1,
    }


async def list_changes(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[FileVersion]:
    """Return a page of the versions that runs of a thread have written, oldest first. One round trip."""
    rows = await db.fetch(queries.list_file_changes, parameters)
    return page_of(rows, parameters["page_size"] - 1, _version, _CHANGES, _position)


def request_purge(namespace: Sequence[str], path: str, versions_before: Any) -> dict[str, Any]:
    """Validate a permanent deletion, and return its query parameters."""
    return {**request_range(namespace, path), **since_of(versions_before)}


async def purge(db: Connection, queries: Queries, parameters: dict[str, Any]) -> int:
    """Delete files, or old versions, permanently, and return their number. One statement; safe to repeat."""
    is_of_versions = parameters["since"] is not None or parameters["age"] is not None
    query = queries.purge_file_versions if is_of_versions else queries.purge_files
    return await db.execute(query, parameters)


def _author(origin: Origin, by: str | None) -> dict[str, Any]:
    thread_id, checkpoint_ns, checkpoint_id, run_id = _places(origin)
    places = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id, "run_id": run_id}
    return {**places, "changed_by": by}


def _places(origin: Origin) -> tuple[str | None, str | None, str | None, str | None]:
    return origin.thread_id, origin.checkpoint_ns, origin.checkpoint_id, origin.run_id


async def _files(db: Connection, codec: ValueCodec, rows: Rows) -> list[File]:
    """Return files with their contents. Large contents are decoded outside the event loop."""

    def decode() -> list[File]:
        return [_file(codec, row) for row in rows]

    return await db.compute(decode) if sum(row[2] for row in rows) > HEAVY_BYTES else decode()


def _file(codec: ValueCodec, row: Row) -> File:
    path, version, size, lines, is_text, created_at, modified_at, value_type, data = row
    content = decode_content(codec, value_type, data, is_text, f"version {version} of file {path!r}")
    return File(path, version, content, size, lines, created_at, modified_at)


def _position(version: FileVersion) -> tuple[Any, ...]:
    return version.created_at, [*version.namespace], version.path, version.version


def _version(row: Row) -> FileVersion:
    return FileVersion(tuple(row[0]), *row[1:])
