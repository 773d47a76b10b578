"""Encrypted memories on pages, in commands, in transfers and in their history; words of two tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langgraph.store.postgres import PostgresStore
from psycopg.conninfo import make_conninfo
from support.cli import pgstate
from support.pages import forms_of, inspected, state_of
from support.tenants import Walled, open_walled

from langgraph_pgstate import Encryption, PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.encryption.cipher import DataKey, new_key_id
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.memory import PGMemoryStore
from langgraph_pgstate.state import core_of
from tests.encryption.test_memories import ANNA, MASTER, SECRET, opened, stored
from tests.encryption.test_message_words import say
from tests.keep.test_retention import DAY, age

EVE = "/memory/memories~2Fuser~2Feve"


@pytest.mark.slow
@pytest.mark.parametrize("search", [None, "words"])
async def test_pages_show_and_change_encrypted_memories(
    search: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        core = core_of(state_of(server))
        use_keys(core.database, Encryption(MASTER, scope="user", search=search), core.queries)
        memory = state_of(server).memory
        for city in ("Prague", f"Vienna {SECRET}"):
            await memory.remember(f"Lives in {city}.", key="home", user_id="eve")
        assert f"Lives in Vienna {SECRET}." in await visitor.page("/memory", user="eve")
        page = await visitor.page(f"{EVE}/home", a=1, b=2)
        assert f"Lives in <del>Prague</del><ins>Vienna {SECRET}</ins>." in page
        # Parts of texts are not found; the page says why.
        refused = await visitor.client.get("/ui/memory", params={"user": "eve", "q": "Vienna"})
        assert (refused.status_code, "because it is encrypted" in refused.text) == (422, True)
        await visitor.introduce("Eve")
        path = f"{EVE}/home"
        form = forms_of(await visitor.page(path))[f"{path}/edit"]
        assert (await visitor.act(f"{path}/edit", **form, content=f"Lives in Rome {SECRET}.")).status_code == 303
        (found,) = await memory.recall("rome" if search else None, user_id="eve")
        assert (found.content, found.version, found.changed_by) == (f"Lives in Rome {SECRET}.", 3, "Eve")
        assert (await visitor.act(f"{path}/forget", expected="3", sure="1")).status_code == 303
        form = forms_of(await visitor.page(path))[f"{path}/restore"] | {"version": "2"}
        assert (await visitor.act(f"{path}/restore", **form)).status_code == 303
        (found,) = await memory.recall("vienna" if search else None, user_id="eve")
        assert (found.content, found.version) == (f"Lives in Vienna {SECRET}.", 4)
    assert SECRET not in stored(connection, schema)


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives commands the key of these tests, and words."""
    monkeypatch.setenv("PGSTATE_TEST_KEY", bytes(range(32)).hex())
    monkeypatch.setenv("PGSTATE_ENCRYPTION_KEYS", "env:PGSTATE_TEST_KEY")
    monkeypatch.setenv("PGSTATE_ENCRYPTION_SCOPE", "user")
    monkeypatch.setenv("PGSTATE_ENCRYPTION_SEARCH", "words")


