"""Storage, reading and search of items, and the origin of an item: the run and checkpoint that stored it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.store.base import Item

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.call_site import RunOf, origin_of
from langgraph_pgstate.db.protocol import Connection, Packed, Row, Rows
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import ConfigurationError, ConflictError
from langgraph_pgstate.memory.embedding import Vector, packed, packed_array
from langgraph_pgstate.memory.filters import conditions_of
from langgraph_pgstate.memory.indexes import OpenIndex, stored_indexes
from langgraph_pgstate.memory.indexing import LARGE_SIZE
from langgraph_pgstate.memory.namespaces import Namespace, literal, range_of
from langgraph_pgstate.memory.texts import Text, words_of
from langgraph_pgstate.memory.types import FoundItem
from langgraph_pgstate.paging import offset_of
from langgraph_pgstate.schema.queries import Queries, Statement

Mode = Literal["hybrid", "vector", "words"]

# Maximum number of attempts of a put while other calls store the same items.
_ATTEMPTS: Final = 50
MAX_LIMIT: Final = 10_000
_SWEPT: Final = 1000
# Number of embeddings that `sweep_vectors` reads at once.
_PAGE: Final = 10_000
FEW: Final = 20
"""Maximum number of items in a put with a generic plan. A put of more items is planned at each call."""
# Maximum of pgvector's `hnsw.ef_search`.
_MAX_REACH: Final = 1000
# Building the parameters of more items and embeddings is slow enough to run in a thread.
_MANY: Final = 100
_GENERIC: Final = {"mode": "force_generic_plan"}


class Origin(NamedTuple):
    """The thread, run and checkpoint that stored a memory."""

    changed_by: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    checkpoint_id: str | None = None
    message_id: str | None = None


def current_origin(run_of: RunOf | None) -> Origin:
    """Return the origin of memories that the running task stores; an empty origin outside of a graph."""
    config = var_child_runnable_config.get()
    if not config:
        return Origin()
    configurable = configurable_of(config)
    user = configurable.get("langgraph_auth_user_id") or configurable.get("user_id")
    place = origin_of(config, run_of)
    return Origin(_text(user), place.thread_id, place.run_id, place.checkpoint_id)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    return None if "\0" in text else text[:512]


@dataclass(slots=True)
class Put:
    """A validated item to store.

    Attributes:
        content: Value of the item, as JSON.
        ttl: Seconds to live; `None` for ever.
        index_fields: Fields to index; `None` for the store's fields, empty for no index.
        texts: The texts of these fields.
    """

    namespace: Namespace
    key: str
    content: str
    ttl: float | None
    index_fields: tuple[str, ...] | None
    texts: list[Text]


@dataclass(slots=True)
class Embedded:
    """The embeddings of puts in one index.

    Attributes:
        numbers: For each embedding, the number of its put, from 1.
        fields: For each embedding, its field.
    """

    index: OpenIndex
    numbers: list[int] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that one caller stores, with their embeddings in each index.

    Attributes:
        is_unindexed: Whether embeddings are missing because a model failed.
    """

    puts: Sequence[Put]
    embedded: Sequence[Embedded]
    is_unindexed: bool
    origin: Origin

    @property
    def names(self) -> list[tuple[Namespace, str]]:
        """Namespace and key of each item."""
        return [(one.namespace, one.key) for one in self.puts]

    def fits(self, other: Batch) -> bool:
        """Return whether the same statements can also store another batch."""
        indexes = [one.index for one in self.embedded], [one.index for one in other.embedded]
        return self.is_unindexed == other.is_unindexed and indexes[0] == indexes[1]


