"""The messages of a checkpoint's channel, read page by page from both ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson
from langchain_core.messages import BaseMessage

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.differences import read_state
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, load_value
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.lists import Run
from langgraph_pgstate.codec.states import Elements, Entry, Slice
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS, DeltaSnapshot
from langgraph_pgstate.record.windows import needs_more
from langgraph_pgstate.schema.queries import Queries

_PAGE: Final = 100


@dataclass(slots=True)
class Pages:
    """The part of a conversation that is read so far: the first messages (`head`) and the last messages (`tail`).

    Attributes:
        left: The messages between `head` and `tail`, in groups of adjacent messages.
        page: Minimum number of messages that the next reading adds.
    """

    address: Address
    channel: str
    revision: int = 0
    left: list[Run] = field(default_factory=list)
    head: list[BaseMessage] = field(default_factory=list)
    tail: list[BaseMessage] = field(default_factory=list)
    page: int = _PAGE

    @property
    def where(self) -> str:
        """The channel and its checkpoint, for errors."""
        return f"channel {self.channel!r} of {self.address}"


async def open_pages(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    versions: StateVersions | None,
    address: Address,
    channel: str,
    keep: Collection[str],
) -> Pages | None:
    """Return the first and the last page of a channel, or the whole channel if it is not stored message by message.

    Return `None` if the checkpoint was deleted or replaced meanwhile.

    Raises:
        NotFoundError: If the address names a checkpoint that does not exist.
        ConfigurationError: If the channel is not a list of messages.
    """
    rows = await db.fetch(queries.get_bare_checkpoint, address._asdict())
    if not rows:
        if address.checkpoint_id is not None:
            raise NotFoundError(f"there is no {address}")
        return Pages(address, channel)
    checkpoint_id, parent_id, metadata, data, segment_ids, revision, state_version = rows[0]
    address = address._replace(checkpoint_id=checkpoint_id)
    pages = Pages(address, channel, revision)
    row = CheckpointRow(address, parent_id, metadata, data, segment_ids, revision, state_version)
    entry = row.decode().manifest.entries.get(channel)
    is_delta = entry is None and channel in (orjson.loads(metadata).get(DELTA_COUNTERS) or {})
    if is_delta or not (versions or UNVERSIONED).is_current(state_version):
        _, values = await read_state(db, queries, codec, address, versions)
        pages.tail = _messages(pages, values.get(channel, []))
    elif isinstance(entry, Elements):
        pages.left = [*entry.runs]
        if not await read_older(db, queries, codec, pages):
            return None
        while pages.left and needs_more(pages.head, keep):
            if not await _read(db, queries, codec, pages, pages.left[:1], at_head=True):
                return None
    elif entry is not None and not await _read_whole(db, queries, codec, pages, entry):
        return None
    return pages


async def read_older(db: Connection, queries: Queries, codec: ValueCodec, pages: Pages) -> bool:
    """Read another page, twice as long as the page before. Return whether the checkpoint is unchanged."""
    first, count = len(pages.left), 0
    while first and count < pages.page:
        first -= 1
        count += pages.left[first].count
    pages.page *= 2
    return await _read(db, queries, codec, pages, pages.left[first:], at_head=False)


async def _read(
    db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, runs: list[Run], *, at_head: bool
) -> bool:
    found = await _load(db, queries, codec, pages, Elements(tuple(runs)))
    if found is None:
        return False
    if at_head:
        pages.head, pages.left = pages.head + found, pages.left[len(runs) :]
    else:
        pages.tail, pages.left = found + pages.tail, pages.left[: len(pages.left) - len(runs)]
    return True


async def _read_whole(db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, entry: Entry) -> bool:
    found = await _load(db, queries, codec, pages, entry)
    if found is None:
        return False
    pages.tail = found
    return True


async def _load(
    db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, entry: Entry
) -> list[BaseMessage] | None:
    """Return the messages of an entry; `None` if its checkpoint was deleted or replaced."""
    ids = {run.segment_id for run in entry.runs} if isinstance(entry, Elements) else set()
    if isinstance(entry, Slice):
        ids.add(entry.segment_id)
    key = {**pages.address._asdict(), "revision": pages.revision, "segment_ids": sorted(ids)}
    rows = await db.fetch(queries.get_segments_of, key) if ids else []
    if ids and not rows:
        return None
    segments = Segments((id, data) for id, data in rows if id is not None)
    count = sum(run.count for run in entry.runs) if isinstance(entry, Elements) else 0
    load = partial(load_value, codec, entry, segments, pages.where)
    is_heavy = segments.size > HEAVY_BYTES or count > MANY_COMPARED
    value, _ = await db.compute(load) if is_heavy else load()
    return _messages(pages, value)


def _messages(pages: Pages, value: Any) -> list[BaseMessage]:
    value = value.value if type(value) is DeltaSnapshot else value
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise ConfigurationError(f"{pages.where} must be a list of messages")
    return value
