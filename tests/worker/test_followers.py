"""Runs that follow others: one after each that has succeeded, enqueued with its end."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, TypedDict
from uuid import uuid5

import psycopg
import pytest
from langgraph.graph import START, StateGraph

from langgraph_pgstate import PGState, Rate, Worker
from langgraph_pgstate.worker.settings import _IDS

CONFIG: Any = {"configurable": {"user_id": "ann", "tenant_id": "acme"}}


class Ids(TypedDict, total=False):
    thread_id: str
    run_id: str


def graph_of(node: Any) -> Any:
    return StateGraph(Ids).add_node("node", node).add_edge(START, "node").compile()


@pytest.mark.slow
def test_a_run_is_followed_once_if_it_succeeds(dsn: str, schema: str) -> None:
    """Also if it ends together with others; not if it fails, or deletes its thread."""
    seen: Counter[str] = Counter()

    def fail(_: Ids) -> Ids:
        raise ValueError("no")

    graphs = {
        "good": graph_of(lambda _: {}),
        "bad": graph_of(fail),
        "after": graph_of(lambda given: seen.update([given["run_id"]])),
    }
    with PGState.open(dsn, schema=schema) as state:
        good = [state.runs.enqueue("good", {"run_id": "x"}, config=CONFIG) for _ in range(6)]
        state.runs.enqueue("bad", {"run_id": "x"}, config=CONFIG)
        state.runs.enqueue("good", {"run_id": "x"}, config=CONFIG, on_completion="delete")
        Worker(state, graphs, followed_by={"good": "after", "bad": "after"}).run_until_idle()
        assert seen == Counter(run.run_id for run in good)


def test_a_follower_has_owner_queue_and_key_of_the_other(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema) as state:
        # The follower waits for its turn, and can be looked at.
        state.runs.limit("q", key="k", rate=Rate(1, timedelta(hours=1)))
        run = state.runs.enqueue("good", {"run_id": "x"}, thread_id="t", config=CONFIG, queue="q", key="k")
        graphs = {"good": graph_of(lambda _: {}), "after": graph_of(lambda _: {})}
        Worker(state, graphs, queues=["q"], followed_by={"good": "after"}).run_until_idle()
        query = f"""
            SELECT q.graph, q.queue, q.key, r.user_id, r.tenant_id, r.metadata ->> 'follows_run_id'
            FROM {schema}.queue q JOIN {schema}.runs r USING (thread_id, run_id)
        """
        found = connection.execute(query.encode()).fetchall()
        assert found == [("after", "q", "k", "ann", "acme", run.run_id)]
        assert run.status() == "success"


def test_a_run_ends_also_if_the_one_that_would_follow_is_refused(dsn: str, schema: str) -> None:
    """The refusal is a statement that fails in the transaction of the end."""
    graphs = {"good": graph_of(lambda _: {}), "after": graph_of(lambda _: {})}
    with PGState.open(dsn, schema=schema, tombstones_for=timedelta(days=1)) as state:
        state.saver.delete_thread(str(uuid5(_IDS, "after t")))
        run = state.runs.enqueue("good", {"run_id": "x"}, thread_id="t", config=CONFIG)
        Worker(state, graphs, followed_by={"good": "after"}).run_until_idle()
        assert run.status() == "success"
