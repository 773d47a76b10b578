"""The data keys of a database: their cache, loading and creation.

Encryption and decryption take data keys from memory, and raise `MissingKeysError` if a key is missing. The database
then returns its connection to the pool, loads the keys here, and runs the operation again. So the master key is never
called within a transaction. While one caller loads a data key, other callers that need this key wait.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import re
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from langgraph_pgstate.encryption.cipher import KEY_BYTES, DataKey, key_id_of, new_key_id
from langgraph_pgstate.encryption.columns import BOUND_AS, Content
from langgraph_pgstate.encryption.masters import MasterKey
from langgraph_pgstate.encryption.options import MIN_CACHE_SECONDS, Encryption, Subject
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    DataKeyDestroyedError,
    DataKeyError,
    EncryptionError,
    KeyUnavailableError,
    MissingKeysError,
    NotEncryptedError,
    PGStateError,
    UnavailableError,
)
from langgraph_pgstate.heavy import in_thread, start_thread

T = TypeVar("T")

KEY: Final = "key"
SCOPE: Final = "scope"
THREAD: Final = "thread"

# The columns of `get_thread_owner`, in order.
_OWNER: Final = ("agent", "user_id", "tenant_id")
_UNKNOWN: Final = (Subject(), "", 0.0)
# All digests are made with one key. This is the scope of this key.
_SEARCH: Final = "pgstate:search"
_MOST_THREADS: Final = 100_000
_MOST_TENANTS: Final = 10_000
# Maximum number of loads without a new key for one operation. Without a limit, an operation could try forever while
# other processes destroy keys.
_MOST_STALLS: Final = 50
_WORD: Final = re.compile(r"\w+")
_NAMESPACED: Final = frozenset({"memories", "memory_versions", "files", "file_texts", "file_versions"})
_OF_NO_THREAD: Final = frozenset({"schedules", "assistant_versions"})
# If a master key does not respond, a cached key stays in use for this part of `cache_for`.
_AGAIN: Final = 0.1

# Maximum number of keys in one transaction, and of simultaneous requests to a master key.
_PAGE: Final = 500
_ASKED_TOGETHER: Final = 16

_logger = logging.getLogger("langgraph_pgstate")


class Runner(Protocol):
    """A runner of operations on a database, and of functions of master keys."""

    async def run(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation."""
        ...

    async def run_outside(self, operation: Callable[..., Awaitable[T]], /, *args: Any) -> T:
        """Run an operation in a separate transaction, even if the caller has an open one."""
        ...

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function that may block or return a coroutine."""
        ...

    async def wait(self, future: Future[None]) -> None:
        """Wait until another caller has finished the work."""
        ...


class _Cached(NamedTuple):
    """A data key in memory, and its row."""

    key: DataKey
    master_id: str
    wrapped: bytes
    is_of_tenant: bool
    until: float

    @property
    def row(self) -> dict[str, Any]:
        """The row, as parameters."""
        names = ("master_id", "wrapped", "is_of_tenant")
        return {"key_id": self.key.id, "scope": self.key.scope, **{name: getattr(self, name) for name in names}}


class KeyRing:
    """The data keys of one database, or of one tenant of it. Safe to share between threads.

    The keys of a tenant cannot be unwrapped for another tenant.
    """

    def __init__(self, encryption: Encryption, queries: Any, tenant: str | None = None) -> None:
        self.encryption = encryption
        self.queries = queries
        self.tenant = tenant
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, _Cached] = OrderedDict()
        # For each scope, the id of the current key, and the time until which this id is valid.
        self._current: dict[str, tuple[str, float]] = {}
        # For each thread, the owner, the scope, and the time until which owner and scope are valid.
        self._threads: dict[str, tuple[Subject, str, float]] = {}
        self._destroyed: dict[str, float] = {}
        # For each data key that cannot be loaded, the reason, and the time of the next attempt.
        self._lost: dict[str, tuple[str, float]] = {}
        self._loading: dict[tuple[str, str], Future[None]] = {}
        # Loads in other OS threads, by the keys that a load fetches, and until when callers wait for a load.
        self._beside: dict[frozenset[tuple[str, str]], tuple[Future[None], float]] = {}
        self._tenants: OrderedDict[str, KeyRing] = OrderedDict()

    def of_tenant(self, tenant: str) -> KeyRing:
        """Return the data keys of a tenant. All `Database` and `AsyncDatabase` objects of this tenant share them."""
        with self._lock:
            found = self._tenants.get(tenant)
            if found is None:
                found = self._tenants[tenant] = KeyRing(self.encryption, self.queries, tenant)
            self._tenants.move_to_end(tenant)
            while len(self._tenants) > _MOST_TENANTS:
                self._tenants.popitem(last=False)
            return found

    def seal(self, column: str, content: Content, parts: Sequence[Any], value: bytes) -> bytes:
        """Return a value encrypted under the current data key of its row's scope."""
        key = self._current_key(self._scope_of(column, parts))
        return key.seal(BOUND_AS.get(column, column), parts, value, is_stable=content.is_stable)

    def open(self, column: str, parts: Sequence[Any], value: bytes) -> bytes:
        """Return the content of an encrypted value.

        Raises:
            DecryptionError: If the value was changed, truncated, or moved from another row.
            DataKeyDestroyedError: If the data key was destroyed.
        """
        return self._key(key_id_of(value)).open(BOUND_AS.get(column, column), parts, value)

    def admit_plain(self, place: str) -> None:
        """Raise an error for an unencrypted value, unless such values are accepted."""
        if not self.encryption.accept_plain:
            raise NotEncryptedError(place)

    def is_readable(self, column: str, key: str) -> bool:
        """Return whether a key of metadata, or of a value of the store, stays readable."""
        return column.endswith((".metadata", ".value")) and key in self.encryption.readable

    def is_searchable(self, key: str) -> bool:
        """Return whether equal values of a key of metadata can be searched for."""
        return key in self.encryption.searchable

    def digest(self, column: str, key: str, value: Any) -> str:
        """Return the digest by which equal values of a key are found."""
        if isinstance(value, float) and value.is_integer():
            # 1.0 and 1 must have the same digest, because PostgreSQL treats these numbers as equal.
            value = int(value)
        text = json.dumps(value) if type(value) is int else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        return self._current_key(_SEARCH).digest(f"{BOUND_AS.get(column, column)}\0{key}", text.encode())

    @property
    def finds_words(self) -> bool:
        """Whether texts can be searched by digests of their words."""
        return self.encryption.search == "words"

    @property
    def admits_vectors(self) -> bool:
        """Whether embeddings may be stored, which are not encrypted."""
        return self.encryption.plain_vectors

    def words(self, text: str) -> str:
        """Return the digests of a text's words; an empty string if words cannot be searched."""
        if not self.finds_words or not text:
            return ""
        return self._current_key(_SEARCH).words(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))

    def mark(self, column: str, parts: Sequence[Any], digest: str) -> str:
        """Return a keyed digest in place of a plain digest, which would confirm a guess of the content."""
        return self._current_key(_SEARCH).mark("\0".join([column, *parts[0]]), digest)

    def current_id(self, column: str, parts: Sequence[Any]) -> str:
        """Return the id of the data key for encrypting a value."""
        return self._current_key(self._scope_of(column, parts)).id

    def note_owner(self, thread_id: str, owner: Callable[[], Mapping[str, Any]]) -> None:
        """Remember the owner that a config or a new row names for a thread.

        Parts of the owner that are known already, for example from the thread's row, stay as they are.

        Raises:
            MissingKeysError: If only some parts are named, and no part is known. The thread's row may name the other
                parts.
        """
        asked = self.encryption.asks_owner
        if not asked:
            return
        known: dict[str, Any] | None = None
        with suppress(MissingKeysError):
            known = _owner_of(self._thread(thread_id)[0])
        if known is not None and all(known[name] is not None for name in asked):
            return
        given = owner()
        if all(given.get(name) is None for name in asked):
            return
        if known is None and any(given.get(name) is None for name in asked):
            raise MissingKeysError([(THREAD, thread_id)])
        found = {name: given.get(name) if known is None or known[name] is None else known[name] for name in _OWNER}
        if found != known:
            self._note_thread(thread_id, found)

    def note_copy(self, source_id: str, target_id: str, owner: Mapping[str, Any] | None) -> None:
        """Remember the owner of a copy that is about to be stored: the given owner, or the owner of its source."""
        if not self.encryption.asks_owner:
            return
        found = _owner_of(self._thread(source_id)[0])
        if owner is not None:
            found |= {name: owner.get(name) for name in ("user_id", "tenant_id")}
        self._note_thread(target_id, found)

    def forget_thread(self, thread_id: str) -> None:
        """Forget the owner of a thread that was deleted, or whose creation failed."""
        self._threads.pop(thread_id, None)

    def forget_threads(self) -> None:
        """Forget the owners of all threads. The next use of each thread reads its row."""
        self._threads.clear()

    def _scope_of(self, column: str, parts: Sequence[Any]) -> str:
        table = column.partition(".")[0]
        if table in _NAMESPACED:
            return self.encryption.scope_of(Subject.of_namespace(parts[0]))
        if table in _OF_NO_THREAD:
            return self.encryption.scope_of(Subject())
        thread_id = str(parts[0])
        if not self.encryption.asks_owner:
            return self.encryption.scope_of(Subject(thread_id=thread_id))
        return self._thread(thread_id)[1]

    def _thread(self, thread_id: str) -> tuple[Subject, str]:
        """Return the owner and the scope of a thread."""
        subject, scope, until = self._threads.get(thread_id, _UNKNOWN)
        if until <= time.monotonic():
            raise MissingKeysError([(THREAD, thread_id)])
        return subject, scope

    def _note_thread(self, thread_id: str, owner: Mapping[str, Any], seconds: float | None = None) -> None:
        if len(self._threads) >= _MOST_THREADS:
            self._threads.clear()
        subject = Subject(thread_id, owner.get("user_id"), owner.get("tenant_id"), owner.get("agent"))
        until = time.monotonic() + (self.encryption.cache_seconds if seconds is None else seconds)
        self._threads[thread_id] = subject, self.encryption.scope_of(subject), until

    def _key(self, key_id: str) -> DataKey:
        found = self._keys.get(key_id)
        now = time.monotonic()
        if found is None or found.until <= now:
            if self._destroyed.get(key_id, 0.0) > now:
                raise DataKeyDestroyedError(key_id)
            why, until = self._lost.get(key_id, ("", 0.0))
            if until > now:
                raise DataKeyError(key_id, why)
            raise MissingKeysError([(KEY, key_id)])
        return found.key

    def _current_key(self, scope: str) -> DataKey:
        key_id, until = self._current.get(scope, ("", 0.0))
        found = self._keys.get(key_id)
        if found is None or min(until, found.until) <= time.monotonic():
            raise MissingKeysError([(SCOPE, scope)])
        return found.key

    async def load(self, runner: Runner, wanted: Collection[tuple[str, str]]) -> None:
        """Load the keys that an operation has missed. Callers that miss the same keys wait for the first caller.

        Raises:
            KeyUnavailableError: If the master key does not respond, and the data key is not in memory.
            DataKeyError: If a data key does not exist, or its master key is not given.
        """
        for one in sorted(wanted):
            with self._lock:
                loading = self._loading.get(one)
                mine: Future[None] | None = None
                if loading is None:
                    mine = self._loading[one] = Future()
            if loading is not None:
                await runner.wait(loading)
                continue
            assert mine is not None
            error: Exception | None = None
            try:
                await self._load(runner, *one)
            except Exception as raised:
                error = raised
                raise
            finally:
                with self._lock:
                    del self._loading[one]
                # If this caller was cancelled, the waiting callers load the keys.
                if error is None:
                    mine.set_result(None)
                else:
                    mine.set_exception(error)

    def load_beside(self, load: Callable[[], None], wanted: Collection[tuple[str, str]], seconds: float) -> None:
        """Load keys in an OS thread, and wait at most `seconds`. Then the thread goes on, but no call waits for it.

        Raises:
            KeyUnavailableError: If the master key has not responded in time.
            EncryptionError: If a key cannot be loaded.
            UnavailableError: If no thread can be started.
        """
        names = frozenset(wanted)
        with self._lock:
            loading = self._beside.get(names)
            done, until = self._beside[names] = loading or (Future[None](), time.monotonic() + seconds)

        def run() -> None:
            try:
                load()
            except BaseException as error:
                del self._beside[names]
                done.set_exception(error)
            else:
                del self._beside[names]
                done.set_result(None)

        if loading is None:
            try:
                start_thread(run, "pgstate-keys")
            except UnavailableError as error:
                del self._beside[names]
                done.set_exception(error)
                raise
        try:
            done.result(max(0.0, until - time.monotonic()))
        except TimeoutError as error:
            raise KeyUnavailableError(
                self.encryption.masters[0].id, "another thread still waits for the key"
            ) from error

    async def _load(self, runner: Runner, kind: str, name: str) -> None:
        if kind == THREAD:
            rows = await runner.run(_fetch, self.queries.get_thread_owner, {"thread_id": name})
            if rows:
                self._note_thread(name, dict(zip(_OWNER, rows[0], strict=True)))
                return
            # Keep the owner that a config named, because the thread's row may not be committed yet.
            known = self._threads.get(name)
            self._note_thread(name, {} if known is None else _owner_of(known[0]), MIN_CACHE_SECONDS)
        elif kind == SCOPE:
            await self._load_current(runner, name)
        else:
            rows = await runner.run(_fetch, self.queries.get_data_keys, {"key_ids": [name]})
            cached = self._keys.get(name)
            try:
                if rows:
                    await self._unwrap(runner, rows[0])
                elif cached is not None:
                    await self._restore(runner, cached)
                else:
                    raise DataKeyError(name, "the table data_keys has no row of this key")
            except DataKeyError as error:
                # Store the reason, and raise no error, because the operation can still read values under other keys.
                if len(self._lost) >= _MOST_THREADS:
                    self._lost.clear()
                self._lost[name] = error.why, time.monotonic() + self.encryption.cache_seconds

    async def _load_current(self, runner: Runner, scope: str) -> None:
        rows = await runner.run(_fetch, self.queries.get_current_data_key, {"scope": scope})
        if not rows:
            await self._make(runner, scope)
            rows = await runner.run(_fetch, self.queries.get_current_data_key, {"scope": scope})
            if not rows:
                # The new key was destroyed or retired at once. The operation will try again.
                return
        await self._unwrap(runner, rows[0])
        # If another OS thread has removed the key from the cache, the operation will try again.
        if (found := self._keys.get(rows[0][0])) is not None:
            if len(self._current) >= _MOST_THREADS:
                self._current.clear()
            self._current[scope] = rows[0][0], found.until

    async def _make(self, runner: Runner, scope: str) -> None:
        """Make a data key for a scope, unless another process has made one meanwhile."""
        lost = self._current.get(scope, ("", 0.0))[0]
        if lost in self._keys and lost not in self._destroyed:
            rows = await runner.run(_fetch, self.queries.get_data_keys, {"key_ids": [lost]})
            if not rows:
                await self._restore(runner, self._keys[lost])
        key_id, secret = new_key_id(), os.urandom(KEY_BYTES)
        master = self.encryption.masters[0]
        wrapped = await self.ask(runner, master, master.wrap, secret, self.context(key_id, scope))
        made = _Cached(DataKey(key_id, scope, secret), master.id, wrapped, self.tenant is not None, 0.0)
        # Store the key outside of the caller's transaction. Otherwise a rollback would delete the key.
        if await runner.run_outside(_execute, self.queries.put_data_key, made.row):
            self._remember(made)

    async def _restore(self, runner: Runner, cached: _Cached) -> None:
        """Store the row of a data key again, because the database has lost it."""
        _logger.warning("data key %s is not in the database any more: the key is stored again", cached.key.id)
        await runner.run_outside(_execute, self.queries.restore_data_key, cached.row)
        self._remember(cached)

    async def _unwrap(self, runner: Runner, row: Sequence[Any]) -> None:
        key_id, scope, master_id, wrapped, is_of_tenant, is_destroyed = row
        if is_destroyed:
            with self._lock:
                self._keys.pop(key_id, None)
                if len(self._destroyed) >= _MOST_THREADS:
                    self._destroyed.clear()
                self._destroyed[key_id] = time.monotonic() + self.encryption.cache_seconds
            return
        cached = self._keys.get(key_id)
        if cached is not None and cached.wrapped == wrapped and cached.until > time.monotonic():
            return
        master = next((one for one in self.encryption.masters if one.id == master_id), None)
        if master is None:
            raise DataKeyError(
                key_id, f"keys= of Encryption must contain the master key {master_id!r}, which has wrapped the data key"
            )
        try:
            context = self.context(key_id, scope, is_of_tenant=is_of_tenant)
            secret = await self.ask(runner, master, master.unwrap, wrapped, context)
        except KeyUnavailableError as error:
            if cached is None or not error.retryable:
                raise
            _logger.warning("%s; data key %s stays in use", error, key_id)
            self._remember(cached, _AGAIN)
            return
        if len(secret) != KEY_BYTES:
            raise DataKeyError(key_id, f"its master key must return {KEY_BYTES} bytes, got {len(secret)}")
        is_same = cached is not None and cached.wrapped == wrapped
        key = cached.key if cached and is_same else DataKey(key_id, scope, secret)
        self._remember(_Cached(key, master_id, wrapped, is_of_tenant, 0.0))

    def context(self, key_id: str, scope: str, *, is_of_tenant: bool = True) -> dict[str, str]:
        """Return the context to which a master key binds a data key.

        If `is_of_tenant` is false, the data key is from before a move to tenants, and its context names no tenant.
        """
        found = {"key_id": key_id, "scope": scope}
        return found if self.tenant is None or not is_of_tenant else {**found, "tenant": self.tenant}

    def forget_current(self) -> None:
        """Forget the current data keys. The next use of each scope reads its key."""
        self._current.clear()

    async def ask(
        self, runner: Runner, master: MasterKey, function: Callable[..., Any], key: bytes, context: Mapping[str, str]
    ) -> bytes:
        """Call a function of a master key, and return its result. Its errors become `KeyUnavailableError`."""
        try:
            found = await runner.call(lambda: function(key, context))
        except PGStateError:
            raise
        except Exception as error:
            raise KeyUnavailableError(master.id, f"{type(error).__name__}: {error}") from error
        if not isinstance(found, bytes | bytearray):
            raise DataKeyError(context["key_id"], f"its master key must return bytes, got {type(found).__name__}")
        return bytes(found)

    def _remember(self, cached: _Cached, part: float = 1.0) -> None:
        with self._lock:
            until = time.monotonic() + max(MIN_CACHE_SECONDS, self.encryption.cache_seconds * part)
            self._keys[cached.key.id] = cached._replace(until=until)
            self._keys.move_to_end(cached.key.id)
            while len(self._keys) > self.encryption.max_cached:
                self._keys.popitem(last=False)

    def expire(self) -> None:
        """Expire all keys. Their next use calls the master key."""
        with self._lock:
            self._keys = OrderedDict((id, cached._replace(until=0.0)) for id, cached in self._keys.items())
            self._current = {scope: (id, 0.0) for scope, (id, _) in self._current.items()}
            self._threads.clear()
            self._destroyed.clear()
            self._lost.clear()


