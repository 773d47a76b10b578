"""The tables of LangGraph's own PostgreSQL saver, as one side of a transfer.

A checkpoint's row holds scalars in `checkpoint -> 'channel_values'`. Other values are blobs, by channel and version. If
a channel has both, the blob counts. For a DeltaChannel's snapshot, the row holds `true`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde.base import CipherProtocol

from langgraph_pgstate.admin.transfer import THREAD_PAGE, Outline, Record, Stored, laid_out
from langgraph_pgstate.arguments import Address
from langgraph_pgstate.codec.metadata import split_metadata
from langgraph_pgstate.codec.opaque import MSGPACK, Encoded, is_delta_snapshot, plain_value
from langgraph_pgstate.codec.values import TYPE_STR
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError, DecryptionError, SourceMissingError
from langgraph_pgstate.langgraph_compat import PACK_OPTIONS
from langgraph_pgstate.schema.queries import Queries, langgraph_tables

_EMPTY: Final = "empty"
# Columns that the shallow saver's tables do not have.
_NEEDED: Final = (
    ("checkpoints", "checkpoint_id"),
    ("checkpoint_blobs", "version"),
    ("checkpoint_writes", "idx"),
)


async def check_tables(db: Connection, queries: Queries) -> None:
    """Check that the schema has LangGraph's tables.

    Raises:
        SourceMissingError: If a table is missing.
        ConfigurationError: If the tables belong to another saver.
    """
    if not {table for table, _ in await _columns(db, queries)} >= {table for table, _ in _NEEDED}:
        raise SourceMissingError(queries.schema)


async def create_tables(db: Connection, queries: Queries) -> None:
    """Create missing tables as LangGraph's own `setup()` does. One transaction; safe to repeat.

    Raises:
        ConfigurationError: If the tables belong to another saver.
    """
    if ("checkpoint_writes", "task_path") in await _columns(db, queries):
        return
    exists = (await db.fetch(queries.find_schema, {"schema": f'"{queries.schema}"'}))[0][0]
    async with db.transaction():
        await db.script(langgraph_tables(queries.schema, create_schema=not exists))


async def _columns(db: Connection, queries: Queries) -> set[tuple[str, str]]:
    columns = {(row[0], row[1]) for row in await db.fetch(queries.find_tables, {"schema": f'"{queries.schema}"'})}
    for table, column in _NEEDED:
        if any(name == table for name, _ in columns) and (table, column) not in columns:
            raise ConfigurationError(
                f"{queries.schema}.{table} has no column {column}: these are the tables of another saver, perhaps the "
                "shallow one, which keeps no history"
            )
    return columns


async def count_threads(db: Connection, queries: Queries) -> int:
    """Return the number of threads."""
    count: int = (await db.fetch(queries.count_threads, {}))[0][0]
    return count


async def next_threads(db: Connection, queries: Queries, after: str | None) -> list[str]:
    """Return the next page of thread ids; the first page for `None`."""
    rows = await db.fetch(queries.list_thread_ids, {"cursor_id": after, "page_size": THREAD_PAGE})
    return [row[0] for row in rows]


class LangGraphStore:
    """One thread in the tables of LangGraph's own saver."""

    def __init__(self, db: Connection, queries: Queries, thread_id: str, cipher: CipherProtocol | None = None) -> None:
        self.db = db
        self._queries = queries
        self._thread_id = thread_id
        self._cipher = cipher

    async def outline(self) -> Outline:
        """Return the thread's keys. One round trip."""
        return Outline.of(await self.db.fetch(self._queries.get_outline, {"thread_id": self._thread_id}))

    async def records(self, namespace: str, ids: Sequence[str]) -> dict[str, Record]:
        """Return some checkpoints. Three round trips.

        Raises:
            CorruptStateError: If a row does not have the JSON of a checkpoint.
        """
        key = {"thread_id": self._thread_id, "checkpoint_ns": namespace, "checkpoint_ids": list(ids)}
        found: dict[str, Record] = {}
        for checkpoint_id, parent_id, checkpoint, metadata in await self.db.fetch(self._queries.get_checkpoints, key):
            if not _is_checkpoint(checkpoint, metadata):
                where = str(Address(self._thread_id, namespace, checkpoint_id))
                raise CorruptStateError(where, "its row does not have the JSON of a checkpoint")
            values = checkpoint.pop("channel_values", None) or {}
            head = {"channel_versions": {}, **checkpoint, "id": checkpoint_id}
            found[checkpoint_id] = Record(checkpoint_id, True, parent_id or None, head, metadata or {}, dict(values))
        await self._find_blobs(namespace, list(found.values()))
        for row in await self.db.fetch(self._queries.get_writes, key):
            checkpoint_id, task_id, task_path, idx, channel, type_, data = row
            record = found.setdefault(checkpoint_id, Record(checkpoint_id))
            record.writes[task_id, idx] = (task_path, channel, self._opened(type_, data))
        return found

    async def _find_blobs(self, namespace: str, records: Iterable[Record]) -> None:
        wanted = {pair for record in records for pair in _versions(record.head)}
        blobs = {
            (channel, version): size
            for channel, version, type_, size in await self._fetch(self._queries.find_blobs, namespace, wanted)
            if type_ != _EMPTY
        }
        for record in records:
            for pair in _versions(record.head):
                if pair in blobs:
                    record.stored[pair[0]] = Stored(pair, blobs[pair])
                    record.inline.pop(pair[0], None)

    async def values(self, namespace: str, keys: Sequence[Hashable]) -> dict[Hashable, Encoded]:
        """Return some values. One round trip."""
        rows = await self._fetch(self._queries.get_blobs, namespace, keys)
        return {(channel, version): self._opened(type_, data) for channel, version, type_, data in rows}

    async def digests(self, namespace: str, stored: Sequence[Stored]) -> dict[Hashable, tuple[str, bytes]]:
        """Return type and SHA-256 of some values, computed by the server. One round trip.

        With a cipher, return nothing, because decrypted values are compared.
        """
        if self._cipher is not None:
            return {}
        rows = await self._fetch(self._queries.digest_blobs, namespace, [value.key for value in stored])
        return {(channel, version): (type_, digest) for channel, version, type_, digest in rows}

    def _opened(self, type_: str, data: bytes) -> Encoded:
        """Return a value, decrypted if LangGraph's `EncryptedSerializer` has encrypted it.

        Raises:
            DecryptionError: If the value does not decrypt.
        """
        inner, _, name = type_.partition("+")
        if self._cipher is None or not name:
            return Encoded(type_, data)
        try:
            return Encoded(inner, self._cipher.decrypt(name, bytes(data)))
        except Exception as error:
            where = f"a value of thread {self._thread_id!r} in LangGraph's tables"
            raise DecryptionError(
                where, "the key must be the one with which the application encrypted the value"
            ) from error

    def plain(self, value: Encoded) -> Any:
        """Return a decoded value that consists only of JSON's types."""
        return plain_value(value)

    async def missing(self, namespace: str, records: Sequence[Record]) -> dict[str, list[str]]:
        """Return, by checkpoint, the channels whose versions have no blob yet. Return each version once."""
        wanted = {pair for record in records for pair in _versions(record.head)}
        rows = await self._fetch(self._queries.find_blobs, namespace, wanted)
        there = {(channel, version) for channel, version, _, _ in rows}
        missing: dict[str, list[str]] = {}
        for record in records:
            for pair in _versions(record.head):
                if pair[0] in record.stored and pair not in there:
                    there.add(pair)
                    missing.setdefault(record.checkpoint_id, []).append(pair[0])
        return missing

    async def write(
        self, namespace: str, records: Sequence[Record], values: Mapping[Hashable, Encoded]
    ) -> list[tuple[str, str]]:
        """Store checkpoints and pending writes. One transaction."""
        refused = []
        checkpoints: list[dict[str, Any]] = []
        blobs: dict[tuple[str, str], Encoded] = {}
        writes: list[tuple[dict[str, Any], bytes]] = []
        for record in records:
            if record.exists:
                try:
                    checkpoints.append(_row(record, values, blobs))
                except (TypeError, ValueError) as error:
                    refused.append((record.checkpoint_id, f"it cannot be represented as JSON ({error})"))
                    continue
            for (task_id, idx), (task_path, channel, value) in record.writes.items():
                key = {"checkpoint_id": record.checkpoint_id, "task_id": task_id, "task_path": task_path, "idx": idx}
                value = _foreign(value)
                writes.append(({**key, "channel": channel, "type": value.type}, value.data))
        key = {"thread_id": self._thread_id, "checkpoint_ns": namespace}
        blob_rows = [
            ({"channel": channel, "version": version, "type": value.type}, value.data)
            for (channel, version), value in blobs.items()
        ]
        async with self.db.transaction():
            if blob_rows:
                await self.db.execute(self._queries.put_blobs, {**key, **laid_out(blob_rows)})
            if checkpoints:
                rows = json.dumps(checkpoints, allow_nan=False)
                await self.db.execute(self._queries.put_checkpoints, {**key, "rows": rows})
            if writes:
                await self.db.execute(self._queries.put_writes, {**key, **laid_out(writes)})
        return refused

    async def _fetch(self, query: Any, namespace: str, pairs: Iterable[Any]) -> Sequence[Sequence[Any]]:
        listed = list(pairs)
        if not listed:
            return []
        return await self.db.fetch(
            query,
            {
                "thread_id": self._thread_id,
                "checkpoint_ns": namespace,
                "channels": [channel for channel, _ in listed],
                "versions": [version for _, version in listed],
            },
        )


