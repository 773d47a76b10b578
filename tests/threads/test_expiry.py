"""How long threads are kept: set, counted anew with every touch, and swept, but never while they are in use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support import config_of, holding, invoke, loop_graph, put_arguments, run_children
from test_guards import rows
from test_state import APIS, open_state
from typer.testing import CliRunner

from langgraph_pgstate import PGState
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.threads import expiry
from langgraph_pgstate.types import PruneResult

DAY = timedelta(days=1)
INPUT: dict[str, Any] = {"items": [], "count": 0}


async def ask(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer


async def use(state: Any, thread_id: str = "t", hook: Callable[[int], Any] = lambda count: None) -> None:
    """A run of three supersteps."""
    graph = state.record(loop_graph(3, hook).compile(checkpointer=state.saver))
    await invoke(graph, state.saver, INPUT, config_of(thread_id))
    await ask(state.flush())


def age(connection: psycopg.Connection, schema: str, days: float, thread_id: str = "t") -> None:
    """Make a thread as old as that."""
    connection.execute(
        f"UPDATE {schema}.threads SET updated_at = updated_at - %(age)s, expires_at = expires_at - %(age)s "
        "WHERE thread_id = %(id)s",
        {"age": timedelta(days=days), "id": thread_id},
    )


def expiring(connection: psycopg.Connection, schema: str, thread_id: str = "t") -> timedelta | None:
    """How long after it was touched last a thread expires."""
    row = connection.execute(
        f"SELECT expires_at - updated_at FROM {schema}.threads WHERE thread_id = %s", [thread_id]
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("api", APIS)
async def test_a_thread_is_kept_as_long_as_it_is_told(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema) as state:
        await use(state)
        assert (await ask(state.threads.get("t"))).expires_at is None
        at = await ask(state.threads.set_ttl("t", DAY))
        assert (await ask(state.threads.get("t"))).expires_at == at
        fixed = datetime.now(UTC) + 3 * DAY
        assert await ask(state.threads.expire("t", at=fixed)) == fixed
        after = await ask(state.threads.expire("t", after=DAY))
        assert timedelta(0) <= after - at < timedelta(minutes=1)
        assert await ask(state.threads.set_ttl("t", None)) is None
        assert (await ask(state.threads.get("t"))).expires_at is None
        assert (await ask(state.threads.get("t"))).version == 1
        with pytest.raises(NotFoundError):
            await ask(state.threads.set_ttl("nobody", DAY))
        with pytest.raises(NotFoundError):
            await ask(state.threads.expire("nobody", after=DAY))
        for wrong in (timedelta(0), -DAY, 5, timedelta.max):
            with pytest.raises(ConfigurationError):
                await ask(state.threads.set_ttl("t", wrong))
        for given in ({}, {"at": fixed, "after": DAY}, {"at": datetime(2030, 1, 1)}, {"after": -DAY}):
            with pytest.raises(ConfigurationError):
                await ask(state.threads.expire("t", **given))
        for limit in (0, True, 1.5, "3"):
            with pytest.raises(ConfigurationError):
                await ask(state.threads.sweep(limit=limit))


@pytest.mark.parametrize("api", APIS)
async def test_a_time_to_live_counts_from_the_last_touch_and_a_fixed_time_does_not(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema) as state:
        for thread_id in ("t", "u"):
            await use(state, thread_id)
        await ask(state.threads.set_ttl("t", DAY))
        await ask(state.threads.expire("u", after=DAY))
        for thread_id in ("t", "u"):
            age(connection, schema, 0.5, thread_id)
    async with open_state(api, dsn, schema) as state:
        for thread_id in ("t", "u"):
            await use(state, thread_id)
    assert expiring(connection, schema, "t") == DAY
    left = expiring(connection, schema, "u")
    assert left is not None
    assert left < DAY * 0.51


@pytest.mark.parametrize("api", APIS)
async def test_copies_and_forks_do_not_outlive_their_source(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema) as state:

        async def derive(prefix: str) -> list[datetime | None]:
            copy, fork = f"{prefix}-copy", f"{prefix}-fork"
            await state.saver.acopy_thread("t", copy)
            await ask(state.threads.fork("t", to=fork))
            for thread_id in (copy, fork):
                await use(state, thread_id)
            return [(await ask(state.threads.get(thread_id))).expires_at for thread_id in (copy, fork)]

        await use(state)
        assert await derive("kept") == [None, None]
        at = await ask(state.threads.expire("t", after=DAY))
        assert await derive("dated") == [at, at]
        # Said anew of the source, it is said of nobody else.
        await ask(state.threads.expire("t", after=3 * DAY))
        await ask(state.threads.fork("t", to="dated-fork"))
        assert (await ask(state.threads.get("dated-fork"))).expires_at == at
        await ask(state.threads.set_ttl("dated-fork", None))
        assert (await ask(state.threads.get("dated-fork"))).expires_at is None
        # A date that has passed: what is done with the fork does not keep it, either.
        at = await ask(state.threads.expire("t", at=datetime.now(UTC) - DAY))
        assert await derive("late") == [at, at]


@pytest.mark.parametrize("api", APIS)
async def test_new_threads_are_kept_as_long_as_the_state_says(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema) as state:
        await use(state, "old")
    async with open_state(api, dsn, schema, thread_ttl=DAY) as state:
        await use(state)
        assert expiring(connection, schema) == DAY
        await use(state, "old")
        assert expiring(connection, schema, "old") is None
        await ask(state.threads.set_ttl("t", 2 * DAY))
        await use(state)
        await ask(state.threads.set_ttl("t", None))
        await use(state)
        assert expiring(connection, schema) is None
        # A second root, as a copy of the first checkpoint is, makes no new thread.
        await ask(state.saver.aput(*put_arguments(config_of("t"), 0)))
        assert expiring(connection, schema) is None
        await ask(state.threads.set_ttl("t", DAY))
        await state.saver.acopy_thread("t", "copy")
        assert expiring(connection, schema, "copy") == DAY
        await ask(state.threads.fork("t", to="fork"))
        assert expiring(connection, schema, "fork") == DAY
    with pytest.raises(ConfigurationError):
        async with open_state(api, dsn, schema, thread_ttl=timedelta(0)):
            pass


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
        assert report.expired.threads == 2
        assert report.expired.checkpoints == counted.checkpoints * 2 // 3 > 0
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
            assert [id for _, id in page] == ["t"]
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
    from langgraph_pgstate.operations.checkpoints.planning import plan_put

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


def test_the_commands(dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 160)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments])
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        state.saver.put(*put_arguments(config_of("t"), 0))
    run("expire", "t", code=2)
    run("expire", "t", "--never", "--ttl", "1d", code=2)
    run("expire", "nobody", "--never", code=1)
    # An empty variable of a shell's says nothing, and does not keep a thread for ever.
    for option in ("--ttl", "--after"):
        assert "is no age" in run("expire", "t", option, "", code=1)
    assert run("expire", "t", "--never") == "t expires never"
    assert run("expire", "t", "--ttl", "30d").startswith("t expires 20")
    assert expiring(connection, schema) is not None
    assert run("sweep") == "expired threads: none that is not in use"
    run("expire", "t", "--after", "0s")
    age(connection, schema, 1)
    assert run("sweep", "--dry-run").startswith("expired threads to delete: 1, with 1 checkpoint")
    assert "expired threads deleted: 1, with 1 checkpoint" in run("maintain")
    assert rows(connection, schema) == {}


def test_what_was_said_of_a_thread_before_its_first_checkpoint_holds(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A run makes the thread's row before its first checkpoint."""
    with PGState.open(dsn, schema=schema, thread_ttl=DAY) as state:
        state.setup()
        connection.execute(f"INSERT INTO {schema}.threads (thread_id) VALUES ('t')")
        state.threads.set_ttl("t", 2 * DAY)
        state.saver.put(*put_arguments(config_of("t"), 0))
    assert expiring(connection, schema) == 2 * DAY


def test_a_way_down_and_up_again_leaves_no_time_that_does_not_move(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A time to live is forgotten on the way down; a fixed time stays what it is."""
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        for thread_id in ("moves", "fixed"):
            state.saver.put(*put_arguments(config_of(thread_id), 0))
        state.threads.set_ttl("moves", DAY)
        at = state.threads.expire("fixed", after=DAY)
    with Admin.open(dsn, schema=schema) as admin:
        admin.migrate(3)
        admin.migrate()
    found = connection.execute(f"SELECT thread_id, ttl, expires_at FROM {schema}.threads ORDER BY thread_id").fetchall()
    assert found == [("fixed", None, at), ("moves", None, None)]
