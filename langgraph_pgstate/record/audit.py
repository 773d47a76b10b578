"""The audit of events: verification and export of their chains.

In the chain of a thread, the hash of each entry is computed from the entry before it and from one event.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from langgraph_pgstate.arguments import identifier, thread_id_of
from langgraph_pgstate.checkpoints import event_chains
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Row
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.events import note_action
from langgraph_pgstate.record.types import AuditReport, Problem
from langgraph_pgstate.schema.queries import Queries, snapshot

_PAGE: Final = 200
_MOST_INSERTED: Final = 100
_DIGITS: Final = "0123456789abcdef"


class _Entry(NamedTuple):
    """An entry of a chain, with its event as it is stored now.

    When an event is deleted or redacted, its entry is released: the entry loses its salt, and `is_sealed` is false. The
    digest of the event cannot be computed again.
    """

    number: int
    event_id: str
    is_sealed: bool
    digest: bytes
    hash: bytes
    digest_now: bytes | None
    is_there: bool
    created_at: Any
    kind: str | None
    run_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    agent: str | None
    payload: Mapping[str, Any] | None


async def list_threads(db: Connection, queries: Queries, after: str) -> list[str]:
    """Return the next page of threads that have events or a chain."""
    rows = await db.fetch(queries.list_audited_threads, {"cursor_id": after, "page_size": _PAGE})
    return [row[0] for row in rows]


async def require_chaining(db: Connection, queries: Queries) -> None:
    """Raise a `ConfigurationError` if events are not chained."""
    if not (await db.fetch(queries.has_chaining, {}))[0][0]:
        raise ConfigurationError(
            f"events of schema {queries.schema!r} are not chained: call setup(audit=True), or `pgstate setup --audit`"
        )


async def verify_thread(db: Connection, queries: Queries, thread_id: str) -> AuditReport:
    """Verify a thread's chain, page by page in one snapshot. Writes nothing.

    The events of an archived thread are in its archive. So only the hashes of its chain are verified.
    """
    key = {"thread_id": thread_id}
    async with db.transaction():
        await db.script(snapshot())
        chains = await db.fetch(queries.get_chain, key)
        is_archived = bool(await db.fetch(queries.get_archive_of, key))
        check = _Check(thread_id, chains[0] if chains else None, is_archived)
        while True:
            cursor = {"cursor_number": check.number, "page_size": _PAGE}
            rows = await db.fetch(queries.read_chain, {**key, **cursor})
            for row in rows:
                check.read(_Entry(*row))
            if len(rows) < _PAGE:
                break
        check.end()
        for event_id, _, is_late in await db.fetch(queries.list_unchained_later, {**key, "page_size": _MOST_INSERTED}):
            if is_late:
                check.problem(f"event {event_id}", "it is in no chain: another program inserted it")
            else:
                check.report.before += 1
    return check.report


@dataclass(slots=True)
class _Check:
    """The verification of one chain, from its first entry to its last."""

    thread_id: str
    chain: Row | None
    is_archived: bool = False
    number: int = 0
    hash: bytes = b""
    report: AuditReport = field(default_factory=lambda: AuditReport(threads=1))
    _released: set[int] = field(default_factory=set)
    _explained: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.chain is not None:
            self.hash = hashlib.sha256(str(self.chain[0]).encode()).digest()

    def read(self, entry: _Entry) -> None:
        """Compare the next entry with the entry before it, and with its own event as it is stored now."""
        where = f"event {entry.event_id}, entry {entry.number}"
        if entry.number != self.number + 1:
            self.problem(where, f"{entry.number - self.number - 1} entries before it were removed")
        elif hashlib.sha256(self.hash + entry.digest).digest() != entry.hash:
            self.problem(where, "it does not follow from the entry before it: one of the two was changed or moved")
        self.number, self.hash = entry.number, entry.hash
        self.report.events += 1
        if not entry.is_sealed:
            self._released.add(entry.number)
        elif not entry.is_there:
            if not self.is_archived:
                self.problem(where, "the event was removed")
        elif entry.digest_now != entry.digest:
            self.problem(where, "the event was changed")
        elif entry.kind == event_chains.KIND and entry.payload is not None:
            self._explained += [(first, last) for first, last in entry.payload.get("entries", ())]

    def end(self) -> None:
        """Compare the last entry with the chain's head. Report released entries that no event of the chain explains."""
        if self.chain is None:
            if self.number:
                self.problem("the chain", "its head was removed")
        elif self.chain[1] > self.number:
            self.problem("the chain", f"its last {self.chain[1] - self.number} entries were removed")
        elif self.chain[1] < self.number or self.chain[2] != self.hash:
            self.problem("the chain", "its head was changed")
        for first, last in self._explained:
            gone = self._released.intersection(range(first, last + 1))
            self.report.explained += len(gone)
            self._released -= gone
        for number in sorted(self._released if not self.is_archived else ()):
            self.problem(f"entry {number}", "its event was removed or changed, and no event says why")

    def problem(self, where: str, why: str) -> None:
        self.report.problems.append(Problem(self.thread_id, where, why))


