"""The blocking saver."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_pgstate.arguments import Address, address_of, several, thread_id_of
from langgraph_pgstate.call_site import CallSite
from langgraph_pgstate.checkpoints import getting, listing, sending
from langgraph_pgstate.checkpoints.delta_channels import get_delta_channel_history
from langgraph_pgstate.checkpoints.hooks import PutHook
from langgraph_pgstate.checkpoints.planning import PutPlan, plan_put
from langgraph_pgstate.checkpoints.writes import WritesRequest, put_writes, request_writes
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import ConnectionPool, Database, PsycopgConnection
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.owning import AtExit
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import BlockingRunner
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.errors import CorruptStateError, StaleHeadError
from langgraph_pgstate.heavy import in_thread, in_thread_or_here
from langgraph_pgstate.leases import guards
from langgraph_pgstate.leases.manager import LeaseManager
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.options import (
    DEFAULT_EMBEDDED_PATH,
    OpenSaverOptions,
    SaverOptions,
    check_options,
    database_options,
    schema_of,
)
from langgraph_pgstate.saver.common import CommonSaver, run_ids_of
from langgraph_pgstate.saver.guarding import GuardPolicy
from langgraph_pgstate.schema import setup as schema
from langgraph_pgstate.schema.tenancy import Tenancy, of_tenant
from langgraph_pgstate.threads import prune
from langgraph_pgstate.threads import rows as threads
from langgraph_pgstate.threads.rows import request_owner
from langgraph_pgstate.threads.types import Progress, PruneResult, ThreadOwner

T = TypeVar("T")
P = ParamSpec("P")


class PGStateSaver(CommonSaver):
    """A checkpointer on PostgreSQL. Safe to share between threads; with a pool, calls run concurrently.

    The async methods run the blocking methods in a worker thread. Use `AsyncPGStateSaver` in an async application.

    Args:
        connection: A psycopg `Connection` or `ConnectionPool` that the caller owns and closes. On a single connection,
            calls run one after the other. Inside the caller's transaction, calls are neither committed nor retried.
            Outside a transaction, each call commits, even without autocommit mode.
        hook: Source of statements that are sent along with every `put`, in its transaction.
        options: See `SaverOptions`.

    Raises:
        ConfigurationError: If `connection` is of another kind, or `schema` is not a plain identifier.

    Example:
        >>> with PGStateSaver.from_conn_string("postgresql://localhost/app") as saver:
        ...     saver.setup()
        ...     graph = builder.compile(checkpointer=saver)
    """

    lease_manager: LeaseManager
    """Takes and renews the leases of this saver's runs."""

    _database: Database

    def __init__(
        self,
        connection: PsycopgConnection | ConnectionPool[Any],
        *,
        hook: PutHook | None = None,
        **options: Unpack[SaverOptions],
    ) -> None:
        check_options(type(self), options, SaverOptions)
        database = Database(connection, schema=schema_of(options), retry=options.get("retry"))
        self._use(database, options, hook)

    @classmethod
    def over(cls, database: Database, options: SaverOptions, hook: PutHook | None = None) -> Self:
        """Return a saver on an open database. `options["retry"]` is not used."""
        saver = cls.__new__(cls)
        saver._use(database, options, hook)
        return saver

    def _use(self, database: Database, options: SaverOptions, hook: PutHook | None) -> None:
        self._prepare(options, hook)
        use_keys(database, options.get("encryption"), self._queries)
        self._database = database = of_tenant(database, options.get("tenant"), self._queries)
        self.lease_manager = LeaseManager(database, self._queries, self._guards)
        self._resources = ExitStack()
        self._at_exit: AtExit[Any] | None = None

    @classmethod
    def from_conn_string(cls, dsn: str, *, hook: PutHook | None = None, **options: Unpack[OpenSaverOptions]) -> Self:
        """Connect, and return a saver. Disconnect at the end of a `with` block, or by `close`.

        Args:
            dsn: A libpq connection string or URI.
            hook: Source of statements that are sent along with every `put`, in its transaction.
            options: See `SaverOptions` and `ConnectionOptions`.

        Raises:
            UnavailableError: If the server does not respond.
            ConfigurationError: If an argument is invalid.
        """
        return cls._open(nullcontext(dsn), options, hook)

    @classmethod
    def _open(cls, server: AbstractContextManager[str], options: OpenSaverOptions, hook: PutHook | None) -> Self:
        check_options(cls, options, OpenSaverOptions)
        with ExitStack() as stack:
            dsn = stack.enter_context(server)
            saver = cls.over(stack.enter_context(Database.open(dsn, **database_options(options))), options, hook)
            saver._resources, saver._at_exit = stack.pop_all(), AtExit(saver, cls.close)
        return saver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all leases, and disconnect if `from_conn_string` has connected. Safe to repeat.

        Without a `with` block, the exit of the process calls this method. In a forked child, the method does nothing.
        """
        if self._at_exit is not None:
            self._at_exit.cancel()
        if not self._database.is_forked:
            with self._resources.pop_all():
                self.lease_manager.close()

    async def aclose(self) -> None:
        """Run `close` in a thread."""
        await in_thread_or_here(self.close)

    @classmethod
    def embedded(
        cls,
        path: str | Path = DEFAULT_EMBEDDED_PATH,
        *,
        hook: PutHook | None = None,
        **options: Unpack[OpenSaverOptions],
    ) -> Self:
        """Start the PostgreSQL of the `embedded` extra, and set up the tables.

        Args:
            path: Data directory. It is made if it is missing, and is kept.
            hook: As for `from_conn_string`.
            options: As for `from_conn_string`.
        """
        check_options(cls, options, OpenSaverOptions)
        saver = cls._open(embedded_server(path), options, hook)
        try:
            saver.setup()
        except BaseException:
            saver.close()
            raise
        return saver

    def leased(self, lease_ttl: float, hook: PutHook) -> Self:
        """Return a clone for a worker, with one more hook. Runs of the clone write under leases."""
        guards = replace(self._guards, lease=True, lease_ttl=lease_ttl)
        clone = self._guarded(guards, hook)
        clone.lease_manager = LeaseManager(self._database, self._queries, guards)
        return clone

    def setup(
        self,
        *,
        metadata_index: bool = False,
        tenancy: Tenancy | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        audit: bool = False,
    ) -> None:
        """Make the tables, or bring them up to date. One transaction; safe to call whenever a process starts.

        Args:
            metadata_index: Make a GIN index on all metadata, for filters other than `source`, `step` and `run_id` over
                many threads.
            tenancy: `"rls"` makes PostgreSQL keep tenants apart by row-level security. The tables must be empty. Later
                calls keep the setting.
            operators: Roles that see the rows of all tenants. A state or saver of a tenant refuses such a role.
            workers: Roles of workers and maintenance, which may list the names of tenants. The owner of the tables
                always may.
            audit: Whether to chain events by hashes from now on. `state.audit.verify` finds removed, changed and
                inserted events. Later calls keep the setting.

        Raises:
            SchemaOutdatedError: If the schema is newer than this package.
            SchemaError: If a table or view was dropped.
            MigrationConflictError: If the schema was changed by other means.
            TenantError: If tables have rows without a tenant.
        """
        given: Any = {"tenancy": tenancy, "operators": operators, "workers": workers, "audit": audit}
        self._database.whole.run(schema.setup, self._queries, with_metadata_index=metadata_index, **given)
        self._saver_cache.schema_checked = True

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest of the thread and namespace. One round trip.

        The checkpoint's row is always read. Its segments may come from this process's cache. Each caller gets new
        values.

        Raises:
            ConfigurationError: If the config names no thread.
            UnsafeTypeError: If the checkpoint has a type that may not be built.
            CorruptStateError: If the checkpoint is damaged. With `on_corrupt="previous"`, if its ancestors are damaged,
                too.
            StateVersionError: If the saver does not know the checkpoint's state version.
            UpcastError: If an upcaster fails on the checkpoint.
            LeaseHeldError: With `guard="lease"`, if a run reads the checkpoint and another process holds the lease.
        """
        if self._guard_policy is not None:
            return self._get_guarded(config, self._call_site())
        return self._get_tuple(address_of(config))

    def _get_tuple(self, address: Address) -> CheckpointTuple | None:
        try:
            found = self._run(
                getting.get_tuple, self._queries, self._codec, address, self._saver_cache.cache.cached(address)
            )
            return None if found is None else self._load(found)
        except CorruptStateError as error:
            if not self._passes_damage:
                raise
            damage = error
        return self._run(getting.get_good_ancestor, self._queries, self._codec, address, damage, self._load)

    def _get_guarded(self, config: RunnableConfig, call_site: CallSite | None) -> CheckpointTuple | None:
        address = address_of(config)
        try:
            if self._guards.lease:
                self.lease_manager.begin(address.thread_id, config, call_site)
            is_new = self.lease_manager.has_nothing_to_read(address)
            loaded = None if is_new else self._get_tuple(address)
            is_past = False
            if loaded is not None and address.checkpoint_id is not None:
                is_past = self._run(guards.has_child, self._queries, address)
            self.lease_manager.note_read(call_site)
        except BaseException:
            # The run will not begin, so release its lease.
            self.lease_manager.release_failed_read(call_site)
            raise
        if loaded is None:
            return None
        return guards.as_past(loaded) if is_past else guards.with_past_parent(loaded)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
        metadata_only: bool = False,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first, read page by page. No connection is held between the pages.

        Args:
            config: A thread, with or without a namespace and a checkpoint; `None` for all threads.
            filter: Metadata that the checkpoints must contain.
            before: Yield only checkpoints whose id is smaller than the id in this config.
            limit: Maximum number of checkpoints to yield.
            metadata_only: Read no states. The checkpoints have only id, time, metadata and parent.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        pages = listing.request_list(config, filter, before, limit, metadata_only)
        while pages is not None:
            page = self._run(listing.list_page, self._queries, self._codec, pages)
            yield from self._load_page(page)
            pages = page.following

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, or replace the checkpoint of this id. One round trip, all or nothing.

        Args:
            config: Thread, namespace, and the parent as `checkpoint_id`.
            checkpoint: The checkpoint.
            metadata: Metadata of the checkpoint. The config's metadata is added.
            new_versions: Versions of the channels whose values are new.

        Returns:
            The stored checkpoint's config.

        Raises:
            ConfigurationError: If an id is missing or too long.
            SerializationError: If a value cannot be stored.
            StaleHeadError: If the checkpoint has DeltaChannels, and the parent was pruned or deleted. With
                `guard="head"`, also if the parent is no longer the head.
            CheckpointOrderError: With a guard, if the checkpoint's id does not sort after the parent's id.
            LeaseLostError: With `guard="lease"`, if the lease was taken over.
            ThreadDeletedError: With a guard, if the thread was deleted.
        """
        plan = plan_put(self._codec, *self._request(config, checkpoint, metadata, new_versions))
        if self._guard_policy is None:
            stored = self._run(sending.put, self._queries, self._codec, plan, self._hook, config)
        else:
            stored = self._put_guarded(self._guard_policy, plan, config)
        return self._note_put(stored)

    def _put_guarded(self, guarding: GuardPolicy, plan: PutPlan, config: RunnableConfig) -> PutPlan:
        address = plan.request.address
        with self._writing(address.thread_id, config) as held:
            plan.request.span_id = None if held is None else held.span_id
            guard = guarding.before_put(plan.request, config, held)
            try:
                stored = self._run(sending.put, self._queries, self._codec, plan, self._hook, config, guard)
            except StaleHeadError as error:
                guarding.note_refused(address, error)
                raise
            guarding.note_stored(guard, held)
            return stored

    def _writing(self, thread_id: str, config: RunnableConfig) -> AbstractContextManager[HeldLease | None]:
        return self.lease_manager.writing(thread_id, config) if self._guards.lease else nullcontext()

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task. One round trip, all or nothing; safe to repeat.

        Args:
            config: The checkpoint from which the task started.
            writes: Channels and values.
            task_id: Id of the task.
            task_path: Path of the task, by which writes are ordered.

        Raises:
            ConfigurationError: If an id is missing or too long.
            SerializationError: If a value cannot be stored.
        """
        drops, keys = self._drops_failed_output, self._thread_keys
        request = request_writes(self._codec, config, writes, task_id, task_path, drops_failed_output=drops, keys=keys)
        if self._guard_policy is None:
            self._run(put_writes, self._queries, request)
            return
        self._put_writes_guarded(self._guard_policy, request, config)

    def _put_writes_guarded(self, guarding: GuardPolicy, request: WritesRequest, config: RunnableConfig) -> None:
        with self._writing(request.address.thread_id, config) as held:
            guard: guards.Guard | None = guarding.before_writes(request.address, config, held)
            while guard is not None:
                try:
                    self._run(put_writes, self._queries, request, guard, self._hook)
                    guarding.note_stored(guard, held)
                    return
                except StaleHeadError:
                    guard = guarding.after_refusal(guard, request.address, config)
                    if guard is None:
                        raise

    def delete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """Remove every row of a thread. All or nothing; an unknown thread is no error.

        With a guard, a tombstone refuses later writes of unfinished runs. If `by` names a person, an event of the kind
        `action` records the deletion. This event stays.
        """
        id = thread_id_of(thread_id)
        self._run(threads.delete_thread, self._queries, id, self._guards.tombstones_for, by)
        self.lease_manager.note_deleted(id)
        self._forget(id)

    def revive_thread(self, thread_id: str) -> bool:
        """Allow a new thread with the id of a deleted thread. Return whether there was a tombstone."""
        return self._run(guards.revive_thread, self._queries, thread_id_of(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Remove the state and the record of some runs. Atomic for each thread.

        Tool executions stay, because deleting state does not undo the effects of tools. Copies and forks of the threads
        stay complete. Unknown runs are no error. DeltaChannels of runs that continued from a removed run cannot be
        rebuilt, as LangGraph documents.

        Args:
            run_ids: Ids of the runs.
            thread_id: Remove the runs from this thread only. By default, from all threads of the runs that are not
                archived.

        Raises:
            ThreadHeldError: If a hold protects a thread. The runs stay in this thread and in later threads.
            ThreadArchivedError: If `thread_id` is archived.
        """
        if ids := run_ids_of(run_ids):
            only = None if thread_id is None else thread_id_of(thread_id)
            self._forget(*self._run(threads.delete_for_runs, self._queries, ids, only))

    def copy_thread(self, source_thread_id: str, target_thread_id: str, *, owner: ThreadOwner | None = None) -> None:
        """Copy a whole thread. All or nothing; safe to repeat.

        Tool executions are copied, too, so the copy reuses recorded results of tools.

        Args:
            source_thread_id: Id of the thread to copy.
            target_thread_id: Id of the copy.
            owner: Owner and metadata of the copy. By default, those of the source.

        Raises:
            ConfigurationError: If the target has its own history.
        """
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        self._run(threads.copy_thread, self._queries, source, target, request_owner(owner))
        self._forget(target)

    def prune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> PruneResult:
        """Remove old checkpoints. Atomic for each thread. Safe to repeat, and safe while runs append.

        `"keep_latest"` keeps in each namespace the newest checkpoints, every leaf with pending writes (a half-answered
        interrupt), and the ancestors from which DeltaChannels are rebuilt. A thread is not pruned if a checkpoint that
        must be read is damaged. A kept checkpoint whose parent is removed has no `parent_config` afterwards.
        `threads.lineage` still names the parent.

        Args:
            thread_ids: Ids of the threads; `None` for all.
            strategy: `"keep_latest"`, or `"delete"` (also `"delete_all"`) for whole threads.
            keep_last: Checkpoints to keep in each namespace.
            older_than: Remove only older checkpoints. With `"delete"`, only threads whose checkpoints are all older.
            dry_run: Count the rows to remove, and remove none.
            progress: Called after each thread.

        Returns:
            The number of removed rows, and the threads that were not pruned: `damaged`, `held`, and `archived` ones.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = prune.request_prune(thread_ids, strategy, keep_last, older_than, dry_run)
        self._check_schema()
        runner = BlockingRunner(self._database)
        return run_blocking(prune.prune_threads(runner, self._queries, request, self._forget, progress))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for each channel, the writes of a checkpoint's ancestors, back to the nearest stored value."""
        if not channels:
            return {}
        names = [*dict.fromkeys(several("channels", channels))]
        address = address_of(config)
        try:
            return self._run(get_delta_channel_history, self._queries, self._codec, address, names, self._states)
        except BaseException:
            if self._guards.lease:
                self.lease_manager.release_failed_start(address.thread_id, config)
            raise

    def _check_schema(self) -> None:
        if not self._saver_cache.schema_checked:
            self._database.run(schema.check_version, self._queries)
            self._saver_cache.schema_checked = True

    def _run(
        self, operation: Callable[Concatenate[Connection, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._saver_cache.schema_checked:
            self._check_schema()
        return self._database.run(operation, *args, **kwargs)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        if self._guard_policy is not None:
            call_site = self._call_site()
            try:
                return await in_thread(self._get_guarded, config, call_site)
            except asyncio.CancelledError:
                # The OS thread continues without the cancelled caller, and may take a lease. Release this lease.
                self.lease_manager.release_failed_read(call_site)
                raise
        return await in_thread(self._get_tuple, address_of(config))

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
        pages = listing.request_list(config, filter, before, limit, metadata_only)
        while pages is not None:
            page = await in_thread(self._run, listing.list_page, self._queries, self._codec, pages)
            loading = self._load_page(page)
            while (item := await in_thread(next, loading, None)) is not None:
                yield item
            pages = page.following

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        return await in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async twin of `put_writes`."""
        await in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """Async twin of `delete_thread`."""
        await in_thread(self.delete_thread, thread_id, by=by)

    async def arevive_thread(self, thread_id: str) -> bool:
        """Async twin of `revive_thread`."""
        return await in_thread(self.revive_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Async twin of `delete_for_runs`."""
        await in_thread(self.delete_for_runs, run_ids, thread_id=thread_id)

    async def acopy_thread(
        self, source_thread_id: str, target_thread_id: str, *, owner: ThreadOwner | None = None
    ) -> None:
        """Async twin of `copy_thread`."""
        await in_thread(self.copy_thread, source_thread_id, target_thread_id, owner=owner)

    async def aprune(  # type: ignore[override]  # LangGraph's returns None
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> PruneResult:
        """Async twin of `prune`."""
        return await in_thread(
            self.prune,
            thread_ids,
            strategy=strategy,
            keep_last=keep_last,
            older_than=older_than,
            dry_run=dry_run,
            progress=progress,
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        try:
            return await in_thread(self.get_delta_channel_history, config=config, channels=channels)
        except asyncio.CancelledError:
            if self._guards.lease:
                self.lease_manager.release_failed_start(address_of(config).thread_id, config)
            raise
