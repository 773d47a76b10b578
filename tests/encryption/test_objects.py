"""Encrypted objects, of which some keys stay readable: nobody adds to them who has no keys."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.encryption.keys import destroy_keys
from langgraph_pgstate.errors import NotEncryptedError
from langgraph_pgstate.schema.queries import queries

MASTER = LocalMasterKey(bytes(range(32)))


def encryption(**options: bool) -> Encryption:
    return Encryption(MASTER, scope="user", readable=["shown"], searchable=["found"], **options)  # type: ignore[arg-type]


def open_state(dsn: str, schema: str, **options: bool) -> PGState:
    return PGState.open(dsn, schema=schema, encryption=encryption(**options))


def read(state: PGState) -> list[dict[str, object]]:
    thread, item = state.threads.get("t"), state.memory.get(("users", "anna"), "k")
    assert thread is not None
    assert item is not None
    return [dict(thread.metadata), item.value]


GIVEN = {"shown": 1, "found": "x", "hidden": "y"}


@pytest.fixture
def stored(dsn: str, schema: str) -> None:
    """A thread with metadata, and an item of the store."""
    with open_state(dsn, schema) as state:
        state.threads.create("t", user_id="anna", metadata=GIVEN)
        state.memory.put(("users", "anna"), "k", dict(GIVEN))
        assert read(state) == [GIVEN, GIVEN]


@pytest.mark.parametrize(("table", "column"), [("threads", "metadata"), ("memories", "value")])
def test_a_key_that_somebody_adds_in_clear_is_refused(
    table: str, column: str, stored: None, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: besides the encrypted keys, only readable ones are read."""
    connection.execute(f"""UPDATE "{schema}".{table} SET {column} = {column} || '{{"role": "admin"}}'""")
    with open_state(dsn, schema) as state, pytest.raises(NotEncryptedError, match=f"{table}.{column}"):
        read(state)
    # While a schema is moved to encryption, what is plain is read.
    with open_state(dsn, schema, accept_plain=True) as state:
        assert {"role": "admin", **GIVEN} in read(state)


def test_digests_are_not_shown_after_the_key_was_destroyed(stored: None, dsn: str, schema: str) -> None:
    with open_state(dsn, schema) as state:
        state._database.run(destroy_keys, queries(schema), "user:anna")
        state._database.keys.expire()
        assert read(state) == [{"shown": 1}] * 2


def test_a_changed_owner_is_not_noticed(stored: None, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """A limit: searches and handlers need the owner, so it is readable, and no value is bound to it."""
    connection.execute(f"""UPDATE "{schema}".threads SET user_id = 'bert'""")
    with open_state(dsn, schema) as state:
        (found,) = state.threads.list(user_id="bert").items
        assert found.metadata == GIVEN
