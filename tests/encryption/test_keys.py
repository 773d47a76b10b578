"""Data keys: made, cached, shared, lost, destroyed, and wrapped again; and the master key, which may not answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support import APIS, config_of, open_saver, put_arguments

from langgraph_pgstate import CallableMasterKey, Encryption, LocalMasterKey, PGStateSaver
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import Database, KeyLoader
from langgraph_pgstate.encryption.keys import KeyRing, destroy_keys, rewrap
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    DataKeyDestroyedError,
    DataKeyError,
    KeyUnavailableError,
)
from langgraph_pgstate.schema.queries import queries

LOCAL = LocalMasterKey(bytes(32))


class Master:
    """A master key that counts how often it is asked, and may be down."""

    def __init__(self, id: str = "counted", seen: Callable[[], None] = lambda: None) -> None:
        self.id, self.asked, self.is_down, self._seen = id, 0, False, seen
        self._lock = threading.Lock()

    def _ask(self) -> None:
        with self._lock:
            self.asked += 1
        self._seen()
        if self.is_down:
            raise ConnectionError("no route to the service")

    def wrap(self, data_key: bytes, context: Mapping[str, str]) -> bytes:
        self._ask()
        return LOCAL.wrap(data_key, context)

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        self._ask()
        return LOCAL.unwrap(wrapped, context)


async def put(saver: Any, thread_id: str, user: str | None = None) -> Any:
    config = config_of(thread_id)
    if user is not None:
        config["configurable"]["user_id"] = user
    return await saver.aput(*put_arguments(config, 0))


def expire(saver: Any) -> None:
    """Have the time pass for which keys are cached."""
    saver._database.keys.expire()


def keys_of(dsn: str, schema: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(
            f'SELECT key_id, scope, master_id, wrapped FROM "{schema}".data_keys ORDER BY scope, created_at'
        ).fetchall()


@pytest.mark.parametrize("api", APIS)
async def test_the_master_is_asked_once_by_all_who_need_a_key(api: type, dsn: str, schema: str) -> None:
    """Guard: those who miss a key wait for the first."""
    master = Master()
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(master)) as saver:
        configs = await asyncio.gather(*(put(saver, f"t{number}") for number in range(30)))
    assert master.asked == 1
    assert len(keys_of(dsn, schema)) == 1
    master.asked = 0
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(master)) as saver:
        assert all(await asyncio.gather(*map(saver.aget_tuple, configs)))
        assert all(await asyncio.gather(*map(saver.aget_tuple, configs)))
    assert master.asked == 1


@pytest.mark.parametrize("api", APIS)
async def test_the_master_is_asked_outside_of_transactions_and_event_loops(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: the operation gives its connection back first; a blocking function runs in a thread."""
    found: list[Any] = []

    def look() -> None:
        busy = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'asking' AND state <> 'idle'"
        ).fetchone()
        found.append((busy, threading.current_thread() is loops))

    loops = threading.current_thread()
    master = Master(seen=look)
    where = f"{dsn}&application_name=asking" if "?" in dsn else f"{dsn}?application_name=asking"
    async with open_saver(api, where, schema, setup=False, pool=1, encryption=Encryption(master)) as saver:
        config = await put(saver, "t")
        await saver.acopy_thread("t", "copy")
    async with open_saver(api, where, schema, setup=False, pool=1, encryption=Encryption(master)) as saver:
        await saver.aget_tuple(config)
    assert found == [((0,), False)] * 2


