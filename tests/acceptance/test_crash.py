"""kill -9 at random moments: a checkpoint is whole or absent, what was acknowledged is there, the next run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support import APIS, backends, config_of, crossed, loop_graph, put_arguments, wait_until

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver

THREAD = config_of("t")
KILLS = 10
MOST_LINES = 12
# About one superstep of `loop_graph`, so that death comes at any point of it.
LONGEST_WAIT = 0.01


def die_young(work: Callable[[int], None], chance: random.Random) -> list[str]:
    """Run `work(pipe)` in a child process, and kill it a moment after it has written some lines; the lines it wrote."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing of the parent may be cleaned up, printed or closed here.
        status = 1
        with contextlib.suppress(BaseException):
            os.close(reader)
            sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            work(writer)
            status = 0
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        written = [lines.readline().strip() for _ in range(chance.randint(1, MOST_LINES))]
        time.sleep(chance.uniform(0, LONGEST_WAIT))
        os.kill(pid, signal.SIGKILL)
        written += [line.strip() for line in lines]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {os.WEXITSTATUS(status)}"
    assert written[0] == "ready"
    return written[1:]


class Acknowledging(PGStateSaver):
    """Writes the id of every checkpoint to a pipe when `put` has returned."""

    pipe: int

    def put(self, *arguments: Any, **options: Any) -> Any:
        stored = super().put(*arguments, **options)
        os.write(self.pipe, f"{stored['configurable']['checkpoint_id']}\n".encode())
        return stored


class AsyncAcknowledging(AsyncPGStateSaver):
    """Asynchronous twin of `Acknowledging`."""

    pipe: int

    async def aput(self, *arguments: Any, **options: Any) -> Any:
        stored = await super().aput(*arguments, **options)
        os.write(self.pipe, f"{stored['configurable']['checkpoint_id']}\n".encode())
        return stored


def run_graph_for_ever(api: type, dsn: str, schema: str, durability: str) -> Callable[[int], None]:
    """A child's work: go on with the thread where it stands, then run it again and again."""

    def blocking(pipe: int) -> None:
        with Acknowledging.from_conn_string(dsn, schema=schema, pool=2) as saver:
            saver.pipe = pipe
            graph = loop_graph(6).compile(checkpointer=saver)
            os.write(pipe, b"ready\n")
            # Not `next`: it leaves out a task whose writes are stored and wait for their checkpoint.
            given: Any = None if graph.get_state(THREAD).tasks else {"items": ["again"], "count": 0}
            while True:
                graph.invoke(given, THREAD, durability=durability)
                given = {"items": ["again"], "count": 0}

    async def suspending(pipe: int) -> None:
        async with AsyncAcknowledging.from_conn_string(dsn, schema=schema, pool=2) as saver:
            saver.pipe = pipe
            graph = loop_graph(6).compile(checkpointer=saver)
            os.write(pipe, b"ready\n")
            state = await graph.aget_state(THREAD)
            given: Any = None if state.tasks else {"items": ["again"], "count": 0}
            while True:
                await graph.ainvoke(given, THREAD, durability=durability)
                given = {"items": ["again"], "count": 0}

    return blocking if api is PGStateSaver else lambda pipe: asyncio.run(suspending(pipe))


def expected_after(previous: dict[str, Any], values: dict[str, Any]) -> bool:
    """Whether a checkpoint's values follow from its parent's by one superstep of `loop_graph`."""
    items, count = previous.get("items", []), previous.get("count")
    if "__start__" in values or values.get("count") == 0:
        return values.get("items", [])[: len(items)] == items
    return values["items"] == [*items, f"item {count}"] and values["count"] == count + 1


