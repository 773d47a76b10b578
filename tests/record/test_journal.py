"""The journal: what was recorded is safe with its checkpoint, gets into the tables once, and never comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import ormsgpack
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from psycopg.conninfo import make_conninfo
from support import (
    FORK,
    GUARD_SECONDS,
    backends,
    config_of,
    counted,
    holding,
    move_journal,
    put_arguments,
    spread,
    wait_until,
)
from support.recorder import rows
from typer.testing import CliRunner

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.codec import frames
from langgraph_pgstate.db.adapters import AsyncConnection
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.message_hook import MessageHook
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import Threads

Connection = psycopg.Connection


# The writer does nothing by itself.
IDLE = RecorderSettings(interval=1_000_000.0)


RECORD = ("runs", "spans", "messages", "events", "journal")


STEPS = 5


def chat(steps: int = STEPS, hook: Callable[[int], Any] = lambda count: None) -> StateGraph[Any, Any, Any, Any]:
    """Says something in each superstep, until there are so many messages beside the question."""

    def say(state: MessagesState) -> dict[str, Any]:
        count = len(state["messages"])
        hook(count)
        return {"messages": [AIMessage(f"answer {count}", id=f"m{count}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: "say" if len(state["messages"]) <= steps else "__end__")
    return graph


def question() -> dict[str, Any]:
    return {"messages": [HumanMessage("question", id="m0")]}


def die(count: int) -> None:
    if count == STEPS:
        os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        graph = state.record(chat(hook=die).compile(checkpointer=state.saver))
        graph.invoke(question(), config_of("t"), durability="sync")


def run_and_die_async(dsn: str, schema: str) -> None:
    async def run() -> None:
        async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
            graph = state.record(chat(hook=die).compile(checkpointer=state.saver))
            await graph.ainvoke(question(), config_of("t"), durability="sync")

    asyncio.run(run())


def finish_and_die(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
        os.kill(os.getpid(), signal.SIGKILL)


def finish_and_die_async(dsn: str, schema: str) -> None:
    async def run() -> None:
        async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
            await state.record(chat().compile(checkpointer=state.saver)).ainvoke(question(), config_of("t"))
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run())


def killed(target: Callable[..., None], dsn: str, schema: str) -> None:
    application = f"killed {schema}"
    named = make_conninfo(dsn, application_name=application)
    process = FORK.Process(target=target, args=(named, schema), daemon=True)
    process.start()
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    # The server may still be doing what it was sent.
    with psycopg.connect(dsn, autocommit=True) as other:
        wait_until(lambda: backends(other, application) == [], "the end of its sessions")


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, recording=IDLE) as opened:
        opened.setup()
        yield opened


def counts(connection: Connection, schema: str) -> dict[str, int]:
    return {table: len(rows(connection, schema, table)) for table in RECORD}


def next_run(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.record(chat().compile(checkpointer=state.saver)).invoke(None, config_of("t"))


def next_run_async(dsn: str, schema: str) -> None:
    async def run() -> None:
        async with AsyncPGState.open(dsn, schema=schema) as state:
            await state.record(chat().compile(checkpointer=state.saver)).ainvoke(None, config_of("t"))

    asyncio.run(run())


def maintenance(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.maintain()


def first_question(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        (run,) = state.runs.list(thread_id="t").items
        assert state.spans.tree("t", run.run_id)
        assert len(state.messages.conversation("t")) == STEPS


def first_question_async(dsn: str, schema: str) -> None:
    async def ask() -> None:
        async with AsyncPGState.open(dsn, schema=schema, recording=IDLE) as state:
            assert len(await state.messages.conversation("t")) == STEPS

    asyncio.run(ask())


def command(dsn: str, schema: str) -> None:
    result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, "runs", "--thread", "t"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "recovers", [next_run, next_run_async, maintenance, first_question, first_question_async, command]
)
@pytest.mark.parametrize("dies", [run_and_die, run_and_die_async])
def test_what_a_killed_process_had_noted_is_all_recovered_by_whoever_comes_next(
    dies: Callable[..., None],
    recovers: Callable[..., None],
    dsn: str,
    schema: str,
    saver: PGStateSaver,
    connection: Connection,
) -> None:
    killed(dies, dsn, schema)
    before = counts(connection, schema)
    assert before.pop("journal") > 0
    recovers(dsn, schema)
    assert rows(connection, schema, "journal") == []
    (run, *_) = rows(connection, schema, "runs")
    checkpoints = rows(connection, schema, "checkpoints", run_id=run["run_id"])
    nodes = rows(connection, schema, "spans", kind="node", run_id=run["run_id"])
    ended = [span["step"] for span in nodes if span["status"] == "success"]
    assert sorted(ended) == [1, 2, 3, 4] == [c["step"] for c in checkpoints if c["step"] > 0]
    said = Counter((message["message_id"], message["change"]) for message in rows(connection, schema, "messages"))
    expected = [f"m{number}" for number in range(STEPS + 1 if "next_run" in recovers.__name__ else STEPS)]
    assert said == Counter((id, "added") for id in expected)
    assert (run["status"], run["error_type"]) == ("error", "ProcessDied")


@pytest.mark.parametrize("dies", [finish_and_die, finish_and_die_async])
def test_a_run_that_has_answered_is_safe_whatever_happens_then(
    dies: Callable[..., None], dsn: str, schema: str, saver: PGStateSaver, connection: Connection
) -> None:
    killed(dies, dsn, schema)
    assert move_journal(connection, schema) > 0
    (run,) = rows(connection, schema, "runs")
    assert (run["status"], run["steps"]) == ("success", STEPS)
    assert run["output"]["messages"]
    assert all(span["status"] == "success" for span in rows(connection, schema, "spans"))
    statuses = [event["payload"]["status"] for event in rows(connection, schema, "events")]
    assert statuses == ["running", "success"]
    assert rows(connection, schema, "threads")[0]["status"] == "idle"
    assert len(rows(connection, schema, "messages")) == STEPS + 1
    before = counts(connection, schema)
    assert move_journal(connection, schema) == 0
    assert counts(connection, schema) == before


def test_readers_see_what_was_just_recorded(state: PGState, connection: Connection) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    assert rows(connection, state.schema, "runs") == []
    assert [run.status for run in state.runs.list().items] == ["success"]
    assert counts(connection, state.schema)["journal"] == 0


def test_messages_of_a_graph_that_is_not_recorded_get_there_too(dsn: str, schema: str, connection: Connection) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        chat().compile(checkpointer=state.saver).invoke(question(), config_of("t"))
        wait_until(lambda: len(rows(connection, schema, "messages")) == STEPS + 1, "the messages")
        wait_until(lambda: rows(connection, schema, "journal") == [], "an empty journal")


@pytest.mark.parametrize("way", ["delete_thread", "delete_for_runs", "prune"])
def test_what_is_deleted_before_it_got_into_the_tables_never_does(
    way: str, dsn: str, schema: str, state: PGState, connection: Connection
) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    assert counts(connection, schema)["journal"] > STEPS
    (run_id,) = {row["run_id"] for row in rows(connection, schema, "journal")}
    with PGStateSaver.from_conn_string(dsn, schema=schema) as other:
        if way == "delete_thread":
            other.delete_thread("t")
        elif way == "prune":
            other.prune(["t"], strategy="delete")
        else:
            other.delete_for_runs([run_id])
    assert counts(connection, schema) == dict.fromkeys(RECORD, 0)
    state.flush()
    assert counts(connection, schema) == dict.fromkeys(RECORD, 0)


def test_a_run_without_a_checkpoint_is_found_in_the_journal(state: PGState, connection: Connection) -> None:
    state.record(chat().compile()).invoke(question(), {**config_of("t"), "metadata": {"run_id": "run-1"}})
    state.saver.delete_for_runs(["run-1"])
    state.flush()
    assert counts(connection, state.schema) == dict.fromkeys(RECORD, 0)


@pytest.mark.parametrize("way", ["delete_thread", "delete_for_runs"])
def test_a_deletion_waits_for_whoever_is_just_moving_and_takes_it_all(
    way: str, dsn: str, schema: str, state: PGState, connection: Connection
) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    (run_id,) = {row["run_id"] for row in rows(connection, schema, "journal")}
    application = f"deleting {schema}"
    deleting = psycopg.connect(dsn, autocommit=True, application_name=application)
    saver = PGStateSaver(deleting, schema=schema)
    delete = (lambda: saver.delete_thread("t")) if way == "delete_thread" else lambda: saver.delete_for_runs([run_id])
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    with holding(dsn, "SELECT 1") as moving, deleting:
        assert Database(moving, schema=schema).run(journal.write, queries(schema), ["t"]) > STEPS
        thread = threading.Thread(target=delete)
        thread.start()
        wait_until(lambda: connection.execute(blocked, [application]).fetchone() == (1,), "a deletion that waits")
        moving.commit()
        thread.join(GUARD_SECONDS)
    assert counts(connection, schema) == dict.fromkeys(RECORD, 0)


def test_two_that_move_at_once_move_it_once(dsn: str, schema: str, state: PGState, connection: Connection) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    application = f"moving {schema}"
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    moved = []
    with (
        holding(dsn, "SELECT 1") as one,
        psycopg.connect(dsn, autocommit=True, application_name=application) as other,
    ):
        assert Database(one, schema=schema).run(journal.write, queries(schema), ["t"]) > STEPS
        thread = threading.Thread(target=lambda: moved.append(move_journal(other, schema)))
        thread.start()
        wait_until(lambda: connection.execute(blocked, [application]).fetchone() == (1,), "one that waits")
        one.commit()
        thread.join(GUARD_SECONDS)
    assert moved == [0]
    assert len(rows(connection, schema, "messages")) == STEPS + 1
    # The process that noted it finds it done.
    state.flush()
    assert [run.status for run in state.runs.list().items] == ["success"]
    assert len(rows(connection, schema, "spans", kind="node")) == STEPS


def test_a_copy_and_a_prune_see_what_was_just_said(state: PGState, connection: Connection) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    state.saver.copy_thread("t", "copy")
    assert len(rows(connection, state.schema, "messages", thread_id="copy")) == STEPS + 1
    other = PGStateSaver(connection, schema=state.schema)
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("u"))
    other.prune(["u"])
    state.flush()
    assert len(rows(connection, state.schema, "checkpoints", thread_id="u")) == 1
    assert len(rows(connection, state.schema, "messages", thread_id="u")) == STEPS + 1


def test_a_put_whose_answer_was_lost_is_recorded_once(dsn: str, schema: str, connection: Connection) -> None:
    with counted(dsn) as proxy, PGState.open(proxy.dsn, schema=schema, pool=1, recording=IDLE) as state:
        state.setup()

        def lose(count: int) -> None:
            if count == 3:
                proxy.answers_to_lose = 1

        graph = state.record(chat(hook=lose).compile(checkpointer=state.saver))
        graph.invoke(question(), config_of("t"), durability="sync")
        assert proxy.answers_to_lose == 0
        state.flush()
    said = Counter(message["message_id"] for message in rows(connection, schema, "messages"))
    assert said == Counter(f"m{number}" for number in range(STEPS + 1))
    nodes = Counter(span["step"] for span in rows(connection, schema, "spans", kind="node"))
    assert nodes == Counter(range(1, STEPS + 1))


def test_a_journal_that_refuses_fails_no_put_and_loses_no_span(state: PGState, connection: Connection) -> None:
    connection.execute(f"ALTER TABLE {state.schema}.journal ADD CHECK (is_alone)")
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"), durability="sync")
    state.flush()
    assert len(rows(connection, state.schema, "checkpoints")) == STEPS + 2
    assert len(rows(connection, state.schema, "spans", kind="node")) == STEPS


def test_a_checkpoint_that_was_not_stored_notes_nothing(
    dsn: str, schema: str, saver: PGStateSaver, connection: Connection
) -> None:
    """The parent is deleted behind the saver's back: the first try stores nothing."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=MessageHook()) as kept:
        config = kept.put(*put_arguments(config_of("t"), 0))
        connection.execute(f"DELETE FROM {schema}.checkpoints")
        kept.put(*put_arguments(config, 1))
    assert len(rows(connection, schema, "journal")) == 2