def joined(batches: Sequence[Batch]) -> tuple[list[Put], list[Embedded], list[Origin]]:
    """Return the items, embeddings and origins of batches that the same statements can store."""
    puts: list[Put] = []
    embedded = [Embedded(one.index) for one in batches[0].embedded]
    origins: list[Origin] = []
    for batch in batches:
        for mine, theirs in zip(embedded, batch.embedded, strict=True):
            mine.numbers += [len(puts) + number for number in theirs.numbers]
            mine.fields += theirs.fields
            mine.vectors += theirs.vectors
        puts += batch.puts
        origins += [batch.origin] * len(batch.puts)
    return puts, embedded, origins


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a memory besides its value. Items that are not memories have none."""

    kind: str | None = None
    user_id: str | None = None
    agent: str | None = None
    tenant_id: str | None = None
    importance: float | None = None
    expires_at: Any = None
    digest: str | None = None
    duplicates: int = 0


NO_TRAITS: Final = Traits()


async def put(
    db: Connection,
    queries: Queries,
    puts: Sequence[Put],
    embedded: Sequence[Embedded],
    *,
    language: str,
    history: int,
    origin: Origin | Sequence[Origin],
    traits: Traits,
    is_unindexed: bool,
    expected_version: int | None = None,
) -> bool:
    """Store items with their embeddings. One transaction, one round trip. An unchanged item gets no new version.

    Inside a transaction, an expected version takes one round trip more for each index.

    Args:
        origin: The origin of all items, or of each item.
        is_unindexed: Whether embeddings are missing because a model failed. The statement itself notices indexes that
            `embedded` lacks.
        expected_version: The version that a single item must have; 0 if it must not exist. If the item has another
            version, nothing is stored, and the result is false.
    """
    given = {
        "language": language,
        "history": history,
        "is_unindexed": is_unindexed,
        "index_names": [one.index.index.name for one in embedded],
        "kind": traits.kind,
        "user_id": traits.user_id,
        "agent": traits.agent,
        "tenant_id": traits.tenant_id,
        "importance": None if traits.importance is None else str(traits.importance),
        "expires_at": None if traits.expires_at is None else traits.expires_at.isoformat(),
        "digest": traits.digest,
        "duplicates": traits.duplicates,
        "expected_version": expected_version,
    }
    origins = [origin] * len(puts) if isinstance(origin, Origin) else origin
    build = partial(_statements, queries, puts, embedded, origins, given)
    has_many = len(puts) + sum(len(one.vectors) for one in embedded) > _MANY
    statements = await db.compute(build) if has_many else build()
    if not db.is_in_transaction:
        planning = "force_generic_plan" if len(puts) <= FEW else "force_custom_plan"
        statements.insert(0, (queries.set_planning, {"mode": planning}))
    if expected_version is not None and db.is_in_transaction:
        # `put_vectors` recognises items by the time of the transaction, which may also have stored the item before.
        async with db.transaction():
            is_stored = await db.execute(*statements[0]) == len(puts)
            for statement in statements[1:] if is_stored else ():
                await db.execute(*statement)
        return is_stored
    for _ in range(_ATTEMPTS):
        if len(statements) == 1:
            stored = await db.execute(*statements[0])
        else:
            stored = (await db.execute_together(statements))[-1 - len(embedded)]
        if stored == len(puts):
            return True
        if expected_version is not None:
            return False
    raise ConflictError(f"{len(puts)} items could not be stored: other calls kept changing these items")


def _statements(
    queries: Queries,
    puts: Sequence[Put],
    embedded: Sequence[Embedded],
    origins: Sequence[Origin],
    given: Mapping[str, Any],
) -> list[Statement]:
    """Return the statements that store items and their embeddings."""
    keys = {"namespaces": [literal(one.namespace) for one in puts], "keys": [one.key for one in puts]}
    parameters = {
        **keys,
        **given,
        "contents": [one.content for one in puts],
        "ttls": [-1.0 if one.ttl is None else one.ttl for one in puts],
        "words": [words_of(one.texts) for one in puts],
        "index_fields": ["" if one.index_fields is None else literal(one.index_fields) for one in puts],
        "changed_by": [one.changed_by or "" for one in origins],
        "thread_ids": [one.thread_id or "" for one in origins],
        "run_ids": [one.run_id or "" for one in origins],
        "checkpoint_ids": [one.checkpoint_id or "" for one in origins],
        "message_ids": [one.message_id or "" for one in origins],
    }
    statements: list[Statement] = [(queries.put_memories, parameters)]
    for one in embedded:
        dims, type_number = one.index.index.dims, one.index.type_number
        vectors = packed_array([packed(vector, dims) for vector in one.vectors], type_number)
        vector_parameters = {**keys, "numbers": one.numbers, "fields": one.fields, "embeddings": Packed(vectors)}
        statements.append((one.index.query("put_vectors"), vector_parameters))
    return statements


async def delete(
    db: Connection,
    queries: Queries,
    keys: Sequence[tuple[Namespace, str]],
    indexes: Sequence[OpenIndex],
    *,
    history: int,
    purges: bool = False,
    deleted_by: str | None = None,
) -> int:
    """Delete items, and return their number. One transaction; safe to repeat.

    One round trip. If `purges`, two more, for indexes that the store's options lack.
    """
    if purges:
        indexes = await stored_indexes(db, queries)
    named = {"namespaces": [literal(namespace) for namespace, _ in keys], "keys": [key for _, key in keys]}
    parameters = {**named, "history": history, "purges": purges, "deleted_by": deleted_by}
    if not indexes:
        return len(await db.fetch(queries.delete_memories, parameters))
    statements: list[Statement] = [
        (queries.delete_memories, parameters),
        *((one.query("delete_vectors"), named) for one in indexes),
    ]
    return (await db.execute_together(statements))[0]


async def get(db: Connection, queries: Queries, keys: Sequence[tuple[Namespace, str]]) -> list[Row | None]:
    """Return rows of items, in the order of the requested keys. One round trip."""
    if len(keys) == 1:
        [(namespace, key)] = keys
        rows = await db.fetch(queries.get_memory, {"namespace": literal(namespace), "key": key})
        return [rows[0] if rows else None]
    parameters = {"namespaces": [literal(namespace) for namespace, _ in keys], "keys": [key for _, key in keys]}
    found = {row[6]: row for row in await db.fetch(queries.get_memories, parameters)}
    return [found.get(number) for number in range(1, len(keys) + 1)]


@dataclass(frozen=True, slots=True)
class Search:
    """A validated search.

    Attributes:
        prefix: Labels with which namespaces begin.
        query: The text to search for; `None` for the newest items.
        kinds: Kinds of memories; `None` for all items.
        importance_weight: Weight of the importance, from 0 to 1.
        half_lives: By kind, the seconds in which the rank score halves.
    """

    prefix: Namespace
    filter: Mapping[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    kinds: Sequence[str] | None = None
    importance_weight: float = 0.0
    half_lives: Mapping[str, float] = field(default_factory=dict)


def search_parameters(search: Search) -> dict[str, Any]:
    """Return the parameters of a search, without its query."""
    return {
        **range_of(search.prefix)._asdict(),
        **conditions_of(search.filter),
        "page_size": limit_of(search.limit),
        "offset": offset_of(search.offset),
    }


def limit_of(limit: int) -> int:
    """Return a validated number of items."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT:
        raise ConfigurationError(f"limit must be from 0 to {MAX_LIMIT:,}, not {limit!r}")
    return limit


