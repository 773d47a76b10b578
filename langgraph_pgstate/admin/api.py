"""Administration of a schema: setup, migration, checks, upcasts, imports and exports."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_pgstate.admin import integrity, overview, rotation, transfer, transfer_memory, upcasting
from langgraph_pgstate.admin import transfer_langgraph as langgraph_transfer
from langgraph_pgstate.admin.transfer_langgraph import LangGraphStore
from langgraph_pgstate.admin.transfer_memory import TheirSide, Transfer
from langgraph_pgstate.admin.transfer_pgstate import PGStateStore
from langgraph_pgstate.admin.types import (
    CheckReport,
    KeyCounts,
    MemoryTransferReport,
    RotationReport,
    SchemaSizes,
    ThreadSize,
    TransferReport,
    UpcastReport,
)
from langgraph_pgstate.arguments import thread_id_of, thread_ids_of
from langgraph_pgstate.checkpoints.versions import StateVersions, Upcaster
from langgraph_pgstate.codec.opaque import OpaqueCodec, TypeCollector
from langgraph_pgstate.codec.serializer import plain_serializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.connecting import DEFAULT_PREPARE_THRESHOLD
from langgraph_pgstate.db.database import Database, KeyLoader
from langgraph_pgstate.db.dsn import read_dsn
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.encryption import Encryption
from langgraph_pgstate.encryption.keys import KeyRing, count_keys, rewrap, use_keys
from langgraph_pgstate.errors import (
    ConfigurationError,
    CorruptStateError,
    DatabaseError,
    DataKeyError,
    DecryptionError,
    NotEncryptedError,
    PGStateError,
    ThreadArchivedError,
)
from langgraph_pgstate.files.searching import make_file_index
from langgraph_pgstate.langgraph_compat import SAFE_TYPES
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.memory.indexes import OpenIndex
from langgraph_pgstate.memory.options import settings_of
from langgraph_pgstate.options import DEFAULT_EMBEDDED_PATH, DEFAULT_SCHEMA, RetryPolicy, check_schema_name
from langgraph_pgstate.record import conversations
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.schema import setup as schemas
from langgraph_pgstate.schema.queries import Queries, langgraph_queries, queries
from langgraph_pgstate.schema.tenancy import Tenancy, has_walls, list_tenants_or_raise, of_tenant
from langgraph_pgstate.schema.types import SchemaStatus
from langgraph_pgstate.threads import prune
from langgraph_pgstate.threads.types import Progress

OnProgress = Callable[[Progress], None]

# SQLSTATE classes of errors in the data of one thread, and errors of one thread. The transfer continues with the other
# threads.
_DATA_ERRORS = ("22", "54")
_FAILURES = (ConfigurationError, DataKeyError, DecryptionError, NotEncryptedError, ThreadArchivedError)


class Admin:
    """Operations on a whole schema, for scripts and the command line. All calls block.

    Args:
        database: The database.
        tenant: The tenant whose threads are processed, if tenants are kept apart.
        serde: The serializer of the application's saver, if it is not the default.
        encryption: The encryption of the application's saver, if any.
        retry: How often to repeat calls after a lost connection.

    Example:
        >>> with Admin.open("postgresql://localhost/app") as admin:
        ...     admin.setup()
        ...     report = admin.import_langgraph("postgresql://localhost/old")
    """

    def __init__(
        self,
        database: Database,
        *,
        tenant: str | None = None,
        serde: SerializerProtocol | None = None,
        encryption: Encryption | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._queries = queries(check_schema_name(database.schema))
        use_keys(database, encryption, self._queries)
        self._database = of_tenant(database, tenant, self._queries)
        self._serde = serde
        self._codec = OpaqueCodec(serde)
        self._retry = retry or RetryPolicy()

    @classmethod
    @contextmanager
    def open(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        tenant: str | None = None,
        serde: SerializerProtocol | None = None,
        encryption: Encryption | None = None,
        prepare_threshold: int | None = DEFAULT_PREPARE_THRESHOLD,
        retry: RetryPolicy | None = None,
    ) -> Iterator[Self]:
        """Connect, and disconnect at the end of the `with` block.

        Raises:
            UnavailableError: If the server does not respond.
            ConfigurationError: If `schema` is not a plain identifier.
        """
        check_schema_name(schema)
        with Database.open(
            dsn, schema=schema, pool=False, prepare_threshold=prepare_threshold, retry=retry
        ) as database:
            yield cls(database, tenant=tenant, serde=serde, encryption=encryption, retry=retry)

    @classmethod
    @contextmanager
    def embedded(cls, path: str | Path = DEFAULT_EMBEDDED_PATH, *, schema: str = DEFAULT_SCHEMA) -> Iterator[Self]:
        """Connect to the server of the `embedded` extra, as `open` does."""
        with embedded_server(path) as dsn, cls.open(dsn, schema=schema) as admin:
            yield admin

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of the tables."""
        return self._queries.schema

    def status(self) -> SchemaStatus:
        """Return the schema's version and pending migrations. The version is 0 before the first `setup`.

        Raises:
            MigrationConflictError: If an applied migration differs from this package's.
        """
        found: SchemaStatus = self._database.whole.run(schemas.get_status, self._queries)
        return found

    def setup(
        self,
        *,
        metadata_index: bool = False,
        file_index: bool = False,
        tenancy: Tenancy | None = None,
        operators: Sequence[str] = (),
        workers: Sequence[str] = (),
        audit: bool = False,
    ) -> list[str]:
        """Create or migrate the tables. One transaction; safe to repeat, also from several processes at once.

        Args:
            metadata_index: Create a GIN index on all metadata.
            file_index: Create an index of trigrams on the texts of files, which `grep` uses. Requires pg_trgm.
            tenancy: See `PGStateSaver.setup`.
            operators: See `PGStateSaver.setup`.
            workers: See `PGStateSaver.setup`.
            audit: See `PGStateSaver.setup`.

        Returns:
            Names of the applied migrations; empty if none was missing.

        Raises:
            SchemaOutdatedError: If the schema is newer than this package.
            SchemaError: If a table or view was dropped.
            MigrationConflictError: If an applied migration differs from this package's.
            ConfigurationError: With `file_index`, if the server has no pg_trgm.
            TenantError: With `file_index`, if the tables keep tenants apart.
        """
        given: Any = {"tenancy": tenancy, "operators": operators, "workers": workers, "audit": audit}
        applied: list[str] = self._database.whole.run(
            schemas.setup, self._queries, with_metadata_index=metadata_index, **given
        )
        if file_index:
            self._database.whole.run(make_file_index, self._queries)
        return applied

    def migrate(self, version: int | None = None) -> list[str]:
        """Migrate the schema up or down to a version, in one transaction. Migrating down deletes data.

        Args:
            version: The target version. By default, the newest.

        Returns:
            Names of the applied or reverted migrations, in order, each after `"up "` or `"down "`.

        Raises:
            ConfigurationError: If there is no such version.
            MigrationConflictError: If an applied migration differs from this package's.
        """
        target = self.status().expected if version is None else version
        moved: list[str] = self._database.whole.run(schemas.migrate_to, self._queries, target)
        return moved

    @staticmethod
    def setup_script(schema: str) -> str:
        """Return the SQL that `setup` would run on an empty database, for other migration tools.

        Raises:
            ConfigurationError: If `schema` is not a plain identifier.
        """
        return schemas.setup_script(check_schema_name(schema))

    def sizes(self) -> SchemaSizes:
        """Return the sizes of the tables. Rows are counted if all tables have less than 256 MB."""
        tables = self._database.run(overview.list_table_sizes, self._queries)
        orphans = self._database.run(overview.count_orphan_writes, self._queries, tables)
        return SchemaSizes(self._database.run(overview.get_server_version, self._queries), tuple(tables), orphans)

    def thread_size(self, thread_id: str) -> ThreadSize:
        """Return the size of a thread; all zero if the thread does not exist."""
        return self._database.run(overview.get_thread_size, self._queries, thread_id_of(thread_id))

    def check(
        self,
        thread_id: str | None = None,
        *,
        deep: bool = False,
        types: bool = False,
        progress: OnProgress | None = None,
    ) -> CheckReport:
        """Read all checkpoints, their references and recorded messages, and report defects. Read-only, page by page.

        Args:
            thread_id: The thread. By default, all threads.
            deep: Decode every value with the serializer.
            types: List the stored types outside LangGraph, without building values. Cannot be combined with `deep`.
            progress: Called after each thread.

        Returns:
            The counts and defects. Damage never raises.

        Raises:
            SchemaMissingError: If `setup` was never run.
            UnavailableError: If the server does not respond.
        """
        collector = TypeCollector() if types else None
        reader = ValueCodec(self._serde or plain_serializer())
        codec = collector or (reader if deep else None)
        self._database.run(schemas.check_version, self._queries)
        report = CheckReport()
        given = None if thread_id is None else [thread_id_of(thread_id)]
        total = len(given) if given else self._database.run(prune.count_visited_threads, self._queries)
        for id in given or self._threads(self._database, integrity.next_threads, self._queries):
            report += self._database.run(integrity.check_thread, self._queries, codec, id)
            report.problems += self._database.run(conversations.compare_thread, self._queries, reader, id)
            if progress:
                progress(Progress(report.threads, total, report.checkpoints, id))
        if collector is not None:
            report.types = tuple(sorted(f"{module}:{name}" for module, name in collector.types - SAFE_TYPES))
            report.others = collector.others
        return report

    def tenants(self) -> list[str]:
        """Return the names of all tenants; none if the tables do not keep tenants apart.

        Raises:
            TenantError: If the role may not list the tenants.
        """
        if not self._database.whole.run(has_walls, self._queries):
            return []
        found: list[str] = self._database.whole.run(list_tenants_or_raise, self._queries)
        return found

    def data_keys(self) -> list[KeyCounts]:
        """Return, for each master key, the number of data keys that it has wrapped."""
        rows: list[Any] = self._database.run(count_keys, self._queries)
        return [KeyCounts(*row) for row in rows]

    def rewrap_keys(self, *, every: bool = False, progress: Callable[[int], None] | None = None) -> int:
        """Wrap all data keys by the first master key of the encryption, and return how many were wrapped again.

        Only the table of data keys is read and written. If interrupted, a repeated call continues. Before the call,
        give all programs the new master key. After the call, no program needs the old master key.

        Args:
            every: Wrap even keys that the first master key has wrapped, for example after its rotation.
            progress: Called with the number of keys so far.

        Raises:
            ConfigurationError: If there is no encryption.
            KeyUnavailableError: If a master key does not respond.
            DataKeyError: If a data key was wrapped by a master key that the encryption does not have.
        """
        return run_blocking(rewrap(KeyLoader(self._database), self._keys(), every=every, progress=progress))

    def rotate_keys(
        self,
        *,
        scope: str | None = None,
        wait: bool = True,
        progress: rotation.OnProgress | None = None,
    ) -> RotationReport:
        """Make new data keys, encrypt the old keys' values again, and retire the old keys. The application may run.

        Rows are stored again in small transactions. Other processes use the old keys from memory until their
        `cache_for` ends. Values that these processes wrote are encrypted afterwards, and the old keys are retired.
        Retired keys stay in the table, for archives and dumps. If interrupted, a repeated call continues.

        Args:
            scope: Replace only the data key of this scope. By default, the data keys of all scopes.
            wait: Whether to wait for other processes. If false, a later call must end the rotation.
            progress: Called after each page.

        Returns:
            The counts. Values that do not decrypt are problems, and do not raise.

        Raises:
            ConfigurationError: If there is no encryption.
            KeyUnavailableError: If a master key does not respond.
        """
        self._database.run(schemas.check_version, self._queries)
        return rotation.rotate(self._database, self._keys(), self._queries, scope, wait, progress)

    def encrypt(self, *, progress: rotation.OnProgress | None = None) -> RotationReport:
        """Encrypt values that are stored in plain text, in small transactions. The application may run; safe to repeat.

        Raises:
            ConfigurationError: If there is no encryption with `accept_plain`.
            KeyUnavailableError: If a master key does not respond.
        """
        keys = self._keys()
        if not keys.encryption.accept_plain:
            raise ConfigurationError("encryption must have accept_plain=True to read values that are not encrypted yet")
        self._database.run(schemas.check_version, self._queries)
        return rotation.encrypt(self._database, self._queries, progress)

    def add_words(self, *, progress: rotation.OnProgress | None = None) -> RotationReport:
        """Store digests of the words of messages and memories that were encrypted without `search="words"`.

        First give all programs an encryption with `search="words"`. The application may run; safe to repeat. The words
        come from an item's fields to index, or else from its `content`, or else from the whole value. Content that does
        not decrypt is not changed.

        Returns:
            A report with the number of `rows` read. `values` is the number of rows that got digests.

        Raises:
            ConfigurationError: If there is no encryption with `search="words"`.
            KeyUnavailableError: If a master key does not respond.
        """
        if not self._keys().finds_words:
            raise ConfigurationError("encryption must have search='words' to store digests of words")
        self._database.run(schemas.check_version, self._queries)
        return rotation.add_words(self._database, self._queries, progress)

    def _keys(self) -> KeyRing:
        if self._database.keys is None:
            raise ConfigurationError("encryption must be given, with the master keys of the application")
        return self._database.keys

    def upcast(
        self,
        state_version: int,
        upcasters: Mapping[int, Upcaster],
        *,
        thread_ids: Sequence[str] | None = None,
        dry_run: bool = False,
        progress: OnProgress | None = None,
    ) -> UpcastReport:
        """Upcast stored checkpoints to a state version, instead of at each read.

        Each checkpoint is one transaction. If interrupted, a repeated call continues. Programs of the new version may
        run. Programs of an older version can no longer read the upcast checkpoints. Projected channels and messages are
        updated when the thread continues. The next prune removes the old values.

        Args:
            state_version: The version, as in the application's saver.
            upcasters: Functions by target version. Each function converts channel values of the version before.
            thread_ids: Only these threads.
            dry_run: Report the changes, and make none.
            progress: Called after each thread.

        Returns:
            The changes. A checkpoint that cannot be upcast is reported and left unchanged.

        Raises:
            ConfigurationError: If the upcasters do not lead to the version.
            SchemaMissingError: If `setup` was never run.
            UnavailableError: If the server does not respond.
        """
        states = StateVersions(state_version, upcasters)
        codec = ValueCodec(self._serde)
        self._database.run(schemas.check_version, self._queries)
        report = UpcastReport(dry_run=dry_run)
        given = None if thread_ids is None else thread_ids_of(thread_ids)
        total = len(given) if given is not None else self._database.run(prune.count_visited_threads, self._queries)
        threads = given if given is not None else self._threads(self._database, integrity.next_threads, self._queries)
        for id in threads:
            report += self._database.run(upcasting.upcast_thread, self._queries, codec, states, id, dry_run)
            if progress:
                progress(Progress(report.threads, total, report.outdated, id))
        return report

    def import_langgraph(
        self,
        source_dsn: str,
        *,
        source_schema: str = "public",
        thread_ids: Sequence[str] | None = None,
        overwrite: bool = False,
        verify: bool = True,
        decrypt_with: EncryptedSerializer | None = None,
        progress: OnProgress | None = None,
    ) -> TransferReport:
        """Copy threads from the tables of LangGraph's own PostgreSQL saver. Nothing is written to the source.

        Threads are copied in the order of their ids, in transactions of at most a few dozen checkpoints. A repeated
        call continues, skips equal checkpoints, and copies checkpoints that the old application has written since.
        Values are copied as bytes. Only messages are decoded, to record them as `backfill` does. The copies have state
        version 1.

        Args:
            source_dsn: The database of the old application. It may be the same database.
            source_schema: Schema of the old tables.
            thread_ids: Only these threads.
            overwrite: Copy even threads that were continued on both sides. The source's checkpoints replace those of
                the same id. Other checkpoints of the target stay as another branch. Threads continued here with a newer
                state version are only reported.
            verify: Afterwards, read each thread from both sides and compare.
            decrypt_with: LangGraph's `EncryptedSerializer` of the old application. Values are decrypted, and stored
                with this object's `encryption`, if any. By default, encrypted values are copied unchanged. Only a saver
                with the old serializer can read these values.
            progress: Called after each thread.

        Raises:
            SchemaMissingError: If `setup` was never run here.
            SourceMissingError: If `source_schema` has no such tables.
            ConfigurationError: If the source's tables are those of the shallow saver.
            UnavailableError: If a server does not respond.
        """
        theirs = langgraph_queries(source_schema)
        cipher = None if decrypt_with is None else decrypt_with.cipher
        read_dsn(source_dsn, "source_dsn")
        self._database.run(schemas.check_version, self._queries)
        with Database.open(source_dsn, schema=source_schema, pool=False, prepare_threshold=None) as source:
            source.run(langgraph_transfer.check_tables, theirs)
            reader = ValueCodec(self._serde or plain_serializer())

            async def copy(target_db: Connection, source_db: Connection, thread_id: str) -> TransferReport:
                await upcasting.refuse_newer_state(target_db, self._queries, thread_id)
                report = await transfer.transfer_thread(
                    LangGraphStore(source_db, theirs, thread_id, cipher),
                    PGStateStore(target_db, self._queries, self._codec, thread_id),
                    thread_id,
                    overwrite=overwrite,
                    verify=verify,
                )
                if report.differences:
                    # Perhaps the thread was archived before the comparison.
                    await refuse_archived(target_db, self._queries, thread_id)
                await conversations.backfill_thread(target_db, self._queries, reader, thread_id)
                return report

            if thread_ids is None:
                total = source.run(langgraph_transfer.count_threads, theirs)
                threads: Iterable[str] = self._threads(source, langgraph_transfer.next_threads, theirs, None)
            else:
                threads = thread_ids_of(thread_ids)
                total = len(threads)
            return self._transfer(source, self._database, copy, threads, total, progress)

    def export_langgraph(
        self,
        target_dsn: str,
        *,
        target_schema: str = "public",
        thread_ids: Sequence[str] | None = None,
        overwrite: bool = False,
        verify: bool = True,
        progress: OnProgress | None = None,
    ) -> TransferReport:
        """Copy threads to the tables of LangGraph's own PostgreSQL saver. Missing tables are created. Safe to repeat.

        The state versions of checkpoints are lost, so call `upcast` first if threads have several.

        Args:
            target_dsn: The target database. It may be the same database.
            target_schema: Schema of the tables. It is created if it is missing.
            thread_ids: Only these threads.
            overwrite: Write even threads that were continued on both sides. Other checkpoints of the target stay as
                another branch.
            verify: Afterwards, read each thread from both sides and compare.
            progress: Called after each thread.

        Raises:
            SchemaMissingError: If `setup` was never run here.
            ConfigurationError: If the target's tables are those of the shallow saver.
            UnavailableError: If a server does not respond.
        """
        theirs = langgraph_queries(target_schema)
        read_dsn(target_dsn, "target_dsn")
        self._database.run(schemas.check_version, self._queries)
        with Database.open(target_dsn, schema=target_schema, pool=False, prepare_threshold=None) as target:
            target.run(langgraph_transfer.create_tables, theirs)

            async def copy(target_db: Connection, source_db: Connection, thread_id: str) -> TransferReport:
                return await transfer.transfer_thread(
                    PGStateStore(source_db, self._queries, self._codec, thread_id),
                    LangGraphStore(target_db, theirs, thread_id),
                    thread_id,
                    overwrite=overwrite,
                    verify=verify,
                )

            if thread_ids is None:
                total = self._database.run(prune.count_visited_threads, self._queries)
                threads: Iterable[str] = self._threads(self._database, integrity.next_threads, self._queries)
            else:
                threads = thread_ids_of(thread_ids)
                total = len(threads)
            return self._transfer(self._database, target, copy, threads, total, progress)

    def import_langgraph_memory(
        self,
        source_dsn: str,
        *,
        source_schema: str = "public",
        index: str | None = None,
        vectors: bool = True,
        language: str = "simple",
        progress: Callable[[int, int], None] | None = None,
    ) -> MemoryTransferReport:
        """Copy items from the tables of LangGraph's own store, `store` and `store_vectors`. The source is only read.

        Items are copied in transactions of at most a few hundred items, and compared afterwards. Items that change
        meanwhile are copied again, in at most five passes. If both sides have an item, the value that was stored last
        wins, and a replaced value stays as a version. A repeated call continues. An item that is deleted in the source
        after the copy stays here.

        First call the `setup` of the new store, which makes the index. Embeddings are copied if the index has the same
        dimensions and fields. `reindex` embeds the other items later.

        Args:
            source_dsn: The database of the old application. It may be the same database.
            source_schema: Schema of the old tables.
            index: Index that gets the embeddings. It must use the same model. By default, the only index with the same
                number of dimensions.
            vectors: Whether embeddings are copied.
            language: The `language` of the new store.
            progress: Called after each portion with the number of items and the total.

        Raises:
            SchemaMissingError: If `setup` was never run here.
            SourceMissingError: If `source_schema` has no store.
            ConfigurationError: If an argument is invalid, or several indexes fit and none is named.
            UnavailableError: If a server does not respond.
        """
        theirs, language = langgraph_queries(source_schema), settings_of({"language": language}).language
        read_dsn(source_dsn, "source_dsn")
        self._database.run(schemas.check_version, self._queries)
        with Database.open(source_dsn, schema=source_schema, pool=False, prepare_threshold=None) as source:
            found = source.run(transfer_memory.find_vectors, self._queries, theirs)
            if not vectors:
                found = None

            def choose(indexes: Sequence[OpenIndex]) -> OpenIndex | None:
                return transfer_memory.fitting_index(indexes, index, found) if vectors else None

            target = self._database.run(transfer_memory.our_side, self._queries, language, choose)
            origin = TheirSide(theirs, None if target.index is None else found)
            copy = Transfer(origin, target, source.run(origin.count))
            return self._copy_items(copy, source, self._database, progress)

    def export_langgraph_memory(
        self,
        target_dsn: str,
        *,
        target_schema: str = "public",
        index: str | None = None,
        vectors: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> MemoryTransferReport:
        """Copy items to the tables of LangGraph's own store. Missing tables are created. Safe to repeat.

        Memories become items without versions, kinds and origins. Items with a dot in a label are reported and left
        out.

        Args:
            target_dsn: The target database. It may be the same database.
            target_schema: Schema of the tables. It is created if it is missing.
            index: Index whose embeddings are copied. By default, the index that searches use.
            vectors: Whether embeddings are copied.
            progress: Called after each portion with the number of items and the total.

        Raises:
            SchemaMissingError: If `setup` was never run here.
            ConfigurationError: If an argument is invalid, or the target cannot store embeddings.
            UnavailableError: If a server does not respond.
        """
        theirs = langgraph_queries(target_schema)
        read_dsn(target_dsn, "target_dsn")
        self._database.run(schemas.check_version, self._queries)

        def choose(indexes: Sequence[OpenIndex]) -> OpenIndex | None:
            return transfer_memory.named_index(indexes, index) if vectors else None

        source = self._database.run(transfer_memory.our_side, self._queries, "simple", choose)
        with Database.open(target_dsn, schema=target_schema, pool=False, prepare_threshold=None) as target:
            there = target.run(transfer_memory.make_tables, self._queries, theirs, source.index)
            copy = Transfer(source, TheirSide(theirs, there), self._database.run(source.count))
            return self._copy_items(copy, self._database, target, progress)

    def _copy_items(
        self,
        copy: Transfer,
        source: Database,
        target: Database,
        progress: Callable[[int, int], None] | None,
    ) -> MemoryTransferReport:
        while copy.begin(source.run(transfer_memory.get_time, self._queries)):
            while page := source.run(copy.read):
                written, found = target.run(copy.write, page)
                copy.verify(page, written, found, source.run(transfer_memory.get_time, self._queries))
                if progress:
                    progress(copy.report.items, copy.total)
        copy.report.left = source.run(copy.count_left)
        return copy.report

    def _threads(
        self,
        database: Database,
        next_page: Callable[[Connection, Queries, Any], Awaitable[list[str]]],
        queries: Queries,
        after: str | None = "",
    ) -> Iterator[str]:
        """Yield the ids of all threads after an id, read page by page. With `None`, include the empty id."""
        while page := database.run(next_page, queries, after):
            yield from page
            after = page[-1]

    def _transfer(
        self,
        source: Database,
        target: Database,
        copy: Callable[[Connection, Connection, str], Coroutine[Any, Any, TransferReport]],
        threads: Iterable[str],
        total: int,
        progress: OnProgress | None,
    ) -> TransferReport:
        report = TransferReport()
        for thread_id in threads:
            report += self._with_retries(source, target, copy, thread_id)
            if progress:
                progress(Progress(report.threads, total, report.checkpoints + report.unchanged, thread_id))
        return report

    def _with_retries(
        self,
        source: Database,
        target: Database,
        copy: Callable[[Connection, Connection, str], Coroutine[Any, Any, TransferReport]],
        thread_id: str,
    ) -> TransferReport:
        """Copy one thread. Repeat the copy after a retryable error, and once after damage."""

        async def lend(db: Connection) -> TransferReport:
            return target.run_once(copy, db, thread_id)

        attempt = 1
        while True:
            try:
                return source.run_once(lend)
            except CorruptStateError as error:
                # A prune or a deletion in the target may have removed a segment between two reads.
                if attempt > 1:
                    return _failure(thread_id, error)
            except _FAILURES as error:
                return _failure(thread_id, error)
            except DatabaseError as error:
                if (error.sqlstate or "").startswith(_DATA_ERRORS):
                    return _failure(thread_id, error)
                if not error.retryable or attempt >= self._retry.attempts:
                    raise
            time.sleep(self._retry.delay(attempt, random.random()))  # nosec B311 # jitter
            attempt += 1


def _failure(thread_id: str, error: PGStateError) -> TransferReport:
    """Return the report of a thread that could not be copied completely."""
    where, why = (error.where, error.why) if isinstance(error, CorruptStateError) else ("the thread", str(error))
    return TransferReport(threads=1, differences=[Problem(thread_id, where, why)])
