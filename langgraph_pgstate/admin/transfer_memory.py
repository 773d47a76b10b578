"""Copying of items between the tables of LangGraph's store and those of this package, in portions, with verification.

If both sides have an item, the value that was stored last wins, so programs may write on both sides meanwhile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from langgraph_pgstate.admin.types import ItemDifference, MemoryTransferReport
from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.protocol import Connection, Packed, Row, Rows
from langgraph_pgstate.errors import ConfigurationError, PGStateError, SourceMissingError
from langgraph_pgstate.memory.embedding import packed, packed_array
from langgraph_pgstate.memory.indexes import OpenIndex, stored_indexes
from langgraph_pgstate.memory.namespaces import Namespace, check_size, labels_of, literal
from langgraph_pgstate.memory.texts import WHOLE, texts_of, words_of
from langgraph_pgstate.schema.queries import (
    NamedQuery,
    Queries,
    langgraph_store_tables,
    langgraph_vectors_table,
    snapshot,
)

PAGE: Final = 500
_PAGE_BYTES: Final = 8 * 1024 * 1024
# Maximum number of passes, because programs may never stop writing.
_PASSES: Final = 5
# A later pass reads again the items of this time before the previous pass began. Some of these items may have been
# committed only after the previous pass.
_MARGIN: Final = timedelta(minutes=1)
_IMPORTED_BY: Final = "import-langgraph"
_TYPES: Final = ("vector", "halfvec")
_COLUMNS: Final = {"prefix", "key", "value", "created_at", "updated_at", "expires_at", "ttl_minutes"}

Key = tuple[Namespace, str]


@dataclass(slots=True)
class Item:
    """An item with its embeddings.

    Attributes:
        namespace: Labels of the namespace.
        key: Key of the item.
        content: Value of the item, as PostgreSQL writes `jsonb`.
        created_at: Time of the first storage.
        updated_at: Time of the last storage.
        expires_at: Time of expiry; `None` for never.
        ttl: Minutes by which a read delays the expiry; `None` for none.
        vectors: Embeddings by field.
    """

    namespace: Namespace
    key: str
    content: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    ttl: float | None = None
    vectors: dict[str, list[float]] = field(default_factory=dict)

    @property
    def name(self) -> Key:
        """Namespace and key."""
        return self.namespace, self.key


class Side(Protocol):
    """Reader and writer of items in the tables of one store: this package's or LangGraph's."""

    async def page(
        self, db: Connection, after: Item | None, since: datetime | None, until: datetime | None
    ) -> list[Item]:
        """Return the next items in the order of their keys, with their embeddings. One snapshot.

        Args:
            db: The connection.
            after: Only items after this one.
            since: Only items stored at this time or later.
            until: No items stored between this time and now.
        """
        ...

    async def count_since(self, db: Connection, since: datetime | None) -> int:
        """Return the number of items that were stored at a time or later."""
        ...

    async def stored(self, db: Connection, items: Sequence[Item]) -> dict[Key, Item]:
        """Return this side's items with the namespaces and keys of `items`, with embeddings."""
        ...

    def refusal(self, item: Item) -> str | None:
        """Return the reason why an item cannot be stored on this side, or `None`."""
        ...

    async def write(self, db: Connection, items: Sequence[Item]) -> int:
        """Store items, unless this side's items were stored later. Return the number stored. Safe to repeat."""
        ...

    def takes(self, item: Item) -> bool:
        """Return whether the embeddings of an item are copied to this side."""
        ...