async def search(
    db: Connection,
    queries: Queries,
    search: Search,
    parameters: Mapping[str, Any],
    *,
    language: str,
    mode: Mode,
    index: OpenIndex | None,
    embedding: Vector | None,
) -> list[FoundItem]:
    """Return the items that a search finds."""
    if search.query is None and search.kinds is None:
        return [_found(row) for row in await db.fetch(queries.list_memories, parameters)]
    ranking = {
        **parameters,
        "language": language,
        "query": search.query or "",
        "kinds": None if search.kinds is None else [*search.kinds],
        "importance_weight": str(search.importance_weight),
        "half_life_kinds": [*search.half_lives],
        "half_lives": [float(seconds) for seconds in search.half_lives.values()],
    }
    if index is None or embedding is None or mode == "words":
        return [_found(row) for row in await _fetch_planned(db, queries, (queries.search_words, ranking))]
    ranking |= {
        "embedding": Packed(packed(embedding, index.index.dims)),
        "uses_words": mode == "hybrid" and finds_words(db.keys),
    }
    rows = await _search_vectors(db, queries, search, ranking, index)
    return [_found(row, index.index.distance) for row in rows]


def finds_words(keys: KeyRing | None) -> bool:
    """Return whether words can find items: items are not encrypted, or digests of their words are stored."""
    return keys is None or keys.finds_words


async def _fetch_planned(db: Connection, queries: Queries, statement: Statement) -> Rows:
    """Return the rows of a statement that the server plans once for all parameters. One round trip.

    In a caller's transaction, do not change the planner's settings, because the caller's statements would use them.
    """
    if db.is_in_transaction:
        return await db.fetch(*statement)
    return await db.fetch_together([(queries.set_planning, _GENERIC), statement])


