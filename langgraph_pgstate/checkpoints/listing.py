"""Lists of checkpoints, read page by page."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id

from langgraph_pgstate.arguments import Address, configurable_of, identifier, thread_id_of
from langgraph_pgstate.checkpoints.getting import read_pending_sends, read_values
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, WritesRow, load_bare_tuple, load_tuple
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.metadata import filter_json
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import MAX_TEXT, Connection, Row, Rows
from langgraph_pgstate.errors import ArgumentTypeError, CorruptStateError
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED
from langgraph_pgstate.langgraph_compat import advance_ids_past
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.schema.queries import NamedQuery, Queries

# The query `list_everywhere` contains this number, too.
_PAGE: Final = 50
PAGE_BYTES: Final = 1024 * 1024
"""Maximum of stored bytes in a page of several checkpoints."""
# A second statement reads the larger states that fit on the page.
_STATE_BYTES: Final = PAGE_BYTES // _PAGE
_READ_ATTEMPTS: Final = 3
_RUN_ID_BYTES: Final = 512
_INT4_MAX: Final = 2**31 - 1

_logger = logging.getLogger("langgraph_pgstate")


class Listing(NamedTuple):
    """A query for checkpoints, and the position up to which it was read.

    Attributes:
        query: Name of the query.
        parameters: The query's parameters, except cursor and page size.
        limit: Number of rows still to return; `None` for all.
        with_state: Whether the state is read.
        cursor: `(checkpoint_id, thread_id, checkpoint_ns)` of the last row read.
    """

    query: str
    parameters: Mapping[str, Any]
    limit: int | None
    with_state: bool
    cursor: tuple[str, str, str] = (MAX_TEXT, "", "")


def request_list(
    config: Mapping[str, Any] | None,
    filter: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    limit: int | None,
    metadata_only: bool,
) -> Listing | None:
    """Return the listing for some arguments; `None` if no checkpoint can match.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise ArgumentTypeError(f"limit must be an integer, not {type(limit).__name__}")
    if limit is not None and limit <= 0:
        return None
    if filter is not None and not isinstance(filter, Mapping):
        raise ArgumentTypeError(f"filter must be a dict of metadata keys and values, not {type(filter).__name__}")
    parameters: dict[str, Any] = {
        **_typed_filter(filter or {}),
        "before_id": _before_id(before),
    }
    if config is None or not configurable_of(config):
        name = "list_of_run" if parameters["run_id"] is not None else "list_everywhere"
        return Listing(name, parameters, limit, not metadata_only)
    configurable = configurable_of(config)
    checkpoint_id = configurable.get("checkpoint_id")
    parameters["thread_id"] = thread_id_of(configurable.get("thread_id"))
    parameters["checkpoint_id"] = identifier("checkpoint_id", checkpoint_id) if checkpoint_id else None
    namespace = configurable.get("checkpoint_ns")
    if namespace is None:
        return Listing("list_in_thread", parameters, limit, not metadata_only)
    parameters["checkpoint_ns"] = identifier("checkpoint_ns", namespace)
    return Listing("list_in_namespace", parameters, limit, not metadata_only)


