"""Copying of threads between this package's tables and those of LangGraph's own saver, in portions, with verification.

`PGStateStore` and `LangGraphStore` implement `Store`. An import and an export differ in source and target only. Values
are copied as stored bytes.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from langgraph_pgstate.admin.types import TransferReport
from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.requests import concatenate
from langgraph_pgstate.codec.opaque import Encoded, is_same_value
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.schema.queries import snapshot

# A portion is one transaction, limited by the number of checkpoints and by the size of their values.
_PORTION_CHECKPOINTS: Final = 50
_PORTION_BYTES: Final = 8 * 1024 * 1024
THREAD_PAGE: Final = 500

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that is not in the checkpoint's row.

    Attributes:
        key: Key within the store. Equal keys in one namespace mean equal values.
        size: Bytes of the value, perhaps estimated.
    """

    key: Hashable
    size: int


@dataclass(slots=True)
class Record:
    """One checkpoint and its pending writes.

    Attributes:
        checkpoint_id: The checkpoint's id.
        exists: False if there are only pending writes, without a stored checkpoint.
        parent_id: The parent's id.
        head: LangGraph's checkpoint without `channel_values`; JSON types only.
        metadata: The metadata.
        inline: Values in the row; JSON types only.
        stored: Values outside the row.
        writes: `(task_path, channel, value)` of each pending write, by task and number.
    """

    checkpoint_id: str
    exists: bool = False
    parent_id: str | None = None
    head: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    inline: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    writes: dict[tuple[str, int], tuple[str, str, Encoded]] = field(default_factory=dict)

    def channels(self) -> set[str]:
        """The channels with a value."""
        return {*self.inline, *self.stored}


