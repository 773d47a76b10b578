"""Policies of how long threads are kept, as rows, and their application in small batches.

A policy selects threads by agent, tenant, user, status and metadata, and has ages at which contents of spans, messages
and runs are removed, checkpoints are pruned, and threads are archived or deleted. A transaction changes one thread, or
archives a few threads together, so that no put waits long. Only idle threads are archived or deleted. Before a thread
is deleted, its copies in archives are deleted. If this fails, the thread stays.

To remove contents and checkpoints, a policy visits all threads once. Later, it visits only threads in which something
may have reached its age since the last visit. After an error, it visits the same threads again. After the end of a
hold, and after a restore, it visits all threads again. The row of the policy has the last visited thread, so that
another process can continue.

The policy `ttl` stands for threads with a time to live (`threads.set_ttl`, `thread_ttl=`, `checkpointer.ttl` of a
`langgraph.json`). It has no row: the row of each thread has the time, and whether to delete or prune the thread then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from langgraph_pgstate.arguments import identifier, json_of, text_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.db.translate import is_of_one_row
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import ArchiveError, ConfigurationError, StalePolicyError, TenantError, ThreadHeldError
from langgraph_pgstate.keep import archiving, deleting
from langgraph_pgstate.keep.objects import check_url, open_objects
from langgraph_pgstate.keep.tables import list_tables
from langgraph_pgstate.keep.types import TTL, Policy, PolicyFields, PolicyReport
from langgraph_pgstate.options import check_lasting, check_ttl
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads import expiry
from langgraph_pgstate.threads.holds import is_kept
from langgraph_pgstate.threads.prune import prune_thread, request_prune
from langgraph_pgstate.threads.search import STATUSES

_PAGE: Final = 50
# Number of threads that a batch deletes. Each thread is deleted in a transaction of its own.
_EXPIRED: Final = 10
# Maximum number of problems that a policy's row names.
_PROBLEMS: Final = 3
_AGES: Final = ("content_after", "prune_after", "archive_after", "delete_after")
_SELECTORS: Final = ("agent", "tenant_id", "user_id", "status")
_log = logging.getLogger("langgraph_pgstate.keep")


def request_policy(name: str, fields: PolicyFields) -> dict[str, Any]:
    """Validate the fields of a policy, and return its row."""
    given: dict[str, Any] = {**fields}
    if not identifier("name", name):
        raise ConfigurationError("name of a policy must not be empty")
    if name == TTL:
        raise ConfigurationError(f"name must not be {TTL!r}: threads.set_ttl sets the time to live of a thread")
    found: dict[str, Any] = {"name": name, "metadata": json_of("metadata", given.get("metadata") or None)}
    for key in _SELECTORS:
        found[key] = text_of(key, given.get(key))
    if found["status"] is not None and found["status"] not in STATUSES:
        raise ConfigurationError(f"status must be one of {', '.join(STATUSES)}, got {found['status']!r}")
    for key in _AGES:
        found[key] = None if given.get(key) is None else check_ttl(key, given[key])
    if all(found[key] is None for key in _AGES):
        raise ConfigurationError(f"policy {name!r} must have at least one of {', '.join(_AGES)}")
    to = given.get("archive_to")
    if (to is None) != (found["archive_after"] is None):
        raise ConfigurationError("archive_after and archive_to (the URL of the archive) must be given together")
    found["archive_to"] = None if to is None else check_lasting(check_url(to))
    keep_last = given.get("keep_last", 1)
    if type(keep_last) is not int or keep_last < 1:
        raise ConfigurationError(f"keep_last must be at least 1 checkpoint, got {keep_last!r}")
    found["keep_last"] = keep_last
    archive_after, delete_after = found["archive_after"], found["delete_after"]
    if archive_after is not None and delete_after is not None and delete_after <= archive_after:
        raise ConfigurationError("delete_after must be longer than archive_after; otherwise nothing would be archived")
    return found


async def put_policy(
    db: Connection, queries: Queries, row: dict[str, Any], by: str | None = None, expected: int | None = None
) -> None:
    """Store a policy. One transaction; safe to repeat.

    Raises:
        StalePolicyError: If the policy does not have the expected version; 0 stands for no policy. A stored policy that
            equals the new one is no error, because an earlier attempt may have stored it.
    """
    async with db.transaction():
        row = await _with_stored(db, queries, row)
        found = await _version(db, queries, row["name"])
        is_expected = expected in (None, found)
        # Another transaction may store a new policy after the version was read.
        if not is_expected or not await db.execute(queries.put_policy, {**row, "expected": expected}):
            sealed = row if db.keys is None else _sealed(db.keys, queries, row)
            if any(_is_stored(one, sealed) for one in await list_policies(db, queries)):
                return
            raise StalePolicyError(row["name"], expected or 0, await _version(db, queries, row["name"]))
        if by is not None:
            await note_action(db, queries, "policy", by, place_of(row["name"]))


def place_of(name: str) -> str:
    """Return the id under which the events of a policy are stored, in place of a thread id."""
    return f"policy:{name}"


async def _with_stored(db: Connection, queries: Queries, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its metadata in two parts: digests from a stored policy in `stored`, the rest in `metadata`.

    With encryption, stored metadata are digests. A caller may read a policy and put it back, but a digest must not be
    digested again.
    """
    if db.keys is None or row["metadata"] is None:
        return {**row, "stored": "{}"}
    given: dict[str, Any] = json.loads(row["metadata"])
    known = [one.metadata or {} for one in await list_policies(db, queries)]
    stored = {
        key: value
        for key, value in given.items()
        if db.keys.is_searchable(key) and any(key in one and one[key] == value for one in known)
    }
    rest = {key: value for key, value in given.items() if key not in stored}
    return {**row, "metadata": json.dumps(rest), "stored": json.dumps(stored)}