@pytest.mark.parametrize("api", APIS)
async def test_what_is_cached_goes_on_while_the_master_is_down(
    api: type, dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new key fails closed, with an error that may be retried, and nothing is written."""
    master = Master()
    encryption = Encryption(master, scope="user")
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        config = await put(saver, "t", "anna")
        master.is_down = True
        expire(saver)
        with caplog.at_level(logging.WARNING, "langgraph_pgstate"):
            assert await saver.aget_tuple(config) is not None
            await saver.aput(*put_arguments(config, 1))
        assert "stays in use" in caplog.text
        with pytest.raises(KeyUnavailableError, match="no route") as raised:
            await put(saver, "new", "bert")
        assert raised.value.retryable
        assert await saver.aget_tuple(config_of("new")) is None
        assert [scope for _, scope, *_ in keys_of(dsn, schema)] == ["user:anna"]
        master.is_down = False
        await put(saver, "new", "bert")


@pytest.mark.parametrize("api", APIS)
async def test_functions_of_a_service_may_be_coroutines(api: type, dsn: str, schema: str) -> None:
    async def wrap(key: bytes, context: Mapping[str, str]) -> bytes:
        await asyncio.sleep(0)
        return LOCAL.wrap(key, context)

    async def unwrap(wrapped: bytes, context: Mapping[str, str]) -> bytes:
        await asyncio.sleep(0)
        return LOCAL.unwrap(wrapped, context)

    master = CallableMasterKey("service", wrap, unwrap)
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(master)) as saver:
        config = await put(saver, "t")
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(master)) as saver:
        assert await saver.aget_tuple(config) is not None
    assert keys_of(dsn, schema)[0][2] == "service"


def ring_of(database: Database, encryption: Encryption) -> KeyRing:
    database.keys = KeyRing(encryption, queries(database.schema))
    return database.keys


@pytest.mark.parametrize("api", APIS)
async def test_a_destroyed_key_takes_its_rows_and_no_others(api: type, dsn: str, schema: str) -> None:
    encryption = Encryption(LOCAL, scope="user")
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        hers, his = await put(saver, "hers", "anna"), await put(saver, "his", "bert")
        with Database.open(dsn, schema=schema, pool=False) as database:
            assert database.run(destroy_keys, queries(schema), "user:anna") == 1
        expire(saver)
        with pytest.raises(DataKeyDestroyedError):
            await saver.aget_tuple(hers)
        assert await saver.aget_tuple(his) is not None
        # She comes again, and gets another key.
        assert await saver.aget_tuple(await put(saver, "again", "anna")) is not None
    assert [wrapped is None for _, scope, _, wrapped in keys_of(dsn, schema) if scope == "user:anna"] == [True, False]
    with Database.open(dsn, schema=schema, pool=False) as database:
        assert database.run(destroy_keys, queries(schema), "user:anna") == 1


@pytest.mark.parametrize("api", APIS)
async def test_writes_before_the_first_put_are_under_the_key_of_their_user(api: type, dsn: str, schema: str) -> None:
    """LangGraph sends the first checkpoint and its writes at once, and the writes may come first."""
    async with open_saver(api, dsn, schema, encryption=Encryption(LOCAL, scope="user")) as saver:
        config = config_of("t")
        config["configurable"].update(user_id="eve", checkpoint_id="1f000000-0000-6000-8000-000000000000")
        await saver.aput_writes(config, [("messages", "a secret")], "task", "path")
        await put(saver, "t", "eve")
    with psycopg.connect(dsn) as connection:
        assert connection.execute(f"SELECT scope FROM {schema}.data_keys".encode()).fetchall() == [("user:eve",)]


async def test_a_key_that_the_database_has_lost_is_stored_again(dsn: str, schema: str) -> None:
    """As after a failover to a server that had not received it: what it encrypts stays readable."""
    encryption = Encryption(LOCAL)
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        config = await put(saver, "t")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'DELETE FROM "{schema}".data_keys')
        expire(saver)
        assert await saver.aget_tuple(config) is not None
        await put(saver, "u")
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(LOCAL)) as saver:
        assert await saver.aget_tuple(config) is not None
        assert await saver.aget_tuple(config_of("u")) is not None


@pytest.mark.parametrize("api", APIS)
async def test_a_key_outlives_the_transaction_that_needed_it(api: type, dsn: str, schema: str) -> None:
    """Guard: it is stored on a connection of its own, for it is cached although the caller rolls back."""
    encryption = Encryption(LOCAL)
    if api is PGStateSaver:
        with psycopg.connect(dsn) as connection:
            saver = PGStateSaver(connection, schema=schema, encryption=encryption)
            with connection.transaction(force_rollback=True):
                saver.put(*put_arguments(config_of("t"), 0))
            config = saver.put(*put_arguments(config_of("t"), 0))
            connection.commit()
    else:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            other = api(connection, schema=schema, encryption=encryption)
            async with connection.transaction(force_rollback=True):
                await other.aput(*put_arguments(config_of("t"), 0))
            config = await other.aput(*put_arguments(config_of("t"), 0))
            await connection.commit()
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(LOCAL)) as saver:
        assert await saver.aget_tuple(config) is not None


async def test_a_new_master_wraps_all_keys_again(dsn: str, schema: str) -> None:
    old, new = LOCAL, LocalMasterKey(bytes([7] * 32))
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(old, scope="thread")) as saver:
        configs = [await put(saver, f"t{number}") for number in range(5)]
    with Database.open(dsn, schema=schema, pool=False) as database:
        ring = ring_of(database, Encryption([new, old], scope="thread"))
        assert run_blocking(rewrap(KeyLoader(database), ring, 2)) == 5
        assert run_blocking(rewrap(KeyLoader(database), ring, 2)) == 0
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(new)) as saver:
        assert all([await saver.aget_tuple(config) for config in configs])
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(old)) as saver:
        with pytest.raises(DataKeyError, match="must contain the master key"):
            await saver.aget_tuple(configs[0])


async def test_a_wrapped_key_of_another_scope_is_refused(dsn: str, schema: str) -> None:
    """Guard: a wrapped key is bound to its id and scope."""
    encryption = Encryption(LOCAL, scope="thread")
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        config, _ = await put(saver, "t"), await put(saver, "u")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f'UPDATE "{schema}".data_keys SET wrapped = (SELECT wrapped FROM "{schema}".data_keys WHERE '
            "scope = 'thread:u') WHERE scope = 'thread:t'"
        )
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(LOCAL)) as saver:
        with pytest.raises(DataKeyError, match="was changed"):
            await saver.aget_tuple(config)


def test_arguments_are_checked() -> None:
    for given, why in (
        ([], "at least one"),
        ([LOCAL, LOCAL], "once"),
        ("secret", "file:PATH or env:NAME"),
        ("env:PGSTATE_TEST_NO_SUCH_KEY", "must contain the master key"),
        ("file:/no/such/file", "cannot be read"),
        (5, "must be an object with id, wrap and unwrap"),
    ):
        with pytest.raises(ConfigurationError, match=why) as raised:
            Encryption(given)  # type: ignore[arg-type]
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="scope must be one of"):
        Encryption(LOCAL, scope="city")
    with pytest.raises(ArgumentTypeError, match="readable must be a list of keys"):
        Encryption(LOCAL, readable="name")
    with pytest.raises(ConfigurationError, match="32 bytes, got 3"):
        LocalMasterKey(b"abc")
    with pytest.raises(ConfigurationError, match="hexadecimal") as hidden:
        LocalMasterKey("not a key!")
    assert "not a key" not in str(hidden.value)


async def test_a_scope_that_is_no_name_is_refused(dsn: str, schema: str) -> None:
    encryption = Encryption(LOCAL, scope=lambda subject: None)  # type: ignore[arg-type,return-value]
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        config = config_of("t")
        config["configurable"]["user_id"] = "anna"
        with pytest.raises(ConfigurationError, match="scope must return a text"):
            await saver.aput(*put_arguments(config, 0))


def test_a_key_from_a_file_and_from_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LocalMasterKey.generate()
    (tmp_path / "key").write_text(text + "\n")
    monkeypatch.setenv("PGSTATE_TEST_KEY", text)
    first, second = Encryption(f"file:{tmp_path / 'key'}"), Encryption("env:PGSTATE_TEST_KEY")
    assert first.masters[0].id == second.masters[0].id
    assert text not in repr((first, first.masters))


@pytest.mark.parametrize("api", APIS)
async def test_an_operation_that_outlasts_its_keys_goes_on_with_them(api: type, dsn: str, schema: str) -> None:
    """Guard: an operation holds the keys that it has used. Otherwise each try would miss another one."""
    master = Master()
    encryption = Encryption(master, scope="thread")
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        configs = [await put(saver, thread_id) for thread_id in ("a", "b", "c")]
        expire(saver)
        master.asked, tries = 0, list[str]()

        async def read_slowly(db: Any) -> list[Any]:
            tries.append("")
            found = []
            for config in configs:
                named = config["configurable"]
                given = {
                    "thread_id": named["thread_id"],
                    "checkpoint_ns": "",
                    "checkpoint_ids": [named["checkpoint_id"]],
                }
                found += await db.fetch(queries(schema).get_rows, given)
                expire(saver)
            return found

        found = saver._database.run(read_slowly)
        rows = found if isinstance(found, list) else await found
    assert [bytes(row[3][:1]) != b"\x03" for row in rows] == [True] * 3
    assert (len(tries), master.asked) == (4, 3)


@pytest.mark.parametrize("api", APIS)
async def test_a_list_needs_more_keys_than_are_cached(api: type, dsn: str, schema: str) -> None:
    """Guard: a key is held from when it is loaded, although the next one displaces it."""
    master = Master()
    async with open_saver(
        api, dsn, schema, setup=False, encryption=Encryption(master, scope="thread", max_cached=1)
    ) as saver:
        for number in range(60):
            await put(saver, f"t{number}")
        master.asked = 0
        assert len([one async for one in saver.alist(None)]) == 60
    assert master.asked <= 60


def test_who_misses_keys_that_a_thread_is_loading_waits_as_long_as_the_first() -> None:
    """Guard: a worker's streams would pause, and its log would say that the master key does not respond."""
    ring, begun, gate = KeyRing(Encryption(LOCAL), queries("s")), threading.Event(), threading.Event()
    wanted = [("scope", "all")]

    def load() -> None:
        begun.set()
        assert gate.wait(10)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ring.load_beside, load, wanted, 10)
        assert begun.wait(10)
        second = pool.submit(ring.load_beside, load, wanted, 10)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        gate.set()
        assert (first.result(10), second.result(10)) == (None, None)


async def test_what_is_known_of_scopes_does_not_grow_without_end(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_pgstate.encryption.keys._MOST_THREADS", 5)
    encryption = Encryption(LOCAL, scope="thread")
    async with open_saver(APIS[0], dsn, schema, encryption=encryption) as saver:
        for number in range(12):
            await saver.aput(*put_arguments(config_of(f"t{number}"), 0))
        assert len(saver._database.keys._current) <= 5
        assert await saver.aget_tuple(config_of("t0")) is not None
