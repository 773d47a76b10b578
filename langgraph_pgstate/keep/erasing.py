"""Erasure of all that is stored about a user, of threads, and of single messages.

Each thread is erased in one transaction, which also stores the counts of erased rows. If a call is interrupted, the
next call continues the erasure, and the receipt counts the rows of both calls. A dry run rolls each transaction back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import uuid4

from langgraph_pgstate.checkpoints.event_chains import chain, release_events
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.encryption.columns import KEYS as KEYS_OF_ROWS
from langgraph_pgstate.errors import (
    ArchiveError,
    ConfigurationError,
    ConflictError,
    CorruptStateError,
    EncryptionError,
    NotFoundError,
    PGStateError,
    ThreadArchivedError,
    ThreadHeldError,
    ThreadInUseError,
    UnreadableFormatError,
)
from langgraph_pgstate.keep.deleting import Copies, Wanted, copies_of, delete_copies
from langgraph_pgstate.keep.exporting import label_of
from langgraph_pgstate.keep.receipts import Signer, make_receipt, subject_of
from langgraph_pgstate.keep.redacting import Redaction, all_texts
from langgraph_pgstate.keep.redaction import (
    WHY,
    clear_runs,
    find_message_ids,
    find_versions,
    has_message,
    lock_unused,
    redact_thread,
)
from langgraph_pgstate.keep.restoring import find_archives, find_sources, restore_source
from langgraph_pgstate.keep.types import Erasure, Kept, Kind
from langgraph_pgstate.memory.indexes import stored_indexes
from langgraph_pgstate.memory.namespaces import literal
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import NamedQuery, Queries
from langgraph_pgstate.schema.resealing import Reached, reseal_page
from langgraph_pgstate.threads.holds import check_not_held, refuse_held
from langgraph_pgstate.threads.rows import delete_thread

T = TypeVar("T")
_UNREADABLE: Final = (CorruptStateError, UnreadableFormatError, EncryptionError)
Counts = Counter[str]

_PAGE: Final = 200
# Maximum number of searches for the user's threads. Searches are repeated, because runs may make threads meanwhile.
_ROUNDS: Final = 5

BY_THREAD: Final = frozenset({
    *("threads", "checkpoints", "segments", "writes", "labels", "leases", "tombstones", "answers", "projections"),
    *("runs", "feedback", "queue", "run_requests", "stream_batches", "webhooks", "spans", "span_exports"),
    *("tool_executions", "messages", "events", "event_chains", "event_hashes", "journal", "archived_threads"),
})  # fmt: skip
"""Tables whose rows are deleted with their thread."""

KEYS: Final = frozenset({"data_keys"})
"""Tables of data keys. The keys of the scopes `user:ID` and `thread:ID` are destroyed."""

BY_USER: Final[Mapping[str, tuple[str, ...]]] = {
    "memories": ("erase_memory_changes_by_user",),
    "memory_versions": ("erase_memory_versions_of_user", "erase_memory_version_changes_by_user"),
    "large_namespaces": ("erase_large_namespaces_of_user",),
    "files": ("erase_files_of_user",),
    "file_texts": ("erase_file_texts_of_user",),
    "file_versions": ("erase_file_versions_of_user", "erase_file_changes_by_user"),
    "schedules": ("erase_schedules_of_user",),
    # Delete versions before assistants, because the statement finds a user's versions by the assistants.
    "assistant_versions": ("erase_assistant_versions_of_user",),
    "assistants": ("erase_assistants_of_user",),
    "budgets": ("erase_budgets_of_user",),
    "retention_policies": ("erase_policies_of_user",),
    "queue_limits": ("erase_queue_limits_of_user",),
    "queue_keys": ("erase_queue_keys_of_user",),
    "deleted_costs": ("erase_deleted_costs_of_user",),
    "feedback": ("erase_feedback_by_user",),
    "answers": ("erase_answers_by_user",),
}
"""The statements that erase a user's rows outside of the user's threads, by table, in order."""

EXCEPTED: Final[Mapping[str, str]] = {
    "holds": "a thread that is held is not erased; its hold names a person who acted officially",
    "migrations": "versions of the schema",
    "workers": "processes",
    "exporters": "processes and the addresses of collectors",
    "prices": "prices of models",
    "maintenance": "what maintain did, in numbers",
    "memory_indexes": "models and dimensions of embeddings",
    "event_chaining": "whether events are chained",
    "event_chain_ends": "random ids and hashes of chains that have ended",
    "archives": "addresses, sizes and hashes of archives",
    "erasures": "counts and receipts, which name no person",
}
"""Tables that an erasure leaves as they are, and why."""

_REDACTED: Final = frozenset({
    *("erase_memory_changes_by_user", "erase_memory_version_changes_by_user", "erase_file_changes_by_user"),
    *("erase_answers_by_user", "erase_deleted_costs_of_user"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """The validated arguments of an erasure. `thread_id` is the thread of a message."""

    kind: Kind
    id: str
    thread_id: str | None = None

    @property
    def subject(self) -> bytes:
        """Return the bytes that name the user, thread or message; receipts hold an HMAC of them."""
        return subject_of(self.kind, self.id, self.thread_id)


class _Undone(Exception):
    """An exception that rolls back a transaction of a dry run."""


async def in_erasure(
    db: Connection, queries: Queries, erasure_id: str | None, work: Callable[..., Awaitable[Counts]], *given: Any
) -> Counts:
    """Run a part of an erasure, add its counts to the erasure, and return them. One transaction.

    If `erasure_id` is `None`, as in a dry run, the transaction is rolled back.
    """
    counts: Counts = Counter()
    try:
        async with db.transaction():
            counts = +await work(db, queries, erasure_id, *given)
            if erasure_id is None:
                raise _Undone
            if counts:
                await db.execute(queries.count_erased, {"erasure_id": erasure_id, "counts": json.dumps(counts)})
    except _Undone:
        pass
    return counts


async def erase(
    runner: Runner,
    queries: Queries,
    codec: ValueCodec,
    request: EraseRequest,
    signer: Signer | None,
    *,
    dry_run: bool,
    tenant: str | None = None,
    by: str | None = None,
    erasure_id: str | None = None,
) -> Erasure:
    """Erase the user, thread or message of a request. Safe to repeat: the next call continues an interrupted erasure.

    Raises:
        NotFoundError: If there is no such thread or message. Nothing was written.
        ThreadHeldError: If a thread or a message is to be erased, and a hold protects the thread. Nothing was written.
        ThreadInUseError: If the thread of a message is running. Nothing was written.
        ConfigurationError: If a user to erase has data keys, and this program has no keys. Nothing was written.
    """
    report, new_id = Erasure(request.kind, dry_run=dry_run), erasure_id or str(uuid4())
    work = _Work(runner, queries, codec, request, report, new_id, by, tenant)
    if request.kind == "user":
        await runner.run(data_keys_of, queries, request.id)
        await work.begin()
        await work.user()
    else:
        await work.single()
    if not dry_run and work.report.is_complete and work.report.erasure_id is not None:
        work.report.receipt = await runner.run(finish, queries, work.report.erasure_id, request, signer)
    return work.report


async def begin(
    db: Connection, queries: Queries, new_id: str, request: EraseRequest, by: str | None = None
) -> tuple[str, dict[str, int]]:
    """Return the id and counts of the subject's unfinished erasure, or begin one. One transaction; safe to repeat.

    Raises:
        ConfigurationError: If the new id is that of another erasure.
    """
    async with db.transaction():
        await db.fetch(queries.lock_action, {"key": f"erase {queries.schema}"})
        found = await find_open(db, queries, request)
        if found is None:
            found = new_id, {}
            salt = secrets.token_bytes(16)
            new = {"erasure_id": new_id, "kind": request.kind, "salt": salt, "subject": _salted(salt, request)}
            if not await db.execute(queries.begin_erasure, new):
                raise ConfigurationError(f"erasure_id must be a new id, got {new_id!r}, the id of another erasure")
        if by is not None:
            await note_action(db, queries, "erase", by, place_of(found[0]))
    return found


def place_of(erasure_id: str) -> str:
    """Return the id under which the events of an erasure are stored, in place of a thread id."""
    return f"erasure:{erasure_id}"


def _salted(salt: bytes, request: EraseRequest) -> bytes:
    return hashlib.sha256(salt + request.subject).digest()


async def finish(
    db: Connection, queries: Queries, erasure_id: str, request: EraseRequest, signer: Signer | None
) -> Mapping[str, Any]:
    """Make and store the receipt of an erasure. One transaction; safe to repeat."""
    async with db.transaction():
        kind, started_at, counts, receipt, now = (await db.fetch(queries.get_erasure, {"erasure_id": erasure_id}))[0]
        if receipt is None:
            facts = {
                "receipt_id": erasure_id,
                "schema": queries.schema,
                "kind": kind,
                "started_at": started_at.isoformat(),
                "ended_at": now.isoformat(),
                "counts": counts,
                "rows": sum(counts.values()),
            }
            receipt = make_receipt(facts, request.subject, signer)
            ended = {"erasure_id": erasure_id, "ended_at": now, "receipt": json.dumps(receipt)}
            await db.execute(queries.end_erasure, ended)
    found: Mapping[str, Any] = receipt
    return found


class _Work:
    """An erasure in progress, with its report. Each part of it is one transaction."""

    def __init__(
        self,
        runner: Runner,
        queries: Queries,
        codec: ValueCodec,
        request: EraseRequest,
        report: Erasure,
        new_id: str,
        by: str | None,
        tenant: str | None,
    ) -> None:
        self._runner, self._queries, self._codec, self._request = runner, queries, codec, request
        self.report, self._new_id, self._by = report, new_id, by
        self._counts: Counts = Counter()
        self._done: set[str] = set()
        self._away: set[str] = set()
        # Archive id and thread id of the copies that a dry run has counted.
        self._counted: set[tuple[str, str]] = set()
        self._tenant = tenant

    async def begin(self) -> None:
        """Store a new erasure, or continue an unfinished one. A dry run writes nothing."""
        if not self.report.dry_run:
            id, counts = await self._runner.run(begin, self._queries, self._new_id, self._request, self._by)
            self.report.erasure_id = id
            self._counts.update(counts)

    async def user(self) -> None:
        """Erase the user's threads with forks and copies, content in other users' threads, and rows of no thread."""
        user_id = self._request.id
        for _ in range(_ROUNDS):
            found = await self._threads("list_threads_of_user", user_id)
            new = [id for id in found if id not in self._done]
            for id in new:
                await self.tree(id)
            if not new:
                break
        else:
            raise ConflictError("threads of the user are still being made: end the user's runs, and repeat the call")
        for id in await self._threads("list_archived_threads_of_user", user_id):
            await self._is_away(id)
        for id in await self._threads("list_threads_with_runs_of_user", user_id):
            await self._repeated(self._runs, id, user_id)
        await self._acts(user_id)
        await self._part(None, _erase_rows, user_id)
        await self._archives(thread_ids=self._done, user_id=user_id, source_ids=self._done)
        if self.report.is_complete:
            await self._rescue(user_id)
        if self.report.is_complete:
            # Destroy the keys only if no thread was kept, because kept threads are encrypted under these keys.
            await self._part(None, _destroy_keys, user_id)

    async def _runs(self, thread_id: str, user_id: str) -> None:
        """Redact a user's runs in another user's thread, and what forks and copies have inherited from these runs.

        Redact the thread itself last. After an interruption, a repeated call must still find the runs in it.
        """
        rows = await self._runner.run(_fetch, self._queries, "list_heirs", {"thread_id": thread_id})
        heirs = [row[0] for row in rows if row[0] not in self._done]
        for heir in heirs:
            await self._other(heir, _clear_inherited_runs, self._codec, heir, thread_id, user_id)
        kept = {one.thread_id for one in self.report.kept}
        needed = next((heir for heir in heirs if heir in kept), None) or await self._forks(thread_id, ())
        if needed is not None:
            self._keep(thread_id, _needed_by(needed))
        else:
            known = {row[0] for row in rows}
            await self._part(thread_id, _clear_user, self._codec, thread_id, user_id, known)

    async def _rescue(self, user_id: str) -> None:
        """Find other users' content under this user's data keys, and encrypt it under keys of those users.

        Such content exists if this user wrote in another user's thread. To find it, all encrypted content is read, and
        archived threads that have such content are restored. A thread is kept if such content remains in it.
        """
        ids = frozenset(await self._runner.run(data_keys_of, self._queries, user_id))
        if self.report.dry_run or not ids:
            return
        await self._runner.run(_forget_owners)
        archives = await self._runner.run(_fetch, self._queries, "list_archives_of_keys", {"key_ids": [*ids]})
        for url, thread_ids in archives:
            await self._restore_under(ids, url, thread_ids)
        for table in KEYS_OF_ROWS:
            cursor: tuple[Any, ...] | None = None
            while True:
                page = await self._runner.run(_reseal, self._queries, table, cursor, ids)
                for thread_id, where, why in page.problems:
                    self._keep(thread_id, f"{where} is encrypted under the user's key: {why}")
                cursor = page.cursor
                if cursor is None:
                    break

    async def _restore_under(self, key_ids: Collection[str], url: str, thread_ids: Sequence[str]) -> None:
        """Restore the threads of an archive that have content under some data keys."""
        try:
            sources = await find_sources(self._runner, self._queries, thread_ids, self._tenant)
        except PGStateError as error:
            for id in thread_ids:
                self._keep(id, _why(url, error))
            return
        for source in sources:
            for id in source.thread_ids:
                if not {*key_ids}.isdisjoint(source.manifest.frames[id].key_ids):
                    await self._is_away(id)

    async def single(self) -> None:
        """Erase a thread with its forks and copies, or a message in all threads that have it."""
        request = self._request
        thread_id = request.thread_id or request.id
        if not await self._runner.run(_exists, self._queries, thread_id):
            await self._resume_or_refuse(f"there is no thread {thread_id!r}")
            return
        if request.kind == "thread":
            # Refuse a held thread before the erasure is stored.
            await self._runner.run(check_not_held, self._queries, thread_id)
            await self.begin()
            await self.tree(thread_id)
            await self._archives(thread_ids=self._done, source_ids=self._done)
        else:
            await self._message(thread_id, request.id)

    async def _resume_or_refuse(self, why: str) -> None:
        """Finish the erasure of a subject that has no rows any more. Raise an error if no erasure was begun."""
        found = await self._runner.run(find_open, self._queries, self._request)
        if found is None or self.report.dry_run:
            raise NotFoundError(why)
        await self.begin()
        self.report.counts = dict(self._counts)

    async def tree(self, thread_id: str) -> None:
        """Erase a thread, and forks and copies of the same user or of no user. Redact its other forks and copies.

        Archived threads are restored first, because a redaction compares the content of a fork or copy with its source.
        """
        await self._repeated(self._tree, thread_id)

    async def _repeated(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Repeat a part until no fork or copy of its thread was made meanwhile. Raise an error after five attempts."""
        for _ in range(_ROUNDS):
            try:
                await work(*given)
                return
            except _NewHeirError:
                continue
        raise ConflictError(f"forks or copies of thread {given[0]!r} are still being made: repeat the call")

    async def _tree(self, thread_id: str) -> None:
        members, others = await self._runner.run(_find_tree, self._queries, thread_id)
        for heir, source in others:
            await self._is_away(source)
            if heir not in self._done:
                await self._other(heir, _redact_heir, self._codec, heir, source)
        kept = {one.thread_id for one in self.report.kept}
        needed = {source: heir for heir, source in others if heir in kept}
        # Erase the thread itself last, because a repeated call finds the forks and copies by this thread.
        for id in members:
            is_new = id not in self._done
            self._done.add(id)
            if is_new and id == thread_id and (fork := await self._forks(id, members)) is not None:
                needed[id] = fork
            if id in needed:
                self._keep(id, _needed_by(needed[id]))
            elif is_new and not await self._is_away(id):
                await self._relatives(id, members)
                try:
                    await self._part(id, _erase_thread, id, {*members, *(heir for heir, _ in others)})
                except _NewHeirError:
                    self._done.discard(id)
                    raise

    async def _forks(self, thread_id: str, members: Collection[str]) -> str | None:
        """Delete archived copies of a thread's forks. Return a kept fork that a repeated call finds only by the thread.

        Archived copies of forks that were deleted before are deleted, too. `members` are the forks that were to be
        erased, and perhaps the thread itself.
        """
        known, forks = {one.thread_id for one in self.report.kept}, [id for id in members if id != thread_id]
        await self._archives(redacted=forks, source_ids=[thread_id])
        for id in forks:
            if id in known and not await self._is_hers(id):
                return id
        return next((one.thread_id for one in self.report.kept if one.thread_id not in known), None)

    async def _is_hers(self, thread_id: str) -> bool:
        """Return whether a thread belongs to the user who is erased."""
        rows = await self._runner.run(_fetch, self._queries, "get_owner_of", {"thread_id": thread_id})
        return self._request.kind == "user" and any(row[0] == self._request.id for row in rows)

    async def _relatives(self, thread_id: str, members: Sequence[str]) -> None:
        """Remove a thread's id from the events of its relatives: its sources, its forks and its copies.

        The threads in `members` keep their events, because they are erased completely. Call this before the thread is
        erased, because the row of the thread names its sources.
        """
        for (other,) in await self._runner.run(_fetch, self._queries, "list_relatives", {"thread_id": thread_id}):
            if other not in members:
                named = {"thread_id": other, "other_id": thread_id}
                events = await self._runner.run(_fetch, self._queries, "list_fork_events", named)
                if events or await self._runner.run(find_archives, self._queries, [other]):
                    await self._other(other, _forget_fork, other, thread_id)

    async def _message(self, thread_id: str, message_id: str) -> None:
        ids = frozenset({message_id})
        _need_native(self._codec)
        if archives := await self._runner.run(find_archives, self._queries, [thread_id]):
            raise ThreadArchivedError(thread_id, archives[0][0])
        versions = await self._runner.run(find_versions, self._queries, thread_id, ids)
        if not versions.fields and not await self._runner.run(has_message, self._queries, thread_id, message_id):
            await self._resume_or_refuse(f"thread {thread_id!r} has no message {message_id!r}")
            return
        what = Redaction(ids, all_texts(versions.fields))
        await self._runner.run(_check_unused, self._queries, thread_id)
        await self.begin()
        await self._repeated(self._redact_tree, thread_id, what, message_id)

    async def _redact_tree(self, thread_id: str, what: Redaction, message_id: str) -> None:
        """Redact a message in a thread, and in its forks and copies.

        Redact the thread itself last. After an interruption, a repeated call must still find the message in it.
        """
        members, others = await self._runner.run(_find_tree, self._queries, thread_id)
        heirs = {*members, *(heir for heir, _ in others)} - {thread_id}
        for id in sorted(heirs - self._done):
            self._done.add(id)
            await self._other(id, _redact, id, what, message_id)
        await self._forks(thread_id, ())
        if self.report.kept:
            self._keep(thread_id, _needed_by(self.report.kept[0].thread_id))
        else:
            await self._other(thread_id, _redact, thread_id, what, message_id, heirs)

    async def _other(self, thread_id: str, work: Callable[..., Awaitable[Counts]], *given: Any) -> None:
        """Redact a thread with `work`, and delete its copies in archives. An archived thread is restored first."""
        if not await self._is_away(thread_id):
            await self._part(thread_id, work, *given)
        await self._archives(redacted=[thread_id])

    def _keep(self, thread_id: str, why: str) -> None:
        if thread_id not in {one.thread_id for one in self.report.kept}:
            self.report.kept.append(Kept(thread_id, why))

    async def _is_away(self, thread_id: str) -> bool:
        """Restore a thread if it is archived, and return whether it is still archived.

        A dry run counts the thread, but does not restore it. If a hold protects the thread, or the archive cannot be
        read, the report names the thread as kept.
        """
        if thread_id in self._away or not (found := await self._runner.run(find_archives, self._queries, [thread_id])):
            return thread_id in self._away
        try:
            await self._runner.run(check_not_held, self._queries, thread_id)
        except ThreadHeldError as error:
            self._away.add(thread_id)
            self._keep(thread_id, str(error))
            return True
        if self.report.dry_run:
            self._away.add(thread_id)
            await self._part(None, _count, Counter({"archived threads": 1}))
            return True
        try:
            for source in await find_sources(self._runner, self._queries, [thread_id], self._tenant):
                await restore_source(self._runner, self._queries, source)
        except NotFoundError:
            # Another call has restored or erased the thread meanwhile.
            return False
        except PGStateError as error:
            self._away.add(thread_id)
            self._keep(thread_id, _why(found[0][1], error))
        return thread_id in self._away

    async def _archives(
        self,
        *,
        thread_ids: Collection[str] = (),
        user_id: str | None = None,
        redacted: Collection[str] = (),
        source_ids: Collection[str] = (),
    ) -> None:
        """Delete copies in archives, except copies of kept threads. The arguments are those of `Wanted`."""
        restored = self._away if self.report.dry_run else ()
        while True:
            kept = {one.thread_id for one in self.report.kept}
            wanted = Wanted(thread_ids, user_id, redacted, source_ids, kept, restored)
            try:
                async for copies in copies_of(self._runner, self._queries, wanted):
                    await self._copies(copies)
                return
            except (ThreadHeldError, ThreadArchivedError) as error:
                # For example, the thread was archived under this user, but belongs to another user now.
                self._keep(error.thread_id, str(error))

    async def _copies(self, copies: Copies) -> None:
        """Delete copies in one archive. If that fails, the report names their threads as kept."""
        try:
            if self.report.dry_run:
                copies.check()
            else:
                await delete_copies(self._runner, self._queries, copies, self._tenant, None)
        except PGStateError as error:
            for id in copies.thread_ids:
                self._keep(id, _why(copies.url, error))
            return
        # A dry run must count a copy once, although searches by thread, by source and by user find the same copy.
        new = {(copies.archive_id, id) for id in copies.thread_ids} - self._counted
        if self.report.dry_run:
            self._counted |= new
        await self._part(None, _count, Counter({"archived copies": len(new)}))

    async def _acts(self, user_id: str) -> None:
        """Remove the name of a user from events of other users' threads."""
        cursor = ("", "")
        while True:
            where = {"user_id": user_id, "cursor_thread": cursor[0], "cursor_id": cursor[1], "page_size": _PAGE}
            rows = await self._runner.run(_fetch, self._queries, "list_events_by_user", where)
            by_thread: dict[str, list[str]] = {}
            for thread_id, event_id in rows:
                by_thread.setdefault(thread_id, []).append(event_id)
            for thread_id, event_ids in by_thread.items():
                await self._part(thread_id, _forget_actor, thread_id, event_ids, user_id)
            if len(rows) < _PAGE:
                break
            cursor = rows[-1]
        for held in await self._runner.run(_fetch, self._queries, "list_held_acts_of_user", {"user_id": user_id}):
            self._keep(held[0], str(ThreadHeldError(*held)))

    async def _threads(self, query: str, user_id: str) -> list[str]:
        found: list[str] = []
        while True:
            where = {"user_id": user_id, "cursor_id": found[-1] if found else "", "page_size": _PAGE}
            rows = await self._runner.run(_fetch, self._queries, query, where)
            found += [row[0] for row in rows]
            if len(rows) < _PAGE:
                return found

    async def _part(self, thread_id: str | None, work: Callable[..., Awaitable[Counts]], *given: Any) -> None:
        """Run a part in its own transaction. If the thread is held, in use or damaged, the report names it as kept."""
        try:
            self._counts += await self._runner.run(in_erasure, self._queries, self.report.erasure_id, work, *given)
        except (ThreadHeldError, ThreadInUseError, ThreadArchivedError, _NotNative, *_UNREADABLE) as error:
            if thread_id is None or (isinstance(error, EncryptionError) and error.retryable):
                raise
            self._keep(thread_id, str(error))
        self.report.counts = dict(sorted(self._counts.items()))