async def _search_vectors(
    db: Connection, queries: Queries, search: Search, ranking: dict[str, Any], index: OpenIndex
) -> Rows:
    """Return the rows of a search: exact in small namespaces, approximate in large namespaces.

    If the approximate search finds too few items, search exactly.
    """
    exact = index.query("search_vectors")
    reach = max(40, (search.offset + search.limit) * max(1, len(index.index.fields)))
    is_approximate = index.index.is_approximate and reach <= _MAX_REACH
    ranking |= {"avoids_large": is_approximate, "large_size": str(LARGE_SIZE), "reach": str(reach)}
    rows = await _fetch_planned(db, queries, (exact, ranking))
    if rows or not is_approximate or not await db.fetch(queries.has_large_namespace, ranking):
        return rows
    allowing = index.query("allow_scans")
    rows = await db.fetch_together([(allowing, ranking), (index.query("search_large"), ranking)])
    return rows if len(rows) >= search.limit else await db.fetch(exact, {**ranking, "avoids_large": False})


def item_of(row: Row) -> Item:
    """Return an item."""
    namespace, key, value, created_at, updated_at, *_ = row
    return Item(namespace=tuple(namespace), key=key, value=value, created_at=created_at, updated_at=updated_at)


def _found(row: Row, distance: str = "") -> FoundItem:
    namespace, key, value, created_at, updated_at, is_tracked, *ranked = row
    found = FoundItem(tuple(namespace), key, value, created_at, updated_at, is_tracked=is_tracked)
    if ranked:
        apart, found.vector_rank, found.words_rank, found.kind, found.importance, found.rank_score = ranked
        if apart is not None:
            found.score = 1 - apart if distance == "cosine" else -apart
    return found


async def list_namespaces(db: Connection, queries: Queries, parameters: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a page of namespaces, in order. One round trip."""
    return [tuple(row[0]) for row in await db.fetch(queries.list_namespaces, parameters)]


async def count_reads(db: Connection, queries: Queries, parameters: Mapping[str, Any]) -> bool:
    """Add counts of reads to items. A retry after a lost connection can count reads twice.

    In the caller's transaction, write nothing and return false, because an error would abort this transaction.
    """
    if db.is_in_transaction:
        return False
    await db.execute(queries.touch_memories, parameters)
    return True


async def sweep(db: Connection, queries: Queries) -> int:
    """Delete expired items and their versions, in small transactions. Return the number of items."""
    total = 0
    while count := await sweep_some(db, queries):
        total += count
    return total


async def sweep_some(db: Connection, queries: Queries) -> int:
    """Delete some expired items, their versions and embeddings. Return the number of items. One transaction."""
    async with db.transaction():
        rows = await db.fetch(queries.sweep_memories, {"count": _SWEPT})
        if rows:
            named = {"namespaces": [literal(row[0]) for row in rows], "keys": [row[1] for row in rows]}
            for one in await stored_indexes(db, queries):
                await db.execute(one.query("delete_vectors"), named)
    return len(rows)


async def sweep_vectors(runner: Runner, queries: Queries) -> int:
    """Delete embeddings without an item, in small transactions. Return their number.

    A process whose options lack an index deletes items, but not their embeddings in this index.
    """
    deleted = 0
    for index in await runner.run(stored_indexes, queries):
        after: Row | None = ((), "", "")
        while after is not None:
            count, after = await runner.run(_sweep_page, index, after)
            deleted += count
    return deleted


async def _sweep_page(db: Connection, index: OpenIndex, after: Row) -> tuple[int, Row | None]:
    """Delete orphaned embeddings of the next page. Return their number, and the page's last row or `None`."""
    async with db.transaction():
        where = {"namespace": literal(after[0]), "key": after[1], "field": after[2], "count": _PAGE}
        rows = await db.fetch(index.query("lock_orphaned_vectors"), where)
        if not (orphaned := [row for row in rows if row[3]]):
            return 0, rows[-1] if rows else None
        named = {
            "namespaces": [literal(row[0]) for row in orphaned],
            "keys": [row[1] for row in orphaned],
            "fields": [row[2] for row in orphaned],
        }
        # Check again in a new statement, because items may have been stored after the previous statement began.
        return await db.execute(index.query("delete_orphaned_vectors"), named), rows[-1]