def _sealed(keys: KeyRing, queries: Queries, row: dict[str, Any]) -> Mapping[str, Any]:
    """Return a row as it is stored, with digests."""
    contents = queries.put_policy.contents
    return row if contents is None else contents.seal(keys, row)


def _is_stored(policy: Policy, row: Mapping[str, Any]) -> bool:
    metadata = None if row["metadata"] is None else json.loads(row["metadata"]) | json.loads(row["stored"])
    columns = {key: value for key, value in row.items() if key != "stored"}
    return all(getattr(policy, key) == value for key, value in {**columns, "metadata": metadata}.items())


async def _version(db: Connection, queries: Queries, name: str) -> int:
    """Return the version of a policy, 0 if there is none, and lock its row until the transaction ends."""
    rows = await db.fetch(queries.lock_policy, {"name": name})
    return int(rows[0][0]) if rows else 0


async def list_policies(db: Connection, queries: Queries) -> list[Policy]:
    """Return all policies by name. One round trip."""
    return [Policy(*row) for row in await db.fetch(queries.list_policies, {})]


async def delete_policy(
    db: Connection, queries: Queries, name: str, by: str | None = None, expected: int | None = None
) -> bool:
    """Delete a policy, and return whether there was one. One transaction; safe to repeat.

    Raises:
        StalePolicyError: If the policy has another version than the expected one.
    """
    async with db.transaction():
        found = await _version(db, queries, name)
        if expected not in (None, found):
            raise StalePolicyError(name, expected, found)
        is_deleted = await db.execute(queries.delete_policy, {"name": name}) > 0
        if is_deleted and by is not None:
            await note_action(db, queries, "delete", by, place_of(name))
    return is_deleted


async def list_idle(
    db: Connection, queries: Queries, name: str, after: timedelta, cursor: str, *, with_archived: bool = False
) -> list[tuple[str, bool, bool, bool]]:
    """Return the next threads that were not active for a time. One round trip.

    Each row has the thread's id, and whether the thread is archived, is held, and has copies in archives.
    """
    parameters = {"name": name, "after": after, "cursor_id": cursor, "with_archived": with_archived, "page_size": _PAGE}
    return [(row[0], row[1], row[2], row[3]) for row in await db.fetch(queries.list_idle_threads, parameters)]