def _why(url: str, error: PGStateError) -> str:
    """Return why a copy stays in an archive. Raise errors of the database, such as a lost connection, again."""
    if error.retryable and not isinstance(error, (ArchiveError, ConflictError)):
        raise error
    return f"an archive has it: {error}" if url in str(error) else f"an archive has it ({url}): {error}"


def _needed_by(heir: str) -> str:
    return f"thread {heir!r} has inherited from this thread, and cannot be erased or redacted now"


class _NewHeirError(Exception):
    """The error for a fork or copy that is made during the erasure of its source."""


class _NotNative(ConfigurationError):
    """The error for a thread whose values were encoded by another serializer than LangGraph's."""


def _need_native(codec: ValueCodec) -> None:
    if not codec.is_native:
        raise _NotNative(
            "messages can be redacted only if the saver uses LangGraph's own serializer: erase the whole thread instead"
        )


async def _count(db: Connection, queries: Queries, erasure_id: str | None, counts: Counts) -> Counts:
    return counts


async def _fetch(db: Connection, queries: Queries, query: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
    return await db.fetch(getattr(queries, query), parameters)


async def _exists(db: Connection, queries: Queries, thread_id: str) -> bool:
    return bool((await db.fetch(queries.has_thread, {"thread_id": thread_id}))[0][0])


async def _check_unused(db: Connection, queries: Queries, thread_id: str) -> None:
    async with db.transaction():
        await lock_unused(db, queries, thread_id)


async def find_open(db: Connection, queries: Queries, request: EraseRequest) -> tuple[str, dict[str, int]] | None:
    """Return the id and the counts of an unfinished erasure with the same arguments, or `None`."""
    for id, salt, subject, _ in await db.fetch(queries.list_open_erasures, {"kind": request.kind}):
        if hmac.compare_digest(_salted(salt, request), subject):
            return id, dict((await db.fetch(queries.get_erasure, {"erasure_id": id}))[0][2])
    return None


async def _find_tree(db: Connection, queries: Queries, thread_id: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return two lists: the threads to erase, with the given thread last; and other users' heirs with their sources.

    An heir is a fork or a copy. Its source is the thread from which it has inherited content.
    """
    owners = await db.fetch(queries.get_owner_of, {"thread_id": thread_id})
    owner = owners[0][0] if owners else None
    members, others = [thread_id], dict[tuple[str, str], None]()
    for source in members:
        for heir, user_id in await db.fetch(queries.list_heirs, {"thread_id": source}):
            if user_id is None or user_id == owner:
                if heir not in members:
                    members.append(heir)
            else:
                others[heir, source] = None
    return members[::-1], [*others]


async def _refuse_new_heirs(db: Connection, queries: Queries, thread_id: str, known: Collection[str]) -> None:
    """Block forks and copies of a thread until the transaction ends. Raise an error if one is not in `known`."""
    await db.fetch(queries.lock_thread_for_update, {"thread_id": thread_id})
    if any(row[0] not in known for row in await db.fetch(queries.list_heirs, {"thread_id": thread_id})):
        raise _NewHeirError


async def _erase_thread(
    db: Connection, queries: Queries, erasure_id: str | None, thread_id: str, known: Collection[str]
) -> Counts:
    key = {"thread_id": thread_id}
    await _refuse_new_heirs(db, queries, thread_id, known)
    await db.fetch(queries.get_owner, key)
    await refuse_held(db, queries, thread_id)
    counts: Counts = Counter(dict(await db.fetch(queries.count_thread_rows, key)))
    counts += await _erase_memories(db, queries, "erase_memories_of_thread", {**key, "message_id": None})
    counts["memory_versions"] += await db.execute(queries.erase_memory_versions_of_thread, {**key, "message_id": None})
    await db.execute(queries.erase_thread_events, key)
    await delete_thread(db, queries, thread_id, why=f"erased {erasure_id}")
    await db.execute(queries.erase_thread_rest, key)
    return counts


async def _erase_memories(db: Connection, queries: Queries, query: str, parameters: Mapping[str, Any]) -> Counts:
    """Delete memories with their embeddings."""
    rows = await db.fetch(getattr(queries, query), parameters)
    counts: Counts = Counter(memories=len(rows))
    if rows:
        named = {"namespaces": [literal(tuple(row[0])) for row in rows], "keys": [row[1] for row in rows]}
        for index in await stored_indexes(db, queries):
            counts["memory_vectors"] += await db.execute(index.query("delete_vectors"), named)
    return counts


async def _redact_heir(
    db: Connection, queries: Queries, erasure_id: str | None, codec: ValueCodec, thread_id: str, source_id: str
) -> Counts:
    """Redact content that a thread of another user has inherited: messages, results of tools, and answers."""
    _need_native(codec)
    await lock_unused(db, queries, thread_id)
    ids = frozenset(await find_message_ids(db, queries, source_id))
    texts = all_texts((await find_versions(db, queries, source_id, ids)).fields)
    owners = await db.fetch(queries.get_owner_of, {"thread_id": source_id})
    names = frozenset(row[0] for row in owners if row[0])
    counts = await redact_thread(db, queries, thread_id, Redaction(ids, texts, names))
    cleared = {"thread_id": thread_id, "run_ids": [], "inherited": True}
    counts["tool_executions"] += await db.execute(queries.clear_executions, cleared)
    await db.execute(queries.clear_inherited, {"thread_id": thread_id, "source_id": source_id})
    return _as_redacted(counts)


async def _clear_user(
    db: Connection,
    queries: Queries,
    erasure_id: str | None,
    codec: ValueCodec,
    thread_id: str,
    user_id: str,
    known: Collection[str],
) -> Counts:
    """Redact the content of a user's runs in another user's thread: messages, inputs and outputs."""
    _need_native(codec)
    await _refuse_new_heirs(db, queries, thread_id, known)
    await refuse_held(db, queries, thread_id)
    key = {"thread_id": thread_id, "user_id": user_id}
    # End the user's pending or running run of this thread first, so that late writes of a worker are refused.
    mine = [row[0] for row in await db.fetch(queries.list_messages_of_user, key)]
    requests = await db.execute(queries.delete_queued, {"thread_id": thread_id, "run_ids": mine})
    await lock_unused(db, queries, thread_id)
    what, run_ids = await _said_in_runs(db, queries, thread_id, user_id)
    counts = await redact_thread(db, queries, thread_id, what)
    counts += await clear_runs(db, queries, thread_id, run_ids)
    counts["run_requests"] += requests
    return _as_redacted(counts)


async def _clear_inherited_runs(
    db: Connection,
    queries: Queries,
    erasure_id: str | None,
    codec: ValueCodec,
    thread_id: str,
    source_id: str,
    user_id: str,
) -> Counts:
    """Redact what a fork or copy has inherited from a user's runs of its source: messages, and results of tools."""
    _need_native(codec)
    await lock_unused(db, queries, thread_id)
    await journal.write(db, queries, [source_id])
    what, run_ids = await _said_in_runs(db, queries, source_id, user_id)
    counts = await redact_thread(db, queries, thread_id, what)
    cleared = {"thread_id": thread_id, "run_ids": run_ids, "inherited": False}
    counts["tool_executions"] += await db.execute(queries.clear_executions, cleared)
    return _as_redacted(counts)


async def _said_in_runs(db: Connection, queries: Queries, thread_id: str, user_id: str) -> tuple[Redaction, list[str]]:
    """Return what to redact of a user's runs of a thread, and the ids of these runs."""
    rows = await db.fetch(queries.list_messages_of_user, {"thread_id": thread_id, "user_id": user_id})
    ids = frozenset(id for _, message_ids, _ in rows for id in message_ids)
    # The state has the answers to interrupts with which a run was resumed, as pending writes and in messages.
    answers = [{"content": given["resume"]} for _, _, given in rows if isinstance(given, dict) and "resume" in given]
    texts = all_texts([*(await find_versions(db, queries, thread_id, ids)).fields, *answers])
    return Redaction(ids, texts, frozenset({user_id})), [row[0] for row in rows]


async def _redact(
    db: Connection,
    queries: Queries,
    erasure_id: str | None,
    thread_id: str,
    what: Redaction,
    message_id: str,
    known: Collection[str] | None = None,
) -> Counts:
    """Redact a message in a thread. If `known` is given, check that it has all forks and copies of the thread."""
    if known is not None:
        await _refuse_new_heirs(db, queries, thread_id, known)
    await lock_unused(db, queries, thread_id)
    counts = _as_redacted(await redact_thread(db, queries, thread_id, what))
    key = {"thread_id": thread_id, "message_id": message_id}
    counts += await _erase_memories(db, queries, "erase_memories_of_thread", key)
    counts["memory_versions"] += await db.execute(queries.erase_memory_versions_of_thread, key)
    return counts


def _as_redacted(counts: Counts) -> Counts:
    deleted = ("stream_batches", "run_requests")
    return Counter({table if table in deleted else f"{table} redacted": count for table, count in counts.items()})


async def _forget_actor(
    db: Connection, queries: Queries, erasure_id: str | None, thread_id: str, event_ids: Sequence[str], user_id: str
) -> Counts:
    given = {"thread_id": thread_id, "event_ids": list(event_ids), "user_id": user_id}
    return await _redact_events(db, queries, queries.erase_events_by_user, given)


async def _forget_fork(
    db: Connection, queries: Queries, erasure_id: str | None, thread_id: str, other_id: str
) -> Counts:
    """Remove the id of another thread from a thread's events about forks."""
    named = {"thread_id": thread_id, "other_id": other_id}
    event_ids = [row[0] for row in await db.fetch(queries.list_fork_events, named)]
    if not event_ids:
        return Counter()
    return await _redact_events(db, queries, queries.erase_fork_events, {**named, "event_ids": event_ids})


async def _redact_events(db: Connection, queries: Queries, query: NamedQuery, given: Mapping[str, Any]) -> Counts:
    """Redact the events `event_ids` of the thread `thread_id` by a statement, and chain them again."""
    thread_id, event_ids = given["thread_id"], given["event_ids"]
    await refuse_held(db, queries, thread_id)
    await release_events(db, queries, thread_id, event_ids, WHY)
    count = await db.execute(query, given)
    await chain(db, queries, [(thread_id, event_id) for event_id in event_ids])
    return Counter({"events redacted": count})


async def data_keys_of(db: Connection, queries: Queries, user_id: str) -> list[str]:
    """Return the ids of a user's data keys. One round trip.

    Raises:
        ConfigurationError: If the user has data keys, and this program has no keys to encrypt other users' content
            again.
    """
    rows = await db.fetch(queries.list_data_keys_of_user, {"user_id": user_id})
    if rows and db.keys is None:
        raise ConfigurationError(
            f"user {user_id!r} has data keys: erase the user from a state with encryption=, because other users' "
            "content under these keys must be encrypted under other keys before the user's keys are destroyed"
        )
    return [row[0] for row in rows]


async def _forget_owners(db: Connection) -> None:
    """Forget the owners of threads, because this process may remember the user as owner of another user's thread."""
    if db.keys is not None:
        db.keys.forget_threads()


async def _reseal(
    db: Connection, queries: Queries, table: str, cursor: tuple[Any, ...] | None, key_ids: frozenset[str | None]
) -> Reached:
    return await reseal_page(db, queries.schema, table, cursor, key_ids)


async def _destroy_keys(db: Connection, queries: Queries, erasure_id: str | None, user_id: str) -> Counts:
    return Counter({"data_keys destroyed": await db.execute(queries.destroy_data_keys_of_user, {"user_id": user_id})})


async def _erase_rows(db: Connection, queries: Queries, erasure_id: str | None, user_id: str) -> Counts:
    """Delete a user's rows outside of threads, and the user's name in records of actions."""
    key = label_of(user_id)
    counts = await _erase_memories(db, queries, "erase_memories_of_user", key)
    for table, names in BY_USER.items():
        for name in names:
            is_redacted = name in _REDACTED
            counts[f"{table} redacted" if is_redacted else table] += await db.execute(getattr(queries, name), key)
    return counts