@pytest.mark.parametrize(("api", "durability"), crossed(APIS, ["sync", "async"]))
def test_a_killed_graph_leaves_nothing_half_written(
    api: type, durability: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """One thread, killed again and again; forty times with all parameters, and 300 times in the slow form.

    After each death every checkpoint reads whole, stands on its parent, and follows from it; nothing the child was
    told to be stored is missing; and the next child goes on from the last checkpoint, no item lost or repeated.
    """
    chance = random.Random(f"{api.__name__} {durability}")
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        work = run_graph_for_ever(api, make_conninfo(dsn, application_name=schema), schema, durability)
        known: dict[str, dict[str, Any]] = {}
        acknowledged: set[str] = set()
        for _ in range(KILLS):
            acknowledged.update(die_young(work, chance))
            wait_until(lambda: not backends(connection, schema), "the end of what the dead child had sent")
            newest = max(known, default="")
            for found in saver.list(THREAD):
                id = found.config["configurable"]["checkpoint_id"]
                if id <= newest:
                    break
                known[id] = found.checkpoint["channel_values"]
                parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
                alone = saver.get_tuple(found.config)
                assert alone == found
                if parent is None:
                    assert len(known) == 1 or found.metadata["step"] == -1
                    continue
                before = saver.get_tuple(found.parent_config)
                assert before is not None, f"the parent of {id} is missing"
                assert expected_after(before.checkpoint["channel_values"], known[id]), (before.checkpoint, known[id])
            assert acknowledged <= known.keys()
        assert known[max(known)]["items"]
        assert_no_item_is_lost(known[max(known)]["items"])


def assert_no_item_is_lost(items: list[str]) -> None:
    """Whole rounds of six, one after the other; only the last may be unfinished."""
    rounds = " ".join(items).split("again")
    whole = " ".join(f"item {index}" for index in range(6))
    assert rounds[0].strip() == ""
    assert [text.strip() for text in rounds[1:-1]] == [whole] * (len(rounds) - 2)
    assert whole.startswith(rounds[-1].strip())


def test_a_killed_writer_leaves_no_orphans_and_no_locks(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Bare puts of long lists, killed in the middle: every segment referred to is there, and others can go on."""

    def work(pipe: int) -> None:
        named = make_conninfo(dsn, application_name=schema)
        with PGStateSaver.from_conn_string(named, schema=schema, pool=False) as saver:
            found = saver.get_tuple(THREAD)
            config: Any = found.config if found else THREAD
            messages = found.checkpoint["channel_values"]["messages"] if found else []
            os.write(pipe, b"ready\n")
            for step in range(10**6):
                messages = [*messages, f"message {len(messages)} " * 100]
                config = saver.put(*put_arguments(config, len(messages), messages=messages))
                os.write(pipe, f"{len(messages)}\n".encode())
                saver.put_writes(config, [("messages", "x" * 1000)] * 3, f"task {step}")

    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        chance = random.Random(7)
        for _ in range(12):
            lengths = [int(line) for line in die_young(work, chance) if line.isdigit()]
            wait_until(lambda: not backends(connection, schema), "the end of what the dead child had sent")
            found = saver.get_tuple(THREAD)
            assert found is not None
            messages = found.checkpoint["channel_values"]["messages"]
            assert len(messages) >= max(lengths, default=0)
            assert messages == [f"message {index} " * 100 for index in range(len(messages))]
            missing = connection.execute(
                f"""
                SELECT c.checkpoint_id FROM {schema}.checkpoints c, unnest(c.segment_ids) AS id
                WHERE NOT EXISTS (
                    SELECT 1 FROM {schema}.segments s WHERE s.thread_id = c.thread_id AND s.segment_id = id
                )
                """
            ).fetchall()
            assert missing == []
            unused = connection.execute(
                f"""
                SELECT s.segment_id FROM {schema}.segments s WHERE NOT EXISTS (
                    SELECT 1 FROM {schema}.checkpoints c
                    WHERE c.thread_id = s.thread_id AND s.segment_id = ANY(c.segment_ids)
                )
                """
            ).fetchall()
            assert unused == []
            assert [len(writes or []) in (0, 3) for *_, writes in saver.list(THREAD, limit=3)] == [True] * min(
                3, len(messages)
            )


@pytest.mark.long
@pytest.mark.parametrize("api", APIS)
def test_a_killed_graph_many_more_times(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with longer lives, for a nightly run."""
    monkeypatch.setattr(sys.modules[__name__], "KILLS", 150)
    monkeypatch.setattr(sys.modules[__name__], "MOST_LINES", 40)
    test_a_killed_graph_leaves_nothing_half_written(api, "async", dsn, schema, connection)
