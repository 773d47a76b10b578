"""The views over what somebody must look at: interrupted threads, stuck runs, effects with an unknown outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from langgraph.func import entrypoint, task
from langgraph.types import interrupt
from support.record import Record, at

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.interrupts import Interrupts
from langgraph_pgstate.runs import Runs
from langgraph_pgstate.schema.queries import queries
from tests.interrupts.test_api import asking, config_of, fanned_out

NEVER = datetime.max.replace(tzinfo=UTC)


def test_waiting_threads_are_those_that_are_interrupted(record: Record, saver: PGStateSaver) -> None:
    """As the list of interrupts has them, with the answers that the interrupts of now have."""
    interrupts = Interrupts(saver._database, queries(saver.schema), Runs(saver._database, queries(saver.schema)))
    one, many = asking(saver, "where to?", "when?"), fanned_out(saver)
    one.invoke({"said": []}, config_of("one", user_id="eve", tenant_id="acme", agent="travel"))
    many.invoke({"said": []}, config_of("many"))

    def shown() -> list[tuple[Any, ...]]:
        return record.rows("SELECT thread_id, user_id, tasks, answers FROM waiting_threads ORDER BY 1")

    assert shown() == [("many", None, 3, 0), ("one", "eve", 1, 0)]
    first = {item.thread_id: item for item in interrupts.threads().items}["one"]
    assert record.rows("SELECT checkpoint_id, since FROM waiting_threads WHERE thread_id = 'one'") == [
        (first.checkpoint_id, first.since)
    ]
    interrupts.answer("one", "Prague")
    assert shown()[1] == ("one", "eve", 1, 1)
    one.invoke(interrupts.resume("one"), config_of("one"))
    assert shown()[1] == ("one", "eve", 1, 0)
    interrupts.answer("one", "in March")
    one.invoke(interrupts.resume("one"), config_of("one"))
    assert shown() == [("many", None, 3, 0)]


def test_of_tasks_that_call_an_interrupted_task_only_the_called_one_waits(record: Record, saver: PGStateSaver) -> None:
    interrupts = Interrupts(saver._database, queries(saver.schema), Runs(saver._database, queries(saver.schema)))

    @task
    def inner() -> Any:
        return interrupt("one?")

    @task
    def outer() -> Any:
        return inner().result()

    @entrypoint(checkpointer=saver)
    def work(_: int) -> Any:
        return outer().result(), interrupt("two?")

    def shown() -> list[tuple[Any, ...]]:
        return record.rows("SELECT tasks, answers FROM waiting_threads")

    work.invoke(1, config_of("t"))
    assert shown() == [(1, 0)]
    interrupts.answer("t", "yes")
    assert shown() == [(1, 1)]
    work.invoke(interrupts.resume("t"), config_of("t"))
    assert shown() == [(1, 0)]


def test_stuck_runs_are_those_whose_process_died_unnoticed(record: Record) -> None:
    record.run("going", 0, None, status="running", alive_until=NEVER)
    record.run("stuck", 10, None, status="running", alive_until=at(31), holder_id="host", steps=3)
    record.run("ending", 10, None, status="running", alive_until=at(31))
    record.add("journal", thread_id="t", entry_id="e", run_id="ending", is_alone=True, data=b"")
    record.run("settled", 20, status="error", error_type="ProcessDied", alive_until=at(31))
    assert record.rows("SELECT run_id, holder_id, steps FROM stuck_runs") == [("stuck", "host", 3)]


def test_unknown_effects_are_those_that_somebody_must_settle(record: Record) -> None:
    record.execution("going", 0, None, status="running", alive_until=NEVER)
    record.execution("died", 1, None, status="running", alive_until=at(31))
    for number, status in enumerate(("success", "error", "pending", "timeout", "unknown"), 2):
        record.execution(status, number, status=status)
    shown = record.rows("SELECT idempotency_key, status FROM unknown_effects ORDER BY started_at")
    assert shown == [("died", "running"), ("timeout", "timeout"), ("unknown", "unknown")]
