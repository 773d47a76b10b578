"""LangGraph's store on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain, islice
from typing import Any, Final, Literal, Self, TypeVar, Unpack
from uuid import uuid4

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from langgraph_pgstate.arguments import identifier, text_of
from langgraph_pgstate.call_site import RunOf
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import (
    AsyncConnectionPool,
    AsyncDatabase,
    AsyncPsycopgConnection,
    ConnectionPool,
    Database,
    PsycopgConnection,
)
from langgraph_pgstate.db.protocol import Row
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, Runner, blocking, wait_on_loop
from langgraph_pgstate.encryption import Encryption
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.heavy import in_thread
from langgraph_pgstate.memory import accesses, indexing, items
from langgraph_pgstate.memory.accesses import FLUSH_SECONDS, Accesses
from langgraph_pgstate.memory.embedding import (
    AsyncEmbedder,
    BlockingEmbedder,
    Embedder,
    Vector,
    is_model_error,
    report_failure,
)
from langgraph_pgstate.memory.gathering import Gathering
from langgraph_pgstate.memory.indexes import OpenIndex, drop_index, open_indexes, setup_indexes, stored_indexes
from langgraph_pgstate.memory.items import (
    FEW,
    NO_TRAITS,
    Batch,
    Embedded,
    Mode,
    Origin,
    Put,
    Search,
    Traits,
    current_origin,
    joined,
)
from langgraph_pgstate.memory.namespaces import Namespace, check_size, labels_of, literal, range_of
from langgraph_pgstate.memory.options import MemoryOptions, Settings, minutes_of, settings_of
from langgraph_pgstate.memory.remembering import AsyncMemories, Memories
from langgraph_pgstate.memory.spans import recorded
from langgraph_pgstate.memory.texts import fields_of, json_value, texts_of
from langgraph_pgstate.memory.types import FoundItem
from langgraph_pgstate.options import DEFAULT_SCHEMA
from langgraph_pgstate.paging import offset_of
from langgraph_pgstate.schema import setup as schema_setup
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.queries import queries as queries_of
from langgraph_pgstate.schema.tenancy import of_tenant

T = TypeVar("T")

# Maximum seconds for which puts and gets wait for calls in progress, and maximum number of gets in a statement.
_PATIENCE: Final = 0.02
_GETS: Final = 100


class _Sorted:
    """The validated operations of a batch, by kind."""

    def __init__(self) -> None:
        self.gets: list[tuple[int, GetOp]] = []
        self.searches: list[tuple[int, SearchOp]] = []
        self.listings: list[tuple[int, dict[str, Any]]] = []
        # If a batch has several puts of one item, only the last put counts.
        self.puts: dict[tuple[Namespace, str], Put | None] = {}


class _Store(BaseStore):
    """The part of both stores that needs no connection."""

    supports_ttl = True

    runner: Runner
    queries: Queries
    settings: Settings
    _embedders: Mapping[str, Embedder]
    _open: tuple[OpenIndex, ...] | None
    _accesses: Accesses
    _run_of: RunOf | None = None
    _counts_reads: bool = True
    # Run puts and gets of several tasks together; `None` if each call is run alone.
    _puts: Gathering[Batch, None] | None = None
    _gets: Gathering[Sequence[tuple[Namespace, str]], list[Row | None]] | None = None

    def _prepare(self, queries: Queries, options: MemoryOptions, embedder: Callable[[Any], Embedder]) -> None:
        self._options = options
        self.queries, self.settings, self._open = queries, settings_of(options), None
        self._embedders = {one.name: embedder(one.model) for one in self.settings.indexes}
        self.ttl_config, self.index_config = self.settings.ttl, options.get("index")
        self._accesses = Accesses(self._schedule_flush)

    def _schedule_flush(self) -> None:
        raise NotImplementedError

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of the tables."""
        return self.queries.schema

    def _sort(self, ops: Iterable[Op]) -> _Sorted:
        found, given = _Sorted(), [*ops]
        for op in given:
            _check(op)
        for number, op in enumerate(given):
            match op:
                case GetOp():
                    found.gets.append((number, op))
                case SearchOp():
                    found.searches.append((number, op))
                case ListNamespacesOp():
                    found.listings.append((number, _listing(op)))
                case PutOp():
                    key = tuple(op.namespace), op.key
                    found.puts.pop(key, None)
                    found.puts[key] = None if op.value is None else self._put_of(op)
        return found

    def _put_of(self, op: PutOp) -> Put:
        check_size(op.namespace, op.key)
        if op.index is None:
            fields = self.settings.fields_in(tuple(op.namespace))
        else:
            fields = () if op.index is False else fields_of(op.index, name="index")
        content = json_value(op.value)
        texts = texts_of(op.value or {}, self.settings.fields if fields is None else fields)
        ttl = None if op.ttl is None else minutes_of(op.ttl) * 60
        return Put(tuple(op.namespace), op.key, content, ttl, fields, texts)

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store an item. By default, `index` and `ttl` are the options of its namespace."""
        super().put(namespace, key, value, index, ttl=self._ttl_of(namespace, ttl))

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Asynchronous twin of `put`."""
        await super().aput(namespace, key, value, index, ttl=self._ttl_of(namespace, ttl))

    def _ttl_of(self, namespace: tuple[str, ...], ttl: float | NotProvided | None) -> float | NotProvided | None:
        is_given = not isinstance(ttl, NotProvided) or not self.settings.namespaces
        return ttl if is_given else self.settings.default_ttl_in(tuple(namespace))

    async def _write_reads(self) -> None:
        batches = self._accesses.take()
        while batches:
            try:
                if not await self.runner.run(items.count_reads, self.queries, accesses.parameters_of(batches[-1])):
                    self._accesses.give_back(batches, None)
                    return
            except BaseException as error:
                self._accesses.give_back(batches, error)
                if not isinstance(error, Exception):
                    raise
                return
            batches.pop()

    def _note(self, namespace: Namespace, key: str, refreshes: bool) -> None:
        if self._counts_reads:
            self._accesses.add(namespace, key, refreshes)