async def export_page(db: Connection, queries: Queries, thread_id: str, after: int) -> tuple[list[bytes], int | None]:
    """Return a page of a thread's entries as JSON lines, and the `after` of the next page: `None` if there is none."""
    key = {"thread_id": thread_id}
    chains = await db.fetch(queries.get_chain, key)
    rows = await db.fetch(queries.read_chain, {**key, "cursor_number": after, "page_size": _PAGE})
    if not chains or not rows:
        return [], None
    lines = [_line(thread_id, chains[0][0], _Entry(*row)) for row in rows]
    return lines, rows[-1][0] if len(rows) == _PAGE else None


def _line(thread_id: str, chain_id: str, entry: _Entry) -> bytes:
    given = {
        "thread_id": thread_id,
        "chain_id": chain_id,
        "number": entry.number,
        "hash": entry.hash.hex(),
        "digest": entry.digest.hex(),
        "event_id": entry.event_id,
    }
    if entry.is_there and entry.is_sealed:
        names = ("created_at", "kind", "run_id", "checkpoint_ns", "checkpoint_id", "agent", "payload")
        given |= {name: getattr(entry, name) for name in names}
    return orjson.dumps(given)


async def compare_exported(db: Connection, queries: Queries, lines: Iterable[bytes | str]) -> AuditReport:
    """Compare exported entries with the chains as they are now. One statement."""
    given = [_exported(line) for line in lines]
    report = AuditReport()
    if not given:
        return report
    columns = {
        "places": [*range(len(given))],
        "thread_ids": [one["thread_id"] for one in given],
        "chain_ids": [one["chain_id"] for one in given],
        "numbers": [one["number"] for one in given],
    }
    for place, now, last, last_hash, _ in await db.fetch(queries.find_exported, columns):
        one = given[place]
        report.events += 1
        where = f"exported entry {one['number']}"
        if now is not None:
            if now.hex() != one["hash"]:
                report.problems.append(Problem(one["thread_id"], where, "its hash differs: the chain was rewritten"))
        elif last is None:
            report.problems.append(Problem(one["thread_id"], where, "it was removed"))
        elif one["number"] > last or (one["number"] == last and last_hash.hex() != one["hash"]):
            report.problems.append(Problem(one["thread_id"], where, "the chain has ended before it"))
        else:
            report.ended += 1
    return report


