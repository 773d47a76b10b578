"""The async saver."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    nullcontext,
)
from dataclasses import replace
from datetime import timedelta
from functools import partial
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
from langgraph.constants import START

from langgraph_pgstate.arguments import Address, address_of, several, thread_id_of, thread_ids_of
from langgraph_pgstate.call_site import CallSite
from langgraph_pgstate.checkpoints import getting, listing, sending
from langgraph_pgstate.checkpoints.delta_channels import get_delta_channel_history
from langgraph_pgstate.checkpoints.hooks import PutHook
from langgraph_pgstate.checkpoints.planning import PutPlan, plan_put, plan_quickly
from langgraph_pgstate.checkpoints.writes import WritesRequest, put_writes, request_writes, request_writes_quickly
from langgraph_pgstate.db.database import AsyncConnectionPool, AsyncDatabase, AsyncPsycopgConnection
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.finishing import complete, entered_in_thread
from langgraph_pgstate.db.owning import Opening
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import AsyncRunner, wait_on_loop
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.errors import CorruptStateError, StaleHeadError
from langgraph_pgstate.heavy import beside
from langgraph_pgstate.leases import guards
from langgraph_pgstate.leases.manager import AsyncLeaseManager
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


class Shared:
    """Idempotent work, such as a deletion of runs, that runs at most once at a time for each key.

    A call that arrives while the work runs makes the work run again, before any caller returns. All callers return in
    the order of their calls. LangGraph's Agent Server deletes a run twice at the same time, and responds "Run not
    found" if the second deletion returns first.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._asked: set[Hashable] = set()

    async def do(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work of a key. A cancelled caller does not cancel the work."""
        self._asked.add(key)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key, work))
        await asyncio.shield(task)

    async def _work(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        try:
            while key in self._asked:
                self._asked.discard(key)
                await work()
        finally:
            self._asked.discard(key)
            del self._tasks[key]


T = TypeVar("T")
P = ParamSpec("P")


class AsyncPGStateSaver(CommonSaver):
    """Asynchronous twin of `PGStateSaver`, bound to the event loop in which it was made.

    Other OS threads, such as those of synchronous nodes, can call the blocking methods. The loop's own thread cannot.

    Args:
        connection: A psycopg `AsyncConnection` or `AsyncConnectionPool` that the caller owns and closes.
        hook: Source of statements that are sent along with every `put`, in its transaction.
        options: See `SaverOptions`.

    Raises:
        ConfigurationError: If `connection` is of another kind, or `schema` is not a plain identifier.
    """

    lease_manager: AsyncLeaseManager
    """Takes and renews the leases of this saver's runs."""

    _database: AsyncDatabase
    # Whether the checkpoint of a graph's input is sent only after the first node has begun. A worker may do so, because
    # the queue also stores the input.
    _sends_input_late: bool = False

    def __init__(
        self,
        connection: AsyncPsycopgConnection | AsyncConnectionPool[Any],
        *,
        hook: PutHook | None = None,
        **options: Unpack[SaverOptions],
    ) -> None:
        check_options(type(self), options, SaverOptions)
        database = AsyncDatabase(connection, schema=schema_of(options), retry=options.get("retry"))
        self._use(database, options, hook)

    @classmethod
    def over(cls, database: AsyncDatabase, options: SaverOptions, hook: PutHook | None = None) -> Self:
        """Return a saver on an open database. `options["retry"]` is not used."""
        saver = cls.__new__(cls)
        saver._use(database, options, hook)
        return saver

    def _use(self, database: AsyncDatabase, options: SaverOptions, hook: PutHook | None) -> None:
        self._prepare(options, hook)
        use_keys(database, options.get("encryption"), self._queries)
        self._database = database = of_tenant(database, options.get("tenant"), self._queries)
        self.lease_manager = AsyncLeaseManager(database, self._queries, self._guards)
        self._deletions = Shared()
        self._resources = AsyncExitStack()
        try:
            self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self.loop = None

    @classmethod
    def from_conn_string(
        cls, dsn: str, *, hook: PutHook | None = None, **options: Unpack[OpenSaverOptions]
    ) -> Opening[Self]:
        """Async twin of `PGStateSaver.from_conn_string`.

        Use it in `async with`, or await it and close the saver with `aclose`.
        """
        return Opening(partial(cls._open, nullcontext(dsn), options, hook), cls.aclose)

    @classmethod
    async def _open(
        cls, server: AbstractAsyncContextManager[str], options: OpenSaverOptions, hook: PutHook | None
    ) -> Self:
        check_options(cls, options, OpenSaverOptions)
        async with AsyncExitStack() as stack:
            dsn = await stack.enter_async_context(server)
            database = await stack.enter_async_context(AsyncDatabase.open(dsn, **database_options(options)))
            saver = cls.over(database, options, hook)
            saver._resources = stack.pop_all()
        return saver

    async def aclose(self) -> None:
        """Async twin of `PGStateSaver.close`, for the saver's own event loop. A cancellation does not interrupt it."""
        if not self._database.is_forked:
            await complete(self._close())

    async def _close(self) -> None:
        async with self._resources.pop_all():
            await self.lease_manager.close()

    def close(self) -> None:
        """Run `aclose` from another thread."""
        self._wait(self.aclose())

    @classmethod
    def embedded(
        cls,
        path: str | Path = DEFAULT_EMBEDDED_PATH,
        *,
        hook: PutHook | None = None,
        **options: Unpack[OpenSaverOptions],
    ) -> Opening[Self]:
        """Async twin of `PGStateSaver.embedded`, used like `from_conn_string`."""

        async def open() -> Self:
            saver = await cls._open(entered_in_thread(embedded_server(path)), options, hook)
            try:
                await saver.setup()
            except BaseException:
                await saver.aclose()
                raise
            return saver

        return Opening(open, cls.aclose)

    def leased(self, lease_ttl: float, hook: PutHook) -> Self:
        """Return a clone for a worker, with one more hook. Runs of the clone write under leases."""
        guards = replace(self._guards, lease=True, lease_ttl=lease_ttl)
        clone = self._guarded(guards, hook)
        clone.lease_manager = AsyncLeaseManager(self._database, self._queries, guards)
        # Late sending lets other tasks run in the middle of a put. Such tasks must not use a borrowed connection
        # meanwhile.
        clone._sends_input_late = not self._database.is_borrowed
        return clone

    async def setup(
        self,
        *,
        metadata_index: bool = False,
        tenancy: Tenancy | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        audit: bool = False,
    ) -> None:
        """Async twin of `PGStateSaver.setup`. Named `setup`, not `asetup`, as in LangGraph's own async saver."""
        given: Any = {"tenancy": tenancy, "operators": operators, "workers": workers, "audit": audit}
        await self._database.whole.run(schema.setup, self._queries, with_metadata_index=metadata_index, **given)
        self._saver_cache.schema_checked = True

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        if self._guard_policy is not None:
            return await self._get_guarded(config, self._call_site())
        return await self._get_tuple(address_of(config))

    async def read_latest(self, thread_ids: Sequence[str]) -> getting.Latest:
        """Read the newest checkpoint of each thread's root namespace, without a lease.

        Reading stops after about a megabyte. The result's `left` names the threads that were not read. `load_latest`
        decodes a checkpoint of the result.
        """
        return await self._run(getting.get_latest, self._queries, thread_ids_of(thread_ids), listing.PAGE_BYTES)

    async def load_latest(self, latest: getting.Latest, thread_id: str) -> CheckpointTuple | None:
        """Remove a thread's checkpoint from `latest`, and return it; `None` if the checkpoint was deleted meanwhile."""
        found = latest.found.pop(thread_id)
        try:
            if found is not None:
                load = partial(self._load_uncached, found)
                return await beside(load) if getting.is_heavy(found) else load()
        except CorruptStateError:
            if not self._passes_damage:
                raise
        return await self._get_tuple(Address(thread_id, "", None))

    async def _get_guarded(self, config: RunnableConfig, call_site: CallSite | None) -> CheckpointTuple | None:
        address = address_of(config)
        try:
            if self._guards.lease:
                await self.lease_manager.begin(address.thread_id, config, call_site)
            is_new = self.lease_manager.has_nothing_to_read(address)
            loaded = None if is_new else await self._get_tuple(address)
            is_past = False
            if loaded is not None and address.checkpoint_id is not None:
                is_past = await self._run(guards.has_child, self._queries, address)
            self.lease_manager.note_read(call_site)
        except BaseException:
            # The run will not begin, so release its lease.
            self.lease_manager.release_failed_read(call_site)
            raise
        if loaded is None:
            return None
        return guards.as_past(loaded) if is_past else guards.with_past_parent(loaded)

    async def _get_tuple(self, address: Address) -> CheckpointTuple | None:
        try:
            found = await self._run(
                getting.get_tuple, self._queries, self._codec, address, self._saver_cache.cache.cached(address)
            )
            if found is None:
                return None
            return await beside(self._load, found) if getting.is_heavy(found) else self._load(found)
        except CorruptStateError as error:
            if not self._passes_damage:
                raise
            damage = error
        return await self._run(getting.get_good_ancestor, self._queries, self._codec, address, damage, self._load)

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
            page = await self._run(listing.list_page, self._queries, self._codec, pages)
            loading = self._load_page(page)
            if page.is_heavy:
                while (item := await beside(partial(next, loading, None))) is not None:
                    yield item
                    # Release this checkpoint before the next one is decoded.
                    del item
            else:
                for item in loading:
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
        request, parent = self._request(config, checkpoint, metadata, new_versions)
        plan = plan_quickly(self._codec, request, parent)
        if plan is None:
            plan = await beside(plan_put, self._codec, request, parent)
        if self._guard_policy is None:
            stored = await self._run(sending.put, self._queries, self._codec, plan, self._hook, config)
        else:
            stored = await self._put_guarded(self._guard_policy, plan, config)
        return self._note_put(stored)

    async def _put_guarded(self, guarding: GuardPolicy, plan: PutPlan, config: RunnableConfig) -> PutPlan:
        address = plan.request.address
        async with self._writing(address.thread_id, config) as held:
            plan.request.span_id = None if held is None else held.span_id
            guard = guarding.before_put(plan.request, config, held)
            late = self._sends_input_late and plan.request.columns["source"] == "input"
            arguments = self._queries, self._codec, plan, self._hook, config, guard
            try:
                stored = await self._run(sending.put, *arguments, gives_way=late)
            except StaleHeadError as error:
                guarding.note_refused(address, error)
                raise
            guarding.note_stored(guard, held)
            return stored

    def _writing(self, thread_id: str, config: RunnableConfig) -> AbstractAsyncContextManager[HeldLease | None]:
        return self.lease_manager.writing(thread_id, config) if self._guards.lease else nullcontext()

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async twin of `put_writes`."""
        arguments = self._codec, config, writes, task_id, task_path
        drops, keys = self._drops_failed_output, self._thread_keys
        quick = request_writes_quickly(*arguments, drops_failed_output=drops, keys=keys)
        slow = partial(request_writes, *arguments, drops_failed_output=drops, keys=keys)
        request = await beside(slow) if quick is None else quick
        if self._guard_policy is None:
            await self._run(put_writes, self._queries, request)
            return
        await self._put_writes_guarded(self._guard_policy, request, config)

    async def _put_writes_guarded(self, guarding: GuardPolicy, request: WritesRequest, config: RunnableConfig) -> None:
        async with self._writing(request.address.thread_id, config) as held:
            guard: guards.Guard | None = guarding.before_writes(request.address, config, held)
            late = self._sends_input_late and request.task_path.endswith(START)
            while guard is not None:
                try:
                    await self._run(put_writes, self._queries, request, guard, self._hook, gives_way=late)
                    guarding.note_stored(guard, held)
                    return
                except StaleHeadError:
                    guard = guarding.after_refusal(guard, request.address, config)
                    if guard is None:
                        raise

    async def adelete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """Async twin of `delete_thread`."""
        id = thread_id_of(thread_id)
        await self._run(threads.delete_thread, self._queries, id, self._guards.tombstones_for, by)
        self.lease_manager.note_deleted(id)
        self._forget(id)

    async def arevive_thread(self, thread_id: str) -> bool:
        """Async twin of `revive_thread`."""
        return await self._run(guards.revive_thread, self._queries, thread_id_of(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Async twin of `delete_for_runs`. Concurrent calls for the same runs return in the order of the calls."""
        if ids := run_ids_of(run_ids):
            only = None if thread_id is None else thread_id_of(thread_id)
            await self._deletions.do((frozenset(ids), only), lambda: self._delete_for_runs(ids, only))

    async def _delete_for_runs(self, ids: list[str], thread_id: str | None) -> None:
        self._forget(*await self._run(threads.delete_for_runs, self._queries, ids, thread_id))

    async def acopy_thread(
        self, source_thread_id: str, target_thread_id: str, *, owner: ThreadOwner | None = None
    ) -> None:
        """Async twin of `copy_thread`."""
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        await self._run(threads.copy_thread, self._queries, source, target, request_owner(owner))
        self._forget(target)

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
        request = prune.request_prune(thread_ids, strategy, keep_last, older_than, dry_run)
        await self._check_schema()
        return await prune.prune_threads(AsyncRunner(self._database), self._queries, request, self._forget, progress)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        if not channels:
            return {}
        names = [*dict.fromkeys(several("channels", channels))]
        address = address_of(config)
        try:
            return await self._run(get_delta_channel_history, self._queries, self._codec, address, names, self._states)
        except BaseException:
            if self._guards.lease:
                self.lease_manager.release_failed_start(address.thread_id, config)
            raise

    async def _check_schema(self) -> None:
        if not self._saver_cache.schema_checked:
            await self._database.run(schema.check_version, self._queries)
            self._saver_cache.schema_checked = True

    async def _run(
        self, operation: Callable[Concatenate[Connection, P], Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        if not self._saver_cache.schema_checked:
            await self._check_schema()
        return await self._database.run(operation, *args, **kwargs)

    def _wait(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Run a coroutine on the saver's loop, and wait for the result on another thread."""
        try:
            # In a forked child, the parent's event loop does not run.
            self._database.check_process()
        except BaseException:
            coroutine.close()
            raise
        name = name or getattr(coroutine, "__name__", "the method")
        return wait_on_loop(self.loop, coroutine, f"saver.{name}", "AsyncPGStateSaver")

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Run `aget_tuple` from another thread."""
        if self._guard_policy is not None:
            call_site = self._call_site()
            try:
                return self._wait(self._get_guarded(config, call_site), "aget_tuple")
            except KeyboardInterrupt:
                # The coroutine continues without the interrupted caller, and may take a lease. Release this lease.
                if self.loop is not None:
                    self.loop.call_soon_threadsafe(self.lease_manager.release_failed_read, call_site)
                raise
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
        """Run `alist` from another thread."""
        pages = listing.request_list(config, filter, before, limit, metadata_only)
        while pages is not None:
            page = self._wait(self._run(listing.list_page, self._queries, self._codec, pages), "alist")
            yield from self._load_page(page)
            pages = page.following

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Run `aput` from another thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Run `aput_writes` from another thread."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """Run `adelete_thread` from another thread."""
        self._wait(self.adelete_thread(thread_id, by=by))

    def revive_thread(self, thread_id: str) -> bool:
        """Run `arevive_thread` from another thread."""
        return self._wait(self.arevive_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Run `adelete_for_runs` from another thread."""
        self._wait(self.adelete_for_runs(run_ids, thread_id=thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str, *, owner: ThreadOwner | None = None) -> None:
        """Run `acopy_thread` from another thread."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id, owner=owner))

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
        """Run `aprune` from another thread."""
        return self._wait(
            self.aprune(
                thread_ids,
                strategy=strategy,
                keep_last=keep_last,
                older_than=older_than,
                dry_run=dry_run,
                progress=progress,
            )
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Run `aget_delta_channel_history` from another thread."""
        return self._wait(self.aget_delta_channel_history(config=config, channels=channels))
