"""Archiving: what is deleted is in the archive, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from support import FORK, GUARD_SECONDS, examples, put_arguments, wait_until
from support.keep import agent, answer, bookings, config_of, make_rich_thread, rows_of, states_of
from support.queue import STATES, open_state
from support.queue import call as called

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.errors import (
    ArchiveError,
    ArchiveUnavailableError,
    ConfigurationError,
    NotFoundError,
    ThreadArchivedError,
    ThreadHeldError,
)
from langgraph_pgstate.keep import archiving, objects
from langgraph_pgstate.keep.tables import NOT_ARCHIVED

NOW = timedelta(0)


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


def ask(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_every_table_with_rows_of_threads_is_archived_or_says_why_not(
    connection: psycopg.Connection, schema: str
) -> None:
    """A table that is added is archived; add it here, or to `NOT_ARCHIVED` with the reason."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'thread_id'"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
        [schema],
    )
    tables = {table for (table,) in rows}
    assert NOT_ARCHIVED.keys() <= tables
    assert tables - NOT_ARCHIVED.keys() == {
        *("threads", "checkpoints", "segments", "writes", "labels", "answers", "projections"),
        *("runs", "run_requests", "stream_batches", "spans", "feedback", "messages", "events", "tool_executions"),
    }


@pytest.mark.slow
def test_it_comes_back_as_it_was(state: PGState, dsn: str, schema: str, url: str) -> None:
    graph = make_rich_thread(state, "t")
    other = make_rich_thread(state, "other")
    before, states, calls = rows_of(dsn, schema, "t"), states_of(graph, "t"), len(bookings)
    untouched = rows_of(dsn, schema, "other"), states_of(other, "other")
    assert before.keys() > {
        "checkpoints",
        "segments",
        "writes",
        "labels",
        "runs",
        "spans",
        "feedback",
        "tool_executions",
    }
    report = state.archive.put(["t"], to=url, idle_for=NOW)
    assert (report.threads, report.left, len(report.archives)) == (1, (), 1)
    assert report.rows == sum(len(rows) for table, rows in before.items() if table != "threads")
    assert rows_of(dsn, schema, "t") == {"threads": before["threads"]}
    assert (rows_of(dsn, schema, "other"), states_of(other, "other")) == untouched
    restored = state.archive.restore(["t"])
    assert (restored.threads, restored.rows) == (1, report.rows)
    assert rows_of(dsn, schema, "t") == before
    assert states_of(graph, "t") == states
    # It goes on, and no tool runs again.
    assert answer(graph, "t")["messages"][-1].content == "Yes."
    assert len(bookings) == calls