def _typed_filter(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metadata filter as values of the typed columns and JSON for the other keys."""
    columns: dict[str, Any] = {"source": None, "step": None, "run_id": None}
    rest = {}
    for key, value in filter.items():
        if key == "step" and type(value) is int and abs(value) <= _INT4_MAX:
            columns[key] = value
        elif key in ("source", "run_id") and type(value) is str and "\0" not in value and value.isascii():
            if len(value) <= _RUN_ID_BYTES:
                columns[key] = value
            else:
                rest[key] = value
        else:
            rest[key] = value
    return {**columns, "metadata": filter_json(rest) if rest else None}


@dataclass(slots=True)
class Page:
    """One page of a listing, read but not decoded.

    Attributes:
        rows: The checkpoints.
        created_at: Creation times of the checkpoints.
        following: The next page; `None` on the last page.
        segments: Segments by thread and namespace; `None` if only metadata was read.
        writes: Pending writes by thread, namespace and checkpoint.
        sends: Pending sends of formats before 4, by checkpoint.
    """

    rows: list[CheckpointRow]
    created_at: list[Any]
    following: Listing | None
    segments: dict[tuple[str, str], Segments] | None = None
    writes: dict[tuple[str, str], dict[str, list[WritesRow]]] = field(default_factory=dict)
    sends: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def is_heavy(self) -> bool:
        """Whether decoding the page is slow enough to run in a thread."""
        if not self.segments:
            return False
        states = sum(len(row.state or b"") for row in self.rows)
        writes = sum(
            content_size(row.data) for found in self.writes.values() for rows in found.values() for row in rows
        )
        size = states + sum(segments.size for segments in self.segments.values()) + writes
        # Assume that each row uses all segments.
        return size * len(self.rows) > HEAVY_BYTES or sum(row.element_count for row in self.rows) > MANY_COMPARED

    def remove(self, gone: Collection[Address]) -> None:
        """Remove some of the checkpoints from the page."""
        kept = [(row, at) for row, at in zip(self.rows, self.created_at, strict=True) if row.address not in gone]
        self.rows, self.created_at = [row for row, _ in kept], [at for _, at in kept]

    def cut(self, count: int, listing: Listing) -> None:
        """Keep the first checkpoints only. The next page begins after them."""
        if count < len(self.rows):
            self.rows, self.created_at = self.rows[:count], self.created_at[:count]
            limit = None if listing.limit is None else listing.limit - count
            self.following = _after(listing, self.rows[-1].address, limit)

    def load(
        self, codec: ValueCodec, states: StateVersions = UNVERSIONED, *, skip_damaged: bool = False
    ) -> Iterator[CheckpointTuple]:
        """Yield the page's checkpoints as LangGraph's tuples, in the current state version. Decode one at a time.

        With `skip_damaged`, damaged checkpoints are logged and left out.
        """
        if self.segments is None:
            yield from (load_bare_tuple(codec, row, at) for row, at in zip(self.rows, self.created_at, strict=True))
            return
        for row in self.rows:
            thread_id, namespace, id = row.address
            segments, writes = self.segments[thread_id, namespace], self.writes[thread_id, namespace].get(str(id), [])
            try:
                item, _ = load_tuple(codec, row, segments, writes, self.sends.get(str(id)))
            except CorruptStateError as error:
                if not skip_damaged:
                    raise
                _logger.error("%s; the list is returned without this checkpoint", error)
                continue
            if segments.content_size > PAGE_BYTES:
                segments.contents.clear()
            yield states.upcast(item, row.state_version)
            # Free this checkpoint before the next is decoded.
            del item


async def list_page(db: Connection, queries: Queries, codec: ValueCodec, listing: Listing) -> Page:
    """Read one page of a listing: at most `PAGE_BYTES`, or one checkpoint. Checkpoints deleted meanwhile are left out.

    One round trip for metadata. States take two more for each namespace on the page, and another for large states. The
    first page with `before` in a namespace takes one more.
    """
    parameters = listing.parameters
    if parameters["before_id"] is not None and "checkpoint_ns" in parameters and listing.cursor[0] == MAX_TEXT:
        # With `before`, LangGraph looks for the checkpoint from which to replay a subgraph. The replay stores new
        # checkpoints, whose ids must sort after the newest stored id.
        for row in await db.fetch(queries.get_newest, parameters):
            advance_ids_past(row[0])
    page_size = _PAGE if listing.limit is None else min(_PAGE, listing.limit)
    cursor_id, cursor_thread, cursor_ns = listing.cursor
    query: NamedQuery = getattr(queries, listing.query)
    if cursor_id == MAX_TEXT:
        cursor_id = db.max_text
    cursor = {"cursor_id": cursor_id, "cursor_thread": cursor_thread, "cursor_ns": cursor_ns}
    # If the page has only one checkpoint, the first statement reads even a large state.
    state_bytes = -1 if not listing.with_state else _INT4_MAX if page_size == 1 else _STATE_BYTES
    for _ in range(_READ_ATTEMPTS):
        found = await db.fetch(
            query, {**listing.parameters, **cursor, "page_size": page_size, "state_bytes": state_bytes}
        )
        if not found and listing.cursor[0] == MAX_TEXT and "thread_id" in parameters:
            await refuse_archived(db, queries, parameters["thread_id"])
        for row in found:
            advance_ids_past(row[2])
        page = Page(
            [_checkpoint_row(row) for row in found],
            [row[5] for row in found],
            _following(listing, found, page_size),
        )
        if not listing.with_state:
            return page
        if len(page.rows) > 1:
            page.cut(await _count_within(db, queries, page), listing)
        await _read_states(db, queries, page.rows)
        gone = await _read_values(db, queries, codec, page)
        if not gone:
            return page
    page.remove(gone)
    return page


def _checkpoint_row(row: Row) -> CheckpointRow:
    thread_id, namespace, id, parent_id, metadata, _, state, segment_ids, state_version, present_parent_id = row
    is_cut = parent_id != present_parent_id
    address = Address(thread_id, namespace, id)
    return CheckpointRow(address, parent_id, metadata, state, segment_ids, 0, state_version, is_cut)


def _following(listing: Listing, found: Rows, page_size: int) -> Listing | None:
    remaining = None if listing.limit is None else listing.limit - len(found)
    if len(found) < page_size or remaining == 0:
        return None
    return _after(listing, Address(*found[-1][:3]), remaining)


def _after(listing: Listing, last: Address, limit: int | None) -> Listing:
    return listing._replace(limit=limit, cursor=(str(last.checkpoint_id), last.thread_id, last.checkpoint_ns))


def _by_namespace(rows: Sequence[CheckpointRow]) -> dict[tuple[str, str], list[tuple[int, CheckpointRow]]]:
    """Return rows with their positions, by thread and namespace."""
    found: dict[tuple[str, str], list[tuple[int, CheckpointRow]]] = defaultdict(list)
    for place, row in enumerate(rows):
        found[row.address[:2]].append((place, row))
    return found


async def _count_within(db: Connection, queries: Queries, page: Page) -> int:
    """Return how many of a page's checkpoints fit in `PAGE_BYTES`; at least 1."""
    sizes = [0] * len(page.rows)
    for (thread_id, namespace), rows in _by_namespace(page.rows).items():
        first: dict[int, int] = {}
        for place, row in rows:
            for id in row.segment_ids:
                first.setdefault(id, place)
        parameters = {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "segment_ids": [*first],
            "segment_places": [*first.values()],
            "checkpoint_ids": [str(row.address.checkpoint_id) for _, row in rows],
            "checkpoint_places": [place for place, _ in rows],
        }
        for place, size in await db.fetch(queries.measure_values, parameters):
            sizes[place] += size
    return max(1, sum(total <= PAGE_BYTES for total in accumulate(sizes)))


async def _read_states(db: Connection, queries: Queries, rows: Sequence[CheckpointRow]) -> None:
    """Read the states that the list left out. The state of a row that no longer exists stays `None`."""
    for (thread_id, namespace), found in _by_namespace([row for row in rows if row.state is None]).items():
        large = {str(row.address.checkpoint_id): row for _, row in found}
        key = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_ids": [*large]}
        for id, state, segment_ids, _ in await db.fetch(queries.get_states, key):
            large[id].state, large[id].segment_ids = state, segment_ids


async def _read_values(db: Connection, queries: Queries, codec: ValueCodec, page: Page) -> set[Address]:
    """Read the values of a page's rows. Return the addresses of checkpoints that no longer exist."""
    # Read the pending sends before the check whether the checkpoints exist. A prune never deletes the sends of a
    # checkpoint earlier than the checkpoint, so the sends of an existing checkpoint are complete.
    page.sends = await read_pending_sends(db, queries, codec, page.rows)
    page.segments = {}
    gone = {row.address for row in page.rows if row.state is None}
    for (thread_id, namespace), rows in _by_namespace(page.rows).items():
        ids = [str(row.address.checkpoint_id) for _, row in rows]
        segment_ids = sorted({id for _, row in rows for id in row.segment_ids})
        found = await read_values(db, queries, thread_id, namespace, ids, segment_ids)
        page.segments[thread_id, namespace], page.writes[thread_id, namespace] = found.segments, found.writes
        gone.update(row.address for _, row in rows if row.address.checkpoint_id not in found.present)
    return gone


def _before_id(before: Mapping[str, Any] | None) -> str | None:
    """Return the checkpoint id of a `before` argument, which is a config or a config's `configurable`."""
    if before is None:
        return None
    if not isinstance(before, Mapping):
        raise ArgumentTypeError(f"before must be a config, not {type(before).__name__}")
    if isinstance(before.get("configurable"), Mapping):
        found = get_checkpoint_id(before)  # type: ignore[arg-type]
    else:
        found = before.get("checkpoint_id")
    return identifier("before", found) if found else None
