"""What this process knows of checkpoints it wrote or read: enough to write the next one as a difference.

Losing an entry costs one query, a wrong entry cannot be used: a put checks, in its own statement, that the
checkpoint it inherits from still exists and still refers to what is inherited.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Final

from langgraph_pgstate.codec.states import Elements, Inline, Manifest
from langgraph_pgstate.operations.addresses import Address

_DEFAULT_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 400
_RUN_BYTES: Final = 100


class ManifestCache:
    """The most recently used manifests, bounded by their estimated size. Safe to share between threads.

    Only single dictionary operations are used, which are atomic in CPython; a lost race costs an entry, no more.
    """

    def __init__(self, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._manifests: OrderedDict[Address, tuple[Manifest, int]] = OrderedDict()

    def get(self, address: Address) -> Manifest | None:
        """The manifest of a checkpoint, if it is still known."""
        found = self._manifests.get(address)
        if found is None:
            return None
        with suppress(KeyError):
            self._manifests.move_to_end(address)
        return found[0]

    def put(self, address: Address, manifest: Manifest) -> None:
        """Remember a manifest. Call it only for what is committed."""
        size = _size_of(manifest)
        self.discard(address)
        self._manifests[address] = (manifest, size)
        self._bytes += size
        while self._bytes > self._max_bytes and self._manifests:
            try:
                _, (_, dropped) = self._manifests.popitem(last=False)
            except KeyError:
                break
            self._bytes -= dropped

    def discard(self, address: Address) -> None:
        """Forget a checkpoint."""
        found = self._manifests.pop(address, None)
        if found is not None:
            self._bytes -= found[1]

    def discard_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        for address in [address for address in list(self._manifests) if address.thread_id == thread_id]:
            self.discard(address)


def _size_of(manifest: Manifest) -> int:
    size = _ENTRY_BYTES
    for entry in manifest.entries.values():
        if isinstance(entry, Elements):
            size += len(entry.runs) * _RUN_BYTES + len(entry.digests or b"")
        elif isinstance(entry, Inline):
            size += len(entry.data)
        size += _RUN_BYTES
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