class Transfer:
    """A copy of all items of a source to a target. `total` is the number of items, for the progress."""

    def __init__(self, source: Side, target: Side, total: int) -> None:
        self.source, self.target, self.total = source, target, total
        self.report = MemoryTransferReport()
        self._differences: dict[Key, str] = {}
        self._after: Item | None = None
        self._pass, self._written = 0, 0
        # Number of items that the pass before the last pass wrote.
        self._before: int | None = None
        self._since: datetime | None = None
        self._began: datetime | None = None

    def begin(self, now: datetime) -> bool:
        """Begin the next pass, at a time by the clock of the source. Return false if there is no next pass.

        The first pass reads all items. A later pass reads the items that changed since the previous pass began. Items
        that change during a pass are left to the next pass, so that each pass ends. The copy ends if a pass writes as
        many items as the previous pass, or more.
        """
        falls_behind = self._before is not None and self._written >= self._before
        if self._pass == _PASSES or (self._pass and not self._written) or falls_behind:
            self.report.differences = [
                ItemDifference(".".join(namespace), key, why) for (namespace, key), why in self._differences.items()
            ]
            return False
        self._since = None if self._began is None else self._began - _MARGIN
        self._before = self._written if self._pass else None
        self._began, self._after, self._written = now, None, 0
        self._pass += 1
        return True

    async def read(self, db: Connection) -> list[Item]:
        """Return the next items of the source; none at the end of the pass."""
        return await self.source.page(db, self._after, self._since, self._began)

    async def count_left(self, db: Connection) -> int:
        """Return the number of the source's items that were stored since the last pass began."""
        return await self.source.count_since(db, self._began)

    async def write(self, db: Connection, items: Sequence[Item]) -> tuple[int, dict[Key, Item]]:
        """Store items in the target. Return the number stored, and the target's items afterwards."""
        fitting = [one for one in items if self.target.refusal(one) is None]
        written = await self.target.write(db, fitting) if fitting else 0
        return written, await self.target.stored(db, fitting) if fitting else {}

    def verify(self, items: Sequence[Item], written: int, found: Mapping[Key, Item], now: datetime) -> None:
        """Compare items with the target's items, and count the results."""
        report = self.report
        self._after, self._written = items[-1], self._written + written
        report.written += written
        is_first = self._pass == 1
        for one in items:
            self._differences.pop(one.name, None)
            why = self.target.refusal(one)
            there = found.get(one.name)
            if why is not None:
                self._differences[one.name] = why
            elif there is None:
                if one.expires_at is None or one.expires_at > now:
                    self._differences[one.name] = "it is missing"
                else:
                    report.expired += is_first
            elif there.updated_at > one.updated_at:
                report.newer += is_first
            elif (difference := self._difference(one, there)) is not None:
                self._differences[one.name] = difference
            else:
                report.verified += is_first
                report.with_vectors += is_first and bool(there.vectors) and bool(one.vectors)
        report.items += len(items) if is_first else 0

    def _difference(self, one: Item, there: Item) -> str | None:
        if there.updated_at < one.updated_at:
            return "another program changed it during the copy"
        if one.content != there.content and _parsed(one.content) != _parsed(there.content):
            return "its value differs"
        if one.created_at != there.created_at:
            return "its created_at differs"
        if there.expires_at != one.expires_at and not (
            there.expires_at is not None and one.expires_at is not None and there.expires_at > one.expires_at
        ):
            return "its expires_at differs"
        if there.vectors and one.vectors and self.target.takes(one) and not _is_near(one.vectors, there.vectors):
            return "its embeddings differ"
        return None


def _parsed(content: str) -> Any:
    # Compare values and not texts, because PostgreSQL formats JSON in its own way.
    return json.loads(content, parse_float=Decimal)


def _is_near(one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]) -> bool:
    """Return whether embeddings are equal within the precision of `halfvec`."""
    return one.keys() == other.keys() and all(
        len(vector) == len(other[name])
        and all(
            a == b or math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-6) for a, b in zip(vector, other[name], strict=True)
        )
        for name, vector in one.items()
    )


def _ends(items: Sequence[Item]) -> dict[str, Any]:
    """Return the parameters of items for both sides' statements."""
    return {
        "contents": [one.content for one in items],
        "created": [one.created_at.isoformat() for one in items],
        "updated": [one.updated_at.isoformat() for one in items],
        "ends": ["" if one.expires_at is None else one.expires_at.isoformat() for one in items],
        "ttls": [-1.0 if one.ttl is None else one.ttl for one in items],
    }


def _page_parameters(since: datetime | None, until: datetime | None) -> dict[str, Any]:
    return {
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "page_size": PAGE,
        "max_bytes": _PAGE_BYTES,
    }


def _vectors(items: Sequence[Item], dims: int, type_number: int) -> dict[str, Any]:
    """Return embeddings as parameters, with the numbers of their items."""
    rows = [(number, name, vector) for number, one in enumerate(items, 1) for name, vector in one.vectors.items()]
    return {
        "numbers": [number for number, _, _ in rows],
        "fields": [name for _, name, _ in rows],
        "embeddings": Packed(packed_array([packed(vector, dims) for _, _, vector in rows], type_number)),
    }


