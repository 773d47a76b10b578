"""Sweeps of expired threads, beside those who use them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from support import config_of, holding, put_arguments, run_children, spread

from langgraph_pgstate import PGState
from langgraph_pgstate.threads import expiry
from langgraph_pgstate.threads.types import PruneResult
from tests.leases.test_guards import rows
from tests.test_state import APIS, open_state
from tests.threads.test_expiry_api import DAY, age, ask, expiring, use


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_sweep_deletes_what_has_expired_and_nothing_else(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema, thread_ttl=DAY) as state:
        for thread_id in ("a", "b", "c", "young"):
            await use(state, thread_id)
        for days, thread_id in enumerate(("a", "b", "c"), 2):
            age(connection, schema, days, thread_id)
        before = {id: rows(connection, schema, id) for id in ("a", "b", "c", "young")}
        counted = await ask(state.threads.sweep(dry_run=True))
        assert (counted.threads, counted.dry_run) == (3, True)
        assert {id: rows(connection, schema, id) for id in before} == before
        # Those that expired first go first.
        assert (await ask(state.threads.sweep(limit=1))).threads == 1
        assert (rows(connection, schema, "c"), rows(connection, schema, "b")) == ({}, before["b"])
        report = await ask(state.maintain())
        assert [(one.name, one.deleted) for one in report.policies] == [("ttl", 2)]
        assert [rows(connection, schema, id) for id in ("a", "b", "young")] == [{}, {}, before["young"]]
        assert (await ask(state.threads.sweep())) == PruneResult()
        await use(state, "a")
        assert expiring(connection, schema, "a") == DAY


def _run(connection: psycopg.Connection, schema: str, alive: str) -> None:
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, status, started_at, alive_until) "
        f"VALUES ('t', 'r', 'running', now(), now() + interval '{alive}')"
    )


def _lease(connection: psycopg.Connection, schema: str, holder: str | None, left: str) -> None:
    connection.execute(
        f"INSERT INTO {schema}.leases (thread_id, holder_id, fencing_token, expires_at) "
        f"VALUES ('t', %s, 7, now() + interval '{left}')",
        [holder],
    )


IN_USE: dict[str, tuple[Callable[[psycopg.Connection, str], Any], bool]] = {
    "nothing": (lambda connection, schema: None, False),
    "a run": (lambda connection, schema: _run(connection, schema, "1 minute"), True),
    "a dead process's run": (lambda connection, schema: _run(connection, schema, "-1 minute"), False),
    "a lease": (lambda connection, schema: _lease(connection, schema, "somebody", "1 minute"), True),
    "an expired lease": (lambda connection, schema: _lease(connection, schema, "somebody", "-1 minute"), False),
    "a lease given back": (lambda connection, schema: _lease(connection, schema, None, "1 minute"), False),
    "a touch": (
        lambda connection, schema: connection.execute(f"UPDATE {schema}.threads SET updated_at = now()"),
        True,
    ),
    "another time": (
        lambda connection, schema: connection.execute(
            f"UPDATE {schema}.threads SET expires_at = now() + interval '1h'"
        ),
        True,
    ),
}


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after it was found"])
@pytest.mark.parametrize("case", IN_USE)
def test_a_thread_in_use_survives(
    case: str, is_late: bool, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that becomes active between the sweep's finding it and deleting it."""
    happen, survives = IN_USE[case]
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        config = state.saver.put(*put_arguments(config_of("t"), 0))
        state.threads.expire("t", after=timedelta(0))
        age(connection, schema, 1)
        found = expiry._list_expired

        async def list_and_happen(*arguments: Any) -> Any:
            page = await found(*arguments)
            assert [id for _, id, _ in page] == ["t"]
            happen(connection, schema)
            return page

        if is_late:
            monkeypatch.setattr(expiry, "_list_expired", list_and_happen)
        else:
            happen(connection, schema)
        swept = state.threads.sweep()
        assert (swept.threads, state.saver.get_tuple(config) is not None) == (int(not survives), survives)
        if not survives:
            assert rows(connection, schema) == {}


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after it was found"])
@pytest.mark.parametrize("case", spread(IN_USE))
def test_a_thread_in_use_is_not_pruned(
    case: str, is_late: bool, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    happen, survives = IN_USE[case]
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        config = state.saver.put(*put_arguments(config_of("t"), 0))
        newest = state.saver.put(*put_arguments(config, 1))
        state.threads.set_ttl("t", DAY, strategy="keep_latest")
        age(connection, schema, 2)
        found = expiry._list_expired

        async def list_and_happen(*arguments: Any) -> Any:
            page = await found(*arguments)
            happen(connection, schema)
            return page

        if is_late:
            monkeypatch.setattr(expiry, "_list_expired", list_and_happen)
        else:
            happen(connection, schema)
        swept = state.threads.sweep()
        assert (swept.checkpoints, state.saver.get_tuple(config) is not None) == (int(not survives), survives)
        assert state.saver.get_tuple(newest) is not None


@pytest.mark.parametrize("api", APIS)
async def test_an_expired_thread_is_pruned_after_each_use(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema, thread_ttl=DAY, thread_ttl_strategy="keep_latest") as state:
        await use(state)
        await ask((state.saver.copy_thread if api is PGState else state.saver.acopy_thread)("t", "copy"))
        await ask(state.threads.fork("t", to="fork"))
        for thread_id in ("t", "copy", "fork"):
            assert (await ask(state.threads.get(thread_id))).ttl_strategy == "keep_latest"
            age(connection, schema, 2, thread_id)
        head = (await ask(state.threads.get("t"))).head_checkpoint_id
        counted = await ask(state.threads.sweep(dry_run=True))
        swept = await ask(state.threads.sweep())
        assert counted.threads == swept.threads == 3
        assert counted.checkpoints == swept.checkpoints > 3
        thread = await ask(state.threads.get("t"))
        assert (thread.head_checkpoint_id, thread.expires_at) == (head, None)
        count = connection.execute(f"SELECT count(*) FROM {schema}.checkpoints WHERE thread_id = 't'").fetchone()
        assert count == (1,)
        # It does not expire again before it is used.
        assert await ask(state.threads.sweep()) == PruneResult()
    # Another process: this one has updated the thread's row a moment ago.
    async with open_state(api, dsn, schema) as state:
        await use(state)
        assert expiring(connection, schema) == DAY
        age(connection, schema, 2)
        assert (await ask(state.threads.sweep())).checkpoints > 1


def test_a_pruned_thread_keeps_what_waits_for_an_answer(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    def approve(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": interrupt("May it?")}

    builder = StateGraph(dict).add_node("first", lambda state: state).add_node("approve", approve)
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        graph = builder.add_edge(START, "first").add_edge("first", "approve").compile(checkpointer=state.saver)
        graph.invoke({"answer": ""}, config_of("t"))
        state.threads.set_ttl("t", DAY, strategy="keep_latest")
        age(connection, schema, 2)
        assert state.threads.sweep().checkpoints > 0
        assert graph.invoke(Command(resume="yes"), config_of("t")) == {"answer": "yes"}


@pytest.mark.parametrize("strategy", ["delete", "keep_latest"])
def test_threads_that_cannot_be_swept_do_not_use_up_the_limit(
    strategy: Any, dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        for days, thread_id in enumerate(("young", "old", "oldest"), 2):
            state.saver.put(*put_arguments(config_of(thread_id), 0))
            state.threads.set_ttl(thread_id, DAY, strategy=strategy)
            age(connection, schema, days, thread_id)
        ended = expiry.end_expired

        async def end(db: Any, queries: Any, thread_id: str) -> Any:
            if thread_id != "young":
                raise ValueError("this row")
            return await ended(db, queries, thread_id)

        monkeypatch.setattr(expiry, "end_expired", end)
        assert state.threads.sweep(limit=1).threads == 1


def test_a_sweep_passes_what_another_is_about_to_delete(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        state.saver.put(*put_arguments(config_of("t"), 0))
        state.threads.expire("t", after=timedelta(0))
        age(connection, schema, 1)
        with holding(dsn, f"SELECT 1 FROM {schema}.threads WHERE thread_id = 't' FOR UPDATE"):
            assert state.threads.sweep() == PruneResult()
        assert state.threads.sweep().threads == 1


def _sweep(dsn: str, schema: str, answers: Any) -> None:
    with PGState.open(dsn, schema=schema, pool=False) as state:
        answers.put(state.threads.sweep().threads)


def test_a_thread_that_cannot_be_deleted_keeps_no_other(
    dsn: str, schema: str, connection: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        for thread_id in ("a", "b"):
            state.threads.create(thread_id)
        past = "now() - interval '1 hour'"
        connection.execute(f"UPDATE {schema}.threads SET expires_at = {past}, updated_at = {past}".encode())
        connection.execute(f"CREATE TABLE {schema}.ours (thread_id text REFERENCES {schema}.threads)".encode())
        connection.execute(f"INSERT INTO {schema}.ours VALUES ('a')".encode())
        assert state.threads.sweep().threads == 1
        assert [thread.thread_id for thread in state.threads.list().items] == ["a"]
        assert "thread 'a' has expired and cannot be deleted" in caplog.text
        connection.execute(f"DROP TABLE {schema}.ours".encode())


@pytest.mark.slow
def test_many_sweep_at_once(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    import multiprocessing

    answers = multiprocessing.get_context("fork").SimpleQueue()
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        for number in range(30):
            state.saver.put(*put_arguments(config_of(f"t{number}"), 0))
            state.threads.expire(f"t{number}", after=timedelta(0))
            age(connection, schema, 1, f"t{number}")
    assert run_children(_sweep, [(dsn, schema, answers)] * 3) == [""] * 3
    assert sum(answers.get() for _ in range(3)) == 30
    assert connection.execute(f"SELECT count(*) FROM {schema}.checkpoints").fetchone() == (0,)


def test_only_a_threads_first_checkpoint_costs_a_statement(dsn: str, schema: str) -> None:
    from langgraph_pgstate.checkpoints.planning import plan_put

    with PGState.open(dsn, schema=schema, thread_ttl=DAY) as state:
        state.setup()
        hook = expiry.ExpiryHook(state._queries, DAY)
        config: Any = config_of("t")
        statements = []
        for step in range(3):
            arguments = put_arguments(config, step)
            plan = plan_put(state._codec, *state.saver._request(*arguments))
            statements.append(len(hook.before_put(plan, config)))
            config = state.saver.put(*arguments)
        assert statements == [1, 0, 0]
