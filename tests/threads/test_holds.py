"""Legal holds: of a thread that is held nothing is deleted, on any way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_pgstate import PGState, Worker
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, ThreadHeldError


def graph() -> Any:
    return StateGraph(MessagesState).add_node("a", lambda state: {"messages": [("ai", "Hello.")]}).add_edge(START, "a")


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        agent = graph().compile(checkpointer=state.saver)
        for _ in range(3):
            agent.invoke({"messages": [("user", "Hi.")]}, {"configurable": {"thread_id": "t"}})
        yield state


def ask(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def rows_of(dsn: str, schema: str) -> int:
    return int(ask(dsn, f"SELECT count(*) FROM \"{schema}\".checkpoints WHERE thread_id = 't'")[0][0])


def test_what_is_held_is_listed_and_released(state: PGState) -> None:
    first = state.threads.hold("t", "case 1", by="eve")
    assert state.threads.hold("t", " case 1 ", by="bob") == first
    state.threads.hold("t", "case 2", by="bob")
    assert [(one.thread_id, one.reason, one.held_by) for one in state.threads.holds().items] == [
        ("t", "case 1", "eve"),
        ("t", "case 2", "bob"),
    ]
    page = state.threads.holds("t", limit=1)
    assert [one.reason for one in state.threads.holds("t", cursor=page.next).items] == ["case 2"]
    assert not state.threads.holds("u").items
    assert state.threads.release("t", "case 1", by="eve")
    assert not state.threads.release("t", "case 1", by="eve")
    done = [event.payload for event in state.events.list("t", kind="action").items]
    assert sorted((one["action"], one["by"], one["reason"]) for one in done) == [
        ("hold", "bob", "case 2"),
        ("hold", "eve", "case 1"),
        ("release", "eve", "case 1"),
    ]


def test_what_cannot_be_held_is_refused(state: PGState) -> None:
    with pytest.raises(NotFoundError, match="no thread 'u'"):
        state.threads.hold("u", "case", by="eve")
    for reason in ("", " ", "a\nb", "x" * 201):
        with pytest.raises(ConfigurationError, match="reason"):
            state.threads.hold("t", reason, by="eve")
    with pytest.raises(ConfigurationError, match="by"):
        state.threads.hold("t", "case", by="a\0b")


def test_it_is_not_deleted_nor_are_its_runs(state: PGState, dsn: str, schema: str) -> None:
    state.threads.hold("t", "case", by="eve")
    stored = rows_of(dsn, schema)
    with pytest.raises(ThreadHeldError, match=r"held by eve since .* \(case\)") as caught:
        state.saver.delete_thread("t")
    assert (caught.value.held_by, caught.value.reason) == ("eve", "case")
    with pytest.raises(ThreadHeldError):
        state.saver.delete_for_runs(["run"], thread_id="t")
    assert rows_of(dsn, schema) == stored
    state.threads.release("t", "case", by="eve")
    state.saver.delete_thread("t")
    assert rows_of(dsn, schema) == 0


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
def test_prunes_leave_it_and_name_it(state: PGState, dsn: str, schema: str, strategy: str) -> None:
    state.threads.hold("t", "case", by="eve")
    stored = rows_of(dsn, schema)
    result = state.saver.prune(strategy=strategy)
    assert (result.held, result.checkpoints) == (("t",), 0)
    assert rows_of(dsn, schema) == stored
    state.threads.release("t", "case", by="eve")
    assert state.saver.prune(strategy=strategy).checkpoints


def test_it_does_not_expire(state: PGState, dsn: str, schema: str) -> None:
    state.threads.hold("t", "case", by="eve")
    ask(dsn, f"UPDATE \"{schema}\".threads SET expires_at = '2025-01-01Z', updated_at = '2025-01-01Z'")
    assert state.threads.sweep(dry_run=True).threads == state.threads.sweep().threads == 0
    assert rows_of(dsn, schema)
    state.threads.release("t", "case", by="eve")
    assert state.threads.sweep().threads == 1


def test_a_run_that_would_delete_it_ends_and_leaves_it(state: PGState, dsn: str, schema: str) -> None:
    state.threads.hold("t", "case", by="eve")
    stored = rows_of(dsn, schema)
    run = state.runs.enqueue("agent", {"messages": []}, thread_id="t", on_completion="delete")
    with Worker(state, {"agent": graph().compile()}):
        run.wait(timeout=60)
    assert run.status() == "success"
    assert rows_of(dsn, schema) > stored
    state.threads.release("t", "case", by="eve")
    waiting = state.runs.enqueue("agent", {"messages": []}, thread_id="t", run_after=timedelta(hours=1))
    state.threads.hold("t", "case", by="eve")
    state.runs.cancel("t", waiting.run_id, "rollback")
    assert waiting.status() == "interrupted"


def test_a_running_run_that_is_rolled_back_ends_as_interrupted(state: PGState, dsn: str, schema: str) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def wait(state: MessagesState) -> dict[str, Any]:
        begun.set()
        goes_on.wait(60)
        return {"messages": []}

    slow = StateGraph(MessagesState).add_node("a", wait).add_node("b", lambda state: {}).add_edge(START, "a")
    with Worker(state, {"slow": slow.add_edge("a", "b").compile()}):
        run = state.runs.enqueue("slow", {"messages": [("user", "Go.")]}, thread_id="t")
        assert begun.wait(60)
        state.threads.hold("t", "case", by="eve")
        state.runs.cancel("t", run.run_id, "rollback")
        goes_on.set()
        run.wait(timeout=60)
    assert run.status() == "interrupted"


def test_a_month_with_its_spans_stays(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.record(graph().compile(checkpointer=state.saver)).invoke(
            {"messages": []}, {"configurable": {"thread_id": "t"}}
        )
        state.flush()
        ask(
            dsn,
            f"""
            CREATE TABLE "{schema}".spans_2025_01 PARTITION OF "{schema}".spans
            FOR VALUES FROM ('2025-01-01Z') TO ('2025-02-01Z')
        """,
        )
        ask(dsn, f"UPDATE \"{schema}\".spans SET started_at = '2025-01-31 23:59Z'")
        state.threads.hold("t", "case", by="eve")
        assert "2025_01" not in state.maintain(drop_older_than=1).months_dropped
        state.threads.release("t", "case", by="eve")
        assert "2025_01" in state.maintain(drop_older_than=1).months_dropped


@pytest.mark.slow
def test_a_hold_waits_for_a_deletion_that_has_begun(state: PGState, dsn: str, schema: str) -> None:
    """Guard: the lock on the thread's row."""
    held: list[Any] = []

    def hold() -> None:
        try:
            held.append(state.threads.hold("t", "case", by="eve"))
        except NotFoundError as error:
            held.append(error)

    with psycopg.connect(dsn) as connection:
        # As a deletion does, which then asks whether the thread is held.
        connection.execute(f"SELECT 1 FROM \"{schema}\".threads WHERE thread_id = 't' FOR KEY SHARE")
        caller = threading.Thread(target=hold)
        caller.start()
        caller.join(0.5)
        assert not held
        connection.execute(f"DELETE FROM \"{schema}\".threads WHERE thread_id = 't'")
    caller.join(60)
    assert [type(one) for one in held] == [NotFoundError]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["delete", "delete_for_runs", "prune"])
