"""The move of a schema with rows to tenants, while an application that names no tenant goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support import FORK, config_of, put_arguments, wait_until
from support.cli import words
from support.tenants import APP, OPERATOR, OWNER, Walled, open_walled
from typer.testing import CliRunner

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.db.tenants import OF_NO_TENANT
from langgraph_pgstate.errors import ConfigurationError, ConflictError, PGStateError, TenantError
from langgraph_pgstate.schema import moving
from langgraph_pgstate.schema.queries import queries


@pytest.fixture(scope="module")
def walled(dsn: str) -> Iterator[Walled]:
    """A schema that kept tenants apart from the beginning."""
    with open_walled(dsn) as made:
        yield made


@pytest.fixture
def plain(walled: Walled) -> Iterator[Walled]:
    """A schema of the same roles that keeps no tenants apart."""
    schema = f"{walled.schema}_plain"
    made = Walled(schema, walled.owner, walled.app, walled.operator, walled.server)
    made.rows(f"CREATE SCHEMA {schema} AUTHORIZATION {OWNER}")
    with PGState.open(made.owner, schema=schema) as state:
        state.setup()
    made.rows(f"GRANT USAGE ON SCHEMA {schema} TO {APP}")
    made.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {APP}")
    yield made
    made.rows(f"DROP SCHEMA {schema} CASCADE")


def config(thread_id: str, **keys: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **keys}}


def put(state: PGState, thread_id: str, step: int = 1, **keys: str) -> str:
    """Put a checkpoint, and return its id."""
    given = config(thread_id, **keys)
    stored = state.saver.put(given, *put_arguments(given, step)[1:])
    state.saver.put_writes(stored, [("messages", "x")], "task")
    return str(stored["configurable"]["checkpoint_id"])


def fill(state: PGState) -> None:
    """Store rows of each kind: of threads with a tenant, of one without, and of no thread."""
    for number in range(12):
        put(state, f"t{number}", tenant_id=f"tenant{number % 3}", user_id=f"user{number % 2}")
    put(state, "t-none")
    if state.threads.get("t-meta") is None:
        state.threads.create("t-meta", metadata={"org": {"id": "metatenant"}})
    run = state.runs.enqueue("agent", {}, thread_id="t1")
    state.runs.feedback.add("t1", run.run_id, name="helpful", score=1)
    state.memory.put(("users", "user0"), "key", {"content": "x"})
    state.memory.put(("users", "user0"), "key", {"content": "y"})
    state.files.write(("users", "user1"), "/notes.txt", "text")
    whose = {"tenant_id": "tenant1", "user_id": "user1"}
    state.schedules.put("nightly", "agent", cron="0 0 1 1 *", config={"configurable": whose})


def catalogue(made: Walled) -> dict[str, list[Any]]:
    """What the catalogue says of a schema, but for names of indexes of partitions, which PostgreSQL chooses."""
    of = "c.relnamespace = '{}'::regnamespace"
    found = {
        "indexes": f"""
            SELECT i.indrelid::regclass::text, i.indisvalid, i.indisprimary, CASE WHEN c.relispartition
                THEN regexp_replace(pg_get_indexdef(i.indexrelid), 'INDEX \\S+', 'INDEX')
                ELSE pg_get_indexdef(i.indexrelid) END
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE {of}""",
        "constraints": f"""
            SELECT conrelid::regclass::text, pg_get_constraintdef(k.oid), convalidated,
                CASE WHEN c.relispartition THEN '' ELSE conname END
            FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE {of} AND contype <> 'n'""",
        "policies": f"""
            SELECT polrelid::regclass::text, polname, pg_get_expr(polqual, polrelid),
                pg_get_expr(polwithcheck, polrelid)
            FROM pg_policy JOIN pg_class c ON c.oid = polrelid WHERE {of}""",
        "columns": f"""
            SELECT attrelid::regclass::text, attname, attnotnull, pg_get_expr(adbin, adrelid),
                col_description(attrelid, attnum)
            FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
                LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE {of} AND attnum > 0 AND relkind IN ('r', 'p', 'v') AND NOT attisdropped""",
        "relations": f"SELECT relname, relrowsecurity, relforcerowsecurity, reloptions FROM pg_class c WHERE {of}"
        " AND relkind IN ('r', 'p', 'v')",
    }
    return {
        name: sorted(tuple(str(one).replace(f"{made.schema}.", "") for one in row) for row in made.rows(statement))
        for name, statement in found.items()
    }


def tables_of(made: Walled) -> list[str]:
    """The tables that have rows of tenants, partitions not by themselves."""
    rows = made.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition ORDER BY relname"
    )
    return [name for (name,) in rows if name not in OF_NO_TENANT]


def tenants_of(made: Walled, table: str) -> dict[str, int]:
    """How many rows of a table each tenant has."""
    rows = made.rows(f"SELECT pgstate_tenant, count(*) FROM {{}}.{table} GROUP BY 1 ORDER BY 1")
    return dict(rows)


@pytest.mark.slow
def test_a_moved_schema_is_like_one_that_kept_tenants_apart_from_the_beginning(walled: Walled, plain: Walled) -> None:
    seen = []
    with PGState.open(plain.owner, schema=plain.schema) as state:
        fill(state)
        with pytest.raises(TenantError, match="`pgstate tenancy`"):
            state.setup(tenancy="rls")
        done = state.move_to_tenants("acme", operators=[OPERATOR], workers=[APP], progress=seen.append)
        assert done.is_switched
        assert done.tenants == 1
        assert seen
        # What has ended stays.
        assert state.move_to_tenants().is_switched
        with pytest.raises(TenantError, match="cannot be undone"):
            state.undo_move_to_tenants()
    assert catalogue(plain) == catalogue(walled)
    assert plain.rows("SELECT pgstate_tenant FROM {}.tenants") == [("acme",)]
    with plain.open(tenant="acme") as state:
        assert state.threads.count() == 14
        assert len(list(state.saver.list(config_of("t1")))) == 1
        put(state, "t1", 2)
        assert state.files.read(("users", "user1"), "/notes.txt")
        put(state, "new")
    with plain.open(tenant="other") as state:
        assert state.threads.count() == 0
        put(state, "t1")
    with plain.open() as state:
        for call in (lambda: put(state, "t1"), lambda: state.saver.get_tuple(config_of("t1"))):
            with pytest.raises(TenantError, match="no tenant is named"):
                call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "threads", "others"),
    [
        (
            {"tenant_from": "tenant_id", "otherwise": "rest"},
            {"tenant0": 4, "tenant1": 4, "tenant2": 4, "rest": 2},
            {
                "queue": "tenant1",
                "schedules": "tenant1",
                "memories": "rest",
                "memory_versions": "rest",
                "files": "rest",
            },
        ),
        (
            {"tenant_from": "user_id", "otherwise": "rest", "namespace_part": 2},
            {"user0": 6, "user1": 6, "rest": 2},
            {
                "queue": "user1",
                "memories": "user0",
                "memory_versions": "user0",
                "files": "user1",
                "file_texts": "user1",
                "schedules": "user1",
            },
        ),
        (
            {"tenant_from": "metadata.org.id", "otherwise": "rest", "namespace_part": 1},
            {"metatenant": 1, "rest": 13},
            {"queue": "rest", "memories": "users", "file_versions": "users"},
        ),
    ],
)
def test_rows_get_the_tenant_of_their_thread_or_their_own(
    rule: Any, threads: dict[str, int], others: dict[str, str], plain: Walled
) -> None:
    with PGState.open(plain.owner, schema=plain.schema) as state:
        fill(state)
        without = {name: value for name, value in rule.items() if name != "otherwise"}
        # Nothing is switched while rows have no tenant, and the error says which.
        ready = state.move_to_tenants(**without, switch=False)
        assert not ready.is_switched
        assert ready.left["threads"] == threads["rest"]
        assert state.threads.count() == 14
        with pytest.raises(TenantError, match=f"{threads['rest']} of threads"):
            state.move_to_tenants()
        done = state.move_to_tenants(otherwise=rule["otherwise"])
        assert done.is_switched
        assert done.left == {}
    assert tenants_of(plain, "threads") == threads
    for table, tenant in others.items():
        assert set(tenants_of(plain, table)) == {tenant}, table
    for table in tables_of(plain):
        assert "*" not in tenants_of(plain, table), table
    assert {name for (name,) in plain.rows("SELECT pgstate_tenant FROM {}.tenants")} >= {*threads, *others.values()}
    strangers = plain.rows(
        "SELECT c.thread_id FROM {}.checkpoints c JOIN {}.threads t USING (thread_id)"
        " WHERE c.pgstate_tenant <> t.pgstate_tenant"
    )
    assert strangers == []


@pytest.mark.slow
def test_before_the_switch_nothing_changes_for_the_application(plain: Walled) -> None:
    before = catalogue(plain)
    with PGState.open(plain.owner, schema=plain.schema) as state:
        fill(state)
        state.move_to_tenants(tenant_from="tenant_id", otherwise="rest", switch=False)
        with plain.open() as application:
            fill(application)
            assert application.threads.count() == 14
            application.saver.delete_thread("t1")
            assert application.saver.copy_thread("t2", "t1") is None
        with psycopg.connect(plain.app, autocommit=True) as connection:
            for query in queries(plain.schema).all.values():
                answer = connection.pgconn.prepare(b"", query.text)
                assert answer.status == psycopg.pq.ExecStatus.COMMAND_OK, (query.name, answer.error_message)
        assert state.maintain(months=5).months_made
        with pytest.raises(TenantError, match="does not keep tenants apart"):
            plain.open(tenant="tenant0")
        with pytest.raises(TenantError, match="are being moved"):
            state.setup(tenancy="rls")
        with pytest.raises(ConfigurationError, match="another move was begun"):
            state.move_to_tenants("acme")
        assert state.undo_move_to_tenants()
        assert not state.undo_move_to_tenants()
        now = catalogue(plain)
        months = [row for row in now["relations"] if "spans_20" in row[0]]
        assert len(months) > len([row for row in before["relations"] if "spans_20" in row[0]])
        assert {row for name in before for row in before[name]} <= {row for name in now for row in now[name]}
        assert "pgstate_tenant" not in str(now)
        assert state.threads.count() == 14
        # A rule that was taken back can be followed by another, and new partitions are moved as well.
        put(state, "t20", tenant_id="tenant0")
        assert state.move_to_tenants("acme").is_switched
    assert set(tenants_of(plain, "checkpoints")) == {"acme"}


@pytest.mark.slow
def test_a_rule_must_be_usable(plain: Walled) -> None:
    with PGState.open(plain.owner, schema=plain.schema) as state:
        for given, reason in (
            ({}, "must be given, because no move"),
            ({"tenant": "*"}, "tenant must be"),
            ({"tenant": "a", "tenant_from": "user_id"}, "must be given alone"),
            ({"tenant_from": "title"}, "tenant_from must be"),
            ({"tenant_from": "metadata."}, "tenant_from must be"),
            ({"tenant_from": "user_id", "namespace_part": 0}, "a number of 1 or more"),
            ({"namespace_part": 1}, "requires tenant_from"),
            ({"tenant": "a", "operators": ["no_role"]}, "got no_role"),
        ):
            with pytest.raises(ConfigurationError, match=reason):
                state.move_to_tenants(**given)  # type: ignore[arg-type]
        plain.rows("INSERT INTO {}.event_chaining DEFAULT VALUES")
        with pytest.raises(TenantError, match="rows of event_chaining serve all threads"):
            state.move_to_tenants(tenant_from="user_id", otherwise="rest")
    assert "pgstate_tenant" not in str(catalogue(plain))


@pytest.mark.slow
async def test_the_asynchronous_state_moves_too(plain: Walled) -> None:
    async with AsyncPGState.open(plain.owner, schema=plain.schema) as state:
        await state.threads.create("t", metadata={"org": "acme"})
        assert not (await state.move_to_tenants(tenant_from="metadata.org", switch=False)).is_switched
        assert await state.undo_move_to_tenants()
        assert (await state.move_to_tenants(tenant_from="metadata.org")).is_switched
    assert tenants_of(plain, "threads") == {"acme": 1}


@pytest.mark.slow
def test_the_switch_waits_for_transactions_without_stopping_others(
    plain: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_ATTEMPTS", 1)
    with PGState.open(plain.owner, schema=plain.schema) as state, psycopg.connect(plain.app) as reader:
        read = sql.SQL("SELECT FROM {}.checkpoints").format(sql.Identifier(plain.schema))
        reader.execute(read)
        with pytest.raises(ConflictError, match="other transactions locked"):
            state.move_to_tenants("acme", switch=False)
        reader.rollback()
        state.move_to_tenants("acme", switch=False)
        reader.execute(read)
        for locked in (state.move_to_tenants, state.undo_move_to_tenants):
            with pytest.raises(ConflictError, match="other transactions locked"):
                locked()
        with plain.open() as application:
            put(application, "t")
        reader.rollback()
        assert state.move_to_tenants().is_switched


@pytest.mark.slow
def test_rows_that_are_written_during_a_move_are_checked_before_the_switch(plain: Walled) -> None:
    with PGState.open(plain.owner, schema=plain.schema) as state:
        put(state, "t", tenant_id="acme")
        state.move_to_tenants(tenant_from="tenant_id", otherwise="rest", switch=False)
        put(state, "new")
        state.move_to_tenants(otherwise="rest", switch=False)
        # A later put may name the tenant of a new thread.
        assert tenants_of(plain, "threads") == {"acme": 1, "*": 1}

        def begin_chaining(_: Any) -> None:
            plain.rows("INSERT INTO {}.event_chaining DEFAULT VALUES ON CONFLICT DO NOTHING")

        with pytest.raises(TenantError, match="rows of event_chaining serve all threads"):
            state.move_to_tenants(otherwise="rest", progress=begin_chaining)
        plain.rows("DELETE FROM {}.event_chaining")
        assert state.move_to_tenants(otherwise="rest").is_switched
    assert tenants_of(plain, "threads") == {"acme": 1, "rest": 1}


@pytest.mark.slow
def test_a_move_stops_if_it_is_taken_back_and_another_is_begun_meanwhile(plain: Walled) -> None:
    owned: Any = {"schema": plain.schema}
    with PGState.open(plain.owner, **owned) as state, PGState.open(plain.owner, **owned) as other:
        put(state, "t", tenant_id="acme", user_id="eve")
        seen: list[Any] = []

        def begin_another(progress: Any) -> None:
            if not seen:
                other.undo_move_to_tenants()
                other.move_to_tenants(tenant_from="user_id", switch=False)
            seen.append(progress)

        with pytest.raises(ConfigurationError, match="another move was begun, by tenant_from='user_id'"):
            state.move_to_tenants(tenant_from="tenant_id", progress=begin_another)
        assert other.move_to_tenants().is_switched
    assert tenants_of(plain, "threads") == {"eve": 1}


@pytest.mark.slow
def test_the_command_moves_and_takes_back(plain: Walled) -> None:
    with PGState.open(plain.owner, schema=plain.schema) as state:
        put(state, "t", tenant_id="acme")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", plain.owner, "--schema", plain.schema, *arguments])
        assert result.exit_code == code, result.output
        return words(result)

    assert "repeat the command without --prepare" in run("tenancy", "--from", "tenant_id", "--prepare")
    assert "is undone" in run("tenancy", "--undo")
    assert "takes no other options" in run("tenancy", "--undo", "--prepare", code=1)
    assert "must be called without --tenant" in run("--tenant", "acme", "tenancy", code=1)
    printed = run("--json", "tenancy", "--from", "tenant_id")
    assert json.loads(printed[printed.index("{") :])["is_switched"]
    assert "by an earlier move: nothing was changed" in run("tenancy", "--to", "other")
    assert tenants_of(plain, "threads") == {"acme": 1}


# An application that goes on


def work(dsn: str, schema: str, number: int, log: Path) -> None:
    """Put and get until a call is refused, and write down what was acknowledged, and at last the refusal."""
    with log.open("a") as file, suppress(TenantError), PGState.open(dsn, schema=schema, pool=2) as state:
        for step in range(1_000_000):
            thread_id = f"w{number}-{step % 40}"
            try:
                found = state.saver.get_tuple(config(thread_id))
                if found is None and step >= 40:
                    print(f"lost {thread_id}", file=file, flush=True)
                stored = put(state, thread_id, step, tenant_id=f"tenant{step % 4}")
                state.memory.put(("facts", f"tenant{step % 4}"), f"{number}-{step % 40}", {"step": step})
            except PGStateError as error:
                print(f"refused {type(error).__name__}: {error}", file=file, flush=True)
                return
            print(f"put {thread_id} {stored} tenant{step % 4}", file=file, flush=True)
            # Without a rest, it would take all of the processor from the tests beside it.
            time.sleep(0.005)


def move(dsn: str, schema: str) -> None:
    """Move as a process of its own does."""
    with PGState.open(dsn, schema=schema, pool=1) as state:
        state.move_to_tenants(tenant_from="tenant_id", otherwise="rest", namespace_part=2)


@pytest.mark.slow
def test_nothing_is_lost_if_a_move_is_killed_and_resumed_while_an_application_works(
    plain: Walled, tmp_path: Path
) -> None:
    logs = [tmp_path / f"log{number}" for number in range(2)]
    workers = [
        FORK.Process(target=work, args=(plain.app, plain.schema, number, log)) for number, log in enumerate(logs)
    ]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: all(log.exists() and log.read_text().count("put ") > 50 for log in logs), "puts")
        for seconds in (0.3, 0.6, 1.0):
            mover = FORK.Process(target=move, args=(plain.owner, plain.schema))
            mover.start()
            time.sleep(seconds)
            os.kill(mover.pid or 0, signal.SIGKILL)
            mover.join()
        assert all(worker.is_alive() for worker in workers), [log.read_text()[-300:] for log in logs]
        mover = FORK.Process(target=move, args=(plain.owner, plain.schema))
        mover.start()
        # Each key waits for the transactions of all other tests on this server.
        mover.join(600)
        assert mover.exitcode == 0
        for worker in workers:
            worker.join(120)
            assert worker.exitcode == 0
    finally:
        for process in workers:
            process.kill()
    lines = [line for log in logs for line in log.read_text().splitlines()]
    assert not [line for line in lines if line.startswith("lost")]
    assert len([line for line in lines if line.startswith("refused TenantError")]) == 2, lines[-1]
    stored = {
        (thread_id, checkpoint_id): tenant
        for thread_id, checkpoint_id, tenant in plain.rows(
            "SELECT thread_id, checkpoint_id, pgstate_tenant FROM {}.checkpoints"
        )
    }
    for line in lines:
        if line.startswith("put "):
            _, thread_id, checkpoint_id, tenant = line.split()
            assert stored.pop((thread_id, checkpoint_id)) == tenant
    assert len(stored) <= 2
    for table in tables_of(plain):
        assert "*" not in tenants_of(plain, table), table
    assert set(tenants_of(plain, "memories")) == {f"tenant{number}" for number in range(4)}
    with plain.open(tenant="tenant1") as state:
        assert state.saver.get_tuple(config("w0-1")) is not None
        assert state.saver.get_tuple(config("w0-2")) is None
