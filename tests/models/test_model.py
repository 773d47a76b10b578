"""Both savers against LangGraph's in-memory saver, through sequences of calls that nobody thought of."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from support.samples import config_of, exact_tuple, exactly, id_of, message

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.checkpoints import planning, sending

CALL = "tools:5f0c"
NAMESPACES = ["", "agent", CALL]
RUNS = ["run-1", "run-2", "run-3"]
MESSAGES, ITEMS, OTHERS = "messages", "items", ["count", "profile", "page", "raw", "maybe"]

EDITS = ["append", "append", "append", "extend", "insert", "replace one", "mutate", "mutate", "remove"]
EDITS += ["swap", "reverse", "duplicate", "clear", "replace all", "deep copy"]

Key = tuple[str, str, str]


class Suspended:
    """The asynchronous saver, called from code that is not."""

    def __init__(self, saver: AsyncPGStateSaver, runner: asyncio.Runner) -> None:
        self.saver, self._run = saver, runner.run

    def put(self, *args: Any) -> Any:
        return self._run(self.saver.aput(*args))

    def put_writes(self, *args: Any) -> Any:
        return self._run(self.saver.aput_writes(*args))

    def get_tuple(self, config: Any) -> Any:
        return self._run(self.saver.aget_tuple(config))

    def list(self, config: Any, **options: Any) -> list[CheckpointTuple]:
        async def collect() -> list[CheckpointTuple]:
            return [item async for item in self.saver.alist(config, **options)]

        return self._run(collect())

    def delete_thread(self, thread_id: str) -> Any:
        return self._run(self.saver.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Any) -> Any:
        return self._run(self.saver.adelete_for_runs(run_ids))

    def copy_thread(self, source: str, target: str) -> Any:
        return self._run(self.saver.acopy_thread(source, target))

    def prune(self, *args: Any, **options: Any) -> Any:
        return self._run(self.saver.aprune(*args, **options))

    def get_delta_channel_history(self, **options: Any) -> Any:
        return self._run(self.saver.aget_delta_channel_history(**options))


class Blocking:
    """The blocking saver as it is."""

    def __init__(self, saver: PGStateSaver) -> None:
        self.saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.saver, name)


@dataclass
class World:
    """The savers under test, all on one schema, and a way to empty it."""

    savers: list[Any]
    connection: psycopg.Connection
    schema: str

    def clear(self) -> None:
        for table in ("checkpoints", "segments", "writes", "threads"):
            self.connection.execute(f'DELETE FROM "{self.schema}".{table}')
        for saver in self.savers:
            forget(saver)


def key_of(item: CheckpointTuple) -> Key:
    """Where a checkpoint is."""
    configurable = item.config["configurable"]
    return configurable["thread_id"], configurable["checkpoint_ns"], configurable["checkpoint_id"]


def forget(face: Any) -> None:
    """Empty a saver's cache."""
    knowledge = face.saver._saver_cache
    for thread_id in {thread_id for thread_id, _ in knowledge.cache._namespaces}:
        knowledge.cache.discard_thread(thread_id)
    assert not knowledge.cache._namespaces
    assert knowledge.cache._bytes == 0


@dataclass
class Live:
    """A checkpoint as the process that made it still holds it.

    Attributes:
        parent: Its parent's id.
        values: Its channel values; lists and messages are shared with other checkpoints, as a running graph does.
        versions: Its channel versions.
        arguments: What was put.
    """

    parent: str | None
    values: dict[str, Any]
    versions: dict[str, str]
    arguments: tuple[Any, ...] = ()


