"""The savers: LangGraph's checkpointer interface on PostgreSQL, blocking and asynchronous, side by side.

Both are thin: arguments are checked and values encoded here, everything else is an operation, written once.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_pgstate.cache import ManifestCache, Touches
from langgraph_pgstate.codec.states import Manifest
from langgraph_pgstate.codec.values import ValueCodec, encodes_as_utf8
from langgraph_pgstate.db.database import (
    DEFAULT_PREPARE_THRESHOLD,
    AsyncConnection,
    AsyncConnectionPool,
    AsyncDatabase,
    Connection,
    ConnectionPool,
    Database,
)
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.port import Port
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations import checkpoints, retention, schema, threads, writes
from langgraph_pgstate.operations.addresses import Address, address_of, thread_id_of
from langgraph_pgstate.operations.companions import Companion, forget_thread
from langgraph_pgstate.operations.planning import PutPlan, PutRequest, plan_put, request_put, root_of
from langgraph_pgstate.operations.reading import load_tuple
from langgraph_pgstate.settings import (
    DEFAULT_EMBEDDED_PATH,
    DEFAULT_SCHEMA,
    PoolSettings,
    RetryPolicy,
    ThreadKeys,
    check_schema_name,
)
from langgraph_pgstate.sql import Queries, queries
from langgraph_pgstate.types import PruneResult

T = TypeVar("T")
P = ParamSpec("P")

# `threads.updated_at` follows the newest checkpoint within this many seconds.
_TOUCH_SECONDS = 5.0
# Encoding or decoding more than this takes milliseconds: the asynchronous saver does it off the event loop.
_HEAVY_BYTES = 256 * 1024
_MANY_ELEMENTS = 200


@dataclass(slots=True)
class _Knowledge:
    """What the clones of one saver share: what it remembers, and whether the schema was looked at."""

    cache: ManifestCache = field(default_factory=ManifestCache)
    touches: Touches = field(default_factory=lambda: Touches(_TOUCH_SECONDS))
    schema_checked: bool = False


class _Saver(BaseCheckpointSaver[str]):
    """What both colours have in common: everything that needs no connection."""

    _codec: ValueCodec
    _queries: Queries
    _knowledge: _Knowledge
    _companion: Companion | None
    _thread_keys: ThreadKeys

    def _prepare(
        self,
        schema: str,
        serde: SerializerProtocol | None,
        companion: Companion | None,
        thread_keys: ThreadKeys | None,
    ) -> None:
        self._codec = ValueCodec(serde)
        super().__init__(serde=self._codec.serde)
        self._queries = queries(check_schema_name(schema))
        self._knowledge = _Knowledge()
        self._companion = companion
        self._thread_keys = thread_keys or ThreadKeys()

    @property
    def schema(self) -> str:
        """The PostgreSQL schema the tables are in."""
        return self._queries.schema

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after `current`: a counter of 32 digits and a random fraction.

        The scheme of LangGraph's own PostgreSQL saver, so that threads can move between the two.
        """
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        return f"{number + 1:032}.{random.random():016}"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A saver over the same connections that may also build the given types, as `(module, name)`.

        Returns:
            A shallow clone, or this saver if its serializer allows all of them already.
        """
        codec = self._codec.with_allowlist(extra_allowlist)
        if codec is self._codec:
            return self
        clone = copy.copy(self)
        clone._codec = codec
        clone.serde = codec.serde
        return clone

    def _request(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[PutRequest, Manifest | None]:
        """A checked put, and its parent's manifest if it is known."""
        request = request_put(self._codec, config, checkpoint, metadata, new_versions, self._thread_keys)
        if self._companion is not None and request.address.checkpoint_ns and (root := root_of(request, metadata)):
            request.root = self._knowledge.cache.get(root)
        return request, self._knowledge.cache.get(request.parent) if request.parent else None

    def _is_touch_due(self, address: Address, plan: PutPlan) -> bool:
        return plan.request.parent is None or self._knowledge.touches.is_due(address.thread_id, time.monotonic())

    def _note_put(self, plan: PutPlan, manifest: Manifest, touched: bool) -> RunnableConfig:
        address = plan.request.address
        self._knowledge.cache.put(address, manifest)
        if touched:
            self._knowledge.touches.note(address.thread_id, time.monotonic())
        if self._companion is not None and not plan.request.is_unaccompanied:
            plan.manifest = manifest
            self._companion.after_put(plan)
        config: RunnableConfig = address.config  # type: ignore[assignment]
        return config

    def _note_read(self, found: tuple[CheckpointTuple, Manifest], address: Address) -> CheckpointTuple:
        loaded, manifest = found
        self._knowledge.cache.put(address, manifest)
        return loaded

    def _forget(self, *thread_ids: str) -> None:
        for thread_id in thread_ids:
            self._knowledge.cache.discard_thread(thread_id)
            self._knowledge.touches.forget(thread_id)
            if self._companion is not None:
                forget_thread(self._companion, thread_id)