class HeldKeys(KeyRing):
    """The data keys of one operation that had to load some. They stay in memory until the operation ends.

    So the operation can end even if it takes longer than `cache_for`, or needs more keys than `max_cached`.
    """

    def __init__(self, ring: KeyRing) -> None:
        super().__init__(ring.encryption, ring.queries, ring.tenant)
        self._ring, self._note = ring, ring._note_thread
        self._find: dict[str, Callable[[str], Any]] = {KEY: ring._key, SCOPE: ring._current_key, THREAD: ring._thread}
        self._held: dict[tuple[str, str], Any] = {}
        # Number of held keys at the last load, and number of loads that brought no new key.
        self._counted = self._stalls = 0

    async def load_missed(self, runner: Runner, error: MissingKeysError) -> None:
        """Load the keys that the operation has missed.

        Raises:
            MissingKeysError: If the operation misses the same keys again and again.
            EncryptionError: If a key cannot be loaded.
        """
        for kind, name in sorted(error.wanted):
            await self._ring.load(runner, [(kind, name)])
            # Hold the key at once. Otherwise another operation could remove the key from the cache.
            with suppress(EncryptionError):
                self._hold(kind, name)
        self.hold_missed(error)

    def hold_missed(self, error: MissingKeysError) -> None:
        """Hold the keys that the operation has missed, and that are loaded now.

        Raises:
            MissingKeysError: If the operation misses the same keys again and again.
        """
        for kind, name in error.wanted:
            with suppress(EncryptionError):
                self._hold(kind, name)
        self._stalls += len(self._held) == self._counted
        self._counted = len(self._held)
        if self._stalls > _MOST_STALLS:
            raise error

    def _key(self, key_id: str) -> DataKey:
        found: DataKey = self._hold(KEY, key_id)
        return found

    def _current_key(self, scope: str) -> DataKey:
        found: DataKey = self._hold(SCOPE, scope)
        return found

    def _thread(self, thread_id: str) -> tuple[Subject, str]:
        found: tuple[Subject, str] = self._hold(THREAD, thread_id)
        return found

    def _note_thread(self, thread_id: str, owner: Mapping[str, Any], seconds: float | None = None) -> None:
        self._held.pop((THREAD, thread_id), None)
        self._note(thread_id, owner, seconds)

    def forget_thread(self, thread_id: str) -> None:
        self._held.pop((THREAD, thread_id), None)
        self._ring.forget_thread(thread_id)

    def _hold(self, kind: str, name: str) -> Any:
        found = self._held.get((kind, name))
        if found is None:
            try:
                found = self._find[kind](name)
            except (DataKeyError, DataKeyDestroyedError) as error:
                found = error
            self._held[kind, name] = found
        if isinstance(found, Exception):
            raise found
        return found


