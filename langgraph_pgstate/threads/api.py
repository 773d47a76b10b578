"""Access to threads: lists, searches, titles, metadata, branches, expiry and runaway threads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from langgraph_pgstate.arguments import (
    Moment,
    address_of,
    identifier,
    request_scope,
    thread_id_of,
    time_of,
    understanding,
)
from langgraph_pgstate.checkpoints import differences
from langgraph_pgstate.checkpoints.types import Difference
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.leases import guards
from langgraph_pgstate.options import TtlStrategy
from langgraph_pgstate.paging import Page, check_filters
from langgraph_pgstate.record import runs as runs_operations
from langgraph_pgstate.record.types import RunawayThread
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.threads import branches, holds, rows
from langgraph_pgstate.threads import expiry as expiries
from langgraph_pgstate.threads import search as search_operations
from langgraph_pgstate.threads.search import SortedThreads, ThreadFilter, ThreadSelection, ThreadTextSearch
from langgraph_pgstate.threads.types import (
    Branch,
    CheckpointState,
    CheckpointTree,
    Hold,
    Label,
    LineageStep,
    PruneResult,
    Thread,
    ThreadOptions,
    ThreadOwner,
)


class AsyncThreads:
    """Access to threads, their branches and their expiry. `AsyncPGState.threads` is an instance.

    Lists are paged, most recently updated first. Pass `page.next` as `cursor` for the next page. A thread that is
    updated between two pages moves to the front, so a later page does not show it. Every method raises
    `ConfigurationError` if an argument is invalid.

    Args:
        database: The database.
        queries: The queries of the schema.
        codec: Reads states. By default, with LangGraph's own serializer.
        versions: Upcasts states before they are compared. By default, stored states are compared.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = database
        self._queries = queries
        self._codec = codec or ValueCodec()

    async def list(self, **filters: Unpack[ThreadFilter]) -> Page[Thread]:
        """Return a page of threads. One round trip; indexes serve the filters by user, tenant and status.

        Args:
            **filters: See `ThreadFilter`.
        """
        check_filters(filters, ThreadFilter)
        return await self._database.read(self._queries, search_operations.list_threads(**filters))

    async def search(self, **filters: Unpack[ThreadTextSearch]) -> Page[Thread]:
        """Return a page of threads by their metadata, state or messages. One round trip.

        An index serves `metadata`, `state`, `text`, `scope`, and the equalities in `where`. A `where` with only range
        conditions reads the projected channels of every thread.

        Args:
            **filters: See `ThreadTextSearch`.
        """
        with understanding("where", filters.get("where")):
            return await self._database.read(self._queries, search_operations.list_threads(**filters))

    async def sorted(self, **filters: Unpack[SortedThreads]) -> tuple[Thread, ...]:
        """Return threads in the order of a column, from an offset. One round trip.

        Indexes serve the default order, most recently updated first, and the filters by ids and metadata. Other orders
        sort all threads that pass the filters. Threads before the offset are read, too; `list` and `search` avoid this
        by a cursor.

        Args:
            **filters: See `SortedThreads`.
        """
        with understanding("where", filters.get("where")):
            return await self._database.read(self._queries, search_operations.list_sorted(**filters))

    async def count(self, **filters: Unpack[ThreadSelection]) -> int:
        """Return the number of threads. One round trip; reads all threads unless ids or metadata are given.

        Args:
            **filters: See `ThreadSelection`.
        """
        with understanding("where", filters.get("where")):
            return await self._database.read(self._queries, search_operations.count_threads(**filters))

    async def create(self, thread_id: str | int | UUID | None = None, **options: Unpack[ThreadOptions]) -> Thread:
        """Create a thread without checkpoints. Atomic; safe to repeat if `if_exists` is `do_nothing`.

        Args:
            thread_id: The thread's id. By default, every call creates a new thread.
            options: See `ThreadOptions`.

        Raises:
            ThreadExistsError: If there is such a thread, and `if_exists` is `raise`.
            ThreadDeletedError: If the thread was deleted and may not be created again yet.
        """
        request = rows.request_thread(thread_id, **options)
        return await self._database.run(rows.create_thread, self._queries, request)

    async def get(self, thread_id: str, *, scope: Scope | None = None) -> Thread | None:
        """Return one thread with its newest checkpoint and its projected channels, or `None`. One round trip.

        Args:
            thread_id: The thread.
            scope: Metadata that the thread must contain to be returned.
        """
        scoped = request_scope(scope)
        return await self._database.run(search_operations.get_thread, self._queries, thread_id_of(thread_id), scoped)

    async def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Replace some keys of a thread's metadata, and return the thread. Atomic; safe to repeat.

        Args:
            thread_id: The thread.
            metadata: The keys with their new values. Other keys are kept.
            expected_version: The version on which the change is based. Any other version is refused.

        Raises:
            NotFoundError: If there is no such thread.
            StaleVersionError: If the thread has another version. Nothing was written.
        """
        change = search_operations.request_change(metadata, expected_version)
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Set a thread's title, or remove the title with `None`. Returns and raises like `update_metadata`."""
        change = search_operations.request_change({}, expected_version, title)
        return await self._database.run(search_operations.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_status(self, thread_id: str, status: str) -> bool:
        """Set the status of a thread whose state was changed by `graph.update_state`. One statement; safe to repeat.

        Runs set the status of their thread. `update_state` may remove interrupts without a run, so the status stays
        `interrupted`.

        Args:
            thread_id: The thread.
            status: `idle`, or `interrupted` if nodes are due.

        Returns:
            Whether the status was changed. A missing thread, or a thread with a run, is not changed.

        Raises:
            ThreadArchivedError: If the thread is archived.
        """
        wanted = search_operations.request_status(status)
        return await self._database.run(search_operations.settle_thread, self._queries, thread_id_of(thread_id), wanted)

    async def runaway(
        self,
        steps: int = runs_operations.LEAST_STEPS,
        *,
        since: Moment | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[RunawayThread]:
        """Return a page of threads with runs of more than `steps` supersteps, the longest first. One round trip.

        Args:
            steps: The highest acceptable number of supersteps; 25 at least.
            since: Only runs that started at this time or later. A timedelta counts back from now.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.
        """
        found = runs_operations.list_runaway_threads(steps, since, limit, cursor)
        return await self._database.read(self._queries, found)

    async def branches(self, thread_id: str, *, checkpoint_ns: str = "", limit: int = 1000) -> tuple[Branch, ...]:
        """Return the leaves of a thread's history, newest first, each with its path. One query; reads no state.

        Args:
            thread_id: The thread.
            checkpoint_ns: Namespace of a subgraph. By default, the root's.
            limit: Maximum number of leaves, 1,000 at most.
        """
        return await self._database.read(self._queries, branches.list_branches(thread_id, checkpoint_ns, limit))

    async def tree(
        self, thread_id: str, checkpoint_id: str | None = None, *, checkpoint_ns: str = "", limit: int = 200
    ) -> CheckpointTree:
        """Return the checkpoints of a thread's tree around one checkpoint, newest first. One query; reads no state.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint in the middle. By default, the newest checkpoints are returned.
            checkpoint_ns: Namespace of a subgraph. By default, the root's.
            limit: Maximum number of checkpoints, 1,000 at most.
        """
        tree = branches.list_tree(thread_id, checkpoint_id, checkpoint_ns, limit)
        return await self._database.read(self._queries, tree)

    async def find_step(self, thread_id: str, step: int, *, checkpoint_ns: str = "") -> str | None:
        """Return the newest checkpoint of a superstep, or of the last earlier superstep. One query; reads no state.

        Args:
            thread_id: The thread.
            step: The superstep.
            checkpoint_ns: Namespace of a subgraph. By default, the root's.

        Returns:
            The checkpoint's id. If all checkpoints are of later supersteps, the id of the first checkpoint. `None` if
            there is no checkpoint.
        """
        return await self._database.read(self._queries, branches.find_step(thread_id, step, checkpoint_ns))

    async def state_at(self, config: Mapping[str, Any]) -> CheckpointState:
        """Return a checkpoint with its state, by default the newest. One round trip, two more with DeltaChannels.

        The state is for display: values of the application's own types are returned as plain data. Values of
        DeltaChannels are rebuilt as by `diff`.

        Raises:
            NotFoundError: If there is no such checkpoint.
            CorruptStateError: If the checkpoint is damaged.
        """
        codec = self._codec.without_types()
        return await self._database.run(
            branches.read_checkpoint, self._queries, codec, address_of(config), self._versions
        )

    async def lineage(self, config: Mapping[str, Any]) -> tuple[LineageStep, ...]:
        """Return the path from the root to a checkpoint, by default the newest. One query.

        Raises:
            NotFoundError: If the config names a checkpoint that does not exist.
        """
        return await self._database.run(branches.get_lineage, self._queries, address_of(config))

    async def label(
        self,
        config: Mapping[str, Any],
        text: str,
        *,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
    ) -> dict[str, Any]:
        """Label a checkpoint, by default the newest. Safe to repeat.

        A new label replaces the checkpoint's earlier label. A prune keeps labelled checkpoints.

        Args:
            config: Config of the checkpoint.
            text: The label, like `"before refund"`: one line of at most 200 characters.
            by: Name of the person who sets the label, for an event of the kind `action`.
            unless_done_within: Refuse the label if a person has labelled the checkpoint within this time. Pass the time
                since the caller read the thread.

        Returns:
            The checkpoint's config.

        Raises:
            NotFoundError: If there is no such checkpoint.
            AlreadyDoneError: If a person has labelled the checkpoint within `unless_done_within`.
        """
        request = branches.request_label(config, text)
        return await self._database.run(branches.put_label, self._queries, *request, by, unless_done_within)

    async def unlabel(
        self, config: Mapping[str, Any], *, by: str | None = None, unless_done_within: timedelta | None = None
    ) -> bool:
        """Remove the label of a checkpoint. Safe to repeat. Takes the options of `label`.

        Returns:
            Whether the checkpoint had a label.

        Raises:
            ThreadArchivedError: If the thread is archived.
            AlreadyDoneError: If a person has labelled the checkpoint within `unless_done_within`.
        """
        address = branches.request_unlabel(config)
        return await self._database.run(branches.delete_label, self._queries, address, by, unless_done_within)

    async def labels(self, thread_id: str) -> tuple[Label, ...]:
        """Return a thread's labelled checkpoints, newest first. One query."""
        return await self._database.run(branches.list_labels, self._queries, thread_id_of(thread_id))

    async def hold(self, thread_id: str, reason: str, *, by: str) -> Hold:
        """Hold a thread (a legal hold): no row of the thread is deleted until all holds have ended. Safe to repeat.

        Deleting the thread or its runs raises `ThreadHeldError`. Prunes and expiry leave the thread unchanged. A run
        that would be rolled back ends as `interrupted`. The thread can still run. Streamed events are deleted as in
        other threads. Copies and forks are not held.

        Args:
            thread_id: The thread.
            reason: Reason of the hold, like the number of a case: one line of at most 200 characters. A thread has one
                hold for each reason.
            by: Name of the person who holds the thread, for an event of the kind `action`.

        Returns:
            The hold. If the thread already had a hold with this reason, the existing hold.

        Raises:
            NotFoundError: If there is no such thread, or the thread is being deleted from its archive.
        """
        request = thread_id_of(thread_id), holds.reason_of(reason), identifier("by", by)
        return await self._database.run(holds.hold, self._queries, *request)

    async def release(self, thread_id: str, reason: str, *, by: str, since: datetime | None = None) -> bool:
        """End a hold. Safe to repeat.

        Args:
            thread_id: The thread.
            reason: Reason of the hold.
            by: Name of the person who ends the hold, for an event of the kind `action`.
            since: End the hold only if it started at this time.

        Returns:
            Whether there was such a hold.
        """
        request = thread_id_of(thread_id), holds.reason_of(reason), identifier("by", by), time_of("since", since)
        return await self._database.run(holds.release, self._queries, *request)

    async def holds(self, thread_id: str | None = None, *, limit: int = 20, cursor: str | None = None) -> Page[Hold]:
        """Return a page of holds, of one thread or of all, by thread. One round trip.

        Args:
            thread_id: The thread.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.
        """
        return await self._database.read(self._queries, holds.list_holds(thread_id, limit, cursor))

    async def find(self, thread_id: str, name: str) -> dict[str, Any]:
        """Return the config of the checkpoint with a label, an id, or a unique part of an id.

        Args:
            thread_id: The thread.
            name: The label, the id, or at least four characters of the id.

        Raises:
            NotFoundError: If there is no such checkpoint in the root namespace.
            ConfigurationError: If several checkpoints match.
        """
        parameters = thread_id_of(thread_id), identifier("name", name)
        return (await self._database.run(branches.find_checkpoint, self._queries, *parameters)).config

    async def fork(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        to: str | None = None,
        *,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
        owner: ThreadOwner | None = None,
    ) -> dict[str, Any]:
        """Create a thread that starts from a checkpoint of another thread. One transaction; safe to repeat.

        The checkpoint and its ancestors are copied under the same ids, with subgraphs, writes, messages, labels and
        tool executions. Other branches, runs, spans and events are not copied. If the thread has advanced from the
        checkpoint, its pending writes and interrupted subgraphs are not copied, so that the fork begins the superstep
        again. The fork expires like the source: after the same time without access, or at the same date.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint in the root namespace. By default, the newest.
            to: The new thread's id. By default, a random id.
            by: Name of the person who forks the thread, for an event of the kind `action` on both threads.
            unless_done_within: Refuse the fork if a person has forked the checkpoint to another thread within this
                time. Pass the time since the caller read the thread.
            owner: Owner and metadata of the new thread. By default, those of the source.

        Returns:
            The checkpoint's config in the new thread.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigurationError: If `to` already has a history other than this fork's. Nothing was written.
            AlreadyDoneError: If a person has forked the checkpoint within `unless_done_within`. Nothing was written.
        """
        request = branches.request_fork(thread_id, checkpoint_id, to, by, unless_done_within, owner)
        return (await self._database.run(branches.fork_thread, self._queries, self._codec, request)).config

    async def diff(self, first: Mapping[str, Any], second: Mapping[str, Any], *, plain: bool = False) -> Difference:
        """Return the difference between the states of two checkpoints, of one thread or of two. Two round trips.

        A DeltaChannel's value is rebuilt by the channel's reducer if this process has recorded a graph with the
        channel. Otherwise, LangGraph's own reducer merges messages, and other values are appended.

        Args:
            first: Config of the first checkpoint. Without a checkpoint id, the thread's newest.
            second: Config of the second checkpoint.
            plain: Whether values of the application's own types are compared as plain data.

        Raises:
            NotFoundError: If a checkpoint does not exist.
            UnsafeTypeError: If a state holds a type that may not be built.
            CorruptStateError: If a state is damaged.
        """
        addresses = address_of(first), address_of(second)
        codec = self._codec.without_types() if plain else self._codec
        states = await self._database.run(differences.read_states, self._queries, codec, *addresses, self._versions)
        return differences.compare(states)

    async def set_ttl(
        self, thread_id: str, ttl: timedelta | None, *, strategy: TtlStrategy = "delete"
    ) -> datetime | None:
        """Set a thread's time to live, counted from now and again from each access. One statement.

        Replaces the time set by `expire` and the default `thread_ttl`.

        Args:
            thread_id: The thread.
            ttl: Time for which the thread is kept after each access; `None` for ever.
            strategy: What happens at expiry: `delete`, or `keep_latest`, which prunes the thread.

        Returns:
            The time at which the thread expires unless it is accessed.

        Raises:
            NotFoundError: If there is no such thread.
            ThreadArchivedError: If the thread is archived.
        """
        expiry = expiries.request_ttl(ttl, strategy)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def expire(
        self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None
    ) -> datetime | None:
        """Set a fixed time at which a thread expires, regardless of access. One statement; safe to repeat.

        Replaces the time to live set by `set_ttl`. `set_ttl(thread_id, None)` removes the fixed time. Later copies and
        forks of the thread expire at the same time; earlier ones do not.

        Args:
            thread_id: The thread.
            at: The time, with a time zone. Give either `at` or `after`.
            after: The time from now.

        Returns:
            The time at which the thread expires.

        Raises:
            NotFoundError: If there is no such thread.
            ThreadArchivedError: If the thread is archived.
        """
        expiry = expiries.request_expiry(at, after)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Delete expired threads, or prune threads with `keep_latest`, the earliest expired first.

        Each thread is one transaction; several processes may sweep at once. A thread stays until a later sweep if it
        was accessed in the last half minute, is run by a live process, or is leased. The id of a deleted thread can be
        used again. A thread with copies in archives is deleted only by `maintain`, `retention.apply` and workers.

        Args:
            limit: Maximum number of threads to delete or prune. By default, all.
            dry_run: Only count.

        Returns:
            The numbers of removed rows and of threads. A pruned thread counts even if no row was removed.
        """
        return await self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    async def revive(self, thread_id: str) -> bool:
        """Allow a new thread with the id of a deleted thread. Atomic; safe to repeat.

        Returns:
            Whether the thread had a tombstone, which forbids a new thread with the id.
        """
        return await self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))


class Threads:
    """Blocking twin of `AsyncThreads`."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = BlockingRunner(database)
        self._queries = queries
        self._codec = codec or ValueCodec()

    list = blocking(AsyncThreads.list)
    search = blocking(AsyncThreads.search)
    sorted = blocking(AsyncThreads.sorted)
    count = blocking(AsyncThreads.count)
    create = blocking(AsyncThreads.create)
    get = blocking(AsyncThreads.get)
    update_metadata = blocking(AsyncThreads.update_metadata)
    set_title = blocking(AsyncThreads.set_title)
    set_status = blocking(AsyncThreads.set_status)
    runaway = blocking(AsyncThreads.runaway)
    branches = blocking(AsyncThreads.branches)
    tree = blocking(AsyncThreads.tree)
    find_step = blocking(AsyncThreads.find_step)
    state_at = blocking(AsyncThreads.state_at)
    lineage = blocking(AsyncThreads.lineage)
    label = blocking(AsyncThreads.label)
    unlabel = blocking(AsyncThreads.unlabel)
    labels = blocking(AsyncThreads.labels)
    hold = blocking(AsyncThreads.hold)
    release = blocking(AsyncThreads.release)
    holds = blocking(AsyncThreads.holds)
    find = blocking(AsyncThreads.find)
    fork = blocking(AsyncThreads.fork)
    diff = blocking(AsyncThreads.diff)
    set_ttl = blocking(AsyncThreads.set_ttl)
    expire = blocking(AsyncThreads.expire)
    sweep = blocking(AsyncThreads.sweep)
    revive = blocking(AsyncThreads.revive)
