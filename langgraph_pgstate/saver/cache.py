"""Cache of checkpoints that this process wrote or read.

A put writes only values that the cached parent does not have. A read fetches only segments that are not cached. The
statements of puts and reads compare the checkpoint's `revision`, so an outdated entry is never used.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.reading import CachedSegments
from langgraph_pgstate.codec.states import Elements, Inline, Manifest, Scalar

# Maximum number of cached checkpoints per namespace.
_CHECKPOINTS: Final = 16
_NAMESPACE_BYTES: Final = 800
_ENTRY_BYTES: Final = 400
# Estimated bytes of each entry, version or run of list elements in a manifest.
_RUN_BYTES: Final = 200
_BLOCK_BYTES: Final = 130
_CONTENT_BYTES: Final = 250


@dataclass(slots=True)
class _Namespace:
    """The cached checkpoints of one namespace of a thread.

    Attributes:
        manifests: Manifests and their sizes by checkpoint id. Entries used recently come last.
        head: Id of the checkpoint that was stored or read last.
        cached: Contents of the head's segments; `None` for contents that are too large.
        contents_bytes: Size of `cached` in bytes.
        bytes: Total size in bytes.
    """

    manifests: dict[str | None, tuple[Manifest, int]] = field(default_factory=dict)
    head: str | None = None
    cached: CachedSegments | None = None
    contents_bytes: int = 0
    bytes: int = _NAMESPACE_BYTES


class Cache:
    """The cached checkpoints of the most recently used namespaces, bounded by size. Thread-safe.

    For each namespace, the cache holds the manifests of several checkpoints, and the segments of the checkpoint that
    was stored or read last. Cached segments are used for one revision of a checkpoint only. Segment ids are random, so
    a new segment may get the id of a deleted segment.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._namespaces: OrderedDict[tuple[str, str], _Namespace] = OrderedDict()
        self._by_thread: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self._lock = Lock()

    def manifest(self, address: Address) -> Manifest | None:
        """Return a checkpoint's manifest; `None` if the manifest is not cached."""
        # Without a lock, this may miss an entry that another OS thread is moving. The caller then reads the database.
        namespace = self._namespaces.get(address[:2])
        found = namespace and namespace.manifests.get(address.checkpoint_id)
        return found[0] if found else None

    def cached(self, address: Address) -> CachedSegments | None:
        """Return the cached segments of a checkpoint. Without an id, use the head."""
        with self._lock:
            namespace = self._namespaces.get(address[:2])
            if namespace is None or address.checkpoint_id not in (None, namespace.head):
                return None
            return namespace.cached

    def note_put(
        self, address: Address, manifest: Manifest, contents: Mapping[int, bytes], base_revisions: Mapping[str, int]
    ) -> None:
        """Add a checkpoint after its commit, with the contents of new segments and the revisions of bases."""
        ids = manifest.positions()
        contents_bytes = _size_of_all(contents)
        missing: list[int] = []
        with self._lock:
            namespace = self._namespaces.get(address[:2])
            if namespace is not None:
                before = namespace.cached
                if before is not None and base_revisions == {namespace.head: before.revision}:
                    contents = {**before.contents, **contents}
                    missing = before.missing
                    contents_bytes += namespace.contents_bytes
                for base in base_revisions:
                    if base in namespace.manifests:
                        # The base counts as recently used, because other checkpoints may fork from it soon.
                        namespace.manifests[base] = namespace.manifests.pop(base)
            if len(contents) + len(missing) != len(ids):
                # The checkpoint lacks some of the head's segments. Keep only the segments that the checkpoint has.
                contents = {id: contents[id] for id in ids if id in contents}
                missing = [id for id in ids if id not in contents]
                contents_bytes = _size_of_all(contents)
            self._keep(address, manifest, CachedSegments(manifest.revision, contents, missing), contents_bytes)

    def note_read(self, address: Address, manifest: Manifest, contents: Mapping[int, bytes]) -> None:
        """Add a checkpoint that was read, with the contents of all its segments."""
        with self._lock:
            cached = CachedSegments(manifest.revision, contents, [])
            self._keep(address, manifest, cached, _size_of_all(contents))

    def of_tenant(self, tenant: str) -> Cache:
        """Return the part of the cache for one tenant. All parts share the maximum size."""
        return _TenantCache(self, tenant)

    def discard_thread(self, thread_id: str) -> None:
        """Remove the checkpoints of a thread."""
        with self._lock:
            for key in list(self._by_thread.get(thread_id, ())):
                self._discard(key)

    def discard_threads(self, prefix: str) -> None:
        """Remove the checkpoints of threads whose ids begin with a prefix."""
        with self._lock:
            for thread_id in [one for one in self._by_thread if one.startswith(prefix)]:
                for key in list(self._by_thread[thread_id]):
                    self._discard(key)

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._namespaces.clear()
            self._by_thread.clear()
            self._bytes = 0

    def _keep(self, address: Address, manifest: Manifest, cached: CachedSegments, contents_bytes: int) -> None:
        """Add a checkpoint as the head of a namespace, and discard entries until the cache is small enough."""
        key, checkpoint_id = address[:2], address.checkpoint_id
        namespace = self._namespaces.get(key)
        if namespace is None:
            namespace = self._namespaces[key] = _Namespace()
            self._by_thread[key[0]].add(key)
            self._bytes += namespace.bytes
        else:
            self._namespaces.move_to_end(key)
        manifests = namespace.manifests
        size = _size_of(manifest)
        is_too_much = contents_bytes > self._max_bytes // 4
        if is_too_much:
            # Contents this large would evict too many other entries.
            contents_bytes = 0
        before = namespace.bytes
        namespace.bytes += size + contents_bytes - namespace.contents_bytes
        if checkpoint_id in manifests:
            namespace.bytes -= manifests.pop(checkpoint_id)[1]
        manifests[checkpoint_id] = (manifest, size)
        # A namespace may fill at most half of the cache, but always keeps its newest entry.
        while len(manifests) > _CHECKPOINTS or (namespace.bytes > self._max_bytes // 2 and len(manifests) > 1):
            namespace.bytes -= manifests.pop(next(iter(manifests)))[1]
        namespace.head = checkpoint_id
        namespace.cached = None if is_too_much else cached
        namespace.contents_bytes = contents_bytes
        self._bytes += namespace.bytes - before
        while self._bytes > self._max_bytes:
            self._discard(next(iter(self._namespaces)))

    def _discard(self, key: tuple[str, str]) -> None:
        self._bytes -= self._namespaces.pop(key).bytes
        siblings = self._by_thread[key[0]]
        siblings.discard(key)
        if not siblings:
            del self._by_thread[key[0]]


class _TenantCache(Cache):
    """The part of a cache for the threads of one tenant."""

    def __init__(self, whole: Cache, tenant: str) -> None:
        self._whole = whole
        # Tenants and thread ids contain no NUL, so different pairs of a tenant and a thread have different keys.
        self._prefix = f"{tenant}\0"

    def _own(self, address: Address) -> Address:
        return Address(self._prefix + address.thread_id, address.checkpoint_ns, address.checkpoint_id)

    def manifest(self, address: Address) -> Manifest | None:
        """See `Cache`."""
        return self._whole.manifest(self._own(address))

    def cached(self, address: Address) -> CachedSegments | None:
        """See `Cache`."""
        return self._whole.cached(self._own(address))

    def note_put(
        self, address: Address, manifest: Manifest, contents: Mapping[int, bytes], base_revisions: Mapping[str, int]
    ) -> None:
        """See `Cache`."""
        self._whole.note_put(self._own(address), manifest, contents, base_revisions)

    def note_read(self, address: Address, manifest: Manifest, contents: Mapping[int, bytes]) -> None:
        """See `Cache`."""
        self._whole.note_read(self._own(address), manifest, contents)

    def discard_thread(self, thread_id: str) -> None:
        """See `Cache`."""
        self._whole.discard_thread(self._prefix + thread_id)

    def clear(self) -> None:
        """Remove the tenant's entries."""
        self._whole.discard_threads(self._prefix)

    def of_tenant(self, tenant: str) -> Cache:
        """See `Cache`."""
        return self._whole.of_tenant(tenant)


def _size_of_all(contents: Mapping[int, bytes]) -> int:
    return sum(map(len, contents.values())) + len(contents) * _CONTENT_BYTES


def _size_of(manifest: Manifest) -> int:
    size = _ENTRY_BYTES + (len(manifest.entries) + len(manifest.versions)) * _RUN_BYTES
    for entry in manifest.entries.values():
        if type(entry) is Elements:
            size += len(entry.runs) * _RUN_BYTES
            if entry.fingerprints is not None:
                size += len(entry.fingerprints.digests) + len(entry.fingerprints.blocks) * _BLOCK_BYTES
        elif type(entry) is Inline:
            size += len(entry.data)
        elif type(entry) is Scalar and type(entry.value) is str:
            size += len(entry.value)
    return size
