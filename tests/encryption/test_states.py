"""Encrypted states: what is read is what was stored, and nobody else can read or exchange it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from psycopg import sql
from support import APIS, config_of, open_saver, put_arguments

from langgraph_pgstate import Encryption, LocalMasterKey, PGState, PGStateSaver
from langgraph_pgstate.errors import DecryptionError, EncryptedError, NotEncryptedError
from langgraph_pgstate.record.options import RecorderSettings

MASTER = LocalMasterKey(bytes(range(32)))
SECRET = "correct horse battery staple"  # pragma: allowlist secret


async def put_messages(saver: Any, thread_id: str, count: int, word: str = SECRET) -> list[Any]:
    """Checkpoints of a growing list of messages; the config of each."""
    config, configs, messages = config_of(thread_id), [], []
    for step in range(count):
        messages.append(HumanMessage(f"{word} number {step}", id=str(step)))
        arguments = put_arguments(config, step, messages=[*messages], note=f"{word} in a scalar", big=word * 300)
        config = await saver.aput(*arguments)
        await saver.aput_writes(config, [("messages", [AIMessage(f"{word} written")])], f"task-{step}")
        configs.append(config)
    return configs


def everything(connection: psycopg.Connection, schema: str) -> str:
    """The text of all rows of all tables."""
    names = connection.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p')", [schema]
    ).fetchall()
    found = []
    for (name,) in names:
        table = sql.Identifier(schema, name)
        rows = connection.execute(sql.SQL("SELECT t.*::text FROM {} t").format(table)).fetchall()
        found += [str(row) for row in rows]
    return "\n".join(found)


@pytest.mark.parametrize("api", APIS)
async def test_what_is_read_is_what_was_stored(api: type, dsn: str, schema: str) -> None:
    encryption = Encryption(MASTER)
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        configs = await put_messages(saver, "t", 5)
        warm = [await saver.aget_tuple(config) for config in configs]
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(MASTER)) as saver:
        cold = [await saver.aget_tuple(config) for config in configs]
        listed = [item async for item in saver.alist(config_of("t"))]
        latest = await saver.aget_tuple(config_of("t"))
    assert warm == cold == listed[::-1]
    assert latest == cold[-1]
    assert [message.content for message in latest.checkpoint["channel_values"]["messages"]] == [
        f"{SECRET} number {step}" for step in range(5)
    ]
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert SECRET.encode().hex() not in everything(connection, schema)
        assert SECRET not in everything(connection, schema)


def cell(connection: psycopg.Connection, schema: str, table: str, column: str, where: str) -> Any:
    """One value as it is stored."""
    found = connection.execute(f'SELECT {column} FROM "{schema}".{table} WHERE {where}').fetchone()
    assert found is not None
    return found[0]


def overwrite(connection: psycopg.Connection, schema: str, table: str, column: str, value: Any, where: str) -> None:
    """Write a value past the saver."""
    changed = connection.execute(f'UPDATE "{schema}".{table} SET {column} = %s WHERE {where}', [value])
    assert changed.rowcount > 0


async def read_all(dsn: str, schema: str, **options: Any) -> Any:
    """The newest state of the thread, as a new process reads it."""
    async with open_saver(
        PGStateSaver, dsn, schema, setup=False, **{"encryption": Encryption(MASTER), **options}
    ) as saver:
        return await saver.aget_tuple(config_of("t"))


@pytest.fixture
async def stored(dsn: str, schema: str) -> list[Any]:
    """A thread of five encrypted checkpoints, and another one."""
    async with open_saver(PGStateSaver, dsn, schema, setup=False, encryption=Encryption(MASTER)) as saver:
        await put_messages(saver, "other", 5)
        return await put_messages(saver, "t", 5)


NEWEST = "thread_id = 't' AND checkpoint_id = (SELECT max(checkpoint_id) FROM \"{0}\".{1} WHERE thread_id = 't')"


@pytest.mark.parametrize(("table", "column"), [("checkpoints", "state"), ("segments", "data"), ("writes", "data")])
@pytest.mark.parametrize("how", ["flipped", "cut off", "plain", "of another thread", "of another row", "empty"])
async def test_a_row_that_was_changed_is_refused(
    table: str, column: str, how: str, stored: list[Any], dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guards: associated data, the tag, and that nothing plain is read."""
    key = "segment_id" if table == "segments" else "checkpoint_id"
    ids = [
        row[0]
        for row in connection.execute(
            f'SELECT {key} FROM "{schema}".{table} WHERE thread_id = %s ORDER BY 1', ["t"]
        ).fetchall()
    ]
    if table == "segments":
        named = cell(connection, schema, "checkpoints", "segment_ids", NEWEST.format(schema, "checkpoints"))
        ids = [id for id in ids if id in named]
    where = f"thread_id = 't' AND {key} = '{ids[-1]}'"
    value = cell(connection, schema, table, column, where)
    others = {
        "flipped": value[:-3] + bytes([value[-3] ^ 1]) + value[-2:],
        "cut off": value[:-1],
        "plain": b"\x00" + bytes(10),
        "empty": b"",
        "of another row": cell(connection, schema, table, column, f"thread_id = 't' AND {key} = '{ids[0]}'"),
        "of another thread": cell(connection, schema, table, column, "thread_id = 'other'"),
    }
    overwrite(connection, schema, table, column, others[how], where)
    expected = NotEncryptedError if how in ("plain", "empty") else DecryptionError
    with pytest.raises(expected, match=f"{table}.{column} of 't'"):
        await read_all(dsn, schema)


