"""Memories, which are items with a kind, and versions of all items."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

from langgraph_pgstate.arguments import identifier, several, stored_time_of, time_of
from langgraph_pgstate.db.protocol import Connection, Packed, Row
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError, StaleMemoryError
from langgraph_pgstate.memory import items
from langgraph_pgstate.memory.embedding import packed
from langgraph_pgstate.memory.indexes import OpenIndex
from langgraph_pgstate.memory.items import Embedded, Origin, Put, Traits, limit_of
from langgraph_pgstate.memory.namespaces import Namespace, check_size, labels_of, literal, range_of
from langgraph_pgstate.memory.texts import Text, json_value
from langgraph_pgstate.memory.types import FoundItem, Memory, MemoryVersion
from langgraph_pgstate.schema.queries import Queries

ROOT: Final = "memories"
NOTES: Final = "notes"
CONTENT: Final = "content"
# The statements treat this kind as any kind.
ANY_KIND: Final = "*"
_PAGE: Final = 1000
# Without dashes and signs, because -5 differs from 5, and C++ differs from C.
_PUNCTUATION: Final = ".,;:!?¡¿\"'()[]{}<>…«»“”„‘’`*_"


class Owner(NamedTuple):
    """The owner of a memory: the user it is about, and the agent and tenant that keep it."""

    tenant_id: str | None = None
    user_id: str | None = None
    agent: str | None = None


def owner_of(tenant_id: str | None, user_id: str | None, agent: str | None) -> Owner:
    """Return a validated owner."""
    for name, value in (("tenant_id", tenant_id), ("user_id", user_id), ("agent", agent)):
        if value is not None and not identifier(name, value):
            raise ConfigurationError(f"{name} must not be empty")
    return Owner(tenant_id, user_id, agent)


def namespace_of(root: str, owner: Owner) -> Namespace:
    """Return the namespace of an owner: a pair of labels for each part that is given."""
    pairs = (("tenant", owner.tenant_id), ("user", owner.user_id), ("agent", owner.agent))
    return (root, *(label for name, value in pairs if value is not None for label in (name, value)))


def where_of(owner: Owner, namespace: Sequence[str] | None) -> Namespace:
    """Return the given namespace, validated, or else the namespace of the owner."""
    return namespace_of(ROOT, owner) if namespace is None else labels_of(namespace)


def normalized(content: str) -> str:
    """Return a text without differences of case, spaces and punctuation."""
    words = unicodedata.normalize("NFKC", content).casefold().split()
    return " ".join(word for one in words if (word := one.strip(_PUNCTUATION))) or " ".join(words)


def digest_of(kind: str, content: str) -> str:
    """Return a hash that is equal for two memories with the same kind and words."""
    return hashlib.sha256(f"{kind}\0{normalized(content)}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Told:
    """Validated arguments of `remember`.

    Attributes:
        put: The item. Its key is the digest if the caller gave no key.
        is_named: Whether the caller gave a key.
        metadata: Data of the application; `None` if not given.
    """

    put: Put
    content: str
    is_named: bool
    metadata: dict[str, Any] | None
    traits: Traits


def kind_of(kind: Any) -> str:
    """Return a validated kind of a memory."""
    if not identifier("kind", kind) or kind in (ANY_KIND, NOTES):
        raise ConfigurationError(f"kind must be a word such as 'fact', and neither 'notes' nor '*', not {kind!r}")
    return str(kind)


def told_of(
    content: str,
    kind: str,
    owner: Owner,
    *,
    key: str | None,
    namespace: Namespace,
    importance: float | None,
    expires_at: datetime | None,
    metadata: Mapping[str, Any] | None,
    ttl: float | None,
) -> Told:
    """Validate the arguments of `remember`."""
    if not isinstance(content, str) or not content.strip():
        raise ArgumentTypeError(f"content must be a non-empty text, not {content!r}")
    importance = _importance_of(importance)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ArgumentTypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    if key is not None and not identifier("key", key):
        raise ConfigurationError("key must not be empty")
    value = json_value({CONTENT: content, "metadata": {**(metadata or {})}})
    digest = digest_of(kind_of(kind), content)
    put = Put(namespace, digest if key is None else key, value, ttl, (CONTENT,), [Text(CONTENT, content)])
    check_size(namespace, put.key)
    traits = Traits(kind, owner.user_id, owner.agent, owner.tenant_id, importance, expires_at, digest)
    return Told(put, content, key is not None, None if metadata is None else {**metadata}, traits)


def _importance_of(importance: Any) -> float | None:
    if importance is None:
        return None
    if isinstance(importance, bool) or not isinstance(importance, int | float) or not 0 <= importance <= 1:
        raise ConfigurationError(f"importance must be from 0 to 1, not {importance!r}")
    return float(importance)


def end_of(expires_at: datetime | None) -> datetime | None:
    """Return a validated time at which a memory ends, or `None`."""
    found = stored_time_of("expires_at", expires_at)
    if found is not None and found <= datetime.now(found.tzinfo):
        raise ConfigurationError(f"expires_at must be in the future, not {found.isoformat()}")
    return found


async def remember(
    db: Connection,
    queries: Queries,
    told: Told,
    embedded: Sequence[Embedded],
    *,
    language: str,
    history: int,
    similarity: float | None,
    origin: Origin,
    is_unindexed: bool,
) -> Memory:
    """Store a memory, or count a repetition. One transaction, which locks the namespace.

    If a memory with the same words exists, only count a repetition. A similar memory is replaced, and kept as a
    version. A retry after a lost connection can count a repetition twice.
    """
    put, traits = told.put, told.traits
    if db.keys is not None and not told.is_named:
        # Use a random key. Keys are not encrypted, and a key made from the content would confirm a guess of the
        # content.
        put = replace(put, key=uuid4().hex)
    where = {"namespace": literal(put.namespace)}
    async with db.transaction():
        await db.fetch(queries.lock_memories, {"key": f"pgstate.memories {queries.schema} {where['namespace']}"})
        same = {"key": put.key, "kind": traits.kind, "digest": traits.digest, "is_named": told.is_named}
        found = await db.fetch(queries.find_told, {**where, **same})
        equal, is_repeated = next((row for row in found if row[1]), None), False
        if equal is not None and (not told.is_named or told.metadata in (None, equal[2].get("metadata"))):
            key = equal[0]
            repeated = {
                "importance": None if traits.importance is None else str(traits.importance),
                "expires_at": None if traits.expires_at is None else traits.expires_at.isoformat(),
                "ttl": put.ttl,
            }
            # Another call may have deleted the memory meanwhile.
            is_repeated = await db.execute(queries.repeat_memory, {**where, "key": key, **repeated}) > 0
        if not is_repeated:
            key = put.key
            if not told.is_named:
                similar = await _find_similar(db, queries, told, embedded, similarity)
                if similar is not None:
                    key, traits = similar, replace(traits, duplicates=1)
                elif found:
                    # The key that was made from this content belongs to a memory that has another content now.
                    key = uuid4().hex
            await items.put(
                db,
                queries,
                [replace(put, key=key)],
                embedded,
                language=language,
                history=history,
                origin=origin,
                traits=traits,
                is_unindexed=is_unindexed,
            )
        rows = await db.fetch(queries.get_remembered, {"namespaces": [where["namespace"]], "keys": [key]})
    return memory_of(rows[0][1:])


async def _find_similar(
    db: Connection, queries: Queries, told: Told, embedded: Sequence[Embedded], similarity: float | None
) -> str | None:
    """Return the key of the most similar stored memory; `None` if no memory is similar enough."""
    index = next((one for one in reversed(embedded) if one.index.is_complete and one.vectors), None)
    if similarity is None or index is None or index.index.index.distance != "cosine":
        return None
    where = {"namespace": literal(told.put.namespace)}
    is_large = index.index.index.is_approximate and await db.fetch(queries.is_large_namespace, where)
    if is_large:
        await db.fetch(index.index.query("allow_scans"), {"reach": "40"})
    found = await db.fetch(
        index.index.query("find_similar_large" if is_large else "find_similar_memories"),
        {
            **where,
            "kind": told.traits.kind,
            "embedding": Packed(packed(index.vectors[0], index.index.index.dims)),
        },
    )
    # Texts that differ in a number have similar embeddings, but different meanings.
    numbers = _numbers(told.content)
    return next(
        (key for key, value, apart in found if 1 - apart >= similarity and _numbers(text_of(value)) == numbers), None
    )


def text_of(value: Mapping[str, Any]) -> str:
    """Return the text of a memory; an empty text if the value has none."""
    text = value.get(CONTENT)
    return text if isinstance(text, str) else ""


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def memory_of(row: Row) -> Memory:
    """Return the memory of a row."""
    namespace, key, version, value, *others = row
    metadata = value.get("metadata")
    return Memory(
        tuple(namespace),
        key,
        version,
        text_of(value),
        metadata if isinstance(metadata, dict) else {},
        *others,
    )


@dataclass(frozen=True, slots=True)
class Recall:
    """Validated arguments of `recall`.

    Attributes:
        prefix: Labels with which namespaces begin.
        query: The text to search for; `None` for the newest memories.
        half_lives: By kind, the seconds in which the rank score halves.
    """

    prefix: Namespace
    query: str | None
    kinds: tuple[str, ...]
    limit: int
    importance_weight: float
    half_lives: Mapping[str, float]


def recall_of(
    query: str | None,
    owner: Owner,
    namespace: Sequence[str] | None,
    kinds: Sequence[str] | None,
    limit: int,
    half_lives: Mapping[str, timedelta] | None,
    importance_weight: float,
) -> Recall:
    """Validate the arguments of `recall`."""
    if query is not None:
        identifier("query", query)
    weight = _importance_of(importance_weight)
    seconds: dict[str, float] = {}
    for kind, half_life in (half_lives or {}).items():
        if not isinstance(half_life, timedelta) or half_life <= timedelta(0):
            raise ConfigurationError(f"half_lives[{kind!r}] must be a timedelta of more than zero, not {half_life!r}")
        seconds[kind_of(kind)] = half_life.total_seconds()
    prefix = where_of(owner, namespace)
    return Recall(prefix, query or None, kinds_of(kinds), limit_of(limit), weight or 0.0, seconds)


def kinds_of(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Return validated kinds; `*` for all of them."""
    return (ANY_KIND,) if kinds is None else tuple(map(kind_of, several("kinds", kinds)))