@pytest.mark.parametrize("status", ["interrupted", "busy"])
def test_a_stub_keeps_its_status(
    status: str, state: PGState, connection: psycopg.Connection, schema: str, url: str
) -> None:
    """Its checkpoints and runs, from which a status follows, are not in the tables."""
    state.threads.create("t")
    connection.execute(f"UPDATE {schema}.threads SET status = %s".encode(), [status])
    state.archive.put(["t"], to=url, idle_for=NOW)
    state.backfill()
    state.maintain()
    assert state.threads.get("t").status == status  # type: ignore[union-attr]
    state.archive.restore(["t"])
    assert state.threads.get("t").status == status  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_stub_is_found_and_says_what_it_is(state: PGState, url: str) -> None:
    graph = make_rich_thread(state, "t")
    state.archive.put(["t"], to=url, idle_for=NOW)
    for page in (state.threads.list(user_id="eve"), state.threads.search(metadata={"case": 7})):
        assert [one.thread_id for one in page.items if one.archived_at is not None] == ["t"]
    found = state.threads.get("t")
    assert found is not None
    assert found.archived_at is not None
    (listed,) = state.archive.list().items
    assert (listed.thread_id, listed.url, listed.user_id) == ("t", url, "eve")
    assert not state.archive.list(user_id="bob").items
    calls: list[Callable[[], Any]] = [
        lambda: graph.get_state(config_of("t")),
        lambda: graph.invoke({"messages": []}, config_of("t")),
        lambda: graph.update_state(config_of("t"), {"messages": []}),
        lambda: [*graph.get_state_history(config_of("t"))],
        lambda: [*state.saver.list(config_of("t"))],
        lambda: state.threads.fork("t"),
        lambda: state.threads.label(config_of("t"), "now"),
        lambda: state.threads.state_at(config_of("t")),
        lambda: state.threads.lineage(config_of("t")),
        lambda: state.threads.find("t", "now"),
        lambda: state.messages.conversation("t"),
        lambda: state.messages.window("t"),
        lambda: state.runs.feedback.add("t", "run", score=1),
        lambda: state.saver.copy_thread("t", "copy"),
        lambda: state.saver.delete_thread("t"),
        lambda: state.runs.enqueue("agent", {"messages": []}, thread_id="t"),
        lambda: state.threads.set_ttl("t", timedelta(seconds=1)),
        lambda: state.threads.expire("t", after=NOW),
        lambda: state.threads.set_status("t", "idle"),
        lambda: state.threads.unlabel({"configurable": {"thread_id": "t", "checkpoint_id": "c"}}),
        lambda: state.saver.delete_for_runs(["run"], thread_id="t"),
    ]
    for call in calls:
        with pytest.raises(
            ThreadArchivedError, match=r"thread 't' is archived since .* restore it by `pgstate archive"
        ):
            call()
    assert state.threads.get("copy") is None
    pruned = state.saver.prune(["t"], strategy="delete")
    assert (pruned.threads, pruned.archived) == (0, ("t",))
    assert not state.saver.prune(keep_last=100).archived
    # A copy must not be put over it.
    graph.invoke({"messages": [("user", "Hello.")]}, config_of("u"))
    with pytest.raises(ThreadArchivedError):
        state.saver.copy_thread("u", "t")
    with pytest.raises(ThreadArchivedError):
        state.threads.fork("u", to="t")
    assert not state.archive.put(["t"], to=url, idle_for=NOW).threads
    state.archive.restore(["t"])
    assert answer(graph, "t")["messages"][-1].content == "Yes."


@pytest.mark.slow
def test_what_is_held_is_refused_by_name(state: PGState, dsn: str, schema: str, url: str) -> None:
    for name in ("t", "u"):
        make_rich_thread(state, name)
    state.threads.hold("t", "case 1", by="eve")
    before = rows_of(dsn, schema, "t"), rows_of(dsn, schema, "u")
    with pytest.raises(ThreadHeldError, match="held by eve"):
        state.archive.put(["u", "t"], to=url, idle_for=NOW)
    assert (rows_of(dsn, schema, "t"), rows_of(dsn, schema, "u")) == before
    report = state.archive.put(to=url, idle_for=NOW, user_id="eve")
    assert (report.threads, report.left) == (1, (("t", "is held by a person"),))
    assert rows_of(dsn, schema, "t") == before[0]
    # What is archived can be held.
    state.threads.hold("u", "case 2", by="bob")
    state.archive.restore(["u"])
    with pytest.raises(NotFoundError, match="no thread 'v'"):
        state.archive.put(["v"], to=url)