async def list_aging(
    db: Connection, queries: Queries, policy: Policy, cursor: str, pause: timedelta | None
) -> list[tuple[str, bool]]:
    """Return the next threads in which something may have reached its age, and whether they are held.

    With a pause, the position in the policy's row decides which threads are next. A new visit of all threads begins
    when the pause has passed. Without a pause, as in a dry run, `cursor` decides, and nothing is written.
    """
    ages = [age for age in (policy.content_after, policy.prune_after) if age is not None]
    if pause is not None:
        await db.execute(queries.begin_visits, {"name": policy.name, "pause": pause})
    parameters = {
        "name": policy.name,
        "after": min(ages),
        "longest": max(ages),
        "cursor_id": cursor,
        "from_start": pause is None,
        "page_size": _PAGE,
    }
    return [(row[0], row[1]) for row in await db.fetch(queries.list_aging_threads, parameters)]


async def note_visit(db: Connection, queries: Queries, name: str, cursor: str, has_left: bool) -> None:
    """Store the position of a policy, and whether threads were left because of an error. One statement.

    An empty cursor says that the policy has visited all threads.
    """
    await db.execute(queries.note_visit, {"name": name, "cursor_id": cursor, "has_left": has_left})


async def age_thread(
    db: Connection, queries: Queries, policy: Policy, thread_id: str, *, dry_run: bool
) -> PolicyReport:
    """Remove old contents of a thread, and prune old checkpoints. Two transactions; safe to repeat."""
    report = PolicyReport(policy.name)
    if policy.content_after is not None:
        async with db.transaction():
            await db.fetch(queries.keep_labels, {"thread_id": thread_id})
            if await is_kept(db, queries, thread_id, "contents are not removed"):
                return replace(report, held=(thread_id,))
            parameters = {"thread_id": thread_id, "after": policy.content_after, "dry_run": dry_run}
            rows, size = (await db.fetch(queries.forget_content, parameters))[0]
        report += PolicyReport(policy.name, contents=rows, bytes=size)
    if policy.prune_after is not None:
        request = request_prune([thread_id], "keep_latest", policy.keep_last, policy.prune_after, dry_run)
        pruned = await prune_thread(db, queries, request, thread_id)
        report += PolicyReport(policy.name, checkpoints=pruned.checkpoints, bytes=pruned.bytes, held=pruned.held)
    return report


async def apply_policy(
    runner: Runner,
    queries: Queries,
    policy: Policy,
    *,
    tenant: str | None,
    dry_run: bool,
    goes_on: Callable[[], bool],
    pause: timedelta,
) -> PolicyReport:
    """Apply one policy to all threads, or until the time ends. Safe to repeat, to stop, and to run concurrently.

    `goes_on` returns whether there is time for another batch. After `pause`, the policy visits all threads again.
    """
    report = PolicyReport(policy.name, dry_run=dry_run)
    if policy.name == TTL:
        return await _expire(runner, queries, tenant, dry_run, goes_on)
    if policy.delete_after is not None:
        report += await _delete(runner, queries, policy, policy.delete_after, tenant, dry_run, goes_on)
    if policy.archive_after is not None:
        report += await _archive(runner, queries, policy, policy.archive_after, tenant, dry_run, goes_on)
    if policy.content_after is not None or policy.prune_after is not None:
        report += await _age(runner, queries, policy, dry_run, goes_on, pause)
    if not dry_run and (report.is_whole or report.problems):
        await runner.run(note_applied, queries, policy, report)
    return report