@dataclass
class Model:
    """What the in-memory saver cannot do, done to it.

    Attributes:
        memory: The in-memory saver.
        copied: Checkpoints that came with a copy of a thread. They stay when their run is deleted.
        write_runs: The run of each write that is not copied.
    """

    memory: InMemorySaver = field(default_factory=InMemorySaver)
    copied: set[Key] = field(default_factory=set)
    write_runs: dict[tuple[Key, tuple[str, int]], str | None] = field(default_factory=dict)

    def metadata_of(self, key: Key) -> dict[str, Any]:
        thread_id, namespace, id = key
        return self.memory.serde.loads_typed(self.memory.storage[thread_id][namespace][id][1])

    def parent_of(self, key: Key) -> str | None:
        thread_id, namespace, id = key
        return self.memory.storage[thread_id][namespace][id][2]

    def keys(self, thread_id: str | None = None) -> list[Key]:
        return sorted(
            (thread, namespace, id)
            for thread, namespaces in self.memory.storage.items()
            if thread_id in (None, thread)
            for namespace, checkpoints in namespaces.items()
            for id in checkpoints
        )

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str) -> None:
        configurable = config["configurable"]
        key = (configurable["thread_id"], configurable["checkpoint_ns"], configurable["checkpoint_id"])
        before = set(self.memory.writes.get(key, {}))
        self.memory.put_writes(config, writes, task_id, task_path)
        for index, (channel, _) in enumerate(writes):
            inner = (task_id, WRITES_IDX_MAP.get(channel, index))
            if inner[1] < 0 or inner not in before:
                self.write_runs[key, inner] = config.get("metadata", {}).get("run_id")

    def remove(self, keys: set[Key]) -> None:
        for thread_id, namespace, id in keys:
            del self.memory.storage[thread_id][namespace][id]
            self.memory.writes.pop((thread_id, namespace, id), None)

    def delete_thread(self, thread_id: str) -> None:
        self.memory.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: list[str]) -> None:
        own = set(self.keys()) - self.copied
        self.remove({key for key in own if self.metadata_of(key).get("run_id") in run_ids})
        for key, inners in list(self.memory.writes.items()):
            for inner in list(inners):
                if self.write_runs.get((key, inner)) in run_ids:
                    del inners[inner]

    def copy_thread(self, source: str, target: str) -> None:
        memory = self.memory
        for key in self.keys(source):
            _, namespace, id = key
            checkpoint, _, parent = memory.storage[source][namespace][id]
            metadata = self.metadata_of(key)
            if "thread_id" in metadata:
                metadata["thread_id"] = target
            memory.storage[target][namespace][id] = (checkpoint, memory.serde.dumps_typed(metadata), parent)
            self.copied.add((target, namespace, id))
        for (thread_id, *rest), inners in list(memory.writes.items()):
            if thread_id == source:
                memory.writes[(target, *rest)] = dict(inners)
        for (thread_id, *rest), blob in list(memory.blobs.items()):
            if thread_id == source:
                memory.blobs[(target, *rest)] = blob

    def kept_by_prune(self, thread_id: str, keep_last: int) -> set[Key]:
        """What stays: the newest of each namespace, leaves with pending writes, no calls of removed roots."""
        keys = self.keys(thread_id)
        kept: set[Key] = set()
        for namespace in NAMESPACES:
            own = [key for key in keys if key[1] == namespace]
            if not own:
                continue
            if namespace == CALL:
                root = (thread_id, "", self.metadata_of(own[-1])["parents"].get(""))
                if root in keys and root not in kept:
                    continue
            parents = {self.parent_of(key) for key in own}
            kept.update(own[-keep_last:])
            kept.update(key for key in own if self.memory.writes.get(key) and key[2] not in parents)
        return kept


ODD = st.sampled_from(
    [
        {},
        {"plan": ["a", {"b": 1}]},
        {"when": datetime(2026, 1, 2, tzinfo=UTC)},
        {"tags": {"x"}},
        {1: "one"},
        {"half": b"\x00\xff"},
    ]
)
TEXT = st.one_of(
    st.sampled_from(["", "yes", "naïve 🙂", "NUL \0 inside", "lorem ipsum " * 12, "dolor sit amet " * 60]),
    st.text(max_size=12),
)