@pytest.mark.slow
def test_what_is_in_use_stays_and_says_why(state: PGState, dsn: str, schema: str, url: str) -> None:
    graph = agent(state)
    for name in ("active", "leased", "queued", "scheduled", "exported", "acting", "awaiting"):
        graph.invoke({"messages": [("user", "Book it.")]}, config_of(name))
    state.flush()
    assert state.archive.put(["active"], to=url).left == (("active", "was active a moment ago"),)
    state.runs.enqueue("agent", {"messages": []}, thread_id="queued", run_after=timedelta(hours=1))
    state.schedules.put("daily", "agent", {"messages": []}, cron="0 0 * * *", thread_id="scheduled")
    exporting = "(thread_id, export_id, run_id, span_ids, started_ats) VALUES ('exported', '1', '1', '{a}', '{now}')"
    ask(dsn, f'INSERT INTO "{schema}".span_exports {exporting}')
    acting = "VALUES ('acting', 'k', 'pay', 'running', now() + interval '15 s', '{}')"
    columns = "(thread_id, idempotency_key, tool, status, alive_until, arguments)"
    ask(dsn, f'INSERT INTO "{schema}".tool_executions {columns} {acting}')
    awaiting = "(thread_id, run_id, options, data, answer_at) VALUES ('awaiting', '1', '{}', '', now())"
    ask(dsn, f'INSERT INTO "{schema}".run_requests {awaiting}')
    names = ["leased", "queued", "scheduled", "exported", "acting", "awaiting"]
    with state.leases.hold("leased"):
        report = state.archive.put(names, to=url, idle_for=NOW)
    assert dict(report.left) == {
        "leased": "is run, or leased, by a living process",
        "queued": "is in the queue",
        "scheduled": "has a schedule that is to fire",
        "awaiting": "waits for a default answer",
        "exported": "has spans that are to be exported",
        "acting": "has a tool that still runs",
    }
    assert report.threads == 0
    assert not report.archives


def test_actions_of_an_archived_thread_are_not_said_to_be_missing(state: PGState, url: str) -> None:
    agent(state).invoke({"messages": [("user", "Book it.")]}, config_of("t"))
    state.flush()
    assert state.archive.put(["t"], to=url, idle_for=NOW).threads == 1
    tools = state.tools
    for call in (
        lambda: tools.list("t"),
        lambda: tools.get("t", "k"),
        lambda: tools.result("pgstate:tool/t/k"),
        lambda: tools.settle("t", "k", "done"),
        lambda: tools.compensate("t"),
        lambda: tools.compensate("t", to_checkpoint="c"),
    ):
        with pytest.raises(ThreadArchivedError):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_runs_and_interrupts_of_an_archived_thread_are_not_said_to_be_missing(
    api: type, dsn: str, schema: str, state: PGState, url: str
) -> None:
    agent(state).invoke({"messages": [("user", "Book it.")]}, config_of("t"))
    state.flush()
    assert state.archive.put(["t"], to=url, idle_for=NOW).threads == 1
    async with open_state(api, dsn, schema) as found:
        runs, interrupts, handle = found.runs, found.interrupts, found.runs.handle("t", "r")
        for function, *arguments in (
            *((one, "t", "r") for one in (runs.retry, runs.discard, runs.cancel, runs.status)),
            (handle.wait, 1),
            (interrupts.answer, "t", "yes"),
            (interrupts.resume_run, "t", "c"),
        ):
            with pytest.raises(ThreadArchivedError):
                await called(function, *arguments)
        for events in (runs.join(handle), runs.join(handle, last_event_id="3"), runs.join_thread("t")):
            with pytest.raises(ThreadArchivedError):
                await anext(events) if api is AsyncPGState else next(events)


