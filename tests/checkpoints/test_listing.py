"""Listings: what is found, in which order, and what it costs meanwhile."""

from __future__ import annotations

import os
import random
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from psycopg_pool import ConnectionPool
from support import spread
from support.samples import config_of, exact_tuple, id_of, messages, put_values

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.checkpoints import listing
from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.options import PoolSettings


def ids(found: Any) -> list[str]:
    return [id_of(item.config) for item in found]


def chain(saver: PGStateSaver, length: int, thread_id: str = "t", namespace: str = "", **metadata: Any) -> list[Any]:
    """Checkpoints, each the parent of the next; oldest first."""
    configs = []
    config = config_of(thread_id, namespace)
    for step in range(length):
        config = put_values(saver, config, {"step": step}, step=step, **metadata)
        configs.append(config)
    return configs


@pytest.fixture
def labelled(saver: PGStateSaver) -> dict[str, RunnableConfig]:
    """Six checkpoints that differ in what is filtered by."""
    metadata: dict[str, dict[str, Any]] = {
        "a": {"source": "input", "step": -1, "run_id": "r1", "topic": "x"},
        "b": {"source": "loop", "step": 0, "run_id": "r1", "topic": "x", "score": 1.5},
        "c": {"source": "loop", "step": 1, "run_id": "r2", "topic": "y", "deep": {"a": {"b": [1, 2]}}},
        "d": {"source": "update", "step": 1, "topic": None, "flag": True},
        "e": {"source": "fork", "step": 2, "run_id": "r2", "topic": "ÿ"},
        "f": {"source": "loop", "step": 2**40, "run_id": "r" * 600, "score": 2},
    }
    return {name: put_values(saver, config_of(), {}, **options) for name, options in metadata.items()}


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, "fedcba"),
        ({"source": "loop"}, "fcb"),
        ({"source": "nothing"}, ""),
        ({"step": 1}, "dc"),
        ({"step": -1}, "a"),
        ({"step": 2**40}, "f"),
        ({"run_id": "r1"}, "ba"),
        ({"run_id": "r" * 600}, "f"),
        ({"run_id": "unknown"}, ""),
        ({"topic": "x"}, "ba"),
        ({"topic": None}, "d"),
        ({"topic": "ÿ"}, "e"),
        ({"flag": True}, "d"),
        ({"score": 1.5}, "b"),
        ({"score": 2}, "f"),
        ({"score": 2.0}, "f"),
        ({"deep": {"a": {"b": [1, 2]}}}, "c"),
        ({"deep": {"a": {"b": [2]}}}, "c"),
        ({"deep": {"a": {"b": [3]}}}, ""),
        ({"source": "loop", "step": 0}, "b"),
        ({"source": "loop", "run_id": "r2"}, "c"),
        ({"source": "loop", "run_id": "r1", "step": 0, "topic": "x"}, "b"),
        ({"source": "loop", "topic": "nothing"}, ""),
        ({"step": 1, "flag": True}, "d"),
        ({"source": None}, ""),
        ({"step": "1"}, ""),
        ({"step": 1.0}, "dc"),
        ({"step": True}, ""),
        ({"run_id": 1}, ""),
    ],
)
def test_a_filter_finds_what_contains_it(
    filter: dict[str, Any], expected: str, saver: PGStateSaver, labelled: dict[str, RunnableConfig]
) -> None:
    """Typed columns, the rest of the metadata, and both together, over every scope."""
    scopes: dict[str, Any] = {
        "namespace": config_of(),
        "thread": {"configurable": {"thread_id": "t"}},
        "everywhere": None,
    }
    names = {id_of(config): name for name, config in labelled.items()}
    found = {
        scope: "".join(names[id] for id in ids(saver.list(config, filter=filter))) for scope, config in scopes.items()
    }
    assert found == dict.fromkeys(scopes, expected)


def test_before_may_be_nested_or_flat(saver: PGStateSaver) -> None:
    """Both forms mean: only what is older."""
    configs = chain(saver, 5)
    expected = [id_of(config) for config in reversed(configs[:3])]
    flat: Any = {"checkpoint_id": id_of(configs[3])}
    for before in (configs[3], flat):
        assert ids(saver.list(config_of(), before=before)) == expected
        assert ids(saver.list(None, before=before)) == expected