@pytest.mark.slow
@pytest.mark.usefixtures("with_key")
def test_commands_show_and_forget_encrypted_memories(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> list[Any]:
        done = pgstate("--dsn", dsn, "--schema", schema, "--json", "memory", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    with opened(dsn, schema, scope="user", search="words") as state:
        for city in ("Rome", f"Oslo {SECRET}"):
            state.memory.remember(f"Lives in {city}", key="home", user_id="anna")
        state.memory.remember("Likes tea", "preference", key="tea", user_id="anna")
    listed = run("list", "--user", "anna", "--query", "oslo")
    assert (listed[0]["content"], listed[0]["words_rank"]) == (f"Lives in Oslo {SECRET}", 1)
    assert run("show", "home", "--user", "anna")[0]["value"]["content"] == f"Lives in Oslo {SECRET}"
    contents = [one["value"]["content"] for one in run("history", "home", "--user", "anna")]
    assert contents == [f"Lives in Oslo {SECRET}", "Lives in Rome"]
    assert run("forget", "home", "--user", "anna", "--yes") == [{"forgotten": 1}]
    monkeypatch.delenv("PGSTATE_ENCRYPTION_KEYS")
    done = pgstate("--dsn", dsn, "--schema", schema, "memory", "list", "--user", "anna")
    assert (done.returncode, "encrypted" in done.stderr, "tea" in done.stdout) == (1, True, False)


@pytest.fixture
def old_schema(schema: str, connection: psycopg.Connection) -> Iterator[str]:
    """A schema for LangGraph's own store, which is dropped with another one whose name goes on with `_new`."""
    name = f"{schema}_old"
    yield name
    for one in (name, f"{name}_new"):
        connection.execute(f'DROP SCHEMA IF EXISTS "{one}" CASCADE'.encode())


def test_encrypted_items_move_from_and_to_the_store_of_langgraph(
    dsn: str, schema: str, old_schema: str, connection: psycopg.Connection
) -> None:
    encryption, new = Encryption(MASTER, scope="user", search="words"), f"{old_schema}_new"
    values = {f"k{number}": {"n": number, "text": f"{SECRET} ü {number}"} for number in range(5)}
    theirs, exported = (make_conninfo(dsn, options=f"-csearch_path={name},public") for name in (old_schema, new))
    with PostgresStore.from_conn_string(theirs) as store:
        store.conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{old_schema}"')
        store.setup()
        for key, value in values.items():
            store.put(("users", "anna"), key, value)
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.import_langgraph_memory(dsn, source_schema=old_schema)
        assert (report.written, report.verified, report.differences) == (5, 5, [])
        assert SECRET not in stored(connection, schema)
        assert admin.import_langgraph_memory(dsn, source_schema=old_schema).written == 0
        with PGMemoryStore.from_conn_string(dsn, schema=schema, encryption=encryption) as ours:
            assert {one.key: one.value for one in ours.search(("users", "anna"))} == values
            assert ours.search(("users",), query="4 nothing")[0].key == "k4"
        report = admin.export_langgraph_memory(dsn, target_schema=new)
        assert (report.written, report.verified, report.differences) == (5, 5, [])
    with PostgresStore.from_conn_string(exported) as store:
        assert {one.key: one.value for one in store.search(("users", "anna"))} == values


def test_an_earlier_version_is_restored_with_its_words(dsn: str, schema: str) -> None:
    with opened(dsn, schema, scope="user", search="words") as state:
        memory = state.memory
        for city in ("Prague", "Vienna", "Rome"):
            memory.remember(f"Lives in {city}.", key="home", user_id="anna")

        def ranked(query: str) -> list[str]:
            return [one.content for one in memory.recall(query, user_id="anna") if one.words_rank is not None]

        assert (ranked("rome"), ranked("prague")) == (["Lives in Rome."], [])
        assert memory.restore(ANNA, "home", 1).version == 4
        assert (ranked("rome"), ranked("prague")) == ([], ["Lives in Prague."])
        memory.forget("home", user_id="anna")
        assert ranked("prague") == []
        memory.restore(ANNA, "home", 2)
        assert ranked("vienna") == ["Lives in Vienna."]
        contents = [one.value["content"].split()[-1] for one in memory.history(ANNA, "home")]
        assert contents == ["Vienna.", "Prague.", "Rome.", "Vienna.", "Prague."]
        # What is told again counts, also after a restore.
        assert memory.remember("lives in VIENNA", user_id="anna").key == "home"


@pytest.fixture
def walled(dsn: str) -> Iterator[Walled]:
    with open_walled(dsn) as made:
        yield made


@pytest.mark.slow
def test_equal_words_of_two_tenants_have_different_digests(walled: Walled) -> None:
    """Guard: who reads the tables would see which tenants store the same words."""
    encryption = Encryption(MASTER, search="words", searchable=["city"])
    with PGState.open(walled.app, schema=walled.schema, encryption=encryption) as state:
        for name in ("a", "b"):
            one = state.for_tenant(name)
            one.memory.remember("prague", key="home", user_id="anna", metadata={"city": "Rome"})
            one.memory.put(("n",), "key", {"city": "Rome", "text": "prague"})
            say(one, "t", ["prague"])
            assert [found.key for found in one.memory.search(("n",), filter={"city": "Rome"})] == ["key"]
            assert [found.message.thread_id for found in one.messages.search("prague").items] == ["t"]
    digests = {
        "words of memories": "SELECT words::text FROM {}.memories WHERE key = 'home'",
        "words of messages": "SELECT split_part(content, ' ', 2) FROM {}.messages",
        "values": "SELECT value ->> 'city' FROM {}.memories WHERE key = 'key'",
        "hashes of texts": "SELECT substr(digest, 17) FROM {}.memories WHERE key = 'home'",
    }
    for what, statement in digests.items():
        found = [one for (one,) in walled.rows(statement)]
        assert (len(found), len({*found}), None in found, "" in found) == (2, 2, False, False), what


def test_equal_words_under_two_data_keys_have_different_digests() -> None:
    first, second = (DataKey(new_key_id(), "pgstate:search", bytes([number] * 32)) for number in (1, 2))
    assert first.words(["prague"]) == first.words(["prague"]) != second.words(["prague"])
    assert set(first.words(["prague", "rome"]).split()).isdisjoint(second.words(["prague", "rome"]).split())


def test_a_policy_that_is_put_back_selects_the_same_threads(dsn: str, schema: str) -> None:
    """Guard: the digests of its metadata would be digested again, and select nothing."""
    encryption = Encryption(MASTER, searchable=["case"], readable=["open"])
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        state.threads.create("t", metadata={"case": "a", "open": "a", "other": 1})
        state.threads.create("u", metadata={"case": "b", "open": "a"})
        state.retention.put("p", delete_after=DAY, metadata={"case": "a", "open": "a"})

        for thread_id in ("t", "u"):
            age(dsn, schema, 40, thread_id)

        def selected(name: str) -> int:
            return state.retention.apply(name, dry_run=True)[0].deleted

        assert selected("p") == 1
        (found,) = (one for one in state.retention.policies() if one.name == "p")
        for name in ("p", "copy"):
            again = state.retention.put(name, delete_after=found.delete_after, metadata=found.metadata)
            assert again.metadata == found.metadata
            assert selected(name) == 1
        # Equal values under another key, and other values, are digested.
        changed = state.retention.put("p", delete_after=DAY, metadata={"case": "b"})
        assert changed.metadata not in ({"case": "b"}, found.metadata)
        assert selected("p") == 1
        # A call that is repeated after a lost connection.
        version = changed.version
        for _ in range(2):
            state.retention.put("p", delete_after=2 * DAY, metadata={"case": "b"}, expected_version=version)
            state.retention.put("p", delete_after=2 * DAY, metadata=changed.metadata, expected_version=version)
