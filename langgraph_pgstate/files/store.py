"""Operations on files that both APIs and the backend of deepagents share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langgraph.config import get_config

from langgraph_pgstate.arguments import understanding
from langgraph_pgstate.call_site import Origin, RunOf, origin_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import ConflictError, FileChangedError
from langgraph_pgstate.files import operations, searching
from langgraph_pgstate.files.contents import encode_content
from langgraph_pgstate.files.operations import Change, Head, request_change, version_of
from langgraph_pgstate.files.paths import namespace_of, path_of, place_of
from langgraph_pgstate.files.searching import Pattern, Search
from langgraph_pgstate.files.types import File, FileEntry, FileVersion, FoundLines, Operation
from langgraph_pgstate.schema.queries import Queries

# Maximum number of attempts to store a version. An attempt fails if another writer stores a version first.
_ATTEMPTS: Final = 100


class FileStore:
    """Operations on files over a blocking or an async runner. All methods validate their arguments."""

    def __init__(self, database: Runner, queries: Queries, codec: ValueCodec, run_of: RunOf | None) -> None:
        self._database, self._queries, self._codec, self._run_of = database, queries, codec, run_of

    def origin(self) -> Origin:
        """Return the caller's place in the running graph; an empty place outside of a run."""
        try:
            return origin_of(get_config(), self._run_of)
        except RuntimeError:
            return Origin()

    async def read_many(self, namespace: Sequence[str], paths: Sequence[str]) -> dict[str, File]:
        """Return files by path. Files that do not exist are left out. One round trip."""
        labels = namespace_of(namespace)
        key = labels, [path_of(labels, path) for path in paths]
        return await self._database.run(operations.get_files, self._queries, self._codec, *key)

    async def read_version(self, namespace: Sequence[str], path: str, version: int) -> File | None:
        """Return a version of a file, or `None` if there is none or it is a deletion. One round trip."""
        labels = namespace_of(namespace)
        key = labels, path_of(labels, path), version_of("version", version)
        return await self._database.run(operations.get_version, self._queries, self._codec, *key)

    async def head(self, namespace: Sequence[str], path: str) -> Head:
        """Return the newest version of a file. One round trip."""
        labels = namespace_of(namespace)
        return await self._database.run(operations.get_head, self._queries, labels, path_of(labels, path))

    async def has(self, namespace: Sequence[str], path: str, version: int) -> bool:
        """Return whether a file has a version, which may be a deletion. One round trip."""
        return await self._find(namespace, path, version) is not None

    async def ls(self, namespace: Sequence[str], directory: str) -> tuple[FileEntry, ...]:
        """Return the files and directories in a directory, by path. One round trip."""
        key = namespace_of(namespace), place_of(directory)
        return await self._database.run(searching.list_directory, self._queries, *key)

    async def glob(self, namespace: Sequence[str], directory: str, pattern: Pattern) -> tuple[FileEntry, ...]:
        """Return the files that match a pattern, newest first."""
        key = namespace_of(namespace), directory, pattern
        return await self._database.run(searching.list_matching, self._queries, *key)

    async def grep(self, namespace: Sequence[str], directory: str, glob: Pattern | None, search: Search) -> FoundLines:
        """Return the lines that a search finds."""
        key = namespace_of(namespace), directory, glob, search
        with understanding("pattern", search.pattern if search.is_regex else None):
            return await self._database.run(searching.search, self._queries, self._codec, *key)

    async def delete(
        self, namespace: Sequence[str], path: str, origin: Origin, by: str | None = None
    ) -> tuple[str, ...]:
        """Delete a file, or all files in a directory, and return their paths. One round trip."""
        parameters = operations.request_deletion(namespace, path, origin, by)
        return await self._database.run(operations.delete, self._queries, parameters)

    async def write(
        self,
        namespace: Sequence[str],
        path: str,
        content: str | bytes,
        expected: int | None,
        operation: Operation,
        origin: Origin,
        by: str | None = None,
        restored: int | None = None,
    ) -> FileVersion:
        """Store a version after the expected version, or after the newest version if `expected` is `None`.

        Raises:
            FileChangedError: If the newest version is not the expected version. Nothing was written.
        """
        encoded = await self._database.compute(content, encode_content, self._codec, content)
        change = request_change(namespace, path, 0, operation, origin, by, restored)
        for _ in range(_ATTEMPTS):
            head = await self.head(namespace, path)
            # `expected=0` means that there must be no file. A deleted file is no file, either.
            version = head.version if expected is None or (expected == 0 and head.is_deleted) else expected
            if version != head.version:
                raise FileChangedError(change.namespace, path, version, head.version)
            is_alike = not head.is_deleted and (head.size, head.is_text) == (encoded.size, encoded.is_text)
            if is_alike and (same := await self._unchanged(change, version, content)) is not None:
                return same
            try:
                key = change._replace(expected=version), encoded
                return await self._database.run(operations.put, self._queries, *key)
            except FileChangedError:
                if expected:
                    raise
        raise ConflictError(f"file {path!r} could not be stored: other calls changed it {_ATTEMPTS} times; try again")

    async def _unchanged(self, change: Change, version: int, content: str | bytes) -> FileVersion | None:
        """Return a version if it has the given content."""
        found = await self.read_version(change.namespace, change.path, version)
        if found is None or _bytes(found.content) != _bytes(content):
            return None
        return await self._find(change.namespace, change.path, version)

    async def _find(self, namespace: Sequence[str], path: str, version: int) -> FileVersion | None:
        parameters = operations.request_history(namespace, path, 1, None)
        page = await self._database.run(operations.list_versions, self._queries, {**parameters, "before": version + 1})
        return page.items[0] if page.items and page.items[0].version == version else None


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else bytes(content)