def _add_vectors(items: Mapping[Key, Item], rows: Rows, key_of: Any) -> None:
    for where, key, name, vector in rows:
        items[key_of(where), key].vectors[name] = vector


class OurSide:
    """Items in this package's tables.

    Args:
        queries: The queries of the schema.
        index: Index of the copied embeddings; `None` for none.
        indexes: All indexes.
        language: Configuration of PostgreSQL's full text.
    """

    def __init__(self, queries: Queries, index: OpenIndex | None, indexes: Sequence[OpenIndex], language: str) -> None:
        self._queries, self.index, self._indexes, self._language = queries, index, indexes, language
        self._fields = indexes[-1].index.fields if indexes else (WHOLE,)

    async def count(self, db: Connection) -> int:
        """Return the number of items."""
        return await self.count_since(db, None)

    async def count_since(self, db: Connection, since: datetime | None) -> int:
        """Return the number of items that were stored at a time or later."""
        when = None if since is None else since.isoformat()
        return int((await db.fetch(self._queries.count_memories, {"since": when}))[0][0])

    async def page(
        self, db: Connection, after: Item | None, since: datetime | None, until: datetime | None
    ) -> list[Item]:
        """Return the next items."""
        where = {"namespace": "{}", "key": ""}
        if after is not None:
            where = {"namespace": literal(after.namespace), "key": after.key}
        async with db.transaction():
            await db.script(snapshot())
            rows = await db.fetch(self._queries.list_memories_to_export, {**where, **_page_parameters(since, until)})
            return [*(await self._items(db, rows)).values()]

    async def stored(self, db: Connection, items: Sequence[Item]) -> dict[Key, Item]:
        """Return the contents of items."""
        return await self._items(db, await db.fetch(self._queries.get_stored_memories, _names(items)))

    async def _items(self, db: Connection, rows: Rows) -> dict[Key, Item]:
        found = {(one := Item(tuple(namespace), *rest)).name: one for namespace, *rest in rows}
        if self.index is not None and found:
            vectors = await db.fetch(self.index.query("list_vectors"), _names([*found.values()]))
            _add_vectors(found, vectors, tuple)
        return found

    def refusal(self, item: Item) -> str | None:
        """Return why an item cannot be stored."""
        try:
            check_size(labels_of(item.namespace), identifier("key", item.key))
        except (PGStateError, ValueError) as error:
            return str(error)
        return None if item.content.startswith("{") else "its value is no mapping"

    def takes(self, item: Item) -> bool:
        """Return whether an item's embeddings have the fields that the index embeds."""
        if self.index is None or not item.vectors:
            return False
        texts = texts_of(json.loads(item.content), self.index.index.fields)
        return {text.field for text in texts} == item.vectors.keys()

    async def write(self, db: Connection, items: Sequence[Item]) -> int:
        """Store items, with the embeddings that fit the index. Other items are embedded later."""
        takes = [self.takes(one) for one in items]
        texts = [texts_of(json.loads(one.content), self._fields) for one in items]
        lacks = [bool(self._indexes) and not (taken and len(self._indexes) == 1) for taken in takes]
        parameters = {
            **_names(items),
            **_ends(items),
            "words": [words_of(one) for one in texts],
            "unindexed": ["true" if one else "false" for one in lacks],
            "language": self._language,
            "changed_by": _IMPORTED_BY,
        }
        async with db.transaction():
            rows = await db.fetch(self._queries.import_memories, parameters)
            versions = {(tuple(namespace), key): version for namespace, key, version in rows}
            written = [one for one in items if one.name in versions]
            for index in self._indexes if written else ():
                await db.execute(index.query("delete_old_vectors"), _named(written, versions))
            taken = [one for one, fits in zip(items, takes, strict=True) if fits and one.name in versions]
            if self.index is not None and taken:
                vectors = _vectors(taken, self.index.index.dims, self.index.type_number)
                await db.execute(self.index.query("add_vectors"), {**_named(taken, versions), **vectors})
        return len(written)


def _names(items: Sequence[Item]) -> dict[str, Any]:
    return {"namespaces": [literal(one.namespace) for one in items], "keys": [one.key for one in items]}