def test_a_deletion_waits_for_a_hold_that_has_begun(state: PGState, dsn: str, schema: str, way: str) -> None:
    """Guard: the lock before the question who holds the thread."""
    ways: dict[str, Callable[[], Any]] = {
        "delete": lambda: state.saver.delete_thread("t"),
        "delete_for_runs": lambda: state.saver.delete_for_runs(["run"], thread_id="t"),
        "prune": lambda: state.saver.prune(["t"]).held,
    }
    stored = rows_of(dsn, schema)
    with ThreadPoolExecutor() as callers:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"SELECT 1 FROM \"{schema}\".threads WHERE thread_id = 't' FOR UPDATE")
            connection.execute(
                f"INSERT INTO \"{schema}\".holds (thread_id, reason, held_by) VALUES ('t', 'case', 'eve')"
            )
            call = callers.submit(ways[way])
            with pytest.raises(TimeoutError):
                call.result(0.5)
        if way == "prune":
            assert call.result(60) == ("t",)
        else:
            with pytest.raises(ThreadHeldError):
                call.result(60)
    assert rows_of(dsn, schema) == stored


def test_a_hold_that_began_at_another_time_stays(state: PGState) -> None:
    seen = state.threads.hold("t", "case 1", by="eve")
    state.threads.create("other")
    assert {one.thread_id: one.is_held for one in state.threads.list().items} == {"t": True, "other": False}
    thread = state.threads.get("t")
    assert thread is not None
    assert thread.is_held
    assert state.threads.release("t", "case 1", by="eve", since=seen.created_at)
    state.threads.hold("t", "case 1", by="bob")
    assert not state.threads.release("t", "case 1", by="eve", since=seen.created_at)
    assert [one.held_by for one in state.threads.holds("t").items] == ["bob"]
    with pytest.raises(ConfigurationError):
        state.threads.release("t", "case 1", by="eve", since=seen.created_at.replace(tzinfo=None))


def test_a_hold_does_not_bind_sql(state: PGState, dsn: str, schema: str) -> None:
    """A limit: a role that may delete rows deletes those of a held thread, and the hold."""
    state.threads.hold("t", "case 1", by="eve")
    for table in ("checkpoints", "holds", "threads"):
        ask(dsn, f"DELETE FROM \"{schema}\".{table} WHERE thread_id = 't'")
    assert rows_of(dsn, schema) == 0
    assert state.threads.get("t") is None