def test_before_without_an_id_bounds_nothing(saver: PGStateSaver) -> None:
    """A config that names no checkpoint is no bound."""
    chain(saver, 3)
    assert len(ids(saver.list(config_of(), before=config_of()))) == 3


def test_before_holds_for_a_search_by_run(saver: PGStateSaver) -> None:
    """Also when nothing but the run is known."""
    configs = chain(saver, 5, run_id="r")
    found = ids(saver.list(None, filter={"run_id": "r"}, before=configs[3]))
    assert found == [id_of(config) for config in reversed(configs[:3])]


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 9])
@pytest.mark.parametrize("scope", ["namespace", "thread", "everywhere", "run"])
def test_a_limit_is_an_upper_bound(limit: int, scope: str, saver: PGStateSaver) -> None:
    """The newest so many, or all there are."""
    configs = chain(saver, 5, run_id="r")
    config: Any = {"namespace": config_of(), "thread": {"configurable": {"thread_id": "t"}}}.get(scope)
    filter = {"run_id": "r"} if scope == "run" else None
    found = ids(saver.list(config, limit=limit, filter=filter))
    assert found == [id_of(config) for config in reversed(configs)][:limit]


@pytest.mark.parametrize("count", [49, 50, 51, 100, 120])
def test_pages_follow_one_another_without_gap(count: int, saver: PGStateSaver) -> None:
    """Nothing is lost or doubled where one page ends and the next begins."""
    configs = chain(saver, count)
    expected = [id_of(config) for config in reversed(configs)]
    assert ids(saver.list(config_of())) == expected
    assert ids(saver.list(config_of(), limit=count - 1)) == expected[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["thread", "everywhere", "run"])
def test_pages_follow_one_another_over_equal_ids(scope: str, saver: PGStateSaver) -> None:
    """One checkpoint id may occur in many namespaces and threads; each is found once, in a fixed order."""
    threads = ["t"] if scope == "thread" else ["t", "t2", "u"]
    expected = []
    for number in range(5):
        for thread_id in threads:
            for namespace in [f"n{index:02d}" for index in range(9)] if scope != "thread" else [*map(str, range(25))]:
                id = f"1f0000{number}0-0000-6000-8000-000000000000"
                put_values(saver, config_of(thread_id, namespace), {}, id=id, run_id="r")
                expected.append((id, thread_id, namespace))
    config: Any = {"configurable": {"thread_id": "t"}} if scope == "thread" else None
    found = [
        (id_of(item.config), item.config["configurable"]["thread_id"], item.config["configurable"]["checkpoint_ns"])
        for item in saver.list(config, filter={"run_id": "r"} if scope == "run" else None)
    ]
    assert len(expected) > 100
    assert found == sorted(expected, reverse=True)


def test_a_listing_of_all_threads_names_each(saver: PGStateSaver) -> None:
    """`config=None`, or a config without anything configurable, means every thread."""
    for thread_id in ("a", "b", "c"):
        chain(saver, 2, thread_id)
    empty: Any = {}
    for config in (None, empty):
        found = [item.config["configurable"]["thread_id"] for item in saver.list(config)]
        assert sorted(found) == ["a", "a", "b", "b", "c", "c"]


def test_namespaces_are_all_unless_one_is_named(saver: PGStateSaver) -> None:
    """No `checkpoint_ns` means all; the empty one is the root's."""
    root, child = chain(saver, 1), chain(saver, 1, namespace="child")
    everything: Any = {"configurable": {"thread_id": "t"}}
    assert ids(saver.list(everything)) == [id_of(child[0]), id_of(root[0])]
    assert ids(saver.list(config_of())) == [id_of(root[0])]
    assert ids(saver.list(config_of(checkpoint_ns="child"))) == [id_of(child[0])]
    assert ids(saver.list(config_of(checkpoint_ns="chi"))) == []


def test_a_config_with_an_id_lists_that_checkpoint(saver: PGStateSaver) -> None:
    """Alone, with its pending writes and parent."""
    configs = chain(saver, 3)
    saver.put_writes(configs[1], [("step", 9)], "task")
    found = [*saver.list(configs[1])]
    assert [exact_tuple(item) for item in found] == [exact_tuple(saver.get_tuple(configs[1]))]