async def recall_as_of(
    db: Connection, queries: Queries, recall: Recall, as_of: datetime, language: str
) -> list[Memory]:
    """Return the memories that were valid at a time, best match first. One round trip."""
    rows = await db.fetch(
        queries.recall_as_of,
        {
            **range_of(recall.prefix)._asdict(),
            "query": recall.query or "",
            "kinds": [*recall.kinds],
            "as_of": as_of.isoformat(),
            "language": language,
            "page_size": recall.limit,
            "importance_weight": str(recall.importance_weight),
            "half_life_kinds": [*recall.half_lives],
            "half_lives": [*recall.half_lives.values()],
        },
    )
    return [replace(memory_of(row[1:]), rank_score=row[0]) for row in rows]


async def complete(db: Connection, queries: Queries, found: Sequence[FoundItem]) -> list[Memory]:
    """Return found items as memories, except memories that were deleted meanwhile. One round trip."""
    if not found:
        return []
    keys = {"namespaces": [literal(one.namespace) for one in found], "keys": [one.key for one in found]}
    return [
        replace(
            memory_of(row[1:]),
            score=(item := found[row[0] - 1]).score,
            vector_rank=item.vector_rank,
            words_rank=item.words_rank,
            rank_score=item.rank_score,
        )
        for row in await db.fetch(queries.get_remembered, keys)
    ]


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Validated arguments of `forget`.

    Attributes:
        prefix: The namespace of `key`; without a key, labels with which namespaces begin.
        purges: Whether to delete versions, too.
        is_below: Whether to delete the key from all namespaces that begin with `prefix`.
    """

    prefix: Namespace
    key: str | None
    kinds: tuple[str, ...]
    purges: bool
    is_below: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the statements that find the memories."""
        where = literal(self.prefix)
        # No other namespace sorts between these bounds.
        exact = {"lower": where, "upper": literal([*self.prefix, "\x01"])}
        return {
            **(range_of(self.prefix)._asdict() if self.key is None or self.is_below else exact),
            "key": self.key,
            "kinds": [*self.kinds],
            "page_size": _PAGE,
        }