def _named(items: Sequence[Item], versions: Mapping[Key, int]) -> dict[str, Any]:
    return {**_names(items), "versions": [versions[one.name] for one in items]}


@dataclass(frozen=True, slots=True)
class TheirVectors:
    """The table of embeddings of LangGraph's store.

    Attributes:
        dims: Number of dimensions.
        extension: Schema of pgvector.
        type_number: OID of the type `vector`.
    """

    dims: int
    extension: str
    type_number: int


class TheirSide:
    """Items in the tables of LangGraph's store, which joins the labels of a namespace by dots.

    Args:
        queries: The queries on these tables.
        vectors: The table of embeddings; `None` if embeddings are not copied.
    """

    def __init__(self, queries: Queries, vectors: TheirVectors | None) -> None:
        self._queries, self._vectors = queries, vectors

    async def count(self, db: Connection) -> int:
        """Return the number of items."""
        return await self.count_since(db, None)

    async def count_since(self, db: Connection, since: datetime | None) -> int:
        """Return the number of items that were stored at a time or later."""
        when = None if since is None else since.isoformat()
        return int((await db.fetch(self._queries.count_items, {"since": when}))[0][0])

    async def page(
        self, db: Connection, after: Item | None, since: datetime | None, until: datetime | None
    ) -> list[Item]:
        """Return the next items."""
        where = {"prefix": "", "key": ""}
        if after is not None:
            where = {"prefix": ".".join(after.namespace), "key": after.key}
        async with db.transaction():
            await db.script(snapshot())
            rows = await db.fetch(self._queries.list_items, {**where, **_page_parameters(since, until)})
            return [*(await self._items(db, rows)).values()]

    async def stored(self, db: Connection, items: Sequence[Item]) -> dict[Key, Item]:
        """Return the contents of items."""
        return await self._items(db, await db.fetch(self._queries.get_items, _prefixes(items)))

    async def _items(self, db: Connection, rows: Rows) -> dict[Key, Item]:
        found = {(one := Item(_labels(prefix), *rest)).name: one for prefix, *rest in rows}
        for one in found.values():
            # The column has whole minutes, so a ttl below one minute is 0.
            one.ttl = one.ttl or None
        if self._vectors is not None and found:
            vectors = await db.fetch(self._queries.list_item_vectors, _prefixes([*found.values()]))
            _add_vectors(found, vectors, _labels)
        return found

    def refusal(self, item: Item) -> str | None:
        """Return why an item cannot be stored."""
        if any("." in label for label in item.namespace):
            return "a label of its namespace has a dot, which LangGraph's store takes as the end of a label"
        return None

    def takes(self, item: Item) -> bool:
        """Return whether embeddings are copied."""
        return self._vectors is not None

    async def write(self, db: Connection, items: Sequence[Item]) -> int:
        """Store items, with their embeddings."""
        minutes = [None if one.ttl is None else max(1.0, round(one.ttl)) for one in items]
        ttls = {"ttls": [-1.0 if one is None else one for one in minutes]}
        async with db.transaction():
            rows = await db.fetch(self._queries.put_items, {**_prefixes(items), **_ends(items), **ttls})
            names = {(_labels(prefix), key) for prefix, key in rows}
            written = [one for one in items if one.name in names]
            if self._vectors is not None and written:
                await db.execute(self._queries.delete_item_vectors, _prefixes(written))
                vectors = _vectors(written, self._vectors.dims, self._vectors.type_number)
                if vectors["numbers"]:
                    query = _on_type(self._queries.put_item_vectors, self._vectors.extension)
                    await db.execute(query, {**_prefixes(written), **vectors})
        return len(written)


def _prefixes(items: Sequence[Item]) -> dict[str, Any]:
    return {"prefixes": [".".join(one.namespace) for one in items], "keys": [one.key for one in items]}


def _labels(prefix: str) -> Namespace:
    return tuple(prefix.split("."))


def _on_type(query: NamedQuery, extension: str) -> NamedQuery:
    return query._replace(text=query.text.replace(b"/*vector*/", f'"{extension}".'.encode()))


async def our_side(db: Connection, queries: Queries, language: str, choose: Any) -> OurSide:
    """Return this package's tables as a side, with the index that `choose` selects."""
    indexes = await stored_indexes(db, queries)
    return OurSide(queries, choose(indexes), indexes, language)


