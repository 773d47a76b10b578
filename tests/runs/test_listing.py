"""Lists of the queue and of dead letters."""

from __future__ import annotations

import psycopg
import pytest
from support.queue import Queue

from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.runs import tending
from langgraph_pgstate.runs.queue import count_queue, list_dead_letters, list_queue


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def test_dead_letters_are_paged_and_filtered(queue: Queue) -> None:
    ids = []
    for number in range(5):
        ids.append(queue.add(f"t{number}", graph="graph" if number else "other"))
        queue.finish(queue.claim_one(graphs=["graph", "other"]), "timeout" if number % 2 else "error")
    found, cursor = [], None
    while True:
        page = queue.do(read, list_dead_letters(limit=2, cursor=cursor))
        found += [run.run_id for run in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert found == ids[::-1]
    page = queue.do(read, list_dead_letters(graph="other"))
    assert [run.run_id for run in page.items] == ids[:1]
    assert queue.do(read, list_dead_letters(queue="none")).items == ()


def test_the_queue_tells_which_runs_no_living_worker_accepts(queue: Queue) -> None:
    queue.do(tending.put_worker, "worker", ["default"], ["graph"], 10)
    queue.add("t")
    queue.add("u", graph="removed")
    queue.add("v", queue="elsewhere")
    page = queue.do(read, list_queue())
    assert [(run.thread_id, run.is_accepted) for run in page.items] == [("t", True), ("u", False), ("v", False)]
    found = queue.do(count_queue)
    assert [(one.queue, one.graph, one.count, one.ready, one.is_accepted) for one in found] == [
        ("default", "graph", 1, 1, True),
        ("default", "removed", 1, 1, False),
        ("elsewhere", "graph", 1, 1, False),
    ]
    queue.execute("UPDATE {}.workers SET seen_at = now() - interval '31 seconds'")
    assert not any(one.is_accepted for one in queue.do(count_queue))


def test_the_queue_is_paged_and_filtered(queue: Queue) -> None:
    ids = [queue.add("t") for _ in range(3)] + [queue.add("u", graph="other")]
    found, cursor = [], None
    while True:
        page = queue.do(read, list_queue(limit=3, cursor=cursor))
        found += [run.run_id for run in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert found == ids
    assert len(queue.do(read, list_queue(thread_id="t")).items) == 3
    assert len(queue.do(read, list_queue(graph="other")).items) == 1
    queue.claim_one()
    assert len(queue.do(read, list_queue(status="running")).items) == 1
    with pytest.raises(ConfigurationError):
        list_queue(status="success")
