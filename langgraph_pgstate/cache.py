"""What this process knows of checkpoints it wrote or read: enough to write the next one as a difference, and to read
the newest again without fetching what has not changed.

Losing an entry costs one query, a wrong entry cannot be used: a put and a read check, in their own statements, that the
checkpoint still exists and was not written again (its `revision`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from langgraph_pgstate.codec.states import Elements, Inline, Manifest
from langgraph_pgstate.operations.addresses import Address
from langgraph_pgstate.operations.reading import Known

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")

_DEFAULT_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 400
_RUN_BYTES: Final = 100
_BLOCK_BYTES: Final = 130
_CONTENT_BYTES: Final = 250
_ID_BYTES: Final = 40


class _Bounded(Generic[K, V]):
    """The values that were used last, bounded by their size. Safe to share between threads.

    A key begins with the id of its thread. The lock is held for dictionary operations only, never while the database
    works.
    """

    def __init__(self, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._by_thread: defaultdict[str, set[K]] = defaultdict(set)
        self._lock = Lock()

    def discard_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            for key in list(self._by_thread.get(thread_id, ())):
                self._discard(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._by_thread.clear()
            self._bytes = 0

    def _find(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def _keep(self, key: K, value: V, size: int) -> None:
        with self._lock:
            before = self._entries.pop(key, None)
            if before is None:
                self._by_thread[key[0]].add(key)
            else:
                self._bytes -= before[1]
            self._entries[key] = (value, size)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._discard(next(iter(self._entries)))

    def _drop(self, key: K) -> None:
        with self._lock:
            self._discard(key)

    def _discard(self, key: K) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        self._bytes -= found[1]
        siblings = self._by_thread[key[0]]
        siblings.discard(key)
        if not siblings:
            del self._by_thread[key[0]]


class ManifestCache(_Bounded[Address, Manifest]):
    """The most recently used manifests, by checkpoint."""

    def get(self, address: Address) -> Manifest | None:
        """The manifest of a checkpoint, if it is still known."""
        return self._find(address)

    def put(self, address: Address, manifest: Manifest) -> None:
        """Remember a manifest. Call it only for what is committed."""
        self._keep(address, manifest, _size_of(manifest))


class HeadCache(_Bounded[tuple[str, str], tuple[Address, Known, int]]):
    """What the segments hold of the checkpoint that each namespace was last seen at, and how many bytes that is.

    A segment never changes, but its id says nothing by itself: contents belong to a checkpoint at a revision, and go on
    to the next one with the segments that it inherits.
    """

    def get(self, address: Address) -> Known | None:
        """What is known of a checkpoint; of the one that is expected to be the latest if the address names none."""
        found = self._find(address[:2])
        if found is None:
            return None
        head, known, _ = found
        return known if address.checkpoint_id in (None, head.checkpoint_id) else None

    def advance(
        self, address: Address, manifest: Manifest, contents: Mapping[int, bytes], base: tuple[str, int] | None
    ) -> None:
        """A checkpoint was stored. Call it only for what is committed.

        Args:
            address: The checkpoint.
            manifest: Where its values are.
            contents: Contents of the segments that were written with it, by id.
            base: Id of the checkpoint whose segments it inherits, and its revision then; `None` if it inherits none.
        """
        ids = manifest.segment_ids()
        key = address[:2]
        if not ids:
            # There is nothing to fetch.
            self._drop(key)
            return
        found = self._find(key)
        if found is not None:
            head, known, size = found
            if base == (head.checkpoint_id, known.revision):
                merged = {**known.contents, **contents}
                if len(merged) + len(known.missing) == len(ids):
                    # Everything it referred to is inherited, as nearly always.
                    self._put(
                        key, address, Known(manifest.revision, merged, known.missing), size + _size_of_all(contents)
                    )
                    return
                contents = merged
        mine = {id: contents[id] for id in ids if id in contents}
        missing = [id for id in ids if id not in mine]
        self._put(key, address, Known(manifest.revision, mine, missing), _size_of_all(mine))

    def note(self, address: Address, revision: int, contents: Mapping[int, bytes]) -> None:
        """All segments of a checkpoint were read."""
        self._put(address[:2], address, Known(revision, contents, []), _size_of_all(contents))

    def _put(self, key: tuple[str, str], address: Address, known: Known, size: int) -> None:
        whole = _ENTRY_BYTES + size + len(known.missing) * _ID_BYTES
        if whole > self._max_bytes // 4:
            # It would drive out what many others need.
            self._drop(key)
        else:
            self._keep(key, (address, known, size), whole)


def _size_of_all(contents: Mapping[int, bytes]) -> int:
    return sum(map(len, contents.values())) + len(contents) * _CONTENT_BYTES


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
