"""This package's tables, as one side of a transfer."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.admin.transfer import Outline, Record, Stored, laid_out
from langgraph_pgstate.arguments import Address, check_key_size, identifier
from langgraph_pgstate.checkpoints.planning import PutPlan, plan_put
from langgraph_pgstate.checkpoints.reading import Segments, WritesRow, flatten_writes, load_value
from langgraph_pgstate.checkpoints.requests import concatenate, request_put
from langgraph_pgstate.checkpoints.sending import row_parameters
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.metadata import join_metadata, split_metadata
from langgraph_pgstate.codec.opaque import Encoded, OpaqueCodec, digest, join_elements, plain_value
from langgraph_pgstate.codec.states import Elements, Entry, Inline, Manifest, Scalar, Slice, State, decode_state
from langgraph_pgstate.codec.values import TYPE_INT
from langgraph_pgstate.codec.writes import Write, pack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError, SerializationError
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.schema.queries import Queries

# Maximum number of cached manifests. A checkpoint inherits values from checkpoints with a cached manifest.
_MANIFESTS: Final = 256
_HOMES: Final = 20_000
_DIGEST_BYTES: Final = 8 * 1024 * 1024
# Assumed size of an element if only the number of elements is known.
_ELEMENT_BYTES: Final = 1024


@dataclass(slots=True)
class _Portion:
    """The rows of one transaction."""

    plans: list[PutPlan] = field(default_factory=list)
    rows: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    gone: list[tuple[str, str, int]] = field(default_factory=list)
    writes: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)


class PGStateStore:
    """One thread in this package's tables.

    The caches assume that no other process writes to the thread. Each write checks this.
    """

    def __init__(self, db: Connection, queries: Queries, codec: OpaqueCodec, thread_id: str) -> None:
        self.db = db
        self._queries, self._codec, self._thread_id = queries, codec, thread_id
        self._manifests: OrderedDict[tuple[str, str], Manifest] = OrderedDict()
        # The checkpoint that last stored a value, by namespace, channel and version.
        self._homes: OrderedDict[tuple[str, str, Any], str] = OrderedDict()
        self._digests: dict[Hashable, tuple[str, bytes]] = {}

    async def outline(self) -> Outline:
        """Return the thread's keys. Two round trips.

        Raises:
            ThreadArchivedError: If the thread is archived.
        """
        await refuse_archived(self.db, self._queries, self._thread_id)
        return Outline.of(await self.db.fetch(self._queries.get_transfer_outline, {"thread_id": self._thread_id}))

    async def records(self, namespace: str, ids: Sequence[str]) -> dict[str, Record]:
        """Return some checkpoints. Two round trips."""
        found = {}
        for checkpoint_id, parent_id, metadata, data, segment_ids, _ in await self._rows(namespace, ids):
            state = decode_state(data, segment_ids, str(self._address(namespace, checkpoint_id)))
            found[checkpoint_id] = self._record(checkpoint_id, parent_id, metadata, state)
        for checkpoint_id, rows in (await self._writes(namespace, ids)).items():
            record = found.setdefault(checkpoint_id, Record(checkpoint_id))
            for task_path, task_id, (idx, channel, type_, data) in flatten_writes(
                rows, f"checkpoint {checkpoint_id!r}"
            ):
                record.writes[task_id, idx] = (task_path, channel, Encoded(type_, data))
        return found

    def _record(self, checkpoint_id: str, parent_id: str | None, metadata: str, state: State) -> Record:
        exact = {key: self._plain_or_encoded(*value) for key, value in state.exact_metadata.items()}
        extra = {key: self._plain_or_encoded(*value) for key, value in state.extra.items()}
        record = Record(
            checkpoint_id,
            True,
            parent_id or None,
            {**state.checkpoint, **extra, "id": checkpoint_id},
            {**json.loads(metadata), **join_metadata("{}", exact)},
        )
        for channel, entry in state.manifest.entries.items():
            if isinstance(entry, Scalar):
                record.inline[channel] = entry.value
            elif isinstance(entry, Inline) and entry.type == TYPE_INT:
                record.inline[channel] = int(entry.data)
            else:
                record.stored[channel] = Stored(entry, _size_of(entry))
        return record

    def _plain_or_encoded(self, type_: str, data: bytes) -> Any:
        try:
            return self.plain(Encoded(type_, data))
        except TypeError:
            return Encoded(type_, data)

    def plain(self, value: Encoded) -> Any:
        """Return a value of JSON's types, decoded by the application's own serializer if there is one."""
        if self._codec.is_native:
            return plain_value(value) if value.type != TYPE_INT else int(value.data)
        return self._codec.plain.loads(value.type, value.data, "a plain value")

    async def values(self, namespace: str, keys: Sequence[Hashable]) -> dict[Hashable, Encoded]:
        """Return some values. One round trip."""
        entries = [key for key in keys if isinstance(key, Inline | Slice | Elements)]
        segments = await self._segments(entries)
        return {entry: self._encoded(entry, segments, namespace) for entry in entries}

    def _encoded(self, entry: Entry, segments: Segments, namespace: str) -> Encoded:
        value, _ = load_value(self._codec, entry, segments, f"thread {self._thread_id!r} namespace {namespace!r}")
        return value if isinstance(value, Encoded) else Encoded("msgpack", join_elements(value))

    async def digests(self, namespace: str, stored: Sequence[Stored]) -> dict[Hashable, tuple[str, bytes]]:
        """Return type and SHA-256 of some values. One round trip per 8 MB."""
        found = {value.key: self._digests[value.key] for value in stored if value.key in self._digests}
        for portion in _portions([value for value in stored if value.key not in found]):
            for key, value in (await self.values(namespace, portion)).items():
                found[key] = digest(value.type, value.data)
        # The next page needs most of these digests again.
        self._digests = found
        return found

    async def missing(self, namespace: str, records: Sequence[Record]) -> dict[str, list[str]]:
        """Return, by checkpoint, the channels with a value that no cached checkpoint has."""
        # Checkpoints that are already in these tables have values that can be inherited.
        known = {id for record in records if record.exists for id in (record.checkpoint_id, record.parent_id) if id}
        await self._load(namespace, [id for id in known if (namespace, id) not in self._manifests])
        missing: dict[str, list[str]] = {}
        coming: set[tuple[str, str, Any]] = set()
        for record in records:
            versions = record.head.get("channel_versions", {})
            for channel in record.stored:
                home = (namespace, channel, versions.get(channel))
                if home not in self._homes and home not in coming:
                    missing.setdefault(record.checkpoint_id, []).append(channel)
                    coming.add(home)
        return missing

    async def write(
        self, namespace: str, records: Sequence[Record], values: Mapping[Hashable, Encoded]
    ) -> list[tuple[str, str]]:
        """Store checkpoints and pending writes. One transaction; the rows of a task's pending writes are replaced.

        Raises:
            ConflictError: If a base checkpoint was deleted or changed meanwhile.
            ThreadArchivedError: If the thread was archived meanwhile.
        """
        refused = []
        portion = _Portion()
        for record in records:
            try:
                for task_id, _ in record.writes:
                    check_key_size("ids", self._thread_id, namespace, record.checkpoint_id, identifier("task", task_id))
                if record.exists:
                    await self._plan(namespace, record, values, portion)
            except KeyError as error:
                refused.append((record.checkpoint_id, f"it lacks {error}"))
            except (AttributeError, TypeError, ValueError, SerializationError) as error:
                refused.append((record.checkpoint_id, str(error)))
        stored = [record for record in records if record.checkpoint_id not in dict(refused)]
        async with self.db.transaction():
            await self._plan_writes(namespace, stored, portion)
            await self._send(namespace, portion)
        for checkpoint_id, manifest in portion.manifests.items():
            self._remember(namespace, checkpoint_id, manifest)
        return refused

    async def _plan(
        self, namespace: str, record: Record, values: Mapping[Hashable, Encoded], portion: _Portion
    ) -> None:
        versions = record.head["channel_versions"]
        given: dict[str, Any] = {}
        new: dict[str, Any] = {}
        others: dict[str, Manifest] = {}
        for channel, value in record.inline.items():
            given[channel] = value
            if not self._codec.is_scalar(value):
                given[channel] = Encoded(*self._codec.plain.dumps(channel, value))
                new[channel] = versions.get(channel)
        mine = self._manifests.get((namespace, record.checkpoint_id))
        for channel, stored in record.stored.items():
            version = versions[channel]
            home = self._homes.get((namespace, channel, version))
            manifest = await self._manifest(namespace, home, portion) if home else None
            if mine and isinstance(mine.entry(channel, version), Inline | Slice | Elements):
                home, manifest = record.checkpoint_id, mine
            entry = manifest.entry(channel, version) if manifest else None
            if isinstance(entry, Inline) and manifest is mine:
                # Keep the value in the checkpoint's row, which is written again.
                given[channel], new[channel] = Encoded(entry.type, entry.data), version
            elif home and manifest and isinstance(entry, Inline | Slice | Elements):
                others[home] = manifest
            else:
                value = values[stored.key]
                given[channel], new[channel] = self._codec.prepare(value.type, value.data), version
        parent = await self._manifest(namespace, record.parent_id, portion) if record.parent_id else None
        config = self._address(namespace, record.parent_id).config
        metadata: Any = dict(record.metadata)
        request = request_put(self._codec, config, {**record.head, "channel_values": given}, metadata, new)
        # Keep the metadata `writes` of early versions of LangGraph, which a put leaves out.
        text, exact = split_metadata(record.metadata)
        encoded = {key: self._codec.dumps(key, value) for key, value in exact.items()}
        request = replace(request, metadata=text, exact_metadata=encoded)
        plan = plan_put(self._codec, request, parent, others)
        # Free the contents, which are not read again.
        plan.contents.clear()
        created_at = _time(record.head.get("ts"))
        plan.manifest.revision = new_revision()
        sent = row_parameters(plan)
        names = ("checkpoint_id", "parent_checkpoint_id", "run_id", "source", "step", "revision", "segment_ids")
        row = {name: sent[name] for name in names}
        row["created_at"] = created_at.isoformat() if created_at else None
        row["metadata"] = json.loads(text)
        portion.plans.append(plan)
        portion.rows.append((row, sent["state"]))
        portion.times += [created_at] if created_at else []
        portion.manifests[record.checkpoint_id] = plan.manifest
        for channel, version in versions.items():
            self._homes.pop((namespace, channel, version), None)
            if channel in plan.manifest.entries:
                self._homes[namespace, channel, version] = record.checkpoint_id

    async def _plan_writes(self, namespace: str, records: Sequence[Record], portion: _Portion) -> None:
        """Pack pending writes by task, and remove the rows that they replace."""
        known = await self._writes(namespace, [record.checkpoint_id for record in records if record.writes])
        for record in records:
            rows = known.get(record.checkpoint_id, [])
            wanted = {
                (task_id, idx): (path, (idx, channel, value.type, value.data))
                for (task_id, idx), (path, channel, value) in record.writes.items()
            }
            for task_id in {task_id for task_id, _ in wanted}:
                mine = [row for row in rows if row.task_id == task_id]
                stored = {
                    (task_id, write[0]): (path, write)
                    for path, _, write in flatten_writes(mine, f"checkpoint {record.checkpoint_id!r}")
                }
                task = {key: write for key, write in wanted.items() if key[0] == task_id}
                if stored.items() >= task.items():
                    continue
                portion.gone += [(record.checkpoint_id, task_id, row.idx) for row in mine]
                for idx, path, writes in _rows_of({**stored, **task}):
                    row = {"checkpoint_id": record.checkpoint_id, "task_id": task_id, "idx": idx, "task_path": path}
                    portion.writes.append((row, pack_writes(writes)))

    async def _send(self, namespace: str, portion: _Portion) -> None:
        key = {"thread_id": self._thread_id, "checkpoint_ns": namespace}
        coming = {(id, manifest.revision) for id, manifest in portion.manifests.items()}
        required = [base for plan in portion.plans for base in plan.base_revisions.items()]
        base_revisions = dict(base for base in required if base not in coming)
        new = {id: frame for plan in portion.plans for id, frame in plan.new_segments.items()}
        if base_revisions:
            held = await self.db.fetch(self._queries.hold_checkpoints, {**key, "checkpoint_ids": list(base_revisions)})
            if dict(held) != base_revisions:
                raise ConflictError(f"thread {self._thread_id!r} was pruned or written during the copy: copy it again")
        if portion.plans:
            await self._send_checkpoints(key, portion, new)
        elif portion.writes:
            # An archived thread with rows of its archive could not be restored.
            await self.db.fetch(self._queries.lock_threads_for_no_key_update, {"thread_ids": [self._thread_id]})
            await refuse_archived(self.db, self._queries, self._thread_id)
        if portion.gone:
            gone = [list(column) for column in zip(*portion.gone, strict=True)]
            columns = dict(zip(("checkpoint_ids", "task_ids", "idxs"), gone, strict=True))
            await self.db.execute(self._queries.delete_writes, {**key, **columns})
        if portion.writes:
            await self.db.execute(self._queries.import_writes, {**key, **laid_out(portion.writes)})

    async def _send_checkpoints(self, key: dict[str, Any], portion: _Portion, new: Mapping[int, bytes]) -> None:
        owner = portion.plans[-1].request.owner
        if self.db.keys is not None:
            self.db.keys.note_owner(self._thread_id, lambda: owner)
        is_stored = await self.db.execute(
            self._queries.import_thread,
            {
                **key,
                **owner,
                "first_at": min(portion.times, default=None),
                "last_at": max(portion.times, default=None),
            },
        )
        if not is_stored:
            await refuse_archived(self.db, self._queries, self._thread_id)
        if new:
            frames = concatenate(list(new.values()), "data", "starts", "lengths")
            await self.db.execute(self._queries.import_segments, {**key, "ids": list(new), **frames})
        await self.db.execute(self._queries.import_checkpoints, {**key, **laid_out(portion.rows)})

    async def _manifest(self, namespace: str, checkpoint_id: str | None, portion: _Portion) -> Manifest | None:
        if checkpoint_id is None:
            return None
        known = portion.manifests.get(checkpoint_id) or self._manifests.get((namespace, checkpoint_id))
        if known is None:
            await self._load(namespace, [checkpoint_id])
            known = self._manifests.get((namespace, checkpoint_id))
        return known

    async def _load(self, namespace: str, ids: Sequence[str]) -> None:
        """Cache stored checkpoints, with the fingerprints of their lists."""
        for checkpoint_id, _, _, data, segment_ids, revision in await self._rows(namespace, ids):
            where = str(self._address(namespace, checkpoint_id))
            manifest = decode_state(data, segment_ids, where).manifest
            manifest.revision = revision
            lists = [entry for entry in manifest.entries.values() if isinstance(entry, Elements)]
            segments = await self._segments(lists)
            for channel, entry in manifest.entries.items():
                if isinstance(entry, Elements):
                    manifest.entries[channel] = load_value(self._codec, entry, segments, where)[1]
            self._remember(namespace, checkpoint_id, manifest)

    def _remember(self, namespace: str, checkpoint_id: str, manifest: Manifest) -> None:
        self._manifests[namespace, checkpoint_id] = manifest
        for channel in manifest.entries:
            if channel in manifest.versions:
                self._homes[namespace, channel, manifest.versions[channel]] = checkpoint_id
        while len(self._manifests) > _MANIFESTS:
            self._manifests.popitem(last=False)
        while len(self._homes) > _HOMES:
            self._homes.popitem(last=False)

    async def _rows(self, namespace: str, ids: Sequence[str]) -> Sequence[Sequence[Any]]:
        if not ids:
            return []
        key = {"thread_id": self._thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(ids)}
        return await self.db.fetch(self._queries.get_rows, key)

    async def _writes(self, namespace: str, ids: Sequence[str]) -> dict[str, list[WritesRow]]:
        found: dict[str, list[WritesRow]] = defaultdict(list)
        if ids:
            key = {"thread_id": self._thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(ids)}
            for checkpoint_id, task_id, task_path, idx, data in await self.db.fetch(self._queries.get_writes, key):
                found[checkpoint_id].append(WritesRow(task_id, task_path, idx, data))
        return found

    async def _segments(self, entries: Iterable[Entry]) -> Segments:
        ids = Manifest({}, {str(number): entry for number, entry in enumerate(entries)}).segment_ids()
        if not ids:
            return Segments(())
        rows = await self.db.fetch(
            self._queries.get_segments, {"thread_id": self._thread_id, "segment_ids": sorted(ids)}
        )
        return Segments((id, data) for id, data in rows)

    def _address(self, namespace: str, checkpoint_id: str | None) -> Address:
        return Address(self._thread_id, namespace, checkpoint_id)


def _portions(stored: Iterable[Stored]) -> Iterator[list[Hashable]]:
    keys: list[Hashable] = []
    size = 0
    for value in stored:
        if keys and size + value.size > _DIGEST_BYTES:
            yield keys
            keys, size = [], 0
        keys.append(value.key)
        size += value.size
    if keys:
        yield keys


def _size_of(entry: Inline | Slice | Elements) -> int:
    if isinstance(entry, Inline):
        return len(entry.data)
    if isinstance(entry, Slice):
        return entry.length
    return sum(run.size or run.count * _ELEMENT_BYTES for run in entry.runs)


def _rows_of(task: Mapping[tuple[str, int], tuple[str, Write]]) -> Iterator[tuple[int, str, list[Write]]]:
    """Return a task's writes as rows `(idx, task_path, writes)`. Each special channel has a row of its own."""
    ordinary: defaultdict[str, list[Write]] = defaultdict(list)
    for (_, idx), (path, write) in sorted(task.items(), key=lambda item: item[0]):
        if idx < 0:
            yield idx, path, [write]
        else:
            ordinary[path].append(write)
    for idx, (path, writes) in enumerate(ordinary.items()):
        yield idx, path, writes


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None
