"""Answers to interrupts: given once, and taken back with what they answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support import counted

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import AlreadyAnsweredError
from langgraph_pgstate.interrupts import answers
from tests.interrupts.test_api import asking, config_of, fanned_out, ids


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        yield state


def test_answers_go_where_their_thread_goes(state: PGState, connection: psycopg.Connection) -> None:
    """Copied with it, deleted with it, pruned with their checkpoint."""
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, config_of("t"))
    state.saver.copy_thread("t", "waiting")
    state.interrupts.answer("t", "yes")
    state.saver.copy_thread("t", "answered")
    assert ids(state) == ["waiting"]
    assert sorted(ids(state, answered=True)) == ["answered", "t"]
    assert graph.invoke(state.interrupts.resume("answered"), config_of("answered"))["said"] == ["yes"]

    def left(thread_id: str) -> int:
        query = f'SELECT count(*) FROM "{state.schema}".answers WHERE thread_id = %s'
        return int(connection.execute(query, [thread_id]).fetchone()[0])  # type: ignore[index]

    assert left("answered") == 1
    state.saver.prune(["answered"])
    assert left("answered") == 0
    state.saver.delete_thread("t")
    assert left("t") == 0


def test_a_rollback_takes_the_answer_with_the_checkpoint(state: PGState, connection: psycopg.Connection) -> None:
    graph = asking(state.saver, "go on?")
    graph.invoke({"said": []}, {**config_of("t"), "metadata": {"run_id": "run"}})
    state.interrupts.answer("t", "yes")
    state.saver.delete_for_runs(["run"])
    assert ids(state) == ids(state, answered=True) == []
    row = connection.execute(f'SELECT count(*) FROM "{state.schema}".answers').fetchone()
    assert row == (0,)


def test_of_many_who_answer_at_once_one_does(state: PGState) -> None:
    asking(state.saver, "go on?").invoke({"said": []}, config_of("t"))
    barrier = threading.Barrier(6)
    outcomes: list[str] = []

    def answer(number: int) -> None:
        barrier.wait()
        try:
            state.interrupts.answer("t", number, by=f"person {number}")
            outcomes.append(f"person {number}")
        except AlreadyAnsweredError as error:
            outcomes.append("refused" if error.answered_by else "?")

    workers = [threading.Thread(target=answer, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    (winner,) = set(outcomes) - {"refused"}
    assert outcomes.count("refused") == 5
    (answer_,) = state.interrupts.answers("t")
    assert answer_.answered_by == winner
    assert len(state.events.list("t", kind="answer").items) == 1


def test_an_answer_whose_acknowledgement_was_lost_is_given_once(dsn: str, schema: str) -> None:
    """The repeated call finds its own."""
    with counted(dsn) as proxy, PGState.open(proxy.dsn, schema=schema, pool=False) as state:
        state.setup()
        fanned_out(state.saver, 2).invoke({"said": []}, config_of("t"))
        first, second = state.interrupts.list("t")
        state.interrupts.answer("t", "no", by="bob", interrupt_id=first.interrupt_id)
        expected = second.interrupt_id
        database = state.saver._database
        lost = []

        async def losing(db: Any, *arguments: Any) -> Any:
            found = await answers.answer(db, *arguments)
            if not lost:
                # All was committed; the caller's connection breaks before it hears of it.
                lost.append(found)
                proxy.answers_to_lose = 1
                await db.fetch(state.threads._queries.get_head, {"thread_id": "t"})
            return found

        request = answers.request_answer(state.threads._codec, "yes", "alice", None)
        found = database.run(losing, state.threads._queries, state.threads._codec, "t", request)
        assert len(lost) == 1
        assert (found.interrupt_id, found.value, found.answered_by) == (expected, "yes", "alice")
        assert len(state.events.list("t", kind="answer").items) == 2
