"""The APIs of the archive of threads and of policies of retention, async and blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final, Unpack

from langgraph_pgstate.arguments import identifier, several, thread_ids_of
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Read
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, blocking
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.keep import archiving, deleting, restoring, retention
from langgraph_pgstate.keep.objects import open_objects
from langgraph_pgstate.keep.types import (
    ArchivedThread,
    ArchiveReport,
    DeletionReport,
    Policy,
    PolicyFields,
    PolicyReport,
    RestoreReport,
)
from langgraph_pgstate.options import check_options, check_ttl
from langgraph_pgstate.paging import Page, check_filters, decode_cursor, read_page
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import refuse_without_tenant
from langgraph_pgstate.threads.search import ThreadSearch, list_threads

QUIET: Final = timedelta(seconds=30)
"""Default of `idle_for`, the time for which a thread must not have been active."""
_KIND: Final = "archived"

Progress = Callable[[ArchiveReport | RestoreReport], None]


class AsyncArchive:
    """The archive of a schema's threads; `AsyncPGState.archive` returns it.

    The row of an archived thread stays in the table `threads`, as a stub. Lists, and searches by owner and metadata,
    return the thread with `archived_at`. Until it is restored, the thread cannot be read, run, forked or deleted: these
    calls raise `ThreadArchivedError`.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._runner: Any = AsyncRunner(database)
        self._queries = queries

    async def put(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        to: str,
        idle_for: timedelta = QUIET,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filters: Unpack[ThreadSearch],
    ) -> ArchiveReport:
        """Archive the given threads, or the threads that filters select. Safe to repeat and to stop.

        The rows of a thread are stored in an archive, read back and verified. Then the rows are deleted from the
        database. If the process is killed, each thread is in the database, in the archive, or in both. Threads that are
        in use, or that change meanwhile, are not archived; the report names them.

        Args:
            thread_ids: Ids of the threads; `None` if filters select them.
            to: URL below which to store the archives: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
                `az://container/prefix`, with credentials from the environment. A folder is made if its parent exists.
                For tests, `memory://name` is a place in the memory of this process; commands and policies refuse it.
            idle_for: Only threads that were not active for this time.
            dry_run: Only count the threads and rows, and the bytes that they take in the database.
            progress: Called with the report so far, after each page of threads.
            filters: See `ThreadSearch`. `limit` is the maximum number of threads, all by default.

        Raises:
            ThreadHeldError: If a hold protects a given thread. Nothing was archived.
            NotFoundError: If a given thread does not exist. Nothing was archived.
            ArchiveError: If an archive is damaged when it is read back. None of its threads was deleted.
            ArchiveUnavailableError: If an archive cannot be stored, or objects of the place cannot be deleted. None of
                its threads was deleted.
            TenantError: If the tables keep tenants apart, and the state names no tenant. Nothing was archived.
            ConfigurationError: If an argument is invalid. Nothing was archived.
        """
        check_filters(filters, ThreadSearch)
        selection: Any = {**filters}
        limit: int | None = selection.pop("limit", None)
        if (thread_ids is None) == (not selection) or "cursor" in selection:
            raise ConfigurationError("either thread_ids or filters must be given, and cursor must not be given")
        if not isinstance(idle_for, timedelta) or idle_for < timedelta(0):
            raise ConfigurationError(f"idle_for must be a timedelta that is not negative, got {idle_for!r}")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigurationError(f"limit must be at least 1 thread, got {limit!r}")
        objects = open_objects(to)
        await self._runner.run(refuse_without_tenant, self._queries, "an archive")
        report = ArchiveReport(dry_run=dry_run)
        page: Sequence[str] = ()
        if thread_ids is not None:
            page = thread_ids_of(several("thread_ids", thread_ids))[:limit]
            await self._runner.run(archiving.check_held, self._queries, page)
        cursor, seen = None, 0
        while True:
            if thread_ids is None:
                size = min(archiving.PAGE, archiving.PAGE if limit is None else limit - seen)
                found = await self._runner.read(
                    self._queries, list_threads(**{**selection, "cursor": cursor, "limit": size})
                )
                page, cursor = [one.thread_id for one in found.items if one.archived_at is None], found.next
            report += await archiving.archive_threads(
                self._runner,
                self._queries,
                objects,
                page,
                tenant=self._runner.tenant,
                idle_for=idle_for,
                dry_run=dry_run,
            )
            seen += len(page)
            if progress is not None:
                progress(report)
            if cursor is None or (limit is not None and seen >= limit):
                return report

    async def restore(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        source: str | None = None,
        dry_run: bool = False,
        by: str | None = None,
        progress: Progress | None = None,
    ) -> RestoreReport:
        """Restore threads, with every row unchanged. Safe to repeat, and to stop.

        Rows are verified before they are written. The archive keeps its copy. A time to live starts again, and a fixed
        time of expiry is removed.

        Args:
            thread_ids: Ids of the threads; with a `source`, by default all of its threads.
            source: URL below which the archives are stored, for threads of another database, schema or version. By
                default, the stub of each thread names the archive.
            dry_run: Only read and verify.
            by: Name of the person who restores the threads, for an event of the kind `action` in each restored thread.
            progress: Called with the report so far, after each archive.

        Raises:
            NotFoundError: If a thread is in no archive, or in no archive of the source.
            ThreadExistsError: If a thread exists with other rows.
            ArchiveError: If an archive is damaged. Nothing of it was written.
            ArchiveUnavailableError: If an archive cannot be read.
            TenantError: If an archive belongs to another tenant; with a `source`, if all of its archives do.
            SchemaOutdatedError: If an archive has columns that the tables lack.
            DataKeyError: If a data key that an archive needs is missing. Nothing of it was written.
            ConfigurationError: If an argument is invalid.
        """
        if thread_ids is None and source is None:
            raise ConfigurationError("thread_ids or source must be given")
        name = None if by is None else identifier("by", by)
        tenant = self._runner.tenant
        ids = None if thread_ids is None else thread_ids_of(several("thread_ids", thread_ids))
        if source is not None:
            sources = await restoring.search_sources(self._runner, self._queries, open_objects(source), ids, tenant)
        else:
            sources = await restoring.find_sources(self._runner, self._queries, ids or (), tenant)
        report = RestoreReport()
        for one in sources:
            report += await restoring.restore_source(self._runner, self._queries, one, dry_run=dry_run, by=name)
            if progress is not None:
                progress(report)
        return report

    async def delete(
        self, thread_ids: Sequence[str], *, by: str | None = None, missing_ok: bool = False
    ) -> DeletionReport:
        """Delete threads from all archives, and the stubs of archived threads, permanently. Safe to repeat.

        An archive that also has other threads is written again without the deleted threads. Threads in the database are
        kept.

        Args:
            thread_ids: Ids of the threads.
            by: Name of the person who deletes them, for an event of the kind `action`.
            missing_ok: Whether copies count as deleted if the objects of their archive are missing. Set it only if the
                objects are gone for good: the objects in a folder that is not mounted are missing, too.

        Raises:
            ThreadHeldError: If a hold protects a thread. Nothing of it was deleted.
            ArchiveError: If objects of an archive are missing, or an archive with other threads is damaged. Nothing of
                it was deleted.
            ArchiveUnavailableError: If an archive cannot be reached, or another process is perhaps making it.
            ConfigurationError: If an argument is invalid.
        """
        ids = thread_ids_of(several("thread_ids", thread_ids))
        name = None if by is None else identifier("by", by)
        report = DeletionReport()
        async for copies in deleting.copies_of(self._runner, self._queries, deleting.Wanted(ids)):
            tenant = self._runner.tenant
            report += await deleting.delete_copies(
                self._runner, self._queries, copies, tenant, name, missing_ok=missing_ok
            )
        return report

    async def check(self, thread_ids: Sequence[str] | None = None) -> RestoreReport:
        """Read and verify the archives of given archived threads, or all archives that stubs name.

        Raises:
            ArchiveError: If an archive is damaged.
            ArchiveUnavailableError: If an archive cannot be read.
            NotFoundError: If a given thread is in no archive.
        """
        if thread_ids is not None:
            return await AsyncArchive.restore(self, thread_ids, dry_run=True)
        report, cursor = RestoreReport(), None
        while True:
            page = await AsyncArchive.list(self, limit=1000, cursor=cursor)
            if page.items:
                report += await AsyncArchive.restore(self, [one.thread_id for one in page.items], dry_run=True)
            cursor = page.next
            if cursor is None:
                return report

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        archive_id: str | None = None,
        thread_ids: Sequence[str] | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[ArchivedThread]:
        """Return a page of archived threads, by id. One round trip.

        Args:
            user_id: Only threads of this user.
            agent: Only threads of this agent.
            archive_id: Only threads in this archive.
            thread_ids: Only these threads.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        reading: Read[Page[ArchivedThread]] = list_archived(user_id, agent, archive_id, thread_ids, limit, cursor)
        found: Page[ArchivedThread] = await self._runner.read(self._queries, reading)
        return found


class AsyncRetention:
    """Policies of how long threads are kept. `maintain` and workers apply the policies."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._runner: Any = AsyncRunner(database)
        self._queries = queries

    async def put(
        self, name: str, *, by: str | None = None, expected_version: int | None = None, **fields: Unpack[PolicyFields]
    ) -> Policy:
        """Store a policy, or replace the policy of this name. One transaction.

        If several policies select a thread, all of them are applied.

        Args:
            name: Name of the policy.
            by: Name of the person who stores it, for an event of the kind `action` under `policy:NAME`.
            expected_version: Store only if the policy has this version; 0 to store only a new policy.
            fields: See `PolicyFields`.

        Raises:
            StalePolicyError: If the policy does not have the expected version. Nothing was written.
            ConfigurationError: If the policy is invalid. Nothing was written.
        """
        check_options(type(self), fields, PolicyFields)
        row = retention.request_policy(name, fields)
        await self._runner.run(refuse_without_tenant, self._queries, "a policy of retention")
        actor = None if by is None else identifier("by", by)
        await self._runner.run(retention.put_policy, self._queries, row, actor, expected_version)
        found = await self._runner.run(retention.list_policies, self._queries)
        return next(one for one in found if one.name == name)  # type: ignore[no-any-return]

    async def policies(self) -> tuple[Policy, ...]:
        """Return all policies, by name. One round trip."""
        return tuple(await self._runner.run(retention.list_policies, self._queries))

    async def delete(self, name: str, *, by: str | None = None, expected_version: int | None = None) -> bool:
        """Delete a policy, and return whether there was one. One transaction; safe to repeat. Arguments as for `put`.

        Raises:
            StalePolicyError: If the policy does not have the expected version. Nothing was written.
            ConfigurationError: If an argument is invalid.
        """
        actor = None if by is None else identifier("by", by)
        request = identifier("name", name), actor, expected_version
        found: bool = await self._runner.run(retention.delete_policy, self._queries, *request)
        return found

    async def apply(
        self, name: str | None = None, *, dry_run: bool = False, within: timedelta | None = None
    ) -> tuple[PolicyReport, ...]:
        """Apply all policies, or one, as `maintain` does. Safe to repeat, to stop, and to run concurrently.

        Threads under a hold are not changed; the report names them. Threads in use are not archived or deleted. A call
        without a `name` also deletes archives that were begun a day ago and never finished.

        Args:
            name: Only this policy.
            dry_run: Only count, and estimate the bytes.
            within: Time after which no further batch of threads begins. Then `is_whole` of the report is false.

        Raises:
            NotFoundError: If there is no such policy.
            TenantError: If the tables keep tenants apart, and the state names no tenant.
        """
        await self._runner.run(refuse_without_tenant, self._queries, "a policy of retention")
        ends_at = None if within is None else monotonic() + check_ttl("within", within).total_seconds()
        known = [one.name for one in await self._runner.run(retention.list_policies, self._queries)]
        if name is not None and name not in known:
            raise NotFoundError(f"name must name a policy ({', '.join(known) or 'there is none'}), got {name!r}")
        return tuple(
            await retention.apply_policies(
                self._runner,
                self._queries,
                dry_run=dry_run,
                names=None if name is None else [name],
                goes_on=lambda: ends_at is None or monotonic() < ends_at,
            )
        )