@st.composite
def new_message(draw: st.DrawFn) -> Any:
    content, odd, id = draw(TEXT), draw(ODD), draw(st.sampled_from([None, "m1", "m2", "m3"]))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return SystemMessage(content, additional_kwargs=odd, id=id)
    if kind == 1:
        calls = [{"name": "search", "args": {"q": content}, "id": id, "type": "tool_call"}]
        usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1}}
        return AIMessage(content, tool_calls=calls, usage_metadata=usage, response_metadata=odd, id=id)
    if kind == 2:
        return ToolMessage(content, tool_call_id="c1", artifact=odd or None, id=id, name="search")
    if kind == 3:
        return HumanMessage([{"type": "text", "text": content}, "tail"], id=id)
    return (HumanMessage if kind == 4 else AIMessage)(content, id=id)


def numbered(start: int, count: int) -> list[Any]:
    """Messages enough for a list to be stored in segments; cheap to draw."""
    return [message(number) for number in range(start, start + count)]


BULK = st.builds(numbered, st.integers(0, 3), st.sampled_from([2, 7, 8, 9, 20, 40]))
ITEM = st.recursive(
    st.one_of(TEXT, st.integers(-3, 3), st.integers(-(2**63), 2**64 - 1), st.booleans(), st.none(), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=4,
)
OTHER_VALUES = {
    "count": st.one_of(st.integers(-5, 5), st.floats(), st.booleans(), st.integers(2**63, 2**64 - 1)),
    "profile": st.dictionaries(st.sampled_from(["name", "age", "städte"]), ITEM, max_size=3),
    "page": st.one_of(TEXT, st.integers(1, 9).map(lambda n: f"page {n} " * 900)),
    "raw": st.one_of(st.binary(max_size=9), st.just(bytes(range(256)) * 30)),
    "maybe": st.one_of(st.none(), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=30)),
}
WRITE = st.tuples(
    st.sampled_from(
        ["messages", "items", "count", "__error__", "__interrupt__", "__resume__", "__scheduled__", "__no_writes__"]
    ),
    st.one_of(ITEM, new_message()),
)