@dataclass(slots=True)
class Outline:
    """The keys of a thread's checkpoints and pending writes.

    Attributes:
        checkpoints: `(checkpoint_ns, checkpoint_id)` of each checkpoint.
        tasks: `((checkpoint_ns, checkpoint_id), task, number)` of each pending write. The number of a special channel
            is negative, like -1 for errors. Other channels have 0.
        sizes: Bytes of the pending writes, by checkpoint.
    """

    checkpoints: set[_Key] = field(default_factory=set)
    tasks: set[tuple[_Key, str, int]] = field(default_factory=set)
    sizes: dict[_Key, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Outline:
        """Return an outline from `(checkpoint_ns, checkpoint_id, task_id or None, idx, bytes)`."""
        outline = cls()
        for namespace, checkpoint_id, task_id, idx, size in rows:
            key = (namespace, checkpoint_id)
            if task_id is None:
                outline.checkpoints.add(key)
            else:
                outline.tasks.add((key, task_id, min(idx, 0)))
                outline.sizes[key] = outline.sizes.get(key, 0) + size
        return outline


class Store(Protocol):
    """Reader and writer of one thread in the tables of one saver: this package's or LangGraph's."""

    @property
    def db(self) -> Connection:
        """The connection."""
        ...

    async def outline(self) -> Outline:
        """Return the thread's keys."""
        ...

    async def records(self, namespace: str, ids: Sequence[str]) -> dict[str, Record]:
        """Return the records of checkpoint ids. An id without a checkpoint and pending writes is left out."""
        ...

    async def values(self, namespace: str, keys: Sequence[Hashable]) -> dict[Hashable, Encoded]:
        """Return some values. The caller limits the total size."""
        ...

    async def digests(self, namespace: str, stored: Sequence[Stored]) -> dict[Hashable, tuple[str, bytes]]:
        """Return type and SHA-256 of some values, in bounded memory."""
        ...

    def plain(self, value: Encoded) -> Any:
        """Return a decoded value that consists only of JSON's types.

        Raises:
            TypeError: If the value contains another type.
        """
        ...

    async def missing(self, namespace: str, records: Sequence[Record]) -> dict[str, list[str]]:
        """Return, by checkpoint, the channels whose values `write` needs, in the order of writing."""
        ...

    async def write(
        self, namespace: str, records: Sequence[Record], values: Mapping[Hashable, Encoded]
    ) -> list[tuple[str, str]]:
        """Store or replace checkpoints and pending writes. One transaction; safe to repeat.

        Returns:
            `(checkpoint_id, why)` of each checkpoint that cannot be stored.
        """
        ...


async def transfer_thread(
    source: Store, target: Store, thread_id: str, *, overwrite: bool, verify: bool
) -> TransferReport:
    """Copy the checkpoints and writes of a thread that the target lacks. Reads one snapshot of the source.

    Each portion is one transaction of the target. A repeated call continues. Memory holds the thread's keys and one
    portion. With `overwrite`, copy even if the thread was continued in the target. With `verify`, read every checkpoint
    from both sides afterwards and compare.

    Raises:
        ConflictError: If the target's rows change meanwhile. The call may be repeated.
    """
    report = TransferReport(threads=1)
    async with source.db.transaction():
        await source.db.script(snapshot())
        here, there = await source.outline(), await target.outline()
        if not overwrite and _went_on(there, here):
            if _has_news(here, there):
                report.conflicts.append(_conflict(thread_id, here, there))
            else:
                report.unchanged = len(here.checkpoints & there.checkpoints)
            return report
        copy = _Copy(source, target, thread_id, overwrite, report)
        for namespace, ids in _pages(here):
            found = await copy.page(namespace, ids)
            if verify:
                await copy.verify(namespace, found)
    return report


def _went_on(there: Outline, here: Outline) -> bool:
    """Return whether the thread was continued in the target, by later checkpoints or by other pending writes.

    Earlier checkpoints that only the target has do not count: they were copied before, and pruned from the source.
    """
    own = there.checkpoints - here.checkpoints
    newest = max((id for _, id in here.checkpoints & there.checkpoints), default="")
    return any(id > newest for _, id in own) or any(key not in own for key, _, _ in there.tasks - here.tasks)


def _has_news(here: Outline, there: Outline) -> bool:
    return bool(here.checkpoints - there.checkpoints or here.tasks - there.tasks)


def _conflict(thread_id: str, here: Outline, there: Outline) -> Problem:
    ids = sorted((id, namespace) for namespace, id in there.checkpoints - here.checkpoints)
    where = str(Address(thread_id, ids[-1][1], ids[-1][0])) if ids else "its pending writes"
    return Problem(
        thread_id,
        where,
        "the thread was continued on both sides: this exists only in the target, and "
        f"{len(here.checkpoints - there.checkpoints)} checkpoints only in the source; nothing was copied",
    )


def _pages(outline: Outline) -> Iterator[tuple[str, list[str]]]:
    """Return all checkpoints in pages of one namespace, parents first."""
    namespace = ""
    page: list[str] = []
    size = 0
    for key in sorted(outline.checkpoints | outline.sizes.keys()):
        added = outline.sizes.get(key, 0)
        if page and (key[0] != namespace or len(page) == _PORTION_CHECKPOINTS or size + added > _PORTION_BYTES):
            yield namespace, page
            page, size = [], 0
        namespace = key[0]
        page.append(key[1])
        size += added
    if page:
        yield namespace, page


class _Copy:
    """Copier of one thread from one store to another."""

    def __init__(self, source: Store, target: Store, thread_id: str, overwrite: bool, report: TransferReport) -> None:
        self._source, self._target, self._report = source, target, report
        self._thread_id, self._overwrite = thread_id, overwrite
        self._refused: set[_Key] = set()

    async def page(self, namespace: str, ids: Sequence[str]) -> dict[str, Record]:
        """Copy the checkpoints that are missing or different in the target. Return the source's checkpoints."""
        found = await self._source.records(namespace, ids)
        there = await self._target.records(namespace, ids)
        news, counts = [], dict[str, int]()
        for id in (id for id in ids if id in found):
            record, known = found[id], there.get(id) or Record(id)
            is_new = any(self._differences_of_checkpoint(record, known))
            self._report.unchanged += record.exists and not is_new
            written = sum(known.writes.get(key) != write for key, write in record.writes.items())
            counts[id] = written
            if is_new or written:
                writes = {**known.writes, **record.writes}
                news.append(replace(record, writes=writes) if is_new else Record(id, writes=writes))
        for records, keys in self._portions(news, await self._target.missing(namespace, news)):
            values = await self._source.values(namespace, keys)
            refused = await self._target.write(namespace, records, values)
            for checkpoint_id, why in refused:
                self._refused.add((namespace, checkpoint_id))
                self._differ(namespace, checkpoint_id, f"it cannot be stored there: {why}")
            stored = [record for record in records if (namespace, record.checkpoint_id) not in self._refused]
            self._report.checkpoints += sum(record.exists for record in stored)
            self._report.writes += sum(counts[record.checkpoint_id] for record in stored)
        return found

    def _portions(
        self, records: Sequence[Record], missing: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[list[Record], list[Hashable]]]:
        """Yield the records of each transaction, in order, and the keys of the values to write."""
        portion: list[Record] = []
        keys: dict[Hashable, None] = {}
        size = 0
        for record in records:
            stored = [record.stored[channel] for channel in missing.get(record.checkpoint_id, ())]
            added = sum(value.size for value in stored)
            if portion and size + added > _PORTION_BYTES:
                yield portion, list(keys)
                portion, keys, size = [], {}, 0
            portion.append(record)
            keys.update((value.key, None) for value in stored)
            size += added
        if portion:
            yield portion, list(keys)

    async def verify(self, namespace: str, found: Mapping[str, Record]) -> None:
        """Read some checkpoints from the target, and compare them with the source's."""
        there = await self._target.records(namespace, list(found))
        digests = await self._source.digests(namespace, _distinct(found.values()))
        others = await self._target.digests(namespace, _distinct(there.values()))
        for id, record in found.items():
            if (namespace, id) in self._refused:
                continue
            self._report.verified += record.exists
            known = there.get(id) or Record(id)
            for difference in self._differences(record, known):
                self._differ(namespace, id, difference)
            for channel in record.channels() & known.channels():
                first, second = record.stored.get(channel), known.stored.get(channel)
                if first is None and second is None:
                    continue
                if first and second and digests.get(first.key) == others.get(second.key) is not None:
                    continue
                if not await self._reads_the_same(namespace, channel, record, known):
                    self._differ(namespace, id, f"the value of channel {channel!r} differs")

    async def _reads_the_same(self, namespace: str, channel: str, record: Record, known: Record) -> bool:
        """Return whether two values are equal when they are decoded."""
        values = []
        for store, side in ((self._source, record), (self._target, known)):
            stored = side.stored.get(channel)
            found = (await store.values(namespace, [stored.key])).get(stored.key) if stored else side.inline[channel]
            values.append((store, found))
        (source, first), (target, second) = values
        if isinstance(first, Encoded) and isinstance(second, Encoded):
            return is_same_value(first, second)
        try:
            plain = [
                store.plain(value) if isinstance(value, Encoded) else value
                for store, value in ((source, first), (target, second))
            ]
        except TypeError:
            return False
        return _is_same_json(*plain)

    def _differences(self, record: Record, known: Record) -> Iterator[str]:
        """Return the differences between two records, except in values stored outside the row."""
        yield from self._differences_of_checkpoint(record, known)
        for write in record.writes.keys() | known.writes.keys():
            if self._overwrite and write not in record.writes:
                continue
            if record.writes.get(write) != known.writes.get(write):
                yield f"the pending write {write[1]} of task {write[0]!r} differs"

    def _differences_of_checkpoint(self, record: Record, known: Record) -> Iterator[str]:
        if not record.exists:
            return
        if not known.exists:
            yield "it is missing"
            return
        if record.parent_id != known.parent_id:
            yield f"its parent is {known.parent_id!r} instead of {record.parent_id!r}"
        if not _is_same_json(record.metadata, known.metadata):
            yield "its metadata differ"
        for key in record.head.keys() | known.head.keys():
            if not _is_same_json(record.head.get(key, _ABSENT), known.head.get(key, _ABSENT)):
                yield f"its {key!r} differs"
        for channel in record.channels() ^ known.channels():
            yield f"channel {channel!r} has a value on one side only"
        for channel in record.inline.keys() & known.inline.keys():
            if not _is_same_json(record.inline[channel], known.inline[channel]):
                yield f"the value of channel {channel!r} differs"

    def _differ(self, namespace: str, checkpoint_id: str, why: str) -> None:
        where = str(Address(self._thread_id, namespace, checkpoint_id))
        self._report.differences.append(Problem(self._thread_id, where, why))


_ABSENT: Final = "\0absent"


def _is_same_json(first: Any, second: Any) -> bool:
    """Return whether two values of JSON types are equal. 1, 1.0 and true differ; NaN equals NaN."""
    return json.dumps(first, sort_keys=True, default=repr) == json.dumps(second, sort_keys=True, default=repr)


def laid_out(rows: Sequence[tuple[dict[str, Any], bytes]]) -> dict[str, Any]:
    """Return the parameters `rows`, a JSON text, and `data`, the concatenated bytes of the rows."""
    laid = concatenate([data for _, data in rows], "data", "starts", "lengths")
    places = zip(rows, laid["starts"], laid["lengths"], strict=True)
    listed = [{**row, "start": start, "length": length} for (row, _), start, length in places]
    return {"rows": json.dumps(listed), "data": laid["data"]}


def _distinct(records: Iterable[Record]) -> list[Stored]:
    found = {stored.key: stored for record in records for stored in record.stored.values()}
    return list(found.values())
