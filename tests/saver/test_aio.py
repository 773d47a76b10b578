"""The async saver's blocking methods, and many tasks on one saver."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from support import (
    GUARD_SECONDS,
    config_of,
    holding,
    loop_graph,
    open_saver,
    put_arguments,
    put_chain,
    wait_until,
)
from support.samples import checkpoint_of

from langgraph_pgstate import AsyncPGStateSaver
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import ConfigurationError
from tests.db.test_database import named, waiting


def blocking_calls(saver: AsyncPGStateSaver, config: Any) -> dict[str, Any]:
    """Every blocking method of a saver, as a call."""
    return {
        "get": lambda: saver.get(config),
        "get_tuple": lambda: saver.get_tuple(config),
        "list": lambda: list(saver.list(config_of("t"))),
        "put": lambda: saver.put(*put_arguments(config, 7)),
        "put_writes": lambda: saver.put_writes(config, [("messages", "x")], "task"),
        "get_delta_channel_history": lambda: saver.get_delta_channel_history(config=config, channels=["messages"]),
        "copy_thread": lambda: saver.copy_thread("t", "u"),
        "prune": lambda: saver.prune(["t"]),
        "delete_for_runs": lambda: saver.delete_for_runs(["run"]),
        "delete_thread": lambda: saver.delete_thread("t"),
    }


async def test_blocking_methods_of_the_async_saver_answer_another_thread(async_saver: AsyncPGStateSaver) -> None:
    (config,) = await put_chain(async_saver, "t", 1)
    answers = {}
    for name, call in blocking_calls(async_saver, config).items():
        answers[name] = await asyncio.wait_for(asyncio.to_thread(call), GUARD_SECONDS)
    assert answers["get_tuple"].config == config
    assert answers["get"]["id"] == config["configurable"]["checkpoint_id"]
    assert len(answers["list"]) == 1
    assert answers["put"]["configurable"]["thread_id"] == "t"
    assert answers["prune"].checkpoints == 1
    assert await async_saver.aget_tuple(config_of("t")) is None
    assert await async_saver.aget_tuple(config_of("u")) is not None


def test_blocking_methods_of_the_async_saver_refuse_on_its_own_thread(dsn: str, schema: str) -> None:
    """They would wait for themselves; the error says what to do instead, and nothing was done."""

    async def work() -> None:
        async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
            await saver.setup()
            configs = await put_chain(saver, "t", 2)
            for call in blocking_calls(saver, configs[-1]).values():
                with pytest.raises(ConfigurationError, match=r"await saver\.a.*PGStateSaver"):
                    call()
            assert [item.config async for item in saver.alist(config_of("t"))] == configs[::-1]
            done.append(True)

    done: list[bool] = []
    # On a thread that can be left behind, should one of them wait after all.
    loop = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    loop.start()
    loop.join(GUARD_SECONDS)
    assert done == [True]


def test_blocking_methods_of_an_async_saver_whose_loop_is_over_refuse(dsn: str, schema: str) -> None:
    async def make() -> AsyncPGStateSaver:
        async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
            await saver.setup()
            return saver

    saver = asyncio.run(make())
    for call in blocking_calls(saver, config_of("t")).values():
        with pytest.raises(ConfigurationError, match="not running"):
            call()


async def test_a_blocking_node_may_use_the_async_saver_of_its_own_graph(async_saver: AsyncPGStateSaver) -> None:
    """LangGraph runs blocking nodes of an asynchronous graph in threads; there the blocking methods are for."""
    seen = []

    def hook(count: int) -> None:
        seen.append(async_saver.get_tuple(config_of("t")) is not None)

    graph = loop_graph(3, hook).compile(checkpointer=async_saver)
    await asyncio.wait_for(graph.ainvoke({"items": [], "count": 0}, config_of("t"), durability="sync"), GUARD_SECONDS)
    assert seen == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("pool", [4, False], ids=["pool", "single"])
async def test_forty_tasks_hammer_one_async_saver(pool: int | bool, dsn: str, schema: str) -> None:
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, pool=pool) as saver:
        await saver.setup()
        chains = await asyncio.wait_for(
            asyncio.gather(*(put_chain(saver, f"t{number}", 10) for number in range(40))), GUARD_SECONDS
        )
        for number, configs in enumerate(chains):
            assert [item.config async for item in saver.alist(config_of(f"t{number}"))] == configs[::-1]


async def test_a_cancelled_call_leaves_the_connection_usable(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The put is there or not, and the only connection goes on working."""
    async with open_saver(AsyncPGStateSaver, named(dsn, schema), schema, pool=1) as saver:
        with holding(dsn, f"INSERT INTO {schema}.threads (thread_id) VALUES ('blocked')"):
            held = asyncio.create_task(put_chain(saver, "blocked", 1))
            await asyncio.to_thread(wait_until, lambda: waiting(connection, schema) == 1, "the put waits in the server")
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(held, GUARD_SECONDS)
            (config,) = await asyncio.wait_for(put_chain(saver, "free", 1), GUARD_SECONDS)
            assert (await saver.aget_tuple(config)).config == config
        assert await saver.aget_tuple(config_of("blocked")) is None