async def find_vectors(db: Connection, queries: Queries, theirs: Queries) -> TheirVectors | None:
    """Return the table of embeddings of LangGraph's store, if it exists and its type can be copied.

    Raises:
        SourceMissingError: If there is no store.
        ConfigurationError: If the store has an old version.
    """
    rows = await db.fetch(theirs.find_store, {"schema": f'"{theirs.schema}"'})
    columns = {row[1] for row in rows if row[0] == "store"}
    if not columns >= {"prefix", "key", "value"}:
        raise SourceMissingError(theirs.schema, ("store",))
    if missing := sorted(_COLUMNS - columns):
        raise ConfigurationError(
            f"{theirs.schema}.store has no column {missing[0]}: call setup() of a newer langgraph-checkpoint-postgres"
        )
    types = await db.fetch(queries.find_vector_type, {})
    for table, column, type_name, extension, modifier in rows:
        if (table, column) == ("store_vectors", "embedding") and type_name in _TYPES and modifier > 0 and types:
            return TheirVectors(modifier, extension, types[0][1])
    return None


async def make_tables(
    db: Connection, queries: Queries, theirs: Queries, index: OpenIndex | None
) -> TheirVectors | None:
    """Create missing tables of LangGraph's store. Return the table of embeddings. Safe to repeat.

    Raises:
        ConfigurationError: If the tables cannot store embeddings of the index.
    """
    exists = (await db.fetch(theirs.find_schema, {"schema": f'"{theirs.schema}"'}))[0][0]
    async with db.transaction():
        await db.script(langgraph_store_tables(theirs.schema, create_schema=not exists))
    found = await find_vectors(db, queries, theirs)
    if index is None:
        return None
    if found is None:
        types = await db.fetch(queries.find_vector_type, {})
        if not types:
            raise ConfigurationError(
                "the target database has no pgvector: install pgvector, or leave embeddings out (vectors=False, "
                "--no-vectors)"
            )
        async with db.transaction():
            await db.script(
                langgraph_vectors_table(theirs.schema, types[0][0], index.index.vector_type, index.index.dims)
            )
        found = TheirVectors(index.index.dims, *types[0])
    if found.dims != index.index.dims:
        raise ConfigurationError(
            f"{theirs.schema}.store_vectors has {found.dims:,} dimensions, and index {index.index.name!r} has "
            f"{index.index.dims:,}: name another index, or leave embeddings out (vectors=False, --no-vectors)"
        )
    return found


def fitting_index(indexes: Sequence[OpenIndex], name: str | None, vectors: TheirVectors | None) -> OpenIndex | None:
    """Return the index for copied embeddings, which has the same number of dimensions.

    Raises:
        ConfigurationError: If the named index does not fit, or several indexes fit and none is named.
    """
    if name is not None and (index := named_index(indexes, name)) is not None:
        if vectors is None or vectors.dims != index.index.dims:
            has = "no embeddings" if vectors is None else f"embeddings of {vectors.dims:,} dimensions"
            raise ConfigurationError(
                f"index {name!r} takes embeddings of {index.index.dims:,} dimensions, but the store has {has}"
            )
        return index
    fitting = [one for one in indexes if vectors is not None and one.index.dims == vectors.dims]
    if len(fitting) > 1:
        names = ", ".join(one.index.name for one in fitting)
        raise ConfigurationError(
            f"several indexes fit the dimensions of the store's embeddings: {names}. Name the index whose model made "
            "these embeddings (index=, --index), or leave embeddings out (vectors=False, --no-vectors)"
        )
    return fitting[0] if fitting else None


def named_index(indexes: Sequence[OpenIndex], name: str | None) -> OpenIndex | None:
    """Return an index by name. By default, return the last complete index, or `None`.

    Raises:
        ConfigurationError: If there is no index of this name.
    """
    if name is None:
        return next((one for one in reversed(indexes) if one.is_complete), None)
    found = next((one for one in indexes if one.index.name == name), None)
    if found is None:
        names = ", ".join(one.index.name for one in indexes) or "none"
        raise ConfigurationError(f"index must be one of the schema's indexes, {names}, not {name!r}")
    return found


async def get_time(db: Connection, queries: Queries) -> datetime:
    """Return the time of the database."""
    row: Row = (await db.fetch(queries.get_time, {}))[0]
    found: datetime = row[0]
    return found