def _is_checkpoint(checkpoint: Any, metadata: Any) -> bool:
    """Return whether JSON has the outer form of a checkpoint and of its metadata."""
    if not isinstance(checkpoint, dict):
        return False
    values, versions = checkpoint.get("channel_values"), checkpoint.get("channel_versions", {})
    return (
        all(isinstance(one, dict | None) for one in (values, metadata))
        and isinstance(versions, dict)
        and all(isinstance(version, str | int | float) for version in versions.values())
    )


def _versions(head: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return channels and versions as in the keys of blobs."""
    for channel, version in head.get("channel_versions", {}).items():
        yield channel, version if isinstance(version, str) else json.dumps(version)


def _row(record: Record, values: Mapping[Hashable, Encoded], blobs: dict[tuple[str, str], Encoded]) -> dict[str, Any]:
    """Return a checkpoint's row, and add values that a row cannot hold to `blobs`.

    Raises:
        TypeError: If the checkpoint is not JSON.
        ValueError: If the checkpoint is JSON that PostgreSQL refuses.
    """
    versions = dict(_versions(record.head))
    inline: dict[str, Any] = {}
    for channel, value in record.inline.items():
        if _is_exact_in_jsonb(value):
            inline[channel] = value
        elif channel in versions:
            blobs[channel, versions[channel]] = Encoded(MSGPACK, ormsgpack.packb(value, option=PACK_OPTIONS))
    for channel, stored in record.stored.items():
        if stored.key in values and channel in versions:
            value = _foreign(values[stored.key])
            blobs[channel, versions[channel]] = value
            if is_delta_snapshot(value):
                inline[channel] = True
    checkpoint = {**record.head, "channel_values": inline}
    if not _is_exact_in_jsonb(checkpoint):
        raise ValueError("NUL, a lone surrogate or a number that is not finite")
    return {
        "checkpoint_id": record.checkpoint_id,
        "parent_checkpoint_id": record.parent_id,
        "checkpoint": checkpoint,
        "metadata": _metadata(record.metadata),
    }


def _metadata(metadata: Mapping[str, Any]) -> Any:
    try:
        if _is_exact_in_jsonb(metadata):
            return metadata
    except TypeError:
        pass
    return json.loads(split_metadata(metadata)[0])


def _is_exact_in_jsonb(value: Any) -> bool:
    """Return whether jsonb keeps a value unchanged.

    Raises:
        TypeError: If the value has other types than JSON's.
    """
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, float):
        # jsonb returns a large float as an integer, and has no negative zero.
        return math.isfinite(value) and "e+" not in repr(value) and repr(value) != "-0.0"
    if isinstance(value, str):
        return "\0" not in value and value.encode("utf-8", "replace").decode() == value
    if isinstance(value, list | tuple):
        return all(map(_is_exact_in_jsonb, value))
    if isinstance(value, Mapping):
        return all(_is_exact_in_jsonb(key) and _is_exact_in_jsonb(item) for key, item in value.items())
    raise TypeError(f"a value of type {type(value).__name__}")


def _foreign(value: Encoded) -> Encoded:
    """Return a value as LangGraph's own serializer writes it. Lone surrogates in a text are replaced."""
    if value.type != TYPE_STR:
        return value
    text = value.data.decode("utf-8", "surrogatepass")
    return Encoded(MSGPACK, ormsgpack.packb(text, option=PACK_OPTIONS))
