"""A backend of deepagents that stores files. Only this module needs deepagents."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from langgraph.runtime import get_runtime

from langgraph_pgstate.call_site import Origin
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.runners import wait_on_loop
from langgraph_pgstate.errors import ConfigurationError, FileChangedError
from langgraph_pgstate.files import searching
from langgraph_pgstate.files.api import AsyncFiles, Files
from langgraph_pgstate.files.operations import Head
from langgraph_pgstate.files.paths import namespace_of, path_of
from langgraph_pgstate.files.searching import Pattern
from langgraph_pgstate.files.types import File, FileEntry, Namespace
from langgraph_pgstate.heavy import in_thread
from langgraph_pgstate.langgraph_compat import is_read_by_lines

if TYPE_CHECKING:
    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )

T = TypeVar("T")

_protocol: Any
_utils: Any
_Backend: Any
try:
    _protocol, _utils = import_module("deepagents.backends.protocol"), import_module("deepagents.backends.utils")
    _Backend = _protocol.BackendProtocol
except ImportError:
    _protocol, _utils, _Backend = None, None, object

# Maximum number of remembered versions that agents have read.
_MOST_SEEN: Final = 10_000
_INVALID_PATH: Final = "invalid_path"

NamespaceSource = Sequence[str] | Callable[[Any], Sequence[str]]
"""The namespace of a backend's files: labels, or a function that takes LangGraph's runtime and returns labels."""


class HasFiles(Protocol):
    """A `PGState` or an `AsyncPGState`."""

    @property
    def files(self) -> Files | AsyncFiles:
        """Files of agents."""
        ...


class _Caller(NamedTuple):
    """The namespace of a caller's files, and the thread, graph and run of the call."""

    namespace: Namespace
    origin: Origin