async def test_segments_cannot_be_exchanged_in_their_row(
    stored: list[Any], dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: the state is bound to the segments that its row names in clear text."""
    where = NEWEST.format(schema, "checkpoints")
    ids = cell(connection, schema, "checkpoints", "segment_ids", where)
    assert len(ids) > 1
    overwrite(connection, schema, "checkpoints", "segment_ids", ids[::-1], where)
    with pytest.raises(DecryptionError, match="the segments of its row"):
        await read_all(dsn, schema)
    # Segments that follow them are those of an earlier version of the row.
    overwrite(connection, schema, "checkpoints", "segment_ids", [*ids, 5], where)
    assert await read_all(dsn, schema) is not None


@pytest.mark.parametrize("api", APIS)
async def test_what_was_stored_in_plain_text_is_refused_unless_it_is_accepted(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, setup=False) as saver:
        config = (await put_messages(saver, "t", 3))[-1]
        plain = await saver.aget_tuple(config)
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(MASTER)) as saver:
        with pytest.raises(NotEncryptedError, match="accept_plain"):
            await saver.aget_tuple(config)
    moving = Encryption(MASTER, accept_plain=True)
    async with open_saver(api, dsn, schema, setup=False, encryption=moving) as saver:
        assert await saver.aget_tuple(config) == plain
        await put_messages(saver, "t", 3)
        assert (await saver.aget_tuple(config_of("t"))) is not None


@pytest.mark.parametrize("api", APIS)
async def test_without_keys_what_is_encrypted_is_refused(api: type, stored: list[Any], dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, setup=False) as saver:
        with pytest.raises(EncryptedError, match="encryption="):
            await saver.aget_tuple(config_of("t"))
        with pytest.raises(EncryptedError, match="encryption="):
            await saver.acopy_thread("t", "copy")
        assert [item async for item in saver.alist(config_of("copy"))] == []


async def test_the_first_read_may_be_in_a_pipeline(stored: list[Any], dsn: str, schema: str) -> None:
    """Guard: in the caller's pipeline a result has no columns until its rows are read."""
    with psycopg.connect(dsn, autocommit=True) as ours, ours.pipeline():
        saver = PGStateSaver(ours, schema=schema, encryption=Encryption(MASTER))
        assert saver.get_tuple(stored[-1]) is not None
        assert len(list(saver.list(config_of("t")))) == len(stored)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("scope", [None, "user", "thread"])
async def test_copies_are_of_their_own(api: type, scope: str | None, dsn: str, schema: str) -> None:
    """A copy is bound to its own rows, and encrypted under the key of its owner."""
    encryption = Encryption(MASTER, scope=scope)
    async with open_saver(api, dsn, schema, setup=False, encryption=encryption) as saver:
        config = config_of("t")
        config["configurable"]["user_id"] = "anna"
        for step in range(3):
            config = await saver.aput(*put_arguments(config, step))
            await saver.aput_writes(config, [("messages", "written")], f"task-{step}")
        await saver.acopy_thread("t", "copy", owner={"metadata": {}, "user_id": "bert"})
        # Safe to repeat.
        await saver.acopy_thread("t", "copy", owner={"metadata": {}, "user_id": "bert"})
        source = [item async for item in saver.alist(config_of("t"))]
    with psycopg.connect(dsn, autocommit=True) as connection:
        owners = {
            thread_id: {cell(connection, schema, "checkpoints", "state", f"thread_id = '{thread_id}'")[4:12].hex()}
            for thread_id in ("t", "copy")
        }
        scopes = dict(connection.execute(f'SELECT key_id, scope FROM "{schema}".data_keys').fetchall())
    async with open_saver(api, dsn, schema, setup=False, encryption=Encryption(MASTER, scope=scope)) as saver:
        copies = [item async for item in saver.alist(config_of("copy"))]
        assert [item.checkpoint for item in copies] == [item.checkpoint for item in source]
        assert [item.pending_writes for item in copies] == [item.pending_writes for item in source]
    named = {thread_id: {scopes[id] for id in ids} for thread_id, ids in owners.items()}
    assert (
        named
        == {
            None: {"t": {""}, "copy": {""}},
            "user": {"t": {"user:anna"}, "copy": {"user:bert"}},
            "thread": {"t": {"thread:t"}, "copy": {"thread:copy"}},
        }[scope]
    )


async def test_a_large_state_does_not_stop_the_loop(dsn: str, schema: str) -> None:
    """It is encrypted and decrypted in a thread; the result is the same."""
    async with open_saver(APIS[1], dsn, schema, setup=False, encryption=Encryption(MASTER)) as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0, document="".join(map(str, range(400_000)))))
        found = await asyncio.wait_for(saver.aget_tuple(config), 60)
    assert found.checkpoint["channel_values"]["document"].endswith("399999")