class PGStateSaver(_Saver):
    """Stores LangGraph checkpoints in PostgreSQL. Safe to share between threads; with a pool, calls run at once.

    Its asynchronous methods run the blocking ones in a worker thread; an application that is asynchronous throughout
    is better served by `AsyncPGStateSaver`.

    Args:
        connection: A psycopg `Connection` or `ConnectionPool` that the caller owns and closes. On a single connection
            calls take turns. Inside a transaction of the caller nothing is committed or retried; outside of one each
            call commits by itself, whether or not the connection is in autocommit.
        schema: The PostgreSQL schema of the tables.
        serde: Serializer of values; LangGraph's own when left out, refusing to build types that are neither its safe
            ones nor allowed by `with_allowlist`. A serializer passed here decides for itself.
        retry: How operations are repeated when a connection is lost.
        companion: What has statements to send along with every `put`, in its transaction.
        thread_keys: Which keys of `configurable` and `metadata` say whose a thread is.

    Raises:
        ConfigurationError: If `connection` is of another kind, or `schema` is no plain identifier.

    Example:
        >>> with PGStateSaver.from_conn_string("postgresql://localhost/app") as saver:
        ...     saver.setup()
        ...     graph = builder.compile(checkpointer=saver)
    """

    _database: Database

    def __init__(
        self,
        connection: Connection | ConnectionPool[Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        serde: SerializerProtocol | None = None,
        retry: RetryPolicy | None = None,
        companion: Companion | None = None,
        thread_keys: ThreadKeys | None = None,
    ) -> None:
        self._prepare(schema, serde, companion, thread_keys)
        self._database = (
            connection if isinstance(connection, Database) else Database(connection, schema=schema, retry=retry)
        )

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        serde: SerializerProtocol | None = None,
        pool: PoolSettings | bool | int = True,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
        companion: Companion | None = None,
        thread_keys: ThreadKeys | None = None,
    ) -> Iterator[Self]:
        """Connect, and disconnect at the end of the `with` block.

        Args:
            dsn: A libpq connection string or URI.
            schema: The PostgreSQL schema of the tables.
            serde: Serializer of values.
            pool: Pool settings, a maximal size, `True` for 1 to 10 connections, `False` for a single connection.
            prepare_threshold: Executions of a statement after which it is prepared on its connection; `None` never
                prepares, for poolers that don't track prepared statements.
            retry: How operations are repeated when a connection is lost.
            companion: What has statements to send along with every `put`, in its transaction.
            thread_keys: Which keys of `configurable` and `metadata` say whose a thread is.

        Raises:
            UnavailableError: If the server does not answer.
            ConfigurationError: If an argument is not usable.
        """
        check_schema_name(schema)
        with Database.open(dsn, schema=schema, pool=pool, prepare_threshold=prepare_threshold, retry=retry) as database:
            yield cls(database, schema=schema, serde=serde, companion=companion, thread_keys=thread_keys)  # type: ignore[arg-type]

    @classmethod
    @contextmanager
    def embedded(cls, path: str | Path = DEFAULT_EMBEDDED_PATH, **options: Any) -> Iterator[Self]:
        """A saver on the PostgreSQL that the `embedded` extra brings along, with its tables set up.

        Args:
            path: Data directory; made if it is missing, kept afterwards.
            options: As for `from_conn_string`.
        """
        with embedded_server(path) as dsn, cls.from_conn_string(dsn, **options) as saver:
            saver.setup()
            yield saver

    def setup(self, *, metadata_index: bool = False) -> None:
        """Make the tables, or bring them up to date. One transaction; safe to call at every start of every process.

        Args:
            metadata_index: Also make a GIN index on all metadata, for filters other than `source`, `step` and `run_id`
                over many threads.

        Raises:
            SchemaOutdatedError: If the schema is newer than this package.
            MigrationConflictError: If the schema was changed by other means.
        """
        self._database.run(schema.setup, self._queries, with_metadata_index=metadata_index)
        self._knowledge.schema_checked = True

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint a config names, or the latest of its thread and namespace. One round trip.

        Raises:
            ConfigurationError: If the config names no thread.
            UnsafeTypeError: If it holds a type that may not be built.
            CorruptStateError: If it is damaged.
        """
        found = self._run(checkpoints.get_tuple, self._queries, self._codec, address_of(config))
        return None if found is None else self._note_read(load_tuple(self._codec, *found), found[0].address)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        metadata_only: bool = False,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first. Read page by page; no connection is held while the caller works on one.

        Args:
            config: A thread, with or without a namespace and a checkpoint; `None` for all threads.
            filter: Metadata that must be contained. `source`, `step` and `run_id` are typed columns.
            before: Only checkpoints with a smaller id than this config's.
            limit: At most so many.
            metadata_only: Read no state: the checkpoints carry id, time, metadata and parent only.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        listing = checkpoints.request_list(config, filter, before, limit, metadata_only)
        while listing is not None:
            page = self._run(checkpoints.list_page, self._queries, self._codec, listing)
            yield from page.load(self._codec)
            listing = page.following

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. One round trip, all or nothing; storing it again replaces it.

        Args:
            config: Thread and namespace; its `checkpoint_id` is the parent.
            checkpoint: The checkpoint.
            metadata: Its metadata; merged with the config's.
            new_versions: The channels whose values are new, with their versions.

        Returns:
            The stored checkpoint's config.

        Raises:
            ConfigurationError: If an id is missing or too long. Nothing was written.
            SerializationError: If a value cannot be stored. Nothing was written.
        """
        plan = plan_put(self._codec, *self._request(config, checkpoint, metadata, new_versions))
        touch = self._is_touch_due(plan.request.address, plan)
        manifest = self._run(checkpoints.put, self._queries, self._codec, plan, touch, self._companion, config)
        return self._note_put(plan, manifest, touch)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote. One round trip, all or nothing; repeating it changes nothing.

        Args:
            config: The checkpoint the task started from.
            writes: Channels and values.
            task_id: The task.
            task_path: Its path, by which writes are ordered.

        Raises:
            ConfigurationError: If an id is missing or too long. Nothing was written.
            SerializationError: If a value cannot be stored. Nothing was written.
        """
        request = _request_writes(self._codec, config, writes, task_id, task_path)
        self._run(_put_writes, self._queries, request)

    def delete_thread(self, thread_id: str) -> None:
        """Remove every row of a thread. All or nothing; an unknown thread is no error."""
        id = thread_id_of(thread_id)
        self._run(threads.delete_thread, self._queries, id)
        self._forget(id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove what some runs wrote and what was recorded of them, in all threads. Atomic for each thread.

        Tool executions stay: this takes back state, not what a tool did to the world.

        Unknown runs and an empty list are no error. State that other runs built on a removed one by DeltaChannel
        writes cannot be rebuilt, as LangGraph documents.
        """
        if ids := _run_ids(run_ids):
            self._forget(*self._run(threads.delete_for_runs, self._queries, ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread: ids, parents, forks, namespaces, pending writes. All or nothing; safe to repeat.

        Messages, projections and tool executions are copied, too: results recorded before are reused in the copy.

        Raises:
            ConfigurationError: If the target has a history of its own.
        """
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        self._run(threads.copy_thread, self._queries, source, target)
        self._forget(target)

    def prune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Remove old checkpoints. Atomic for each thread; safe to repeat, and while runs append.

        With `"keep_latest"` there stay, in each namespace, the newest checkpoints, every leaf with pending writes
        (a half-answered interrupt), and the ancestors that DeltaChannels are rebuilt from.

        Args:
            thread_ids: The threads; `None` for all.
            strategy: `"keep_latest"`, or `"delete"` (also `"delete_all"`) for whole threads.
            keep_last: Checkpoints to keep in each namespace.
            older_than: Only what is older goes; with `"delete"`, only threads all of whose checkpoints are.
            dry_run: Change nothing, only count.

        Returns:
            What went, or would go.

        Raises:
            ConfigurationError: If an argument is not usable.
        """
        request = retention.request_prune(thread_ids, strategy, keep_last, older_than, dry_run)
        result = PruneResult(dry_run=dry_run)
        ids = request.thread_ids or ()
        cursor = ""
        while True:
            if request.thread_ids is None:
                ids = tuple(self._run(retention.next_threads, self._queries, cursor))
            for id in ids:
                result += self._run(retention.prune_thread, self._queries, request, id)
                self._forget(id)
                cursor = id
            if request.thread_ids is not None or not ids:
                return result

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What channels received along a checkpoint's ancestors, back to the nearest stored value of each."""
        if not channels:
            return {}
        names = [*dict.fromkeys(channels)]
        return self._run(checkpoints.get_delta_channel_history, self._queries, self._codec, address_of(config), names)

    def _run(
        self, operation: Callable[Concatenate[Port, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._knowledge.schema_checked:
            self._database.run(schema.check_version, self._queries)
            self._knowledge.schema_checked = True
        return self._database.run(operation, *args, **kwargs)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async twin of `list`."""
        listing = checkpoints.request_list(config, filter, before, limit, metadata_only)
        while listing is not None:
            page = await asyncio.to_thread(self._run, checkpoints.list_page, self._queries, self._codec, listing)
            for item in await asyncio.to_thread(page.load, self._codec):
                yield item
            listing = page.following

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async twin of `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async twin of `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async twin of `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Async twin of `prune`."""
        return await asyncio.to_thread(
            self.prune, thread_ids, strategy=strategy, keep_last=keep_last, older_than=older_than, dry_run=dry_run
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)


class AsyncPGStateSaver(_Saver):
    """Asynchronous twin of `PGStateSaver`, bound to the event loop it was made in.

    Its blocking methods answer when they are called from another thread, as LangGraph does from synchronous nodes;
    on the loop's own thread they would wait for themselves, and are refused.

    Args:
        connection: A psycopg `AsyncConnection` or `AsyncConnectionPool` that the caller owns and closes.
        schema: The PostgreSQL schema of the tables.
        serde: Serializer of values.
        retry: How operations are repeated when a connection is lost.
        companion: What has statements to send along with every `put`, in its transaction.
        thread_keys: Which keys of `configurable` and `metadata` say whose a thread is.

    Raises:
        ConfigurationError: If `connection` is of another kind, or `schema` is no plain identifier.
    """

    _database: AsyncDatabase

    def __init__(
        self,
        connection: AsyncConnection | AsyncConnectionPool[Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        serde: SerializerProtocol | None = None,
        retry: RetryPolicy | None = None,
        companion: Companion | None = None,
        thread_keys: ThreadKeys | None = None,
    ) -> None:
        self._prepare(schema, serde, companion, thread_keys)
        self._database = (
            connection
            if isinstance(connection, AsyncDatabase)
            else AsyncDatabase(connection, schema=schema, retry=retry)
        )
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        serde: SerializerProtocol | None = None,
        pool: PoolSettings | bool | int = True,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
        companion: Companion | None = None,
        thread_keys: ThreadKeys | None = None,
    ) -> AsyncIterator[Self]:
        """Async twin of `PGStateSaver.from_conn_string`."""
        check_schema_name(schema)
        async with AsyncDatabase.open(
            dsn, schema=schema, pool=pool, prepare_threshold=prepare_threshold, retry=retry
        ) as database:
            yield cls(database, schema=schema, serde=serde, companion=companion, thread_keys=thread_keys)  # type: ignore[arg-type]

    @classmethod
    @asynccontextmanager
    async def embedded(cls, path: str | Path = DEFAULT_EMBEDDED_PATH, **options: Any) -> AsyncIterator[Self]:
        """Async twin of `PGStateSaver.embedded`."""
        server = embedded_server(path)
        dsn = await asyncio.to_thread(server.__enter__)
        try:
            async with cls.from_conn_string(dsn, **options) as saver:
                await saver.setup()
                yield saver
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)

    async def setup(self, *, metadata_index: bool = False) -> None:
        """Async twin of `PGStateSaver.setup`, of the same name as in LangGraph's own asynchronous saver."""
        await self._database.run(schema.setup, self._queries, with_metadata_index=metadata_index)
        self._knowledge.schema_checked = True

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        found = await self._run(checkpoints.get_tuple, self._queries, self._codec, address_of(config))
        if found is None:
            return None
        if found[1].size > _HEAVY_BYTES:
            return self._note_read(await asyncio.to_thread(load_tuple, self._codec, *found), found[0].address)
        return self._note_read(load_tuple(self._codec, *found), found[0].address)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async twin of `list`."""
        listing = checkpoints.request_list(config, filter, before, limit, metadata_only)
        while listing is not None:
            page = await self._run(checkpoints.list_page, self._queries, self._codec, listing)
            heavy = page.size > _HEAVY_BYTES // len(page.rows or "1")
            for item in await asyncio.to_thread(page.load, self._codec) if heavy else page.load(self._codec):
                yield item
            listing = page.following

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        request, parent = self._request(config, checkpoint, metadata, new_versions)
        if _is_heavy(request, parent):
            plan = await asyncio.to_thread(plan_put, self._codec, request, parent)
        else:
            plan = plan_put(self._codec, request, parent)
        touch = self._is_touch_due(plan.request.address, plan)
        manifest = await self._run(checkpoints.put, self._queries, self._codec, plan, touch, self._companion, config)
        return self._note_put(plan, manifest, touch)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async twin of `put_writes`."""
        arguments = (self._codec, config, writes, task_id, task_path)
        heavy = any(_is_large(value) for _, value in writes)
        request = await asyncio.to_thread(_request_writes, *arguments) if heavy else _request_writes(*arguments)
        await self._run(_put_writes, self._queries, request)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        id = thread_id_of(thread_id)
        await self._run(threads.delete_thread, self._queries, id)
        self._forget(id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async twin of `delete_for_runs`."""
        if ids := _run_ids(run_ids):
            self._forget(*await self._run(threads.delete_for_runs, self._queries, ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async twin of `copy_thread`."""
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        await self._run(threads.copy_thread, self._queries, source, target)
        self._forget(target)

    async def aprune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Async twin of `prune`."""
        request = retention.request_prune(thread_ids, strategy, keep_last, older_than, dry_run)
        result = PruneResult(dry_run=dry_run)
        ids = request.thread_ids or ()
        cursor = ""
        while True:
            if request.thread_ids is None:
                ids = tuple(await self._run(retention.next_threads, self._queries, cursor))
            for id in ids:
                result += await self._run(retention.prune_thread, self._queries, request, id)
                self._forget(id)
                cursor = id
            if request.thread_ids is not None or not ids:
                return result

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        if not channels:
            return {}
        names = [*dict.fromkeys(channels)]
        return await self._run(
            checkpoints.get_delta_channel_history, self._queries, self._codec, address_of(config), names
        )

    async def _run(
        self, operation: Callable[Concatenate[Port, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if not self._knowledge.schema_checked:
            await self._database.run(schema.check_version, self._queries)
            self._knowledge.schema_checked = True
        return await self._database.run(operation, *args, **kwargs)

    def _wait(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Wait, on another thread, for a coroutine that runs on the saver's loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is None or running is self._loop or not self._loop.is_running():
            name = name or getattr(coroutine, "__name__", "the method")
            coroutine.close()
            if running is None:
                raise ConfigurationError(
                    f"{name}: the event loop of this AsyncPGStateSaver is not running; use PGStateSaver without one"
                )
            raise ConfigurationError(
                f"a blocking call on the event loop's own thread would wait for itself: await saver.{name}(...), or "
                "use PGStateSaver"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple`, for callers on another thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        metadata_only: bool = False,
    ) -> Iterator[CheckpointTuple]:
        """`alist`, for callers on another thread."""
        listing = checkpoints.request_list(config, filter, before, limit, metadata_only)
        while listing is not None:
            page = self._wait(self._run(checkpoints.list_page, self._queries, self._codec, listing), "alist")
            yield from page.load(self._codec)
            listing = page.following

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput`, for callers on another thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`aput_writes`, for callers on another thread."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread`, for callers on another thread."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs`, for callers on another thread."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread`, for callers on another thread."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """`aprune`, for callers on another thread."""
        return self._wait(
            self.aprune(thread_ids, strategy=strategy, keep_last=keep_last, older_than=older_than, dry_run=dry_run)
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`aget_delta_channel_history`, for callers on another thread."""
        return self._wait(self.aget_delta_channel_history(config=config, channels=channels))


# Inside the classes the name `writes` is a parameter of LangGraph's.
_request_writes = writes.request_writes
_put_writes = writes.put_writes


def _run_ids(run_ids: Sequence[str]) -> list[str]:
    if isinstance(run_ids, str):
        raise ConfigurationError("run_ids is a sequence of run ids, not one string")
    # What PostgreSQL's text cannot hold was never stored.
    return [id for id in map(str, run_ids) if id and "\0" not in id and encodes_as_utf8(id)]


def _is_heavy(request: PutRequest, parent: Manifest | None) -> bool:
    """Whether the values to store are known to be large, from their own size or that of their last version."""
    size = 0
    for channel in request.new_versions:
        value = request.checkpoint["channel_values"].get(channel)
        if parent is not None:
            size += parent.size_of(channel)
        elif isinstance(value, list) and len(value) > _MANY_ELEMENTS:
            return True
        if _is_large(value):
            return True
    return size > _HEAVY_BYTES


def _is_large(value: Any) -> bool:
    return isinstance(value, str | bytes | bytearray) and len(value) > _HEAVY_BYTES