class Savers(RuleBasedStateMachine):
    """Calls one of the savers and the model, and compares what they answer."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.live: dict[Key, Live] = {}
        self.world.clear()
        self.numbers = itertools.count(1)
        self.choice: list[int] = [0]

    @initialize(choice=st.sampled_from([[0], [1], [0, 1], [0, 2], [1, 2]]))
    def choose(self, choice: list[int]) -> None:
        """One saver alone keeps its cache warm; several meet each other's work cold."""
        self.choice = choice

    def any_saver(self, data: st.DataObject) -> Any:
        return self.world.savers[data.draw(st.sampled_from(self.choice), "saver")]

    def any_key(self, data: st.DataObject) -> Key:
        # The newest is drawn most often: most puts append to a head.
        keys = sorted(self.live, key=lambda key: key[2], reverse=True)
        return keys[min(data.draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 5, 8, 13]), "age"), len(keys) - 1)]

    def new_id(self) -> str:
        return f"1f{next(self.numbers):06x}-0000-6000-8000-000000000000"

    def next_version(self, current: str | None) -> str:
        number = int(current.split(".")[0]) if current else 0
        return f"{number + 1:032}.{next(self.numbers):016}"

    def edited(self, data: st.DataObject, channel: str, old: Any) -> Any:
        """A new value of a channel, often the old list object itself, changed."""
        if channel not in (MESSAGES, ITEMS):
            return data.draw(OTHER_VALUES[channel], channel)
        new = new_message() if channel == MESSAGES else ITEM
        live = old if isinstance(old, list) else []
        edit = data.draw(st.sampled_from(EDITS), "edit")
        in_place = data.draw(st.booleans(), "in place")
        value = live if in_place else list(live)
        at = data.draw(st.integers(0, max(0, len(value) - 1)), "at") if value else 0
        if edit == "extend":
            value.extend(data.draw(BULK if channel == MESSAGES else st.lists(new, min_size=1, max_size=12), "new"))
        elif edit == "clear":
            value = []
        elif edit == "replace all":
            value = data.draw(st.one_of(BULK, st.lists(new, max_size=5)), "new")
        elif edit == "append" or not value:
            value.append(data.draw(new, "new"))
        elif edit == "insert":
            value.insert(at, data.draw(new, "new"))
        elif edit == "replace one":
            value[at] = data.draw(new, "new")
        elif edit == "mutate":
            if channel == MESSAGES:
                value[at].content = data.draw(TEXT, "content")
                value[at].additional_kwargs["seen"] = data.draw(st.integers(0, 3), "seen")
            elif isinstance(value[at], dict):
                value[at]["changed"] = data.draw(ITEM, "changed")
            elif isinstance(value[at], list):
                value[at].append(data.draw(ITEM, "appended"))
        elif edit == "remove":
            del value[at]
        elif edit == "swap":
            value[0], value[at] = value[at], value[0]
        elif edit == "reverse":
            value.reverse()
        elif edit == "duplicate":
            value.append(value[at])
        else:
            value = copy.deepcopy(value)
        return value

    def put_both(self, saver: Any, key: Key, live: Live, new_versions: dict[str, str], metadata: Any) -> None:
        thread_id, namespace, id = key
        checkpoint = {
            "v": 4,
            "id": id,
            "ts": "2026-01-02T03:04:05+00:00",
            "channel_values": live.values,
            "channel_versions": live.versions,
            "versions_seen": {"node": dict(list(live.versions.items())[:2]), "__input__": {}},
            "updated_channels": sorted(new_versions),
        }
        config = config_of(thread_id, namespace, live.parent)
        live.arguments = (config, checkpoint, metadata, new_versions)
        self.live[key] = live
        returned = saver.put(config, dict(checkpoint), metadata, new_versions)
        expected = self.model.memory.put(config, copy.deepcopy(checkpoint), copy.deepcopy(metadata), new_versions)
        assert returned == expected

    def metadata(self, data: st.DataObject, namespace: str, thread_id: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "source": data.draw(st.sampled_from(["input", "loop", "update", "fork"]), "source"),
            "step": data.draw(st.integers(-1, 4), "step"),
            "parents": {},
        }
        if run_id := data.draw(st.sampled_from([None, *RUNS]), "run"):
            metadata["run_id"] = run_id
        roots = [key[2] for key in self.live if key[:2] == (thread_id, "")]
        if namespace and roots:
            metadata["parents"] = {"": data.draw(st.sampled_from(roots[-4:]), "root")}
        return metadata | data.draw(
            st.sampled_from(
                [{}, {"topic": "x"}, {"thread_id": thread_id}, {"topic": "NUL\0"}, {"deep": {"a": [1, 2.5, None]}}]
            ),
            "more",
        )

    @rule(data=st.data(), thread_id=st.sampled_from(["t1", "t2"]), namespace=st.sampled_from(NAMESPACES))
    def put_first(self, data: st.DataObject, thread_id: str, namespace: str) -> None:
        """A checkpoint without a parent."""
        values = {MESSAGES: data.draw(st.one_of(BULK, st.lists(new_message(), max_size=3)), "messages"), "count": 0}
        versions = {channel: self.next_version(None) for channel in values}
        metadata = self.metadata(data, namespace, thread_id)
        key = (thread_id, namespace, self.new_id())
        self.put_both(self.any_saver(data), key, Live(None, values, versions), versions, metadata)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), repeat=st.sampled_from([1, 1, 1, 5, 12]))
    def put_next(self, data: st.DataObject, repeat: int) -> None:
        """Children of a checkpoint, the head or an older one, with some channels changed."""
        saver = self.any_saver(data)
        key = self.any_key(data)
        for _ in range(repeat):
            parent = self.live[key]
            values, versions = dict(parent.values), dict(parent.versions)
            channels = data.draw(st.sets(st.sampled_from([MESSAGES, MESSAGES, ITEMS, *OTHERS]), max_size=3))
            new_versions = {}
            if repeat > 1:
                channels = {MESSAGES}
            for channel in sorted(channels):
                versions[channel] = new_versions[channel] = self.next_version(versions.get(channel))
                if channel in values and data.draw(st.integers(0, 9), "emptied") == 0:
                    del values[channel]
                else:
                    values[channel] = self.edited(data, channel, values.get(channel))
            thread_id, namespace, parent_id = key
            metadata = self.metadata(data, namespace, thread_id)
            key = (thread_id, namespace, self.new_id())
            self.put_both(saver, key, Live(parent_id, values, versions), new_versions, metadata)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def put_sibling(self, data: st.DataObject) -> None:
        """A copy of a checkpoint beside it, as `update_state(..., as_node="__copy__")` makes: nothing is new."""
        key = self.any_key(data)
        live = self.live[key]
        stored = self.model.memory.get_tuple(config_of(*key))
        assert stored is not None
        values = stored.checkpoint["channel_values"]
        thread_id, namespace, _ = key
        if (thread_id, namespace, live.parent) not in self.live:
            live = Live(None, values, live.versions)
        sibling = (thread_id, namespace, self.new_id())
        metadata = {"source": "fork", "step": 1, "parents": {}}
        self.put_both(self.any_saver(data), sibling, Live(live.parent, values, dict(live.versions)), {}, metadata)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        """A put made again under its id: with other values, or, where nothing was changed in place, with the same."""
        key = self.any_key(data)
        old = self.live[key]
        parent = self.live.get((key[0], key[1], old.parent or ""))
        base = parent.versions if parent else {}
        values = {channel: copy.deepcopy(value) for channel, value in old.values.items()}
        versions = {channel: self.next_version(old.versions.get(channel, base.get(channel))) for channel in values}
        if MESSAGES in values:
            values[MESSAGES] = self.edited(data, MESSAGES, values[MESSAGES])
        parent_id = old.parent if parent else None
        metadata = {"source": "loop", "step": 3, "parents": {}}
        for _ in range(data.draw(st.integers(1, 2), "times")):
            self.put_both(self.any_saver(data), key, Live(parent_id, values, versions), versions, metadata)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        writes=st.lists(WRITE, max_size=5),
        task_id=st.sampled_from(["task-1", "task-2"]),
        path=st.sampled_from(["", "~__pregel_pull, b", "~__pregel_pull, a"]),
        run_id=st.sampled_from([None, *RUNS]),
    )
    def put_writes(self, data: st.DataObject, writes: Any, task_id: str, path: str, run_id: str | None) -> None:
        """A task's writes; tasks come back with other, longer or the same ones."""
        config = config_of(*self.any_key(data))
        if run_id:
            config["metadata"] = {"run_id": run_id}
        self.any_saver(data).put_writes(config, writes, task_id, path)
        self.model.put_writes(config, writes, task_id, path)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), task_id=st.sampled_from(["task-1", "task-2"]), start=st.integers(0, 2))
    def put_longer_writes(self, data: st.DataObject, task_id: str, start: int) -> None:
        """A task's writes, then longer ones; the numbers of the first call may begin later than the second's."""
        config = config_of(*self.any_key(data))
        first = [*[("__interrupt__", "stop")] * start, *data.draw(st.lists(WRITE, min_size=1, max_size=2), "first")]
        then = data.draw(st.lists(WRITE, min_size=3, max_size=6), "then")
        for writes in (first, then):
            self.any_saver(data).put_writes(config, writes, task_id, "")
            self.model.put_writes(config, writes, task_id, "")
        self.compare(data, config)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), latest=st.booleans())
    def get(self, data: st.DataObject, latest: bool) -> None:
        """A checkpoint by its id, or the latest of its namespace."""
        thread_id, namespace, id = self.any_key(data)
        config = config_of(thread_id, namespace, None if latest else id)
        self.compare(data, config)

    def compare(self, data: st.DataObject, config: Any) -> None:
        expected = self.present(self.model.memory.get_tuple(config))
        assert exact_tuple(self.any_saver(data).get_tuple(config)) == exact_tuple(expected)

    def present(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return a checkpoint without the name of its parent, where that is gone: the model goes on to name it."""
        if found is None or found.parent_config is None:
            return found
        parent = key_of(found._replace(config=found.parent_config))
        return found if parent in set(self.model.keys()) else found._replace(parent_config=None)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        scope=st.sampled_from(["namespace", "thread", "everywhere", "checkpoint"]),
        filter=st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={
                    "source": st.sampled_from(["input", "loop", "update", "fork", "nothing"]),
                    "step": st.integers(-1, 4),
                    "run_id": st.sampled_from(RUNS),
                    "topic": st.sampled_from(["x", "NUL"]),
                },
            ),
        ),
        limit=st.sampled_from([None, None, 0, 1, 2, 5]),
        bounded=st.booleans(),
    )
    def list(self, data: st.DataObject, scope: str, filter: Any, limit: int | None, bounded: bool) -> None:
        """Listings of every scope. Over several namespaces or threads the order is by id, then by name."""
        key = self.any_key(data)
        config: Any = {
            "namespace": config_of(key[0], key[1]),
            "thread": {"configurable": {"thread_id": key[0]}},
            "everywhere": None,
            "checkpoint": config_of(*key),
        }[scope]
        before = config_of(*self.any_key(data)) if bounded else None
        found = list(self.any_saver(data).list(config, filter=filter, before=before, limit=limit))
        every = sorted(
            self.model.memory.list(config, filter=filter, before=before),
            key=lambda item: (id_of(item.config), key_of(item)),
            reverse=True,
        )
        assert [exact_tuple(item) for item in found] == [exact_tuple(self.present(item)) for item in every[:limit]]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), channels=st.sets(st.sampled_from([MESSAGES, ITEMS, "count"]), min_size=1))
    def delta_history(self, data: st.DataObject, channels: set[str]) -> None:
        """What channels received along a branch."""
        config = config_of(*self.any_key(data))
        names = sorted(channels)
        found = self.any_saver(data).get_delta_channel_history(config=config, channels=names)
        expected = self.model.memory.get_delta_channel_history(config=config, channels=names)
        assert exactly(dict(found)) == exactly(dict(expected))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def copy_thread(self, data: st.DataObject) -> None:
        """A copy of a whole thread, which then has a life of its own."""
        source = self.any_key(data)[0]
        target = f"copy-{next(self.numbers)}"
        self.any_saver(data).copy_thread(source, target)
        self.model.copy_thread(source, target)
        self.live |= {
            (target, namespace, id): copy.deepcopy(live)
            for (thread_id, namespace, id), live in self.live.items()
            if thread_id == source
        }

    @precondition(lambda self: len(self.live) > 5)
    @rule(data=st.data())
    def delete_thread(self, data: st.DataObject) -> None:
        """A thread goes; its id may be used again."""
        thread_id = self.any_key(data)[0]
        self.any_saver(data).delete_thread(thread_id)
        self.model.delete_thread(thread_id)
        self.drop_the_dead()

    @precondition(lambda self: len(self.live) > 2)
    @rule(
        data=st.data(), run_ids=st.sampled_from([[], ["unknown"], [RUNS[0]], [RUNS[1]], [RUNS[2], "unknown"], RUNS[:2]])
    )
    def delete_for_runs(self, data: st.DataObject, run_ids: list[str]) -> None:
        """Runs go, from wherever they wrote."""
        self.any_saver(data).delete_for_runs(run_ids)
        self.model.delete_for_runs(run_ids)
        self.drop_the_dead()

    @precondition(lambda self: len(self.live) > 5)
    @rule(data=st.data(), keep_last=st.sampled_from([1, 1, 2, 5]), everywhere=st.booleans())
    def prune(self, data: st.DataObject, keep_last: int, everywhere: bool) -> None:
        """Exactly what should stay stays, and the dry run said so."""
        thread_id = self.any_key(data)[0]
        threads = sorted({key[0] for key in self.live}) if everywhere else [thread_id]
        going: set[Key] = set()
        for thread in threads:
            going |= set(self.model.keys(thread)) - self.model.kept_by_prune(thread, keep_last)
        saver = self.any_saver(data)
        thread_ids = None if everywhere else [thread_id]
        dry = saver.prune(thread_ids, keep_last=keep_last, dry_run=True)
        result = saver.prune(thread_ids, keep_last=keep_last)
        assert (dry.threads, dry.checkpoints, dry.writes, dry.segments, dry.bytes) == (
            result.threads,
            result.checkpoints,
            result.writes,
            result.segments,
            result.bytes,
        )
        assert result.checkpoints == len(going)
        self.model.remove(going)
        self.drop_the_dead()

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """A saver that remembers nothing."""
        forget(self.any_saver(data))

    def drop_the_dead(self) -> None:
        alive = set(self.model.keys())
        self.live = {key: live for key, live in self.live.items() if key in alive}

    @invariant()
    def as_many_checkpoints_as_the_model(self) -> None:
        row = self.world.connection.execute(f'SELECT count(*) FROM "{self.world.schema}".checkpoints').fetchone()
        assert row == (len(self.model.keys()),)

    def teardown(self) -> None:
        expected = {key_of(item): exact_tuple(self.present(item)) for item in self.model.memory.list(None)}
        for number in self.choice:
            found = [*self.world.savers[number].list(None)]
            assert {key_of(item): exact_tuple(item) for item in found} == expected
            assert len(found) == len(expected)
        dangling = self.world.connection.execute(
            f"""SELECT 1 FROM "{self.world.schema}".checkpoints c CROSS JOIN LATERAL unnest(c.segment_ids) AS r (id)
            WHERE NOT EXISTS (SELECT 1 FROM "{self.world.schema}".segments s
                WHERE s.thread_id = c.thread_id AND s.segment_id = r.id)"""
        ).fetchall()
        assert not dangling


@contextmanager
def world(dsn: str, schema: str, connection: psycopg.Connection) -> Iterator[World]:
    """Two blocking savers and an asynchronous one on one schema."""
    options: Any = {"schema": schema, "pool": 2}
    with (
        PGStateSaver.from_conn_string(dsn, **options) as one,
        PGStateSaver.from_conn_string(dsn, **options) as two,
        asyncio.Runner() as runner,
    ):
        one.setup()
        stack = AsyncExitStack()
        suspended = runner.run(stack.enter_async_context(AsyncPGStateSaver.from_conn_string(dsn, **options)))
        try:
            yield World([Blocking(one), Suspended(suspended, runner), Blocking(two)], connection, schema)
        finally:
            runner.run(stack.aclose())


def run_machine(dsn: str, schema: str, connection: psycopg.Connection, examples: int, steps: int, fixed: bool) -> None:
    with world(dsn, schema, connection) as opened:
        machine = type("Savers", (Savers,), {"world": opened})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=fixed,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )


def test_both_savers_answer_as_the_in_memory_saver(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Whatever is called in whatever order, a saver answers what LangGraph's in-memory saver does, types included."""
    run_machine(dsn, schema, connection, examples=12, steps=40, fixed=True)


def test_so_they_do_where_processes_give_their_segments_the_same_ids(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment's id says nothing by itself: what one process remembers of it may be another's by now.

    Guards: what a saver keeps of segments belongs to a checkpoint at its revision.
    """
    numbers = random.Random(1)

    def one_of_few(*taken: Any) -> int:
        return numbers.choice([id for id in range(60) if not any(id in ids for ids in taken)])

    monkeypatch.setattr(planning, "new_segment_id", one_of_few)
    monkeypatch.setattr(sending, "_PUT_ATTEMPTS", 200)
    run_machine(dsn, schema, connection, examples=5, steps=40, fixed=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_both_savers_answer_as_the_in_memory_saver_at_length(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The same with more and longer sequences, other ones in each run."""
    run_machine(dsn, schema, connection, examples=1000, steps=60, fixed=False)