class AsyncPGMemoryStore(AsyncMemories, _Store):
    """Async twin of `PGMemoryStore`, bound to the event loop that created it.

    Call its blocking methods from other threads. On the loop's own thread, these methods raise an error.
    """

    def __init__(
        self,
        connection: AsyncPsycopgConnection | AsyncConnectionPool[Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        encryption: Encryption | None = None,
        **options: Unpack[MemoryOptions],
    ) -> None:
        queries = queries_of(schema)
        database = AsyncDatabase(connection, schema=schema)
        use_keys(database, encryption, queries)
        self._use(of_tenant(database, tenant, queries), queries, options)

    @classmethod
    def over(
        cls,
        database: AsyncDatabase,
        queries: Queries,
        options: MemoryOptions,
        run_of: RunOf | None = None,
        *,
        counts_reads: bool = True,
    ) -> Self:
        """Return a store on an open database.

        Args:
            run_of: Returns the id of the recorded run to which a config belongs.
            counts_reads: Whether reads are counted and extend times to live. If not, reads write nothing.
        """
        store = cls.__new__(cls)
        store._use(database, queries, options)
        store._run_of, store._counts_reads = run_of, counts_reads
        return store

    def of_database(self, database: AsyncDatabase, run_of: RunOf | None) -> Self:
        """Return a store with the same options, over another `AsyncDatabase` of the same schema."""
        return self.over(database, self.queries, self._options, run_of, counts_reads=self._counts_reads)

    def _use(self, database: AsyncDatabase, queries: Queries, options: MemoryOptions) -> None:
        self._prepare(queries, options, AsyncEmbedder)
        self.runner, self._whole = AsyncRunner(database), AsyncRunner(database.whole)
        if not database.is_borrowed:
            self._puts = Gathering(self._store, lambda batch: batch.names, most=FEW, patience=_PATIENCE)
            self._gets = Gathering(self._get, lambda keys: [object() for _ in keys], most=_GETS, patience=_PATIENCE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushing: set[asyncio.Task[Any]] = set()
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        pool: Any = True,
        encryption: Encryption | None = None,
        **options: Unpack[MemoryOptions],
    ) -> Any:
        """Async twin of `PGMemoryStore.from_conn_string`."""
        async with AsyncDatabase.open(dsn, schema=schema, pool=pool) as database:
            queries = queries_of(schema)
            use_keys(database, encryption, queries)
            store = cls.over(of_tenant(database, tenant, queries), queries, options)
            try:
                yield store
            finally:
                await store.close()

    async def setup(self) -> None:
        """Apply missing migrations, and make the indexes. Safe to repeat, and in several processes at once.

        Raises:
            ConfigurationError: If an index with the same name but other options exists.
        """
        await self._whole.run(schema_setup.setup, self.queries)
        await self._whole.run(setup_indexes, self.queries, self.settings.indexes)
        self._open = None

    async def setup_indexes(self) -> None:
        """Make the indexes, in a schema that is set up."""
        await self._whole.run(setup_indexes, self.queries, self.settings.indexes)
        self._open = None

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: first reads, then puts, then deletions. If an argument is invalid, nothing is stored.

        Raises:
            InvalidNamespaceError: If a namespace is invalid.
            ConfigurationError: If another argument is invalid.
            SerializationError: If a value cannot be stored.
        """
        given = [*ops]
        values = [op.value for op in given if isinstance(op, PutOp)]
        sorted = await self.runner.compute(values, self._sort, given)
        found: list[Result] = [None] * len(given)
        if sorted.gets:
            keys = [(tuple(op.namespace), op.key) for _, op in sorted.gets]
            is_alone = self._gets is None or len(keys) > FEW
            rows = (await self._get([keys]))[0] if is_alone else await self._gets(keys)  # type: ignore[misc]
            for (number, op), row in zip(sorted.gets, rows, strict=True):
                if row is not None:
                    found[number] = items.item_of(row)
                    if row[5]:
                        self._note(tuple(op.namespace), op.key, op.refresh_ttl)
        for number, asked in sorted.searches:
            one = Search(tuple(asked.namespace_prefix), asked.filter, asked.limit, asked.offset, asked.query or None)
            found[number] = list[SearchItem](await self._find(one, refreshes=asked.refresh_ttl))
        for number, parameters in sorted.listings:
            found[number] = await self.runner.run(items.list_namespaces, self.queries, parameters)
        if puts := [one for one in sorted.puts.values() if one is not None]:
            await self._put(puts, current_origin(self._run_of), NO_TRAITS)
        if deletions := [key for key, one in sorted.puts.items() if one is None]:
            await self._delete(deletions)
        return found

    @recorded("delete_memory", lambda keys: (keys[0][1] if len(keys) == 1 else None, None))
    async def _delete(self, keys: Sequence[tuple[Namespace, str]]) -> None:
        history, indexes = self.settings.history, await self._indexes()
        by = current_origin(self._run_of).changed_by
        await self.runner.run(items.delete, self.queries, keys, indexes, history=history, deleted_by=by)

    async def asearch(  # type: ignore[override]
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
        mode: Mode = "hybrid",
    ) -> list[FoundItem]:
        """Return items below a namespace, best match of a query first; without a query, last stored first.

        `limit` items are returned if they exist, at any offset, with any filter.

        Args:
            namespace_prefix: Labels with which the namespaces begin; none for all.
            query: The text to search for. With embeddings, items that have neither an embedding nor a word of the query
                are left out.
            filter: Values of fields, or operators: `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`.
            limit: Maximum number of items, up to 10,000.
            offset: Number of items to skip.
            refresh_ttl: Whether to extend the found items' times to live; by default as in `refresh_on_read` of `ttl`.
            mode: `hybrid` fuses the ranks by embedding and by words; `vector` and `words` use only one rank.

        Raises:
            InvalidNamespaceError: If the namespace is invalid.
            ConfigurationError: If another argument is invalid.
        """
        _check(SearchOp(namespace_prefix, query=query))
        refreshes = (self.ttl_config or {}).get("refresh_on_read", True) if refresh_ttl is None else refresh_ttl
        one = Search(tuple(namespace_prefix), filter, limit, offset, query or None)
        return await self._find(one, mode=mode, refreshes=refreshes)

    @recorded("search_memory", lambda search, **_: (None, search.query))
    async def _find(self, search: Search, *, mode: Mode = "hybrid", refreshes: bool) -> list[FoundItem]:
        if mode not in ("hybrid", "vector", "words"):
            raise ConfigurationError(f"mode must be 'hybrid', 'vector' or 'words', not {mode!r}")
        parameters = items.search_parameters(search)
        index = embedding = None
        if search.query is not None and mode != "words":
            index = next((one for one in reversed(await self._indexes()) if one.is_complete), None)
            if index is None and mode == "vector":
                raise ConfigurationError("mode 'vector' requires a complete index of embeddings")
            if index is not None:
                embedding = await self._embed_query(index, search.query, mode)
        run, settings = self.runner.run, self.settings
        found = await run(
            items.search,
            self.queries,
            search,
            parameters,
            language=settings.language,
            mode=mode,
            index=index,
            embedding=embedding,
        )
        for one in found:
            if one.is_tracked:
                self._note(one.namespace, one.key, refreshes)
        return found

    async def _embed_query(self, index: OpenIndex, query: str, mode: Mode) -> Vector | None:
        """Return the embedding of a query; `None` if the model fails and the search can use words alone."""
        try:
            return await self._embedders[index.index.name].embed_query(query)
        except Exception as error:
            if mode == "vector" or not is_model_error(error) or not items.finds_words(self.runner.keys):
                raise
            report_failure(error, 1)
            return None

    @recorded("upsert_memory", lambda puts, *_: (puts[0].key if len(puts) == 1 else None, None))
    async def _put(self, puts: Sequence[Put], origin: Origin, traits: Traits) -> None:
        batch = Batch(puts, *(await self._embed(puts)), origin)
        if self._puts is None or traits != NO_TRAITS or len(puts) > FEW:
            await self._store([batch], traits)
        else:
            await self._puts(batch)

    async def _store(self, batches: Sequence[Batch], traits: Traits = NO_TRAITS) -> list[None]:
        """Store batches of items, with as few statements as possible."""
        left = [*batches]
        while left:
            together = [one for one in left if one.fits(left[0])]
            puts, embedded, origins = joined(together)
            await self.runner.run(
                items.put,
                self.queries,
                puts,
                embedded,
                language=self.settings.language,
                history=self.settings.history,
                origin=origins,
                traits=traits,
                is_unindexed=left[0].is_unindexed,
            )
            left = [one for one in left if not one.fits(together[0])]
        return [None] * len(batches)

    async def _get(self, calls: Sequence[Sequence[tuple[Namespace, str]]]) -> list[list[Row | None]]:
        """Return the rows of items, in the order of the requests."""
        rows = iter(await self.runner.run(items.get, self.queries, [*chain.from_iterable(calls)]))
        return [[*islice(rows, len(keys))] for keys in calls]

    async def _embed(self, puts: Sequence[Put]) -> tuple[list[Embedded], bool]:
        """Return embeddings of puts in each index, and whether some are missing because a model failed."""
        found, is_unindexed = [], False
        for index in await self._indexes():
            one, texts = Embedded(index), []
            for number, put in enumerate(puts, 1):
                of_index = put.texts if put.index_fields is not None else texts_of_index(put, index, self.settings)
                for text in of_index:
                    one.numbers.append(number)
                    one.fields.append(text.field)
                    texts.append(text.text)
            if texts:
                try:
                    one.vectors += await self._embedders[index.index.name].embed(texts)
                except Exception as error:
                    if not is_model_error(error):
                        raise
                    # The items are stored without embeddings. Until `reindex`, only words find these items.
                    report_failure(error, len(texts))
                    one, is_unindexed = Embedded(index), True
            found.append(one)
        return found, is_unindexed

    async def _indexes(self) -> tuple[OpenIndex, ...]:
        # Read incomplete indexes again, because they may be complete now.
        if self._open is None or not all(one.is_complete for one in self._open):
            self._open = await self.runner.run(open_indexes, self.queries, self.settings.indexes)
        return self._open

    async def sweep_ttl(self) -> int:
        """Delete expired items, and return their number. `maintain` and workers call this, too."""
        return await self.runner.run(items.sweep, self.queries)

    async def reindex(self) -> int:
        """Embed items that the indexes lack: items older than an index, and items for which a model failed.

        Also put new items of large namespaces into the approximate indexes. Afterwards, searches use new indexes. Puts
        and searches continue meanwhile. Safe to stop and to repeat. Servers and workers call this every minute. Only
        one call in all processes embeds at a time.

        Returns:
            The number of items that were embedded; 0 if another call is embedding.

        Raises:
            Exception: If the model fails. Earlier embeddings are stored.
        """
        run, indexer = self.runner.run, uuid4().hex
        await indexing.move_waiting(self.runner, self.queries)
        indexes = await run(open_indexes, self.queries, self.settings.indexes)
        names = [one.index.name for one in indexes]
        if not indexes or (begun := await run(indexing.begin, self.queries, names)) is None:
            return 0
        if not await run(indexing.claim, self.queries, names, indexer):
            return 0
        try:
            return await self._reindex(indexes, begun, indexer)
        finally:
            await run(indexing.release, self.queries, indexer)

    async def _reindex(self, indexes: Sequence[OpenIndex], begun: Any, indexer: str) -> int:
        run, count, names = self.runner.run, 0, [one.index.name for one in indexes]
        for index in indexes:
            after: Row | None = None
            while rows := await run(indexing.list_missing, self.queries, index, after):
                numbers, fields, texts = [], [], []
                for number, (_, _, _, value, of_item) in enumerate(rows, 1):
                    for text in texts_of(value, index.index.fields if of_item is None else of_item):
                        numbers.append(number)
                        fields.append(text.field)
                        texts.append(text.text)
                if texts:
                    vectors = await self._embedders[index.index.name].embed(texts)
                    await run(indexing.add, self.queries, index, rows, numbers, fields, vectors)
                count, after = count + len({*numbers}), rows[-1]
                if not await run(indexing.claim, self.queries, names, indexer):
                    # The model took so long that the claim ended. Another call has the claim now, and embeds the rest.
                    return count
        await run(indexing.finish, self.queries, names, begun)
        self._open = None
        return count

    async def list_indexes(self) -> dict[str, bool]:
        """Return the names of all indexes of embeddings in the schema, and whether each has all items."""
        found = await self.runner.run(stored_indexes, self.queries)
        return {one.index.name: one.is_complete for one in found}

    async def drop_index(self, name: str) -> None:
        """Delete an unused index of embeddings, with its embeddings. Items are kept.

        Remove the index from the options of all processes first.

        Raises:
            NotFoundError: If there is no such index.
            ConfigurationError: If the index is among the options of this store.
            TenantError: If the store has a tenant.
        """
        if any(one.name == name for one in self.settings.indexes):
            raise ConfigurationError(f"index {name!r} must not be among the options of this store")
        await self.runner.run(drop_index, self.queries, name)

    async def move_large_namespaces(self) -> int:
        """Put items of large namespaces into approximate indexes. Return their number. `maintain` calls this, too."""
        return await indexing.move_large_namespaces(self.runner, self.queries)

    async def flush(self) -> None:
        """Write waiting counts of reads. Counts that cannot be written are kept; on a standby they are dropped."""
        others = {task for task in self._flushing if task is not asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        await self._write_reads()

    async def close(self) -> None:
        """Write waiting counts of reads, and stop counting. Safe to repeat."""
        await self.flush()
        self._accesses.close()

    def _schedule_flush(self) -> None:
        if self._loop is None:
            # The store was made before the event loop ran.
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon_threadsafe(self._loop.call_later, FLUSH_SECONDS, self._begin_flush)

    def _begin_flush(self) -> None:
        task = asyncio.get_running_loop().create_task(self.flush(), name="pgstate-memory-accesses")
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `abatch` from another thread.

        Raises:
            BlockingCallError: If called on the event loop's own thread, or the loop does not run.
        """
        return self.wait(self.abatch(ops), "abatch")

    def wait(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        """Wait, on another thread, for a coroutine that runs on the store's loop."""
        return wait_on_loop(self._loop, coroutine, name, type(self).__name__)

    def search(self, namespace_prefix: tuple[str, ...], /, **options: Any) -> list[FoundItem]:  # type: ignore[override]
        """Run `asearch` from another thread."""
        return self.wait(self.asearch(namespace_prefix, **options), "asearch")


class PGMemoryStore(Memories, _Store):
    """LangGraph's store on PostgreSQL: `graph.compile(checkpointer=state.saver, store=state.memory)`.

    Items are found by embeddings and by words. Each change keeps the earlier version. Expired items are never
    returned. `maintain` and workers delete expired items.

    Args:
        connection: A psycopg `ConnectionPool` or `Connection`, which the caller closes.
        schema: The PostgreSQL schema the tables are in.
        tenant: See `langgraph_pgstate.options.SaverOptions`.
        encryption: See `langgraph_pgstate.options.SaverOptions`.
        options: See `MemoryOptions`.

    Raises:
        ConfigurationError: If an option is invalid.
    """

    def __init__(
        self,
        connection: PsycopgConnection | ConnectionPool[Any],
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        encryption: Encryption | None = None,
        **options: Unpack[MemoryOptions],
    ) -> None:
        queries = queries_of(schema)
        database = Database(connection, schema=schema)
        use_keys(database, encryption, queries)
        self._use(of_tenant(database, tenant, queries), queries, options)

    @classmethod
    def over(
        cls,
        database: Database,
        queries: Queries,
        options: MemoryOptions,
        run_of: RunOf | None = None,
        *,
        counts_reads: bool = True,
    ) -> Self:
        """See `AsyncPGMemoryStore.over`."""
        store = cls.__new__(cls)
        store._use(database, queries, options)
        store._run_of, store._counts_reads = run_of, counts_reads
        return store

    def of_database(self, database: Database, run_of: RunOf | None) -> Self:
        """See `AsyncPGMemoryStore.of_database`."""
        return self.over(database, self.queries, self._options, run_of, counts_reads=self._counts_reads)

    def _use(self, database: Database, queries: Queries, options: MemoryOptions) -> None:
        self._prepare(queries, options, BlockingEmbedder)
        self.runner, self._whole = BlockingRunner(database), BlockingRunner(database.whole)
        self._is_flushing = threading.Lock()

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        pool: Any = True,
        encryption: Encryption | None = None,
        **options: Unpack[MemoryOptions],
    ) -> Any:
        """Connect, and disconnect at the end of the block.

        Args:
            dsn: A libpq connection string or URI.
            schema: The PostgreSQL schema the tables are in.
            tenant: See `langgraph_pgstate.options.SaverOptions`.
            pool: See `langgraph_pgstate.options.ConnectionOptions`.
            encryption: See `langgraph_pgstate.options.SaverOptions`.
            options: See `MemoryOptions`.
        """
        with Database.open(dsn, schema=schema, pool=pool) as database:
            queries = queries_of(schema)
            use_keys(database, encryption, queries)
            store = cls.over(of_tenant(database, tenant, queries), queries, options)
            try:
                yield store
            finally:
                store.close()

    setup = blocking(AsyncPGMemoryStore.setup)
    setup_indexes = blocking(AsyncPGMemoryStore.setup_indexes)
    batch = blocking(AsyncPGMemoryStore.abatch)
    search = blocking(AsyncPGMemoryStore.asearch)  # type: ignore[arg-type]
    sweep_ttl = blocking(AsyncPGMemoryStore.sweep_ttl)
    reindex = blocking(AsyncPGMemoryStore.reindex)
    drop_index = blocking(AsyncPGMemoryStore.drop_index)
    list_indexes = blocking(AsyncPGMemoryStore.list_indexes)
    move_large_namespaces = blocking(AsyncPGMemoryStore.move_large_namespaces)
    _reindex = AsyncPGMemoryStore._reindex
    _find = AsyncPGMemoryStore._find
    _embed_query = AsyncPGMemoryStore._embed_query
    _put = AsyncPGMemoryStore._put
    _store = AsyncPGMemoryStore._store
    _get = AsyncPGMemoryStore._get
    _delete = AsyncPGMemoryStore._delete
    _embed = AsyncPGMemoryStore._embed
    _indexes = AsyncPGMemoryStore._indexes

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `batch` in a thread."""
        return await in_thread(self.batch, ops)

    async def asearch(self, namespace_prefix: tuple[str, ...], /, **options: Any) -> list[FoundItem]:  # type: ignore[override]
        """Run `search` in a thread."""
        found: Any = await in_thread(self.search, namespace_prefix, **options)
        return [*found]

    def flush(self) -> None:
        """See `AsyncPGMemoryStore.flush`."""
        with self._is_flushing:
            run_blocking(self._write_reads())

    def close(self) -> None:
        """See `AsyncPGMemoryStore.close`."""
        self.flush()
        self._accesses.close()

    def _schedule_flush(self) -> None:
        timer = threading.Timer(FLUSH_SECONDS, self.flush)
        timer.daemon = True
        timer.start()


def texts_of_index(put: Put, index: OpenIndex, settings: Settings) -> list[Any]:
    """Return the texts of a put that an index embeds."""
    if index.index.fields == settings.fields:
        return put.texts
    import json

    return texts_of(json.loads(put.content), index.index.fields)


def _check(op: Op) -> None:
    """Check that namespaces and keys can be stored."""
    validate_op_namespace(op)
    match op:
        case SearchOp():
            labels_of(op.namespace_prefix, can_be_empty=True)
            text_of("query", op.query)
        case ListNamespacesOp():
            for condition in op.match_conditions or ():
                labels_of(_path_of(condition), can_be_empty=True)
        case GetOp() | PutOp():
            labels_of(op.namespace)
            identifier("key", op.key)


def _path_of(condition: MatchCondition) -> Sequence[str]:
    """Return the labels that a namespace must begin or end with. A string is one label."""
    return [condition.path] if isinstance(condition.path, str) else condition.path


def _listing(op: ListNamespacesOp) -> dict[str, Any]:
    if op.max_depth is not None and (isinstance(op.max_depth, bool) or not 0 < op.max_depth < 1000):
        raise ConfigurationError(f"max_depth must be from 1 to 999, not {op.max_depth!r}")
    prefix: list[str] = []
    for condition in op.match_conditions or ():
        if condition.match_type not in ("prefix", "suffix"):
            raise ConfigurationError(f"match_type must be 'prefix' or 'suffix', not {condition.match_type!r}")
        if condition.match_type == "prefix" and not prefix:
            for label in _path_of(condition):
                if label == "*":
                    break
                prefix.append(label)
    conditions = [one for one in op.match_conditions or () if one.path]
    return {
        **range_of(tuple(prefix))._asdict(),
        "matches": [literal(_path_of(one)) for one in conditions],
        "ends": ["true" if one.match_type == "suffix" else "false" for one in conditions],
        "max_depth": op.max_depth,
        "page_size": items.limit_of(op.limit),
        "offset": offset_of(op.offset),
    }