def forgetting_of(
    owner: Owner, namespace: Sequence[str] | None, key: str | None, kinds: Sequence[str] | None, purges: bool
) -> Forgetting:
    """Validate the arguments of `forget`."""
    if key is None and namespace is None and not any(owner):
        raise ConfigurationError("forget must be given a key, a namespace, or a user_id, agent or tenant_id")
    if key is not None:
        identifier("key", key)
    prefix = where_of(owner, namespace)
    return Forgetting(prefix, key, kinds_of(kinds), bool(purges))


async def forget_some(
    db: Connection,
    queries: Queries,
    forgetting: Forgetting,
    indexes: Sequence[OpenIndex],
    *,
    history: int,
    deleted_by: str | None,
) -> int | None:
    """Delete some memories. Return their number, or `None` if there are no more. Safe to repeat."""
    parameters = {**forgetting.parameters, "purges": forgetting.purges}
    found = [(tuple(row[0]), row[1]) for row in await db.fetch(queries.find_memories, parameters)]
    if not found:
        return None
    purges = forgetting.purges
    return await items.delete(db, queries, found, indexes, history=history, purges=purges, deleted_by=deleted_by)


async def purge_versions(db: Connection, queries: Queries, forgetting: Forgetting) -> None:
    """Delete the versions of memories that are deleted already, in small transactions. Safe to repeat."""
    while await db.execute(queries.purge_versions, forgetting.parameters) == _PAGE:
        pass