async def _expire(
    runner: Runner, queries: Queries, tenant: str | None, dry_run: bool, goes_on: Callable[[], bool]
) -> PolicyReport:
    held = tuple(await runner.run(expiry.list_held, queries))
    report = PolicyReport(TTL, held=held, dry_run=dry_run)
    after = None
    while not dry_run and goes_on():
        page = await runner.run(expiry.list_copied, queries, after, _EXPIRED)
        for _, thread_id in page:
            report += await _delete_copies(runner, queries, TTL, thread_id, tenant)
        if len(page) < _EXPIRED:
            break
        after = page[-1]
    limit, is_copied = (None, None) if dry_run else (_EXPIRED, False)
    while goes_on():
        deleted, pruned = await runner.run(expiry.sweep_each, queries, limit, dry_run=dry_run, is_copied=is_copied)
        size = deleted.bytes + pruned.bytes
        report += PolicyReport(TTL, checkpoints=pruned.checkpoints, deleted=deleted.threads, bytes=size)
        if dry_run or deleted.threads + pruned.threads < _EXPIRED:
            break
    else:
        report += PolicyReport(TTL, is_whole=False)
    return report


async def note_applied(db: Connection, queries: Queries, policy: Policy, report: PolicyReport) -> None:
    """Store that a policy was applied to all threads, or why threads were left. One statement."""
    more = "" if len(report.problems) <= _PROBLEMS else f"; and {len(report.problems) - _PROBLEMS} more"
    told = "; ".join(report.problems[:_PROBLEMS]) + more
    query = queries.note_applied if report.is_whole else queries.note_last_error
    await db.execute(query, {"name": policy.name, "version": policy.version, "last_error": told or None})


async def _delete(
    runner: Runner,
    queries: Queries,
    policy: Policy,
    after: timedelta,
    tenant: str | None,
    dry_run: bool,
    goes_on: Callable[[], bool],
) -> PolicyReport:
    report, cursor = PolicyReport(policy.name, dry_run=dry_run), ""
    tables = await runner.run(list_tables, queries)
    while goes_on():
        page = await runner.run(list_idle, queries, policy.name, after, cursor, with_archived=True)
        report += PolicyReport(policy.name, held=tuple(id for id, _, is_held, _ in page if is_held))
        going = [(id, is_archived, is_copied) for id, is_archived, is_held, is_copied in page if not is_held]
        if dry_run:
            here = [id for id, is_archived, _ in going if not is_archived]
            _, sizes = await runner.run(archiving.inspect, queries, tables, here, timedelta(0))
            size = sum(one for _, one in sizes.values())
            report += PolicyReport(policy.name, deleted=len(going), bytes=size)
        for number, (thread_id, is_archived, is_copied) in enumerate(going if not dry_run else ()):
            if not number % _EXPIRED and not goes_on():
                return report + PolicyReport(policy.name, is_whole=False)
            if is_copied:
                report += await _delete_copies(runner, queries, policy.name, thread_id, tenant)
            if is_archived:
                continue
            try:
                gone = await runner.run(expiry.end_expired, queries, thread_id, (policy.name, after))
            except Exception as error:
                if not is_of_one_row(error):
                    raise
                _log.error("policy %r cannot delete thread %r: %s", policy.name, thread_id, error)
                report += PolicyReport(policy.name, problems=("some threads cannot be deleted; the log names them",))
                continue
            report += PolicyReport(policy.name, deleted=gone.threads, bytes=gone.bytes)
        if len(page) < _PAGE:
            break
        cursor = page[-1][0]
    else:
        report += PolicyReport(policy.name, is_whole=False)
    return report


async def _delete_copies(
    runner: Runner, queries: Queries, policy: str, thread_id: str, tenant: str | None
) -> PolicyReport:
    """Delete a thread from all archives, and its stub. If a copy cannot be deleted, the report says why."""
    report = PolicyReport(policy)
    try:
        async for copies in deleting.copies_of(runner, queries, deleting.Wanted([thread_id])):
            found = await deleting.delete_copies(runner, queries, copies, tenant, None)
            report += PolicyReport(policy, deleted=found.threads)
    except ThreadHeldError:
        report += PolicyReport(policy, held=(thread_id,))
    except (ArchiveError, ConfigurationError, TenantError) as error:
        _log.error("policy %r cannot delete archived thread %r: %s", policy, thread_id, error)
        report += PolicyReport(policy, problems=(f"cannot delete archived threads: {error}",))
    return report