@pytest.mark.slow
def test_a_listed_checkpoint_is_the_one_get_returns(saver: PGStateSaver) -> None:
    """With state, lists, writes and parent, over several pages."""
    config = config_of()
    for length in range(1, 70):
        config = put_values(saver, config, {"messages": messages(0, length), "note": {"n": "x" * length}}, step=length)
        if length % 3 == 0:
            saver.put_writes(config, [("messages", messages(length, length + 1))], "task", "~path")
    listed = [*saver.list(config_of())]
    assert len(listed) == 69
    for item in listed:
        assert exact_tuple(item) == exact_tuple(saver.get_tuple(item.config))


def test_metadata_only_reads_no_state(saver: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    """Ids, metadata and parents are there although every state and segment is unreadable."""
    first = put_values(saver, config_of(), {"messages": messages(0, 20)}, topic="x")
    second = put_values(saver, first, {"messages": messages(0, 21)}, topic="y")
    connection.execute(f"UPDATE \"{schema}\".checkpoints SET state = '\\x00'")
    connection.execute(f'DELETE FROM "{schema}".segments')
    found = [*saver.list(config_of(), metadata_only=True)]
    assert ids(found) == [id_of(second), id_of(first)]
    assert [item.metadata["topic"] for item in found] == ["y", "x"]  # type: ignore[typeddict-item]
    assert [item.parent_config for item in found] == [first, None]
    assert all(item.checkpoint["channel_values"] == {} for item in found)
    assert all(item.checkpoint["ts"] for item in found)


async def test_metadata_only_reads_no_state_asynchronously(
    async_saver: AsyncPGStateSaver, saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The other api."""
    config = put_values(saver, config_of(), {"messages": messages(0, 20)}, topic="x")
    connection.execute(f"UPDATE \"{schema}\".checkpoints SET state = '\\x00'")
    found = [item async for item in async_saver.alist(None, metadata_only=True, filter={"topic": "x"}, limit=5)]
    assert ids(found) == [id_of(config)]


def single() -> PoolSettings:
    """A pool that has one connection and no patience."""
    return PoolSettings(min_size=1, max_size=1, timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, True], ids=["connection", "pool-of-one"])
def test_calls_inside_a_listing_are_answered(pool: bool, dsn: str, schema: str, saver: PGStateSaver) -> None:
    """While the caller works on an item, the only connection is free for it."""
    configs = chain(saver, 120)
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=single() if pool else False) as one:
        seen = []
        for item in one.list(config_of()):
            found = one.get_tuple(item.config)
            assert found is not None
            seen.append(id_of(found.config))
            one.put_writes(item.config, [("step", 1)], "task")
            assert next(one.list(item.config)).config == item.config
        assert seen == [id_of(config) for config in reversed(configs)]


@pytest.mark.parametrize("pool", [False, True], ids=["connection", "pool-of-one"])
async def test_calls_inside_an_asynchronous_listing_are_answered(
    pool: bool, dsn: str, schema: str, saver: PGStateSaver
) -> None:
    """The same in the other api."""
    configs = chain(saver, 60)
    options: Any = {"schema": schema, "pool": single() if pool else False}
    async with AsyncPGStateSaver.from_conn_string(dsn, **options) as one:
        seen = []
        async for item in one.alist(config_of()):
            found = await one.aget_tuple(item.config)
            assert found is not None
            seen.append(id_of(found.config))
        assert seen == [id_of(config) for config in reversed(configs)]


@pytest.mark.slow
def test_a_listing_that_is_abandoned_holds_no_connection(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """A generator left after its first item, and never closed, takes nothing from the pool."""
    chain(saver, 120)
    with ConnectionPool(dsn, min_size=1, max_size=1, timeout=0.5, kwargs={"autocommit": True}) as pool:
        one = PGStateSaver(pool, schema=schema)
        abandoned = [one.list(config_of()) for _ in range(5)]
        for items in abandoned:
            next(items)
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(UnavailableError):
                [*abandoned[0]]
        assert len([*abandoned[1]]) == 119


def test_what_is_put_during_a_listing_does_not_disturb_it(saver: PGStateSaver) -> None:
    """Pages go by key: newer checkpoints don't shift older ones."""
    configs = chain(saver, 110)
    seen = []
    for item in saver.list(config_of()):
        seen.append(id_of(item.config))
        if len(seen) % 20 == 0:
            put_values(saver, configs[-1], {"step": -1})
    assert seen == [id_of(config) for config in reversed(configs)]


@pytest.mark.slow
def test_what_is_pruned_during_a_listing_is_left_out(saver: PGStateSaver) -> None:
    """A listing goes on after a prune, and every item it gives is whole."""
    config = config_of()
    for length in range(1, 111):
        config = put_values(saver, config, {"messages": messages(0, length)}, step=length)
    seen = []
    for item in saver.list(config_of()):
        seen.append(len(item.checkpoint["channel_values"]["messages"]))
        if len(seen) == 10:
            saver.prune(["t"], keep_last=70)
    assert seen == [*range(110, 40, -1)]


BAD: dict[str, dict[str, Any]] = {
    "limit is text": {"limit": "5"},
    "limit is a float": {"limit": 1.5},
    "limit is a flag": {"limit": True},
    "filter is a list": {"filter": ["source"]},
    "filter key is a number": {"filter": {1: "x"}},
    "filter value is a set": {"filter": {"topic": {"x"}}},
    "filter value is bytes": {"filter": {"topic": b"x"}},
    "filter value is NaN": {"filter": {"score": float("nan")}},
    "filter value is nested object": {"filter": {"deep": {"a": [object()]}}},
    "no thread": {"config": {"configurable": {"checkpoint_ns": "x"}}},
    "thread is empty": {"config": config_of("")},
    "thread has NUL": {"config": config_of("a\0b")},
    "namespace is a number": {"config": {"configurable": {"thread_id": "t", "checkpoint_ns": 5}}},
    "before is no config": {"before": ""},
    "before has NUL": {"before": {"configurable": {"checkpoint_id": "a\0"}}},
}


@pytest.mark.parametrize("arguments", spread(BAD.values()), ids=BAD)
async def test_bad_arguments_are_refused_before_anything_is_asked(arguments: dict[str, Any], dsn: str) -> None:
    """The first step of the listing raises, although there is no schema to ask: no query was sent."""
    given = {"config": config_of(), **arguments}
    with PGStateSaver.from_conn_string(dsn, schema="no_such_schema", pool=False) as saver:
        with pytest.raises(ConfigurationError):
            next(saver.list(**given))
        with pytest.raises(ConfigurationError):
            await anext(saver.alist(**given))
    async with AsyncPGStateSaver.from_conn_string(dsn, schema="no_such_schema", pool=False) as other:
        with pytest.raises(ConfigurationError):
            await anext(other.alist(**given))


def test_a_random_mix_of_arguments_finds_what_python_finds(saver: PGStateSaver) -> None:
    """Filters, bounds and limits together, against the same said in Python."""
    dice = random.Random(3)
    metadata = []
    for _ in range(130):
        entry: dict[str, Any] = {
            "source": dice.choice(["loop", "update"]),
            "step": dice.randrange(3),
            "run_id": dice.choice(["r1", "r2"]),
            "topic": dice.choice(["x", "y"]),
        }
        metadata.append((id_of(put_values(saver, config_of(), {}, **entry)), entry))
    metadata.reverse()
    for _ in range(40):
        keys = dice.sample(["source", "step", "run_id", "topic"], dice.randrange(4))
        filter = {key: dice.choice(metadata)[1][key] for key in keys}
        before = dice.choice([None, *(id for id, _ in metadata)])
        limit = dice.choice([None, 1, 10, 60])
        expected = [
            id
            for id, entry in metadata
            if (before is None or id < before) and all(entry[key] == value for key, value in filter.items())
        ]
        bound = config_of("t", "", before) if before else None
        assert ids(saver.list(config_of(), filter=filter, before=bound, limit=limit)) == expected[:limit]


def test_a_page_ends_after_a_number_of_bytes(saver: PGStateSaver) -> None:
    """Whether they are in states or in pending writes."""
    config: Any = config_of("t")
    for step in range(9):
        text = os.urandom(700_000 if step < 3 else 10).hex()
        config = put_values(saver, config, {"text": text}, step=step)
        if step >= 6:
            saver.put_writes(config, [("text", os.urandom(400_000).hex())], "task")
    pages = []
    following = listing.request_list(config_of("t"), None, None, 8, False)
    while following is not None:
        page = saver._run(listing.list_page, saver._queries, saver._codec, following)
        pages.append(len(page.rows))
        following = page.following
    assert pages == [2, 4, 1, 1]
    found = [*saver.list(config_of("t"), limit=8)]
    assert len(found) == 8
    assert [one.checkpoint["channel_values"] for one in found] == [
        one.checkpoint["channel_values"] for one in map(saver.get_tuple, (one.config for one in found)) if one
    ]
