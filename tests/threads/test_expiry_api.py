"""How long threads are kept: set, counted anew with every touch, and swept, but never while they are in use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support import config_of, invoke, loop_graph, put_arguments
from typer.testing import CliRunner

from langgraph_pgstate import PGState
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from tests.leases.test_guards import rows
from tests.test_state import APIS, open_state

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert "must be a number and s, m" in run("expire", "t", option, "", code=1)
    assert run("expire", "t", "--never") == "t expires never"
    assert run("expire", "t", "--ttl", "30d").startswith("t expires 20")
    assert expiring(connection, schema) is not None
    assert run("sweep") == "expired threads: none, or only threads in use"
    run("expire", "t", "--never", "--keep-latest", code=2)
    run("expire", "t", "--ttl", "1h", "--keep-latest")
    age(connection, schema, 1)
    assert "expired threads deleted or pruned: 1, with 0 checkpoints" in run("sweep")
    assert rows(connection, schema) != {}
    run("expire", "t", "--after", "0s")
    age(connection, schema, 1)
    assert run("sweep", "--dry-run").startswith("expired threads to delete or prune: 1, with 1 checkpoint")
    assert "ttl: 1 thread deleted" in run("maintain")
    assert rows(connection, schema) == {}


def test_what_was_said_of_a_thread_before_its_first_checkpoint_holds(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A run makes the thread's row before its first checkpoint."""
    with PGState.open(dsn, schema=schema, thread_ttl=DAY) as state:
        state.setup()
        connection.execute(f"INSERT INTO {schema}.threads (thread_id) VALUES ('t'), ('fixed')")
        state.threads.set_ttl("t", 2 * DAY)
        fixed = state.threads.expire("fixed", after=2 * DAY)
        for thread_id in ("t", "fixed"):
            state.saver.put(*put_arguments(config_of(thread_id), 0))
        assert expiring(connection, schema) == 2 * DAY
        assert state.threads.get("fixed").expires_at == fixed