def arrivals() -> dict[str, Callable[[PGState, Any], Any]]:
    """What may come to a thread between its copy and its deletion."""

    def write(state: PGState, graph: Any) -> None:
        head = state.saver.get_tuple(config_of("t"))
        assert head is not None
        state.saver.put_writes(head.config, [("messages", ["late"])], "late-task")

    return {
        "run": lambda state, graph: graph.invoke({"messages": [("user", "And?")]}, config_of("t")),
        "update": lambda state, graph: graph.update_state(config_of("t"), {"messages": [("user", "And?")]}),
        "writes": write,
        "enqueue": lambda state, graph: state.runs.enqueue("agent", {"messages": []}, thread_id="t"),
        "fork": lambda state, graph: state.threads.fork("t", to="fork"),
        "hold": lambda state, graph: state.threads.hold("t", "case", by="eve"),
        "label": lambda state, graph: state.threads.label(config_of("t"), "another"),
        "metadata": lambda state, graph: state.threads.update_metadata("t", {"case": 8}),
        "delete": lambda state, graph: state.saver.delete_thread("t"),
        "prune": lambda state, graph: state.saver.prune(["t"]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", arrivals())
def test_what_arrives_after_the_copy_keeps_the_thread(
    name: str, state: PGState, dsn: str, schema: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make_rich_thread(state, "t")
    make_rich_thread(state, "u")
    store, after = archiving.store, dict[str, list[str]]()

    async def store_late(*args: Any) -> None:
        await store(*args)
        with PGState.open(dsn, schema=schema) as other:
            arrivals()[name](other, agent(other))
            other.flush()
        after.update(rows_of(dsn, schema, "t"))

    monkeypatch.setattr(archiving, "store", store_late)
    report = state.archive.put(["t", "u"], to=url, idle_for=NOW)
    assert [one.thread_id for one in report.left] == ["t"]
    assert report.threads == 1
    assert rows_of(dsn, schema, "t") == after
    assert rows_of(dsn, schema, "u").keys() == {"threads"}
    if name not in ("delete", "enqueue"):
        assert graph.get_state(config_of("t")).values["messages"]


@pytest.mark.parametrize(("length", "in_transaction"), [(1, False), (5000, False), (1, True)])
def test_a_process_that_knows_the_thread_puts_nothing_into_an_archived_one(
    length: int, in_transaction: bool, state: PGState, dsn: str, schema: str, url: str
) -> None:
    """It does not update the row of a thread that it has updated a moment ago."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        saver = PGStateSaver(connection, schema=schema)
        config = saver.put(*put_arguments(config_of("t"), 0, items=["first"]))
        assert state.archive.put(["t"], to=url, idle_for=NOW).threads == 1
        with pytest.raises(ThreadArchivedError), connection.transaction() if in_transaction else nullcontext():
            saver.put(*put_arguments(config, 1, items=[str(number) for number in range(length)]))
    assert rows_of(dsn, schema, "t").keys() == {"threads"}


def test_a_put_that_is_under_way_is_not_lost(
    state: PGState, dsn: str, schema: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds its parent, for which the deletion waits; what it inserts, the deletion does not see.

    The row of the thread, which a put updates every few seconds, it leaves as it is.
    """
    monkeypatch.setattr("langgraph_pgstate.runs.locking.LOCK_TIMEOUT", "60s")
    graph = make_rich_thread(state, "t")
    store = archiving.store
    began, ends = threading.Event(), threading.Event()
    connection = psycopg.connect(dsn, autocommit=True)
    saver = PGStateSaver(connection, schema=schema)

    def put_next(step: int) -> None:
        head = saver.get_tuple(config_of("t"))
        assert head is not None
        new = {**head.checkpoint, "id": empty_checkpoint()["id"]}
        saver.put({**head.config}, new, {"source": "loop", "step": step, "parents": {}}, {})  # type: ignore[typeddict-item, arg-type]

    put_next(98)

    def put() -> None:
        with connection, connection.transaction():
            put_next(99)
            began.set()
            ends.wait(GUARD_SECONDS)

    thread = threading.Thread(target=put)

    async def store_late(*args: Any) -> None:
        await store(*args)
        thread.start()
        assert began.wait(GUARD_SECONDS)

    monkeypatch.setattr(archiving, "store", store_late)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def end() -> None:
        wait_until(lambda: ask(dsn, waiting)[0][0] > 0 or not archived.is_alive(), "the deletion waits")
        ends.set()

    ending = threading.Thread(target=end)
    reports: list[Any] = []
    archived = threading.Thread(target=lambda: reports.append(state.archive.put(["t"], to=url, idle_for=NOW)))
    archived.start()
    assert began.wait(GUARD_SECONDS)
    ending.start()
    for one in (archived, ending, thread):
        one.join(GUARD_SECONDS)
    assert [one.thread_id for one in reports[0].left] == ["t"]
    assert graph.get_state(config_of("t")).metadata["step"] == 99
    assert len(states_of(graph, "t")) > 5


class Boundaries:
    """Kills this process at the n-th call that leaves it: to the database, or to the objects."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def wrap(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        setattr(owner, name, counted)


def archive_in_a_process(dsn: str, schema: str, url: str, at: int, counts: Any) -> None:
    with PGState.open(dsn, schema=schema, pool=False, recover_journal=False) as state:
        boundaries = Boundaries(at)
        for name in ("fetch", "execute", "transaction"):
            boundaries.wrap(BlockingConnection, name)
        for name in ("put", "get", "delete", "list"):
            boundaries.wrap(objects._Folder, name)
        # Before the commit of the deletion, and after it.
        boundaries.wrap(archiving, "_delete")
        boundaries.wrap(archiving, "LeftThread")
        state.archive.put(["t", "u"], to=url, idle_for=NOW)
        counts.put(boundaries.count)


def test_killed_at_any_instant_a_thread_is_in_one_of_both(dsn: str, schema: str, state: PGState, url: str) -> None:
    graph = make_rich_thread(state, "t")
    make_rich_thread(state, "u")
    before = {name: rows_of(dsn, schema, name) for name in ("t", "u")}
    states = states_of(graph, "t")
    counts = FORK.SimpleQueue()
    at, ends = 1, {"database": 0, "archive": 0}
    step = 1 if examples(12) == 12 else 10
    while True:
        process = FORK.Process(target=archive_in_a_process, args=(dsn, schema, url, at, counts))
        process.start()
        process.join(GUARD_SECONDS)
        assert process.exitcode in (0, -signal.SIGKILL)
        for name in ("t", "u"):
            thread = state.threads.get(name)
            assert thread is not None
            if thread.archived_at is None:
                ends["database"] += 1
                assert rows_of(dsn, schema, name) == before[name], at
            else:
                ends["archive"] += 1
                state.archive.restore([name])
                assert rows_of(dsn, schema, name) == before[name], at
        if process.exitcode == 0:
            break
        at += step
    assert counts.get() > 30
    assert min(ends.values()) >= 2
    assert states_of(graph, "t") == states


class Damaged:
    """A place that reads back what was stored with one bit changed."""

    def __init__(self, inner: Any, ending: str, position: int) -> None:
        self._inner, self._ending, self._position = inner, ending, position
        self.url = inner.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, name: str) -> bytes:
        data = bytearray(self._inner.get(name))
        if name.endswith(self._ending):
            data[self._position % len(data)] ^= 1
        return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pack", ".json"])
@pytest.mark.parametrize("position", [0, 1000, -1])
def test_a_flipped_bit_is_found_before_anything_is_deleted(
    ending: str, position: int, state: PGState, dsn: str, schema: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rich_thread(state, "t")
    before = rows_of(dsn, schema, "t")
    opened = objects.open_objects
    monkeypatch.setattr("langgraph_pgstate.keep.api.open_objects", lambda url: Damaged(opened(url), ending, position))
    with pytest.raises(ArchiveError, match="damaged"):
        state.archive.put(["t"], to=url, idle_for=NOW)
    assert rows_of(dsn, schema, "t") == before


def test_a_place_that_cannot_be_written_leaves_all_as_it_is(
    state: PGState, dsn: str, schema: str, tmp_path: Path
) -> None:
    make_rich_thread(state, "t")
    before = rows_of(dsn, schema, "t")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveUnavailableError):
        state.archive.put(["t"], to=f"file://{tmp_path}/file/below", idle_for=NOW)
    # pragma: allowlist nextline secret
    for url in ("nowhere", "ftp://a/b", "file://relative/x", "s3:///x", "s3://user:secret@bucket/x"):
        with pytest.raises(ConfigurationError, match=r"form|name a bucket"):
            state.archive.put(["t"], to=url, idle_for=NOW)
    for arguments in ({}, {"thread_ids": ["t"], "user_id": "eve"}, {"thread_ids": ["t"], "limit": 0}):
        with pytest.raises(ConfigurationError):
            state.archive.put(to="memory://x", **arguments)
    with pytest.raises(ConfigurationError, match="idle_for"):
        state.archive.put(["t"], to="memory://x", idle_for=timedelta(seconds=-1))
    assert rows_of(dsn, schema, "t") == before


class Undeletable(Damaged):
    """A place that stores objects, but does not delete them."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, "never", 0)

    def delete(self, name: str) -> None:
        raise ArchiveUnavailableError(f"{self.url}/{name}", "cannot be reached: access is denied")


@pytest.mark.slow
def test_a_place_that_cannot_delete_is_refused_before_anything_is_stored(
    state: PGState, dsn: str, schema: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unfinished archives could never be deleted. The error names the only object that remains."""
    make_rich_thread(state, "t")
    before = rows_of(dsn, schema, "t")
    opened = objects.open_objects
    with monkeypatch.context() as patch:
        patch.setattr("langgraph_pgstate.keep.api.open_objects", lambda url: Undeletable(opened(url)))
        with pytest.raises(ArchiveUnavailableError, match="was stored but cannot be deleted") as caught:
            state.archive.put(["t"], to=url, idle_for=NOW)
    (left,) = (tmp_path / "archive").iterdir()
    assert left.name in str(caught.value)
    assert ask(dsn, f"SELECT count(*) FROM {schema}.archives") == [(0,)]
    assert rows_of(dsn, schema, "t") == before
    left.unlink()
    assert state.archive.put(["t"], to=url, idle_for=NOW).threads == 1
    assert sorted(one.suffix for one in (tmp_path / "archive").iterdir()) == [".json", ".pack"]


async def test_a_cancelled_probe_leaves_nothing(
    state: PGState, dsn: str, schema: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rich_thread(state, "t")
    put, begun, goes_on = objects._Folder.put, threading.Event(), threading.Event()

    def slow(self: Any, name: str, data: bytes) -> None:
        put(self, name, data)
        begun.set()
        assert goes_on.wait(GUARD_SECONDS)

    monkeypatch.setattr(objects._Folder, "put", slow)
    async with AsyncPGState.open(dsn, schema=schema) as other:
        archiving_it = asyncio.ensure_future(other.archive.put(["t"], to=url, idle_for=NOW))
        await asyncio.to_thread(begun.wait, GUARD_SECONDS)
        archiving_it.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await archiving_it
    assert [*(tmp_path / "archive").iterdir()] == []
    assert ask(dsn, f"SELECT count(*) FROM {schema}.archives") == [(0,)]


@pytest.mark.slow
def test_a_dry_run_counts_and_writes_nothing(state: PGState, dsn: str, schema: str, url: str) -> None:
    for name in ("t", "u", "held"):
        make_rich_thread(state, name)
    state.threads.hold("held", "case", by="eve")
    before = rows_of(dsn, schema, "t")
    report = state.archive.put(to=url, idle_for=NOW, user_id="eve", dry_run=True)
    assert (report.threads, report.dry_run, report.archives) == (2, True, ())
    assert report.left == (("held", "is held by a person"),)
    assert report.bytes > 1000
    assert rows_of(dsn, schema, "t") == before
    assert ask(dsn, f'SELECT count(*) FROM "{schema}".archives') == [(0,)]
    assert not objects.open_objects(url).list("")
    done = state.archive.put(to=url, idle_for=NOW, user_id="eve")
    assert (done.threads, done.rows) == (2, report.rows)
