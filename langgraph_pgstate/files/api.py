"""The API of agents' files, async and blocking."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from langgraph_pgstate.arguments import Moment
from langgraph_pgstate.call_site import RunOf
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, blocking
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.files import operations, searching
from langgraph_pgstate.files.operations import version_of
from langgraph_pgstate.files.searching import Pattern
from langgraph_pgstate.files.store import FileStore
from langgraph_pgstate.files.types import File, FileEntry, FileVersion, FoundLines, Namespace
from langgraph_pgstate.paging import Page
from langgraph_pgstate.schema.queries import Queries


class AsyncFiles:
    """Files of agents, stored in versions; `AsyncPGState.files` returns it.

    Files belong to no thread, so deleting or pruning a thread keeps them. A namespace is a list of labels, such as
    `("ada",)`, and is compared as a whole. A path has the form `/directory/name`. A version that is written in a run
    names the thread, run and checkpoint.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries, codec: ValueCodec, run_of: RunOf | None) -> None:
        self._database, self._queries = AsyncRunner(database), queries
        self.store = FileStore(self._database, queries, codec, run_of)

    async def read(self, namespace: Sequence[str], path: str, *, version: int | None = None) -> File | None:
        """Return a file, or `None` if there is none. One round trip.

        Args:
            namespace: Namespace of the file.
            path: Path of the file.
            version: Number of the version; by default the newest. For a deletion, the result is `None`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        if version is None:
            return (await self.store.read_many(namespace, [path])).get(path)
        return await self.store.read_version(namespace, path, version)

    async def read_many(self, namespace: Sequence[str], paths: Sequence[str]) -> dict[str, File]:
        """Return files by path. Files that do not exist are left out. One round trip.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self.store.read_many(namespace, paths)

    async def write(
        self,
        namespace: Sequence[str],
        path: str,
        content: str | bytes,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> FileVersion:
        """Store a new version of a file, and return it. Two round trips; safe to repeat.

        If the content equals that of the newest version, no version is made. Bytes that are UTF-8 are text.

        Args:
            namespace: Namespace of the file.
            path: Path of the file.
            content: The content, 64 MB at most.
            expected_version: Write only if this is the newest version; 0 to write only if there is no file.
            by: Name of the person who writes the file.

        Raises:
            FileChangedError: If another version is the newest. Nothing was written.
            ConfigurationError: If an argument is invalid. Nothing was written.
        """
        if expected_version is not None:
            version_of("expected_version", expected_version, 0)
        return await self.store.write(namespace, path, content, expected_version, "write", self.store.origin(), by)

    async def restore(
        self,
        namespace: Sequence[str],
        path: str,
        version: int,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> FileVersion:
        """Store a copy of a version as the newest version, and return it. Safe to repeat.

        A deleted file can be restored, too.

        Args:
            namespace: Namespace of the file.
            path: Path of the file.
            version: Number of the version to copy.
            expected_version: Restore only if this is the newest version; 0 to restore only a deleted file.
            by: Name of the person who restores the file.

        Raises:
            FileChangedError: If another version is the newest. Nothing was written.
            NotFoundError: If there is no such version, or it is a deletion. Nothing was written.
            ConfigurationError: If an argument is invalid. Nothing was written.
        """
        origin = self.store.origin()
        found = await self.store.read_version(namespace, path, version)
        if found is None:
            raise _not_found(namespace, path, version)
        if expected_version is not None:
            version_of("expected_version", expected_version, 0)
        return await self.store.write(namespace, path, found.content, expected_version, "restore", origin, by, version)

    async def delete(self, namespace: Sequence[str], path: str, *, by: str | None = None) -> tuple[str, ...]:
        """Delete a file, or all files in a directory. Their versions are kept. One round trip; safe to repeat.

        Args:
            namespace: Namespace of the files.
            path: The file or the directory.
            by: Name of the person who deletes them.

        Returns:
            The paths of the files that were deleted.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self.store.delete(namespace, path, self.store.origin(), by)

    async def ls(self, namespace: Sequence[str], directory: str = "/") -> tuple[FileEntry, ...]:
        """Return the files and directories in a directory, by path. One round trip.

        If the directory does not exist, the result is empty.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self.store.ls(namespace, directory)

    async def namespaces(self, *, limit: int = 100, cursor: str | None = None) -> Page[Namespace]:
        """Return the namespaces that have files or deleted files, in order. One round trip.

        Args:
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_namespaces(limit, cursor)
        return await self._database.run(operations.list_namespaces, self._queries, parameters)

    async def glob(self, namespace: Sequence[str], pattern: str, directory: str = "/") -> tuple[FileEntry, ...]:
        """Return the files in a directory and below that match a pattern, the last changed first.

        Args:
            namespace: Namespace of the files.
            pattern: Names, `*`, `**`, `?`, sets like `[a-z]` and braces like `{a,b}`. A pattern with a `/` is matched
                with the path below the directory. Other patterns are matched with the file's name. No wildcard matches
                a dot that begins a name.
            directory: Path of the directory, or of a file.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self.store.glob(namespace, directory, Pattern(pattern))

    async def grep(
        self,
        namespace: Sequence[str],
        pattern: str,
        *,
        directory: str = "/",
        glob: str | None = None,
        regex: bool = False,
        limit: int | None = 1000,
    ) -> FoundLines:
        """Return the lines of text files that contain a text, by path and number.

        Files whose text contains a NUL are not searched.

        Args:
            namespace: Namespace of the files.
            pattern: The text, or with `regex` a regular expression of PostgreSQL.
            directory: Path of the directory, or of a file.
            glob: Search only files that match this pattern, which has the syntax of the method `glob`.
            regex: Whether the pattern is a regular expression.
            limit: Maximum number of lines; `None` for all.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        search = searching.request_search(pattern, regex, limit)
        return await self.store.grep(namespace, directory, None if glob is None else Pattern(glob), search)

    async def history(
        self, namespace: Sequence[str], path: str, *, limit: int = 20, cursor: str | None = None
    ) -> Page[FileVersion]:
        """Return versions of a file, also of a deleted file, newest first. One round trip.

        Args:
            namespace: Namespace of the file.
            path: The file.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_history(namespace, path, limit, cursor)
        return await self._database.run(operations.list_versions, self._queries, parameters)

    async def changes(
        self,
        thread_id: str,
        *,
        run_id: str | None = None,
        checkpoint_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[FileVersion]:
        """Return the versions of files that runs of a thread have written, oldest first. One round trip.

        To see what version 5 of a file has changed, call `diff` with 4 and 5.

        Args:
            thread_id: The thread.
            run_id: Only versions that this run has written.
            checkpoint_id: Only versions written by the superstep that started from this checkpoint.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_changes(thread_id, run_id, checkpoint_id, limit, cursor)
        return await self._database.run(operations.list_changes, self._queries, parameters)

    async def diff(self, namespace: Sequence[str], path: str, a: int, b: int | None = None) -> str:
        """Return the unified diff of two versions of a text file; empty if they are equal.

        Args:
            namespace: Namespace of the file.
            path: The file.
            a: The old version; 0 for an empty file. A deletion counts as an empty file.
            b: The new version; by default the newest.

        Raises:
            NotFoundError: If there is no such version.
            ConfigurationError: If an argument is invalid, or a version is binary.
        """
        versions = [a, (await self.store.head(namespace, path)).version if b is None else b]
        texts: list[str] = []
        for version in versions:
            found = await self.store.read_version(namespace, path, version) if version else None
            if found is None and version and not await self.store.has(namespace, path, version):
                raise _not_found(namespace, path, version)
            if found is not None and not isinstance(found.content, str):
                raise ConfigurationError(f"version {version} of {path!r} must be text to be compared, but is binary")
            texts.append(found.content if found is not None and isinstance(found.content, str) else "")
        return await self._database.compute(texts, _unified, path, versions, texts)

    async def purge(self, namespace: Sequence[str], path: str = "/", *, versions_before: Moment | None = None) -> int:
        """Delete files with all their versions, or only old versions, permanently. Safe to repeat.

        Args:
            namespace: Namespace of the files.
            path: A file or a directory; by default all files of the namespace.
            versions_before: Delete only versions that are older than this time or timedelta. The newest version of each
                file stays.

        Returns:
            The number of deleted files, or of deleted versions.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = operations.request_purge(namespace, path, versions_before)
        return await self._database.run(operations.purge, self._queries, parameters)


class Files:
    """Blocking twin of `AsyncFiles`."""

    def __init__(self, database: Database, queries: Queries, codec: ValueCodec, run_of: RunOf | None) -> None:
        self._database, self._queries = BlockingRunner(database), queries
        self.store = FileStore(self._database, queries, codec, run_of)

    read = blocking(AsyncFiles.read)
    read_many = blocking(AsyncFiles.read_many)
    write = blocking(AsyncFiles.write)
    restore = blocking(AsyncFiles.restore)
    delete = blocking(AsyncFiles.delete)
    ls = blocking(AsyncFiles.ls)
    namespaces = blocking(AsyncFiles.namespaces)
    glob = blocking(AsyncFiles.glob)
    grep = blocking(AsyncFiles.grep)
    history = blocking(AsyncFiles.history)
    changes = blocking(AsyncFiles.changes)
    diff = blocking(AsyncFiles.diff)
    purge = blocking(AsyncFiles.purge)


def _not_found(namespace: Sequence[str], path: str, version: int) -> NotFoundError:
    return NotFoundError(f"file {path!r} in namespace {tuple(namespace)!r} has no version {version} with content")


def _unified(path: str, versions: Sequence[int], texts: Sequence[str]) -> str:
    """Return a unified diff of two texts. A last line without a newline is marked as the program `diff` marks it."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in texts)
    names = [f"{path} (version {version})" for version in versions]
    lines = difflib.unified_diff(old, new, names[0], names[1])
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