async def test_a_row_that_was_deleted_is_not_noticed(
    stored: list[Any], dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A limit: no value is bound to those that came after it."""
    newest = await read_all(dsn, schema)
    connection.execute(f'DELETE FROM "{schema}".checkpoints WHERE {NEWEST.format(schema, "checkpoints")}')
    found = await read_all(dsn, schema)
    assert found.config["configurable"]["checkpoint_id"] < newest.config["configurable"]["checkpoint_id"]


def test_a_damaged_write_hinders_no_other_row(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    def say(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("hello", id="answer")]}

    state_type: Any = TypedDict(
        "State", {"messages": Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=1000)]}
    )
    graph = StateGraph(state_type).add_node("say", say).add_edge(START, "say")
    recording = RecorderSettings(interval=1_000_000.0)
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER), recording=recording) as state:
        state.setup()
        recorded = state.record(graph.compile(checkpointer=state.saver))
        for thread_id in ("damaged", "whole"):
            recorded.invoke({"messages": [HumanMessage("hi", id="question")]}, config_of(thread_id))
        connection.execute(
            f"UPDATE {schema}.writes SET data = set_byte(data, octet_length(data) - 1, 255 - "
            "get_byte(data, octet_length(data) - 1)) WHERE thread_id = 'damaged'".encode()
        )
        state.flush()
        assert {run.thread_id for run in state.runs.list().items} == {"damaged", "whole"}
        assert [message.message_id for message in state.messages.conversation("whole")] == ["question", "answer"]