class PGFiles(_Backend):  # type: ignore[misc]
    """A backend of deepagents that stores files in PostgreSQL, in versions, and searches them there.

    Pass it to `create_deep_agent(backend=…)`, or as a route of a `CompositeBackend`. `state.files` lists the versions.

    An edit changes the newest version. A write of a whole file is refused if another agent has changed the file since
    this agent read or wrote it. Calls of the same thread and subagent count as one agent. All calls outside of runs
    count as one agent, too; this agent may also overwrite files that it has never read.

    Args:
        state: The `PGState` or `AsyncPGState`. Do not call blocking methods of an `AsyncPGState`'s backend on the
            thread of the event loop.
        namespace: The labels of the files, such as `("ada",)`; or a function that takes LangGraph's runtime and returns
            labels, so that each user has separate files. Outside of a graph, the function gets `None`.

    Raises:
        ConfigurationError: If an argument is invalid, or deepagents is not installed.
    """

    def __init__(self, state: HasFiles, *, namespace: NamespaceSource) -> None:
        if _protocol is None:
            raise ConfigurationError("PGFiles is a backend of deepagents: pip install langgraph-pgstate[deepagents]")
        self._store = state.files.store
        self._namespace = namespace if callable(namespace) else namespace_of(namespace)
        self._is_blocking = isinstance(state.files, Files)
        self._seen = _Seen()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def ls(self, path: str) -> LsResult:
        """Return the files and directories in a directory."""
        return self._wait(self._ls(self._caller(), path), "als")

    async def als(self, path: str) -> LsResult:
        """Async version of `ls`."""
        return await self._run(self._ls(self._caller(), path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return lines of a file, or a binary file as base64."""
        return self._wait(self._read(self._caller(), file_path, offset, limit), "aread")

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Async version of `read`."""
        return await self._run(self._read(self._caller(), file_path, offset, limit))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Return the lines of text files that contain a text. Files whose text contains a NUL are not searched."""
        return self._wait(self._grep(self._caller(), pattern, path, glob, max_count), "agrep")

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Async version of `grep`."""
        return await self._run(self._grep(self._caller(), pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Return the files that match a pattern, the last changed first."""
        return self._wait(self._glob(self._caller(), pattern, path), "aglob")

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Async version of `glob`."""
        return await self._run(self._glob(self._caller(), pattern, path))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file, unless another agent has changed it since this agent read it."""
        return self._wait(self._write(self._caller(), file_path, content), "awrite")

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Async version of `write`."""
        return await self._run(self._write(self._caller(), file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in the newest version of a file."""
        return self._wait(self._edit(self._caller(), file_path, old_string, new_string, replace_all), "aedit")

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Async version of `edit`."""
        return await self._run(self._edit(self._caller(), file_path, old_string, new_string, replace_all))

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or all files in a directory. Their versions are kept."""
        return self._wait(self._delete(self._caller(), file_path), "adelete")

    async def adelete(self, file_path: str) -> DeleteResult:
        """Async version of `delete`."""
        return await self._run(self._delete(self._caller(), file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each as `write` does."""
        return self._wait(self._upload(self._caller(), files), "aupload_files")

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Async version of `upload_files`."""
        return await self._run(self._upload(self._caller(), files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the contents of files."""
        return self._wait(self._download(self._caller(), paths), "adownload_files")

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Async version of `download_files`."""
        return await self._run(self._download(self._caller(), paths))

    def _caller(self) -> _Caller:
        """Return the namespace and place of the running node. Call this method in the node's own thread and task."""
        if not callable(self._namespace):
            return _Caller(self._namespace, self._store.origin())
        try:
            runtime: Any = get_runtime()
        except (RuntimeError, KeyError):
            runtime = None
        try:
            labels = self._namespace(runtime)
        except AttributeError as error:
            if runtime is not None:
                raise
            raise ConfigurationError(
                "outside of a graph, namespace= of PGFiles must be a function that accepts None as the runtime"
            ) from error
        return _Caller(namespace_of(labels), self._store.origin())

    def _wait(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """Run a call, and wait for its end."""
        if self._is_blocking:
            return run_blocking(coroutine)
        return wait_on_loop(self._loop, coroutine, f"backend.{name}", "AsyncPGState")

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a call on the event loop, or in a thread if the state is a `PGState`."""
        if self._is_blocking:
            return await in_thread(run_blocking, coroutine)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return await coroutine

    async def _ls(self, caller: _Caller, path: str) -> Any:
        try:
            entries = await self._store.ls(caller.namespace, _directory(path))
        except ConfigurationError as error:
            return _protocol.LsResult(error=f"Error listing '{path}': {error}")
        return _protocol.LsResult(entries=[_info(entry) for entry in entries])

    async def _read(self, caller: _Caller, file_path: str, offset: int, limit: int) -> Any:
        try:
            file = await self._get(caller, file_path)
        except ConfigurationError as error:
            return _protocol.ReadResult(error=f"Error reading file '{file_path}': {error}")
        if file is None:
            return _protocol.ReadResult(error=f"File '{file_path}' not found")
        data = _data(file)
        if not is_read_by_lines(file_path):
            return _protocol.ReadResult(file_data=data)
        return _utils.slice_read_response(data, offset, limit)

    async def _grep(self, caller: _Caller, pattern: str, path: str | None, glob: str | None, most: int | None) -> Any:
        try:
            matching = None if not glob else Pattern(glob, _utils.compile_grep_include_glob(glob))
            wanted = searching.request_search(pattern, False, most)
            found = await self._store.grep(caller.namespace, _directory(path), matching, wanted)
        except (ConfigurationError, _utils.InvalidGlobPatternError) as error:
            return _protocol.GrepResult(error=str(error))
        lines = [{"path": line.path, "line": line.number, "text": line.text} for line in found.lines]
        return _protocol.GrepResult(matches=lines, truncated=found.is_truncated)

    async def _glob(self, caller: _Caller, pattern: str, path: str | None) -> Any:
        try:
            matching = Pattern(pattern, _utils.compile_grep_include_glob(pattern))
            entries = await self._store.glob(caller.namespace, _directory(path), matching)
        except (ConfigurationError, _utils.InvalidGlobPatternError) as error:
            return _protocol.GlobResult(error=str(error))
        return _protocol.GlobResult(matches=[_info(entry) for entry in entries])

    async def _write(self, caller: _Caller, file_path: str, content: str) -> Any:
        error = await self._put(caller, file_path, content)
        return _protocol.WriteResult(error=error) if error else _protocol.WriteResult(path=file_path)

    async def _edit(self, caller: _Caller, file_path: str, old_string: str, new_string: str, replace_all: bool) -> Any:
        while True:
            try:
                file = await self._get(caller, file_path)
                if file is None:
                    return _protocol.EditResult(error=f"Error: File '{file_path}' not found")
                if isinstance(file.content, bytes):
                    return _protocol.EditResult(error="Error: Cannot edit binary files with text replacements.")
                made = _utils.perform_string_replacement(file.content, old_string, new_string, replace_all)
                if isinstance(made, str):
                    return _protocol.EditResult(error=made)
                content, occurrences = made
                await self._store_version(caller, file_path, content, file.version, "edit")
            except FileChangedError:
                # Another caller has stored a version. Try the same edit on that version.
                continue
            except ConfigurationError as error:
                return _protocol.EditResult(error=f"Error editing file '{file_path}': {error}")
            return _protocol.EditResult(path=file_path, occurrences=int(occurrences))

    async def _delete(self, caller: _Caller, file_path: str) -> Any:
        try:
            paths = await self._store.delete(caller.namespace, _directory(file_path), caller.origin)
        except ConfigurationError as error:
            return _protocol.DeleteResult(error=f"Error deleting '{file_path}': {error}")
        if not paths:
            return _protocol.DeleteResult(error=f"Error: File '{file_path}' not found")
        return _protocol.DeleteResult(path=file_path)

    async def _upload(self, caller: _Caller, files: Sequence[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            error = await self._put(caller, path, content) if _is_path(caller, path) else _INVALID_PATH
            responses.append(_protocol.FileUploadResponse(path=path, error=error))
        return responses

    async def _download(self, caller: _Caller, paths: Sequence[str]) -> list[FileDownloadResponse]:
        valid = [path for path in paths if _is_path(caller, path)]
        found = await self._store.read_many(caller.namespace, [*map(_absolute, valid)])
        responses = []
        for path in paths:
            if (file := found.get(_absolute(path))) is None:
                error = "file_not_found" if path in valid else _INVALID_PATH
                responses.append(_protocol.FileDownloadResponse(path=path, content=None, error=error))
                continue
            self._seen.add(caller, file.path, file.version)
            content = file.content.encode() if isinstance(file.content, str) else file.content
            responses.append(_protocol.FileDownloadResponse(path=path, content=content, error=None))
        return responses

    async def _get(self, caller: _Caller, path: str) -> File | None:
        path = _absolute(path)
        file = (await self._store.read_many(caller.namespace, [path])).get(path)
        if file is not None:
            self._seen.add(caller, path, file.version)
        return file

    async def _put(self, caller: _Caller, path: str, content: str | bytes) -> str | None:
        """Write a file. Return an error message if the file was not written, else `None`."""
        path = _absolute(path)
        while True:
            try:
                head = await self._store.head(caller.namespace, path)
                if (error := self._refusal(caller, path, head)) is not None:
                    return error
                await self._store_version(caller, path, content, 0 if head.is_deleted else head.version, "write")
            except FileChangedError:
                continue
            except ConfigurationError as error:
                return f"Error writing file '{path}': {error}"
            return None

    async def _store_version(
        self, caller: _Caller, path: str, content: str | bytes, expected: int, operation: Any
    ) -> None:
        stored = await self._store.write(caller.namespace, path, content, expected, operation, caller.origin)
        self._seen.add(caller, path, stored.version)

    def _refusal(self, caller: _Caller, path: str, head: Head) -> str | None:
        """Return an error message if an agent would overwrite a version that the agent has not seen, else `None`."""
        seen, origin = self._seen.get(caller, path), caller.origin
        if head.is_deleted or seen == head.version:
            return None
        is_own = (head.thread_id, head.checkpoint_ns) == (origin.thread_id, origin.checkpoint_ns)
        if (origin.thread_id is None and seen is None) or (origin.thread_id is not None and is_own):
            return None
        why = "exists, and you have not read it" if seen is None else "was changed by another since you have read it"
        return f"Error: File '{path}' {why}. Read it first, then write it with its present lines, or edit it."


class _Seen:
    """The last versions of files that agents have read or written. Thread-safe."""

    def __init__(self) -> None:
        self._versions: OrderedDict[tuple[Namespace, str, str | None, str | None], int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, caller: _Caller, path: str) -> int | None:
        """Return the last version that an agent has seen; `None` if none is remembered."""
        with self._lock:
            return self._versions.get(self._key(caller, path))

    def add(self, caller: _Caller, path: str, version: int) -> None:
        """Remember the version that an agent has seen."""
        with self._lock:
            key = self._key(caller, path)
            self._versions[key] = max(version, self._versions.pop(key, 0))
            if len(self._versions) > _MOST_SEEN:
                self._versions.popitem(last=False)

    def _key(self, caller: _Caller, path: str) -> tuple[Namespace, str, str | None, str | None]:
        return caller.namespace, path, caller.origin.thread_id, caller.origin.checkpoint_ns


def _is_path(caller: _Caller, path: str) -> bool:
    try:
        path_of(caller.namespace, _absolute(path))
    except ConfigurationError:
        return False
    return True


def _directory(path: str | None) -> str:
    """Return an absolute path without a final `/`, as deepagents' own backends read it."""
    return _absolute(path or "/").rstrip("/") or "/"


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def _info(entry: FileEntry) -> dict[str, Any]:
    modified_at = "" if entry.modified_at is None else _iso(entry.modified_at)
    return {"path": entry.path, "is_dir": entry.is_dir, "size": entry.size, "modified_at": modified_at}


def _data(file: File) -> dict[str, Any]:
    is_text = isinstance(file.content, str)
    content = file.content if isinstance(file.content, str) else base64.standard_b64encode(file.content).decode("ascii")
    times = {"created_at": _iso(file.created_at), "modified_at": _iso(file.modified_at)}
    return {"content": content, "encoding": "utf-8" if is_text else "base64", **times}


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()
