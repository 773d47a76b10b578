"""What this process knows of checkpoints it wrote or read: enough to write the next one as a difference, and to read
the newest again without fetching what has not changed.

Losing an entry costs one query, a wrong entry cannot be used: a put and a read check, in their own statements, that the
checkpoint still exists and was not written again (its `revision`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from langgraph_pgstate.codec.states import Elements, Inline, Manifest
from langgraph_pgstate.operations.addresses import Address
from langgraph_pgstate.operations.reading import Known

_DEFAULT_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 400
_RUN_BYTES: Final = 100
_BLOCK_BYTES: Final = 130
_CONTENT_BYTES: Final = 250
_ID_BYTES: Final = 40


class ManifestCache:
    """The most recently used manifests, bounded by their estimated size. Safe to share between threads.

    Its lock is held for dictionary operations only, never while the database works.
    """

    def __init__(self, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._manifests: OrderedDict[Address, tuple[Manifest, int]] = OrderedDict()
        self._by_thread: defaultdict[str, set[Address]] = defaultdict(set)
        self._lock = Lock()

    def get(self, address: Address) -> Manifest | None:
        """The manifest of a checkpoint, if it is still known."""
        with self._lock:
            found = self._manifests.get(address)
            if found is None:
                return None
            self._manifests.move_to_end(address)
            return found[0]

    def put(self, address: Address, manifest: Manifest) -> None:
        """Remember a manifest. Call it only for what is committed."""
        size = _size_of(manifest)
        with self._lock:
            if address in self._manifests:
                self._discard(address)
            self._manifests[address] = (manifest, size)
            self._by_thread[address.thread_id].add(address)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._discard(next(iter(self._manifests)))

    def discard_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            for address in list(self._by_thread.get(thread_id, ())):
                self._discard(address)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._manifests.clear()
            self._by_thread.clear()
            self._bytes = 0

    def _discard(self, address: Address) -> None:
        found = self._manifests.pop(address, None)
        if found is None:
            return
        self._bytes -= found[1]
        siblings = self._by_thread[address.thread_id]
        siblings.discard(address)
        if not siblings:
            del self._by_thread[address.thread_id]


@dataclass(frozen=True, slots=True)
class _Head:
    address: Address
    known: Known
    size: int


Base = tuple[str, int] | None
"""Id and revision of a checkpoint that another inherits from."""


class HeadCache:
    """What the segments hold of the checkpoint that each namespace was last seen at, bounded by its size.

    A segment never changes, but its id says nothing by itself: contents belong to a checkpoint at a revision, and go on
    to the next one with the segments that it inherits. Safe to share between threads.
    """

    def __init__(self, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._heads: OrderedDict[tuple[str, str], _Head] = OrderedDict()
        self._by_thread: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self._lock = Lock()

    def get(self, address: Address) -> Known | None:
        """What is known of a checkpoint; of the one that is expected to be the latest if the address names none."""
        head = self._heads.get(address[:2])
        if head is None or (address.checkpoint_id or head.address.checkpoint_id) != head.address.checkpoint_id:
            return None
        return head.known

    def advance(self, address: Address, manifest: Manifest, contents: Mapping[int, bytes], base: Base) -> None:
        """A checkpoint was stored. Call it only for what is committed.

        Args:
            address: The checkpoint.
            manifest: Where its values are.
            contents: Contents of the segments that were written with it, by id.
            base: The checkpoint whose segments it inherits, and its revision then; `None` if it inherits none.
        """
        ids = manifest.segment_ids()
        head = self._heads.get(address[:2])
        if not ids:
            # There is nothing to fetch.
            if head is not None:
                with self._lock:
                    self._discard(address[:2])
            return
        if head is not None and base == (head.address.checkpoint_id, head.known.revision):
            contents = {**head.known.contents, **contents}
        found = {id: contents[id] for id in ids if id in contents}
        self._put(address, Known(manifest.revision, found, [id for id in ids if id not in found]))

    def note(self, address: Address, revision: int, contents: Mapping[int, bytes]) -> None:
        """All segments of a checkpoint were read."""
        self._put(address, Known(revision, contents, []))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._heads.clear()
            self._by_thread.clear()
            self._bytes = 0

    def discard_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            for key in list(self._by_thread.get(thread_id, ())):
                self._discard(key)

    def _put(self, address: Address, known: Known) -> None:
        size = _ENTRY_BYTES + sum(map(len, known.contents.values())) + len(known.contents) * _CONTENT_BYTES
        size += len(known.missing) * _ID_BYTES
        key = address[:2]
        with self._lock:
            self._discard(key)
            if size > self._max_bytes // 4:
                # It would drive out what many others need.
                return
            self._heads[key] = _Head(address, known, size)
            self._by_thread[address.thread_id].add(key)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._discard(next(iter(self._heads)))

    def _discard(self, key: tuple[str, str]) -> None:
        found = self._heads.pop(key, None)
        if found is None:
            return
        self._bytes -= found.size
        siblings = self._by_thread[key[0]]
        siblings.discard(key)
        if not siblings:
            del self._by_thread[key[0]]


def _size_of(manifest: Manifest) -> int:
    size = _ENTRY_BYTES + len(manifest.entries) * _RUN_BYTES
    for entry in manifest.entries.values():
        if type(entry) is Elements:
            size += len(entry.runs) * _RUN_BYTES
            if entry.marks is not None:
                size += len(entry.marks.digests) + len(entry.marks.blocks) * _BLOCK_BYTES
        elif type(entry) is Inline:
            size += len(entry.data)
    return size


class Touches:
    """When this process last touched each thread's row, so that most puts leave it alone."""

    def __init__(self, interval: float, limit: int = 100_000) -> None:
        self._interval = interval
        self._limit = limit
        self._touched: dict[str, float] = {}

    def is_due(self, thread_id: str, now: float) -> bool:
        """Whether the row should be touched by the put at time `now` (any monotonic seconds)."""
        last = self._touched.get(thread_id)
        return last is None or now - last >= self._interval

    def note(self, thread_id: str, now: float) -> None:
        """The row was touched, and that is committed."""
        if len(self._touched) >= self._limit:
            self._touched.clear()
        self._touched[thread_id] = now

    def forget(self, thread_id: str) -> None:
        """The row may be gone."""
        self._touched.pop(thread_id, None)
