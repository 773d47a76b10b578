"""Pending writes whose checkpoint never came: counted, removed once they cannot matter, and not a moment earlier."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, config_of, loop_graph, open_saver, put_arguments, put_chain
from support.cli import words
from typer.testing import CliRunner

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.threads import prune

THREAD = config_of("t")


MISSING = {"configurable": {**THREAD["configurable"], "checkpoint_id": "1f000000-0000-6000-8000-000000000000"}}


class Stuck(PGStateSaver):
    """Tells a pipe of each call, and never puts the checkpoint of one step."""

    pipe: int
    step: int

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] == self.step:
            os.write(self.pipe, f"checkpoint {checkpoint['id']}\n".encode())
            threading.Event().wait(GUARD_SECONDS)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        os.write(self.pipe, f"writes {config['configurable']['checkpoint_id']}\n".encode())


def killed_between(dsn: str, schema: str, step: int) -> str:
    """Kill a process whose writes are stored and whose checkpoint is not; the checkpoint's id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            with Stuck.from_conn_string(dsn, schema=schema, pool=4) as saver:
                saver.pipe, saver.step = writer, step
                graph = loop_graph(9).compile(checkpointer=saver)
                graph.invoke({"items": [], "count": 0}, THREAD, durability="async")
        os._exit(0)
    os.close(writer)
    said: set[str] = set()
    lost = None
    with os.fdopen(reader) as lines:
        for line in lines:
            said.add(line.strip())
            lost = lost or (line.split()[1] if line.startswith("checkpoint") else None)
            if lost is not None and f"writes {lost}" in said:
                break
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert lost is not None
    return lost


class Rows:
    """The rows of pending writes, and how to make them older."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema

    def orphaned(self) -> int:
        (found,) = self._connection.execute(
            f"SELECT count(*) FROM {self._schema}.writes w "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._schema}.checkpoints c "
            "WHERE (c.thread_id, c.checkpoint_ns, c.checkpoint_id) = (w.thread_id, w.checkpoint_ns, w.checkpoint_id))"
        ).fetchone() or (0,)
        return int(found)

    def all(self) -> int:
        (found,) = self._connection.execute(f"SELECT count(*) FROM {self._schema}.writes").fetchone() or (0,)
        return int(found)

    def age(self, by: timedelta = timedelta(days=2)) -> None:
        self._connection.execute(f"UPDATE {self._schema}.writes SET created_at = created_at - %s", [by])


@pytest.fixture
def rows(connection: psycopg.Connection, schema: str) -> Rows:
    return Rows(connection, schema)


def maintained(dsn: str, schema: str) -> int:
    with PGState.open(dsn, schema=schema) as state:
        return state.maintain().orphan_writes


def pruned(dsn: str, schema: str) -> int:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        expected = saver.prune(["t"], keep_last=1000, dry_run=True)
        found = saver.prune(["t"], keep_last=1000)
        assert (found.threads, found.checkpoints, found.writes, found.bytes) == (
            expected.threads,
            expected.checkpoints,
            expected.writes,
            expected.bytes,
        )
        return found.writes


def pruned_all(dsn: str, schema: str) -> int:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        expected = saver.prune(keep_last=1000, dry_run=True).writes
        assert saver.prune(keep_last=1000).writes == expected
        return expected


REMOVALS: dict[str, Callable[[str, str], int]] = {"maintain": maintained, "prune": pruned, "prune all": pruned_all}


@pytest.mark.parametrize("step", [-1, 3])
@pytest.mark.parametrize("remove", REMOVALS)
def test_what_a_killed_process_left_goes(remove: str, step: int, dsn: str, schema: str, rows: Rows) -> None:
    """SIGKILL between the writes and their checkpoint, the thread's first or a later one."""
    with Admin.open(dsn, schema=schema) as admin:
        admin.setup()
        lost = killed_between(dsn, schema, step)
        found = rows.orphaned()
        assert found >= 1
        assert admin.check().orphan_writes == admin.check("t").orphan_writes == found
        assert admin.check().problems == []
        # A checkpoint may come later than its writes.
        assert REMOVALS[remove](dsn, schema) == 0
        assert rows.orphaned() == found
        rows.age()
        others = rows.all() - found
        assert REMOVALS[remove](dsn, schema) == found
        assert (rows.orphaned(), rows.all()) == (0, others)
        assert admin.check().orphan_writes == 0
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        named = {"configurable": {**THREAD["configurable"], "checkpoint_id": lost}}
        assert saver.get_tuple(named) is None
        # The thread goes on where it was.
        graph = loop_graph(9).compile(checkpointer=saver)
        given: Any = {"items": [], "count": 0} if step < 0 else None
        assert graph.invoke(given, THREAD)["count"] == 9


def test_writes_that_came_after_a_prune_took_their_checkpoint_go_though_it_has_a_child(
    dsn: str, schema: str, rows: Rows
) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        parent = saver.put(*put_arguments(THREAD, 0))
        saver.put(*put_arguments(parent, 1))
        saver.prune(["t"], keep_last=1)
        saver.put_writes(parent, [("messages", "late")], "task")
    rows.age()
    assert maintained(dsn, schema) == 1
    assert rows.all() == 0


def test_what_is_young_of_a_thread_that_begins_is_not_deleted_by_age(dsn: str, schema: str, rows: Rows) -> None:
    """Its first writes may be there before its first checkpoint."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        saver.put_writes(MISSING, [("messages", "early")], "task")
        saver.prune(strategy="delete", older_than=timedelta(hours=1))
        saver.prune(["t"], strategy="delete", older_than=timedelta(hours=1))
        assert rows.all() == 1
        rows.age()
        assert saver.prune(strategy="delete", older_than=timedelta(hours=1)).writes == 1


def test_threads_are_visited_page_by_page(dsn: str, schema: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "_THREAD_PAGE", 2)
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        for number in range(5):
            config = {"configurable": {**MISSING["configurable"], "thread_id": f"t{number}"}}
            saver.put_writes(config, [("messages", "late")], "task")
    rows.age()
    assert maintained(dsn, schema) == 5
    assert rows.all() == 0


async def test_the_commands_count_them(dsn: str, schema: str, rows: Rows) -> None:
    def pgstate(*arguments: str) -> str:
        run = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments])
        assert run.exit_code == 0, run.output
        return words(run)

    async with open_saver(PGStateSaver, dsn, schema) as saver:
        await put_chain(saver, "t", 2)
        assert "not there" not in pgstate("status")
        saver.put_writes(MISSING, [("messages", "late")], "task")
    assert "1 pending write" in pgstate("status")
    assert "1 pending write without a checkpoint" in pgstate("check")
    rows.age()
    assert "without a checkpoint, removed: 1" in pgstate("maintain")
    assert rows.all() == 0
