"""A checkpoint's parent in what is read: the one it was made from, and none once that one is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from support import APIS, config_of, loop_graph, open_saver, put_arguments, put_chain
from support.official import chat_graph, official_saver, talk
from support.record import ask
from typer.testing import CliRunner

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.cli.app import app

pytestmark = pytest.mark.smoke


@pytest.fixture(params=APIS)
async def saver(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    async with open_saver(request.param, dsn, schema, setup=False) as saver:
        yield saver


@pytest.fixture(params=APIS)
async def other(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    """The saver of another process: it shares nothing with the first."""
    async with open_saver(request.param, dsn, schema, setup=False) as other:
        yield other


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])


async def parents(saver: Any, configs: list[Any]) -> dict[str, list[str | None]]:
    """The parent of each checkpoint that is there, once for each way to read it, oldest first."""
    thread = {"configurable": {"thread_id": "t"}}
    listings: dict[str, Any] = {
        "namespace": {"config": config_of("t")},
        "thread": {"config": thread},
        "thread, bare": {"config": thread, "metadata_only": True},
        "everywhere": {"config": None},
        "run": {"config": None, "filter": {"run_id": "r"}},
    }
    found = {name: [item async for item in saver.alist(**options)][::-1] for name, options in listings.items()}
    for config in configs:
        found.setdefault("by id", []).append(await saver.aget_tuple(config))
    found["by id"] = [item for item in found["by id"] if item is not None]
    found["latest"] = [*found["by id"][:-1], await saver.aget_tuple(config_of("t"))]
    return {name: [item.parent_config and id_of(item.parent_config) for item in items] for name, items in found.items()}


async def put_run(saver: Any, length: int) -> list[Any]:
    """Checkpoints of one run, each the parent of the next."""
    configs: list[Any] = []
    config: Any = config_of("t")
    for step in range(length):
        config, checkpoint, metadata, versions = put_arguments(config, step)
        config = await saver.aput(config, checkpoint, {**metadata, "run_id": "r"}, versions)
        configs.append(config)
    return configs


async def test_a_checkpoint_whose_parent_was_pruned_has_none(saver: Any, other: Any) -> None:
    """Also one that this process had read, or written, before another process pruned the thread."""
    configs = await put_run(saver, 4)
    ids = [id_of(config) for config in configs]
    before = await parents(saver, configs)
    assert {name: [None, *ids[:3]] for name in before} == before
    await other.aprune(["t"], keep_last=2)
    for reader in (saver, other):
        after = await parents(reader, configs)
        assert {name: [None, ids[2]] for name in after} == after


async def test_so_has_one_whose_parents_run_was_taken_back(saver: Any) -> None:
    first = await put_run(saver, 2)
    following = await saver.aput(*put_arguments(first[1], 2))
    await saver.adelete_for_runs(["r"])
    found = await saver.aget_tuple(following)
    assert found.parent_config is None


async def test_a_prune_changes_nothing_but_the_parent(saver: Any) -> None:
    configs = await put_run(saver, 4)
    before = await saver.aget_tuple(configs[3])
    await saver.aprune(["t"])
    assert await saver.aget_tuple(configs[3]) == before._replace(parent_config=None)


@pytest.mark.parametrize("kind", [PGState, AsyncPGState])
async def test_the_lineage_still_knows_where_it_was_cut(kind: Any, dsn: str, schema: str) -> None:
    if kind is PGState:
        with PGState.open(dsn, schema=schema) as state:
            await _cut(state)
    else:
        async with AsyncPGState.open(dsn, schema=schema) as state:
            await _cut(state)


async def _cut(state: Any) -> None:
    configs = await put_chain(state.saver, "t", 5)
    await ask(state.threads.label(configs[1], "a place to come back to"))
    await state.saver.aprune(["t"])
    (labelled,) = await ask(state.threads.lineage(configs[1]))
    (kept,) = await ask(state.threads.lineage(config_of("t")))
    assert (labelled.config, labelled.parent_checkpoint_id) == (configs[1], id_of(configs[0]))
    assert (kept.config, kept.parent_checkpoint_id) == (configs[4], id_of(configs[3]))


@pytest.mark.parametrize("guard", [None, "head", "lease", ["head", "lease"]])
@pytest.mark.parametrize("api", APIS)
async def test_a_pruned_thread_goes_on_under_every_guard(api: Any, guard: Any, dsn: str, schema: str) -> None:
    """Turns, an update, a copy of the checkpoint without a parent, and a fork from it."""
    async with open_saver(api, dsn, schema, setup=False, guard=guard) as saver:
        graph = loop_graph(3).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        await graph.ainvoke({"items": [], "count": 0}, config)
        await saver.aprune(["t"])
        cut = await graph.aget_state(config)
        assert cut.parent_config is None
        await graph.aupdate_state(cut.config, None, as_node="__copy__")
        copied = await graph.aget_state(config)
        assert (copied.values, copied.parent_config) == (cut.values, None)
        await graph.ainvoke({"count": 2}, config)
        await graph.ainvoke({"count": 2}, cut.config)
        items = ["item 0", "item 1", "item 2", "item 2"]
        assert (await graph.aget_state(config)).values["items"] == items
        history = [item async for item in graph.aget_state_history(config)]
        known = {id_of(item.config) for item in history}
        assert {item.parent_config and id_of(item.parent_config) for item in history} <= {None, *known}
        assert sum(item.parent_config is None for item in history) == 2


@pytest.mark.slow
def test_parents_are_those_of_langgraphs_own_saver(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """After the same turns, the same prune and another turn."""

    def history(saver: PGStateSaver | PostgresSaver) -> list[int | None]:
        talk(saver, "t", 3)
        saver.prune(["t"])
        talk(saver, "t", 1, start=4)
        items = list(chat_graph(saver).get_state_history({"configurable": {"thread_id": "t"}}))
        at = {id_of(item.config): index for index, item in enumerate(items)}
        return [item.parent_config and at[id_of(item.parent_config)] for item in items]

    theirs = f"{schema}_theirs"
    try:
        with official_saver(dsn, theirs) as official, PGStateSaver.from_conn_string(dsn, schema=schema) as ours:
            assert history(ours) == history(official)
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{theirs}" CASCADE')


@pytest.mark.slow
def test_the_tree_draws_what_a_prune_has_left_on_both_sides_of_a_gap(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    with PGState.open(dsn, schema=schema) as state:
        graph = loop_graph(6).compile(checkpointer=state.saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({"items": [], "count": 0}, config)
        middle = list(state.saver.list(config))[4]
        state.threads.label(middle.config, "before the gap")
        state.saver.prune(["t"], keep_last=2)
    shown = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, "tree", "t"])
    first, *lines = shown.output.splitlines()
    assert first == "t"
    assert [("before the gap" in line, line.split()[1]) for line in lines] == [(True, "2"), (False, "5"), (False, "6")]