async def list_versions(
    db: Connection,
    queries: Queries,
    namespace: Namespace,
    key: str,
    *,
    limit: int,
    before: int | None = None,
    version: int | None = None,
) -> list[MemoryVersion]:
    """Return versions of an item, newest first; none if the item has expired. One round trip."""
    parameters = {"namespace": literal(namespace), "key": key, "before": before, "version": version}
    rows = await db.fetch(queries.list_memory_versions, {**parameters, "page_size": limit})
    return [MemoryVersion(tuple(row[0]), *row[1:]) for row in rows]


async def version_to_restore(db: Connection, queries: Queries, namespace: Namespace, key: str, version: int) -> Row:
    """Return a version of an item, with the item's present index fields and expiry. One round trip."""
    parameters = {"namespace": literal(namespace), "key": key, "version": version}
    rows = await db.fetch(queries.get_version_to_restore, parameters)
    if not rows:
        raise NotFoundError(f"{key!r} in namespace {namespace} has no version {version}")
    return rows[0]


def version_of(version: Any, *, name: str = "version", least: int = 1) -> int:
    """Return a validated version number."""
    if isinstance(version, bool) or not isinstance(version, int) or not least <= version < 2**31:
        raise ConfigurationError(f"{name} must be the number of a version, {least} or more, not {version!r}")
    return version


def as_of_of(as_of: datetime | None) -> datetime | None:
    """Return a validated time as of which memories are read, or `None`."""
    return time_of("as_of", as_of)


async def put_if_unchanged(
    db: Connection,
    queries: Queries,
    put: Put,
    embedded: Sequence[Embedded] = (),
    *,
    language: str,
    origin: Origin,
    traits: Traits,
    history: int,
    expected_version: int,
    is_unindexed: bool = False,
) -> MemoryVersion:
    """Store an item if it has the expected version. Two round trips; safe to repeat."""
    is_stored = await items.put(
        db,
        queries,
        [put],
        embedded,
        language=language,
        history=history,
        origin=origin,
        traits=traits,
        is_unindexed=is_unindexed,
        expected_version=expected_version,
    )
    found = await list_versions(db, queries, put.namespace, put.key, limit=1)
    current = found[0] if found and found[0].valid_to is None else None
    if is_stored and current is not None:
        return current
    if current is not None and current.changed_by == origin.changed_by:
        is_next = current.version == expected_version + 1
        if is_next and json.loads(json_value(current.value)) == json.loads(put.content):
            # An earlier attempt stored the value, but its response was lost.
            return current
    raise _stale(put.namespace, put.key, expected_version, found)


def _stale(namespace: Namespace, key: str, expected_version: int, newest: Sequence[MemoryVersion]) -> StaleMemoryError:
    """Return the error for an item of an unexpected version. `newest` has at most one version."""
    if not newest:
        return StaleMemoryError(namespace, key, expected_version, 0, None, None)
    (one,) = newest
    if one.valid_to is not None:
        return StaleMemoryError(namespace, key, expected_version, 0, one.deleted_by, one.valid_to)
    return StaleMemoryError(namespace, key, expected_version, one.version, one.changed_by, one.valid_from)


async def version_to_change(db: Connection, queries: Queries, namespace: Namespace, key: str, version: int) -> Row:
    """Return the current version of an item, with the item's index fields and expiry."""
    newest = await list_versions(db, queries, namespace, key, limit=1)
    if not newest or newest[0].valid_to is not None or newest[0].version != version:
        raise _stale(namespace, key, version, newest)
    return await version_to_restore(db, queries, namespace, key, version)


async def remove(
    db: Connection,
    queries: Queries,
    namespace: Namespace,
    key: str,
    indexes: Sequence[OpenIndex],
    *,
    history: int,
    purges: bool,
    deleted_by: str | None,
    expected_version: int,
) -> None:
    """Delete an item if it has the expected version. One transaction; safe to repeat."""
    where = {"namespace": literal(namespace), "key": key}
    async with db.transaction():
        rows = await db.fetch(queries.lock_memory, where)
        if rows and rows[0][0] == expected_version:
            options: Any = {"history": history, "purges": purges, "deleted_by": deleted_by}
            await items.delete(db, queries, [(namespace, key)], indexes, **options)
            return
    newest = await list_versions(db, queries, namespace, key, limit=1)
    is_own = (
        newest and newest[0].is_deleted and (newest[0].version, newest[0].deleted_by) == (expected_version, deleted_by)
    )
    # An earlier attempt may have deleted the item, but its response was lost. A purge leaves no versions.
    if not newest if purges else is_own:
        return
    raise _stale(namespace, key, expected_version, newest)