def _exported(line: bytes | str) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
        number, hash = found["number"], found["hash"]
        if type(number) is not int or len(hash) != 64 or not {*hash} <= {*_DIGITS}:
            raise ValueError(number)
        return {**found, "thread_id": thread_id_of(found["thread_id"]), "chain_id": identifier("id", found["chain_id"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"exported must be lines that `export` returned, got {line[:80]!r}") from error


async def adopt_thread(db: Connection, queries: Queries, thread_id: str, by: str) -> int:
    """Append the events that a thread's chain lacks, and record who did so. One transaction."""
    async with db.transaction():
        await db.execute(queries.open_chains, {"thread_ids": [thread_id]})
        count = await event_chains.adopt(db, queries, thread_id)
        if count:
            await note_action(db, queries, "adopt events", by, thread_id, details={"events": count})
    return count


class AsyncAudit:
    """The audit of events, `state.audit`. Hashes in chains show which events were removed, changed or inserted."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def verify(self, thread_id: str | None = None, *, exported: Iterable[bytes | str] = ()) -> AuditReport:
        """Verify chains of events. Report removed and changed events, and events that another program inserted.

        A role that may write to the tables can rewrite a whole chain. Only a comparison with an earlier export shows
        that. Each thread is read in one snapshot. Nothing is written.

        Args:
            thread_id: Only this thread.
            exported: Lines of an earlier `export`. Lines that are no longer in the chains are reported.

        Raises:
            ConfigurationError: If events are not chained, or a line is not from an export.
        """
        run, report, after = self._database.run, AuditReport(), ""
        await run(require_chaining, self._queries)
        given = None if thread_id is None else [thread_id_of(thread_id)]
        while ids := await run(list_threads, self._queries, after) if given is None else given:
            for id in ids:
                report += await run(verify_thread, self._queries, id)
            if given is not None:
                break
            after = ids[-1]
        lines = iter(exported)
        while portion := [*islice(lines, _PAGE)]:
            compared = await run(compare_exported, self._queries, portion)
            report.ended += compared.ended
            report.problems += compared.problems
        return report

    async def adopt(self, by: str, thread_id: str | None = None) -> int:
        """Append all events that are in no chain to the chains of their threads. Return the number of these events.

        Use this method for events that were stored before `setup(audit=True)`.

        Args:
            by: Name of the person who declares the events genuine. The name is recorded in an event of each thread.
            thread_id: Only this thread.

        Raises:
            ConfigurationError: If events are not chained.
        """
        run, count, after = self._database.run, 0, ""
        await run(require_chaining, self._queries)
        given = None if thread_id is None else [thread_id_of(thread_id)]
        while ids := await run(list_threads, self._queries, after) if given is None else given:
            for id in ids:
                count += await run(adopt_thread, self._queries, id, identifier("by", by))
            if given is not None:
                break
            after = ids[-1]
        return count

    async def export(self, thread_id: str | None = None) -> AsyncIterator[bytes]:
        """Return the entries of the chains, with their events, as JSON lines, page by page.

        Args:
            thread_id: Only this thread.
        """
        run, after = self._database.run, ""
        await run(require_chaining, self._queries)
        given = None if thread_id is None else [thread_id_of(thread_id)]
        while ids := await run(list_threads, self._queries, after) if given is None else given:
            for id in ids:
                number: int | None = 0
                while number is not None:
                    lines, number = await run(export_page, self._queries, id, number)
                    for line in lines:
                        yield line
            if given is not None:
                break
            after = ids[-1]


class Audit:
    """Blocking twin of `AsyncAudit`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    verify = blocking(AsyncAudit.verify)
    adopt = blocking(AsyncAudit.adopt)

    def export(self, thread_id: str | None = None) -> Iterator[bytes]:
        """Blocking twin of `AsyncAudit.export`."""
        run, after = self._database.database.run, ""
        run(require_chaining, self._queries)
        given = None if thread_id is None else [thread_id_of(thread_id)]
        while ids := run(list_threads, self._queries, after) if given is None else given:
            for id in ids:
                number: int | None = 0
                while number is not None:
                    lines, number = run(export_page, self._queries, id, number)
                    yield from lines
            if given is not None:
                break
            after = ids[-1]