async def _archive(
    runner: Runner,
    queries: Queries,
    policy: Policy,
    after: timedelta,
    tenant: str | None,
    dry_run: bool,
    goes_on: Callable[[], bool],
) -> PolicyReport:
    report, cursor = PolicyReport(policy.name, dry_run=dry_run), ""
    try:
        objects = open_objects(str(policy.archive_to))
    except ConfigurationError as error:
        return report + _cannot_archive(policy, error)
    while goes_on():
        page = await runner.run(list_idle, queries, policy.name, after, cursor)
        report += PolicyReport(policy.name, held=tuple(id for id, _, is_held, _ in page if is_held))
        ids = [id for id, _, is_held, _ in page if not is_held]
        if ids:
            try:
                done = await archiving.archive_threads(
                    runner, queries, objects, ids, tenant=tenant, idle_for=after, dry_run=dry_run
                )
            except ArchiveError as error:
                report += _cannot_archive(policy, error)
                break
            report += PolicyReport(policy.name, archived=done.threads, bytes=done.bytes)
        if len(page) < _PAGE:
            break
        cursor = page[-1][0]
    else:
        report += PolicyReport(policy.name, is_whole=False)
    return report


def _cannot_archive(policy: Policy, error: Exception) -> PolicyReport:
    """Log and report why a policy cannot archive."""
    _log.error("policy %r cannot archive: %s", policy.name, error)
    return PolicyReport(policy.name, is_whole=False, problems=(f"cannot archive: {error}",))


async def _age(
    runner: Runner, queries: Queries, policy: Policy, dry_run: bool, goes_on: Callable[[], bool], pause: timedelta
) -> PolicyReport:
    report, cursor = PolicyReport(policy.name, dry_run=dry_run), ""
    while goes_on():
        page = await runner.run(list_aging, queries, policy, cursor, None if dry_run else pause)
        done = ""
        for thread_id, is_held in page:
            if is_held:
                report += PolicyReport(policy.name, held=(thread_id,))
                continue
            if not goes_on():
                if not dry_run and done:
                    await runner.run(note_visit, queries, policy.name, done, bool(report.problems))
                return report + PolicyReport(policy.name, is_whole=False)
            done = thread_id
            try:
                report += await runner.run(age_thread, queries, policy, thread_id, dry_run=dry_run)
            except Exception as error:
                if not is_of_one_row(error):
                    raise
                _log.error("policy %r cannot be applied to thread %r: %s", policy.name, thread_id, error)
                report += PolicyReport(
                    policy.name, problems=("the policy cannot be applied to some threads; the log names them",)
                )
        cursor = page[-1][0] if len(page) == _PAGE else ""
        if not dry_run:
            await runner.run(note_visit, queries, policy.name, cursor, bool(report.problems))
        if not cursor:
            break
    else:
        report += PolicyReport(policy.name, is_whole=False)
    return report


async def apply_policies(
    runner: Runner,
    queries: Queries,
    *,
    dry_run: bool = False,
    names: Collection[str] | None = None,
    goes_on: Callable[[], bool] = lambda: True,
    pause: timedelta = timedelta(0),
) -> list[PolicyReport]:
    """Apply all policies, or some, one after the other. Return a report for each.

    With all policies, also delete the unfinished archives of dead processes.
    """
    if names is None and not dry_run:
        await deleting.sweep_unfinished(runner, queries, goes_on)
    found = [one for one in await runner.run(list_policies, queries) if names is None or one.name in names]
    return [
        await apply_policy(runner, queries, one, tenant=runner.tenant, dry_run=dry_run, goes_on=goes_on, pause=pause)
        for one in found
    ]