def use_keys(database: Any, encryption: Encryption | None, queries: Any) -> None:
    """Make a database encrypt and decrypt content, if the option is given.

    Raises:
        ConfigurationError: If the database has other keys already, or the option is invalid.
    """
    if encryption is None:
        return
    if not isinstance(encryption, Encryption):
        raise ArgumentTypeError(f"encryption must be an Encryption, not {type(encryption).__name__}")
    if database.keys is None:
        database.keys = KeyRing(encryption, queries)
    elif database.keys.encryption is not encryption:
        raise ConfigurationError("encryption must be the Encryption that the database already has")


async def call_blocking(function: Callable[[], Any]) -> Any:
    """Call a function and return its result. If the result is a coroutine, run it on a new event loop in a thread."""
    found = function()
    if not inspect.isawaitable(found):
        return found

    async def wait() -> Any:
        return await found

    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(wait()))
        except BaseException as error:
            errors.append(error)

    start_thread(run, "pgstate-master-key").join()
    if errors:
        raise errors[0]
    return results[0]


async def call_async(function: Callable[[], Any]) -> Any:
    """Call a function in a thread and return its result. If the result is a coroutine, await it on the event loop."""
    found = await in_thread(function)
    return await found if inspect.isawaitable(found) else found


async def rewrap(
    runner: Runner,
    ring: KeyRing,
    page_size: int = _PAGE,
    *,
    every: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Wrap data keys again by the first master key, and return their number. Safe to repeat and to interrupt.

    No other rows are read or written, so the duration depends only on the number of data keys.

    Args:
        page_size: Number of keys in one transaction.
        every: Also wrap keys that the first master key has wrapped, for example after a service has rotated that key.
        progress: Called after each page with the number of keys so far.

    Raises:
        KeyUnavailableError: If a master key does not respond.
        DataKeyError: If a data key is wrapped by a master key that is not given.
    """
    queries, newest, cursor, changed = ring.queries, ring.encryption.masters[0], "", 0
    masters = {master.id: master for master in ring.encryption.masters}
    while True:
        page = {"cursor_id": cursor, "master_id": "" if every else newest.id, "page_size": page_size}
        rows = await runner.run(_fetch, queries.list_data_keys, page)

        def wrap_again(row: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
            key_id, scope, master_id, wrapped, is_of_tenant, _ = row
            if master_id not in masters:
                raise DataKeyError(
                    key_id,
                    f"keys= of Encryption must contain the master key {master_id!r}, which has wrapped the data key",
                )
            context = ring.context(key_id, scope, is_of_tenant=is_of_tenant)
            secret = _asked(masters[master_id], masters[master_id].unwrap, wrapped, context)
            again = _asked(newest, newest.wrap, secret, ring.context(key_id, scope))
            given = {"key_id": key_id, "master_id": newest.id, "wrapped": again, "before": wrapped}
            return queries.rewrap_data_key, {**given, "is_of_tenant": ring.tenant is not None}

        statements = await _ask_for_each(runner, wrap_again, rows)
        if statements:
            cursor = rows[-1][0]
            changed += sum(await runner.run(_execute_together, statements))
            if progress is not None:
                progress(changed)
        if len(rows) < page_size:
            return changed


async def replace_keys(runner: Runner, ring: KeyRing, scope: str | None = None, page_size: int = _PAGE) -> int:
    """Make a new data key for each scope, or for one, and return their number. A repeated call continues.

    This process uses the new keys at once, other processes when their cached keys expire. The key of digests is not
    replaced, because stored digests could not be found by another key.

    Raises:
        KeyUnavailableError: If the master key does not respond.
    """
    queries, newest, cursor, made = ring.queries, ring.encryption.masters[0], None, 0

    def make(row: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
        old_id, name = row
        key_id = new_key_id()
        wrapped = _asked(newest, newest.wrap, os.urandom(KEY_BYTES), ring.context(key_id, name))
        new = {"key_id": key_id, "scope": name, "master_id": newest.id, "wrapped": wrapped}
        new |= {"is_of_tenant": ring.tenant is not None}
        return [(queries.replace_data_key, {"key_id": old_id}), (queries.put_data_key, new)]

    while True:
        given = {"cursor_scope": cursor, "scope": scope, "search_scope": _SEARCH, "page_size": page_size}
        rows = await runner.run(_fetch, queries.list_current_data_keys, given)
        pairs = await _ask_for_each(runner, make, rows)
        if pairs:
            cursor = rows[-1][1]
            counts = await runner.run(_execute_together, [one for pair in pairs for one in pair])
            made += sum(counts[1::2])
        if len(rows) < page_size:
            ring.forget_current()
            return made


async def _ask_for_each(runner: Runner, function: Callable[[Any], T], rows: Sequence[Any]) -> list[T]:
    """Call a function of master keys for each row, some at the same time, and return the results."""

    def ask_all() -> list[T]:
        with ThreadPoolExecutor(_ASKED_TOGETHER, thread_name_prefix="pgstate-master-key") as pool:
            return list(pool.map(function, rows))

    found: list[T] = await runner.call(ask_all) if rows else []
    return found


def _asked(master: MasterKey, function: Callable[..., Any], key: bytes, context: Mapping[str, str]) -> bytes:
    """Call a function of a master key in a thread without an event loop. Its errors become `KeyUnavailableError`."""
    try:
        found = function(key, context)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
    except PGStateError:
        raise
    except Exception as error:
        raise KeyUnavailableError(master.id, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, bytes | bytearray):
        raise DataKeyError(context["key_id"], f"its master key must return bytes, got {type(found).__name__}")
    return bytes(found)


async def _awaited(found: Any) -> Any:
    return await found


async def list_replaced(db: Any, queries: Any) -> dict[str, float]:
    """Return the replaced data keys that content may still use, each with the seconds since its replacement."""
    return dict(await db.fetch(queries.list_replaced_data_keys, {}))


async def retire_keys(db: Any, queries: Any, key_ids: Sequence[str]) -> int:
    """Store that no row is encrypted under some data keys. Return the number of newly retired keys."""
    return await _execute(db, queries.retire_data_keys, {"key_ids": [*key_ids]})


async def count_keys(db: Any, queries: Any) -> Any:
    """Return the numbers of current, replaced, retired and destroyed data keys by master key."""
    return await db.fetch(queries.count_data_keys, {})


async def destroy_keys(db: Any, queries: Any, scope: str) -> int:
    """Destroy the data keys of a scope, and return their number. Content under them can never be read again.

    A process that has such a key in memory can use it until `cache_for` ends.
    """
    return await _execute(db, queries.destroy_data_keys, {"scope": scope})


def _owner_of(subject: Subject) -> dict[str, Any]:
    return {name: getattr(subject, name) for name in _OWNER}


async def _fetch(db: Any, query: Any, parameters: Mapping[str, Any]) -> Any:
    return await db.fetch(query, parameters)


async def _execute(db: Any, query: Any, parameters: Mapping[str, Any]) -> int:
    count: int = await db.execute(query, parameters)
    return count


async def _execute_together(db: Any, statements: Sequence[Any]) -> list[int]:
    counts: list[int] = await db.execute_together(statements)
    return counts


__all__ = [
    "KEY",
    "SCOPE",
    "THREAD",
    "HeldKeys",
    "KeyRing",
    "call_async",
    "call_blocking",
    "count_keys",
    "destroy_keys",
    "list_replaced",
    "replace_keys",
    "retire_keys",
    "rewrap",
    "use_keys",
]