class Retention:
    """Blocking twin of `AsyncRetention`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._runner = BlockingRunner(database)
        self._queries = queries

    put = blocking(AsyncRetention.put)
    policies = blocking(AsyncRetention.policies)
    delete = blocking(AsyncRetention.delete)
    apply = blocking(AsyncRetention.apply)


class Archive:
    """Blocking twin of `AsyncArchive`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._runner = BlockingRunner(database)
        self._queries = queries

    put = blocking(AsyncArchive.put)
    restore = blocking(AsyncArchive.restore)
    delete = blocking(AsyncArchive.delete)
    check = blocking(AsyncArchive.check)
    list = blocking(AsyncArchive.list)


def list_archived(
    user_id: str | None,
    agent: str | None,
    archive_id: str | None,
    thread_ids: Sequence[str] | None,
    limit: int,
    cursor: str | None,
) -> Read[Page[ArchivedThread]]:
    """Return a `Read` of a page of archived threads, by id."""
    (cursor_thread,) = decode_cursor(_KIND, cursor, ("",))
    parameters = {
        "user_id": user_id,
        "agent": agent,
        "archive_id": archive_id,
        "thread_ids": None if thread_ids is None else [*thread_ids_of(thread_ids)],
        "cursor_thread": cursor_thread,
    }
    return read_page("list_archived_threads", parameters, limit, ArchivedThread, _KIND, lambda one: (one.thread_id,))
