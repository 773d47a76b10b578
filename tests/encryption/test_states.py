"""Encrypted states: what is read is what was stored, and nobody else can read or exchange it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from psycopg import sql
from support import APIS, config_of, open_saver, put_arguments

from langgraph_pgstate import Encryption, LocalMasterKey, PGStateSaver
from langgraph_pgstate.errors import DecryptionError, EncryptedError, NotEncryptedError

MASTER = LocalMasterKey(bytes(range(32)))
SECRET = "correct horse battery staple"


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