def test_two_attempts_in_one_batch_are_two(state: PGState, connection: Connection) -> None:
    graph = state.record(chat().compile(checkpointer=state.saver))
    for thread_id in ("t", "t"):
        graph.invoke(question(), {**config_of(thread_id), "metadata": {"run_id": "run-1"}})
    state.flush()
    (run,) = rows(connection, state.schema, "runs")
    assert (run["attempt"], run["status"]) == (2, "success")


def test_only_the_later_child_is_a_fork(state: PGState, connection: Connection) -> None:
    graph = state.record(chat().compile(checkpointer=state.saver))
    graph.invoke(question(), config_of("t"))
    head = graph.get_state(config_of("t")).config
    graph.update_state(head, {"messages": [HumanMessage("one", id="o")]})
    second = graph.update_state(head, {"messages": [HumanMessage("other", id="p")]})
    state.flush()
    forks = rows(connection, state.schema, "events", kind="fork")
    assert [fork["checkpoint_id"] for fork in forks] == [second["configurable"]["checkpoint_id"]]


@pytest.mark.parametrize("steps", spread(range(1, 16, 2)))
def test_a_loop_that_stands_still_keeps_nobody_waiting(
    steps: int, dsn: str, schema: str, state: PGState, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever point of writing: what has been sent is committed without the loop, and nothing else is locked."""

    async def in_parts(*arguments: Any) -> Any:
        raise AssertionError("cursors send a transaction in parts")

    monkeypatch.setattr(AsyncConnection, "_execute_together", in_parts)
    stands, answered = threading.Event(), threading.Event()
    name = f"stands-{schema}-{steps}"
    # A loaded machine may keep the loop standing for longer than a flush usually waits.
    patient = replace(IDLE, timeout=3 * GUARD_SECONDS)

    async def main() -> None:
        named = make_conninfo(dsn, application_name=name)
        async with AsyncPGState.open(named, schema=schema, recording=patient) as other:
            await other.record(chat().compile(checkpointer=other.saver)).ainvoke(question(), config_of("t"))
            flushing = asyncio.create_task(other.flush())
            for _ in range(steps):
                await asyncio.sleep(0.0005)
            stands.set()
            # A node that computes.
            answered.wait(3 * GUARD_SECONDS)
            await flushing

    with ThreadPoolExecutor() as threads:
        loop = threads.submit(asyncio.run, main())
        assert stands.wait(GUARD_SECONDS)
        try:
            sessions = backends(connection, name)
            [run] = threads.submit(lambda: state.runs.list(thread_id="t").items).result(GUARD_SECONDS / 2)
            in_transaction = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND xact_start IS NOT NULL"
            wait_until(lambda: not connection.execute(in_transaction, [name]).fetchall(), "the end of transactions")
            # The server ends a session that stays idle in its transaction.
            assert set() < set(sessions) <= set(backends(connection, name))
        finally:
            answered.set()
        loop.result(GUARD_SECONDS)
    assert run.thread_id == "t"
    assert counts(connection, schema)["messages"] == STEPS + 1


@pytest.mark.slow
def test_who_only_asks_sees_what_is_left_later_on(dsn: str, schema: str, state: PGState) -> None:
    assert state.messages.conversation("t") == ()
    killed(run_and_die, dsn, schema)
    wait_until(lambda: len(state.messages.conversation("t")) == STEPS, "what the killed process had noted")


@pytest.mark.parametrize("what", ["copy", "fork"])
def test_what_is_noted_while_a_thread_is_copied_comes_along(
    what: str, state: PGState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the move before and the copy itself a put may note the last checkpoint's messages."""
    graph = state.record(chat().compile(checkpointer=state.saver))
    original, calls = journal.write, 0

    async def write(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        return 0 if calls == 1 else await original(*arguments)

    graph.invoke(question(), config_of("t"), durability="sync")
    monkeypatch.setattr(journal, "write", write)
    if what == "copy":
        state.saver.copy_thread("t", "new")
    else:
        Threads(state._database, queries(state.schema)).fork("t", to="new")
    monkeypatch.undo()
    assert [said.message_id for said in state.messages.conversation("new")] == [f"m{n}" for n in range(STEPS + 1)]


def test_who_waits_does_not_run_after_those_who_add(state: PGState, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process records something at any time; a question is about what was there when it was asked."""
    graph = state.record(chat().compile(checkpointer=state.saver))
    original, turns = journal.write, 0

    async def write(*arguments: Any) -> int:
        nonlocal turns
        turns += 1
        found = await original(*arguments)
        if turns < 50:
            adding = threading.Thread(target=graph.invoke, args=(question(), config_of(f"t{turns}")))
            adding.start()
            adding.join()
        return found

    graph.invoke(question(), config_of("t"))
    monkeypatch.setattr(journal, "write", write)
    state.flush()
    assert turns <= 2


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a transaction"])
def test_on_a_callers_connection_nothing_happens_behind_her_back(
    inside: bool, dsn: str, schema: str, connection: Connection
) -> None:
    """Between two calls the connection is hers: a writer in the background would get between her transactions."""
    before = {thread.name for thread in threading.enumerate()}
    with psycopg.connect(dsn, autocommit=True) as hers:
        state = PGState(hers, schema=schema)
        state.setup()
        graph = state.record(chat().compile(checkpointer=state.saver))
        for number in range(20):
            with hers.transaction() if inside else nullcontext():
                graph.invoke(question(), config_of(f"t{number}"), durability="sync")
            with hers.transaction():
                hers.execute("SELECT 1")
        assert {thread.name for thread in threading.enumerate()} == before
        found = counts(connection, schema)
        assert (found["runs"], found["messages"], found["journal"]) == (20, 20 * (STEPS + 1), 0)
        assert {run.status for run in state.runs.list().items} == {"success"}
        state.close()


def test_an_entry_of_a_newer_version_is_kept_and_hinders_no_other_thread(
    state: PGState, connection: Connection
) -> None:
    newer = frames.pack_short_lived(ormsgpack.packb([99]))
    insert = (
        f"INSERT INTO {state.saver.schema}.journal (thread_id, entry_id, is_alone, data) VALUES (%s, '1', true, %s)"
    )
    for thread_id in ("a", "z"):
        connection.execute(insert.encode(), [thread_id, newer])
    graph = StateGraph(MessagesState).add_node("say", lambda _: {"messages": [AIMessage("hello")]})
    graph = state.record(graph.add_edge(START, "say").compile(checkpointer=state.saver))
    graph.invoke({"messages": [HumanMessage("hi")]}, config_of("m"))
    assert [run.status for run in state.runs.list().items] == ["success"]
    move_journal(connection, state.saver.schema)
    assert [row["thread_id"] for row in rows(connection, state.saver.schema, "journal")] == ["a", "z"]


def test_entries_that_are_kept_fill_no_page(
    state: PGState, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_PAGE", 2)
    monkeypatch.setattr(journal, "_THREAD_PAGE", 2)
    schema = state.saver.schema
    newer = frames.pack_short_lived(ormsgpack.packb([99]))
    insert = f"INSERT INTO {schema}.journal (thread_id, entry_id, is_alone, data) VALUES (%s, %s, true, %s)".encode()
    for thread_id, entry_id in [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1"), ("t", "1"), ("t", "2")]:
        connection.execute(insert, [thread_id, entry_id, newer])
    connection.execute(insert, ["z", "1", JournalEntry().pack()])
    recorder = state.recorder()
    assert recorder.recover() == 1
    root = uuid.uuid4()
    recorder.on_chain_start({}, {}, run_id=root, metadata={"thread_id": "t"}, name="graph")
    recorder.on_chain_start({}, {}, run_id=uuid.uuid4(), parent_run_id=root, name="step")
    state.flush()
    assert [row["thread_id"] for row in rows(connection, schema, "runs")] == ["t"]
    assert len(rows(connection, schema, "spans")) == 2
    assert len(rows(connection, schema, "journal")) == 6


def test_runs_beside_a_refused_row_get_their_threads(state: PGState, connection: Connection) -> None:
    recorder = state.recorder()
    for number in range(8):
        root = uuid.uuid4()
        recorder.on_chain_start({}, {}, run_id=root, metadata={"thread_id": f"t{number}"}, name="graph")
        recorder.on_chain_start({}, {}, run_id=uuid.uuid4(), parent_run_id=root, name="step")
        if number == 0:
            span = recorder._tracker.find(root)
            assert span is not None
            span.run.started_at = 1e300
    state.flush()
    expected = {f"t{number}" for number in range(1, 8)}
    assert {row["thread_id"] for row in rows(connection, state.saver.schema, "runs")} == expected
    assert {row["thread_id"] for row in rows(connection, state.saver.schema, "threads")} == expected