class Noting:
    """A hook that notes the threads in which it is asked for rows."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def before_put(self, plan: PutPlan, config: Any) -> list[Any]:
        """Return no rows."""
        self.threads.append(_thread())
        return []

    def after_put(self, plan: PutPlan) -> None:
        """Do nothing."""


def _thread() -> str:
    return threading.current_thread().name.partition("_")[0]


LONG: Any = ["x" * 10] * 1500
DEEP: Any = {"a": {"b": ["x" * 1000] * 300}}


@pytest.mark.parametrize(
    ("values", "stores", "reads"),
    [
        ({"a": LONG}, "pgstate-heavy", "pgstate-heavy"),
        # Of messages, perhaps; those of JSON are read at once.
        ({"a": {"messages": LONG}}, "pgstate-heavy", "MainThread"),
        # Known only once it is encoded.
        ({"a": DEEP}, "pgstate-heavy", "pgstate-heavy"),
        ({"a": "x" * 300_000}, "pgstate-heavy", "pgstate-heavy"),
        ({"a": ["x"] * 200, "b": {"c": [1] * 200}}, "MainThread", "MainThread"),
    ],
    ids=["long list", "input with a long list", "nested", "text", "small"],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known parent", "unknown parent"])
async def test_large_values_are_stored_and_read_beside_the_event_loop(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, values: Any, stores: str, reads: str, is_known: bool
) -> None:
    """Of any saver on an event loop, with or without what it remembers of the checkpoint before."""
    packed: list[str] = []
    original = frames.pack

    def pack(content: bytes) -> bytes:
        packed.append(_thread())
        return original(content)

    monkeypatch.setattr(frames, "pack", pack)
    hook = Noting()
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, hook=hook) as saver:
        await saver.setup()
        version = f"{2:032}.{1:016}"
        config = await saver.aput(config_of("t"), checkpoint_of({"a": ["y"], "b": 1}), {"step": 0}, {"a": 1, "b": 1})  # type: ignore[arg-type, dict-item, typeddict-item]
        loaded: list[str] = []
        load = saver._load

        def noted(found: Any) -> Any:
            loaded.append(_thread())
            return load(found)

        monkeypatch.setattr(saver, "_load", noted)
        if not is_known:
            saver._saver_cache.cache.discard_thread("t")
        packed.clear()
        hook.threads.clear()
        made = checkpoint_of(values, dict.fromkeys(values, version))
        config = await saver.aput(config, made, {"step": 1}, dict.fromkeys(values, version))  # type: ignore[arg-type, typeddict-item]
        assert {*packed} | {*hook.threads} == {stores}
        packed.clear()
        await saver.aput_writes(config, [*values.items()], "task")
        assert {*packed} == {stores}
        saver._saver_cache.cache.discard_thread("t")
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert loaded == [reads]
