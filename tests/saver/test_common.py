"""What clones of a saver share."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from support import APIS, backends, config_of, counted, open_saver, put_arguments, put_chain
from support.samples import put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.saver import common
from tests.db.test_database import named


@pytest.mark.parametrize("api", APIS)
async def test_a_clone_shares_the_pool_and_what_is_remembered(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """LangGraph works on clones in strict mode: they must not connect, look at the schema or read parents again."""
    with counted(named(dsn, schema)) as proxy:
        async with open_saver(api, proxy.dsn, schema, pool=1) as saver:
            configs = await put_chain(saver, "t", 8, messages=[f"message {index}" * 40 for index in range(5)])
            clone = saver.with_allowlist([("some.module", "SomeType")])
            assert clone is not saver
            before = proxy.count
            longer = [f"message {index}" * 40 for index in range(6)]
            stored = await clone.aput(*put_arguments(configs[-1], 8, messages=longer))
            assert proxy.count - before == 1
            assert len(backends(connection, schema)) == 1
            assert (await saver.aget_tuple(stored)).checkpoint["channel_values"]["messages"] == longer
        old, new = connection.execute(
            f"SELECT segment_ids FROM {schema}.checkpoints ORDER BY checkpoint_id DESC LIMIT 2"
        ).fetchall()[::-1]
        assert set(old[0]) < set(new[0])


@pytest.mark.parametrize("api", APIS)
async def test_clones_take_turns_on_a_single_connection(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, pool=False) as saver:
        clones = [saver.with_allowlist([("some.module", f"Type{index}")]) for index in range(8)]
        await asyncio.gather(*(put_chain(clone, f"t{index}", 10) for index, clone in enumerate(clones)))
        for index in range(8):
            assert len([item async for item in saver.alist(config_of(f"t{index}"))]) == 10


def test_a_threads_row_is_updated_when_that_is_due(
    saver: PGStateSaver, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by every put, which would write two rows instead of one; nor never, for a list of threads is sorted by it."""
    due = saver._saver_cache.touch_due

    def updated_at() -> object:
        return connection.execute(f"SELECT updated_at FROM {saver.schema}.threads WHERE thread_id = 't'").fetchone()

    config = put_values(saver, config_of("t"), {"topic": "first"})
    first = updated_at()
    config = put_values(saver, config, {"topic": "second"}, step=1)
    assert updated_at() == first
    due["t"] -= common._TOUCH_SECONDS
    config = put_values(saver, config, {"topic": "third"}, step=2)
    assert updated_at() != first
    # What is remembered of threads is bounded, and forgotten with them.
    monkeypatch.setattr(common, "_MAX_TOUCHES", 1)
    put_values(saver, config_of("other"), {"topic": "first"})
    assert [*due] == ["other"]
    saver.delete_thread("other")
    assert not due
