"""Tenants that PostgreSQL keeps apart: in every table, by every call, on shared connections, and in raw SQL."""

from __future__ import annotations

import base64
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from psycopg.conninfo import make_conninfo
from support import config_of, loop_graph, put_arguments, wait_until
from support.official import official_saver
from support.tenants import APP, Walled, open_walled

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.db.tenants import MAX_TENANT_BYTES, OF_NO_TENANT, tenant_form, wake_key
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    NotFoundError,
    PGStateError,
    TenantError,
    UnavailableError,
)
from langgraph_pgstate.schema.partitions import drop_months
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.worker import Worker
from tests.db.test_database import Bouncer, bouncer_version
from tests.db.test_failover import Pair, pair  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def walled(dsn: str) -> Iterator[Walled]:
    """One schema for all tests: each has tenants of its own."""
    with open_walled(dsn) as made:
        yield made


@pytest.fixture
def names() -> tuple[str, str]:
    """Two tenants that no other test has."""
    number = next(_numbers)
    return f"a{number}", f"b{number}"


def asking_graph() -> StateGraph[Any, Any, Any, Any]:
    """A graph that says something and waits for an answer."""
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [("ai", f"told {interrupt('ok?')}")]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder


def fill(state: PGState, thread_id: str, secret: str) -> dict[str, Any]:
    """Give a tenant a row of each kind, and return the ids."""
    graph = state.record(asking_graph().compile(checkpointer=state.saver, store=state.memory))
    config = config_of(thread_id)
    graph.invoke({"messages": [("user", f"{secret} text")]}, config)
    state.flush()
    pending = state.interrupts.list(thread_id)[0]
    state.memory.put(("facts",), "key", {"content": secret})
    state.files.write(("home",), "/notes.txt", f"{secret} line")
    run = state.runs.enqueue("agent", {"messages": []}, thread_id=f"{thread_id}-queued")
    state.schedules.put("nightly", "agent", cron="0 0 1 1 *")
    state.threads.hold(f"{thread_id}-queued", "case", by="eve")
    state.assistants.create("helper", graph="agent", name="helper")
    recorded = state.runs.list().items[0]
    span = state.spans.list(thread_id).items[0]
    checkpoint = state.saver.get_tuple(config)
    assert checkpoint is not None
    return {
        "thread_id": thread_id,
        "interrupt_id": pending.interrupt_id,
        "run": (run.thread_id, run.run_id),
        "checkpoint_id": checkpoint.config["configurable"]["checkpoint_id"],
        "recorded": recorded.run_id,
        "span_id": span.span_id,
        "schedule": "nightly",
        "assistant": "helper",
        "key": "key",
        "path": "/notes.txt",
        "worker": "no-worker",
    }


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or raises, without the ids that it was given."""
    try:
        return call()
    except (ArgumentTypeError, ConfigurationError):
        # It would say nothing of rows.
        raise
    except PGStateError as error:
        return type(error), str(error)


def shown(found: Any, there: dict[str, Any], missing: dict[str, Any]) -> str:
    """What was found, with the ids of what is there in place of those of what is not."""
    text = repr(found)
    for name, value in sorted(missing.items(), key=lambda item: -len(item[1])):
        if isinstance(value, str):
            text = text.replace(value, there[name])
    return text.replace("absent", "shared")


def cursors_of(hers: PGState, mine: PGState) -> list[tuple[Callable[[str], Any], str]]:
    """Lists of one tenant, each with the cursor of another's that names an id."""
    lists: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (hers.threads.list, mine.threads.list),
        (hers.threads.holds, mine.threads.holds),
        (hers.runs.queued, mine.runs.queued),
        (hers.schedules.list, mine.schedules.list),
        (hers.files.namespaces, mine.files.namespaces),
        (partial(hers.messages.search, "sesame"), partial(mine.messages.search, "sesame")),
        (partial(hers.events.list, "shared"), partial(mine.events.list, "shared")),
        (partial(hers.spans.list, "shared"), partial(mine.spans.list, "shared")),
    ]
    found = [(of_mine, of_hers(limit=1).next) for of_hers, of_mine in lists]
    assert len([cursor for _, cursor in found if cursor]) >= 6
    return [(of_mine, cursor) for of_mine, cursor in found if cursor]


def of_cursor(list_page: Callable[..., Any], cursor: str, given: dict[str, Any]) -> Any:
    """What follows a position, or the same one with ids that are not there."""
    if given["thread_id"] == "absent":
        plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        cursor = base64.urlsafe_b64encode(plain.replace(b"shared", b"absent").replace(b"nightly", b"absent")).decode()
    return list_page(cursor=cursor.rstrip("=")).items


# The catalogue


@pytest.mark.slow
def test_every_table_and_partition_is_walled(walled: Walled) -> None:
    with PGState.open(walled.owner, schema=walled.schema) as state:
        assert state.maintain(months=5).months_made
    tables = walled.rows(
        """
        SELECT c.relname::text, c.relrowsecurity AND c.relforcerowsecurity, a.attnotnull AND a.attcollation = 950,
            (SELECT array_agg(p.polname::text ORDER BY p.polname) FROM pg_policy p WHERE p.polrelid = c.oid),
            pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'pgstate_tenant'
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = '{}'::regnamespace AND c.relkind IN ('r', 'p')
        """
    )
    known = {name for name, *_ in tables}
    assert len([name for name in known if name.startswith("spans_20")]) == 6
    assert known >= {*OF_NO_TENANT}
    assert all(OF_NO_TENANT.values())
    open_ones = {name: rest for name, *rest in tables if name not in OF_NO_TENANT and name != "tenants"}
    default = "current_setting('pgstate.tenant'::text, true)"
    for name, rest in open_ones.items():
        assert rest == [True, True, ["pgstate_operators", "pgstate_tenant"], default], name
    assert {name for name, *rest in tables if rest[1] is None} == {*OF_NO_TENANT}
    views = walled.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind = 'v'"
        " AND NOT coalesce('security_invoker=true' = ANY(reloptions), false)"
    )
    assert views == []
    keys = walled.rows(
        """
        SELECT c.relname::text, pg_get_indexdef(i.indexrelid, 1, true) FROM pg_index i
            JOIN pg_class c ON c.oid = i.indrelid
        WHERE c.relnamespace = '{}'::regnamespace AND i.indisunique
        """
    )
    assert {name for name, first in keys if first != "pgstate_tenant"} == {*OF_NO_TENANT}
    assert walled.rows("SELECT DISTINCT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'"
        " AND connamespace = '{}'::regnamespace") == [(
            "FOREIGN KEY (pgstate_tenant, thread_id, run_id) REFERENCES "
            f"{walled.schema}.runs(pgstate_tenant, thread_id, run_id) ON DELETE CASCADE",
    )]  # fmt: skip


@pytest.mark.slow
def test_each_statement_finds_its_keys(walled: Walled) -> None:
    with psycopg.connect(walled.app, autocommit=True) as connection:
        for query in queries(walled.schema).all.values():
            answer = connection.pgconn.prepare(b"", tenant_form(query.text))
            assert answer.status == psycopg.pq.ExecStatus.COMMAND_OK, (query.name, answer.error_message)


def test_a_table_of_vectors_is_walled(walled: Walled, names: tuple[str, str]) -> None:
    pytest.importorskip("numpy")
    if not walled.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("the server has no pgvector")
    walled.rows("CREATE EXTENSION IF NOT EXISTS vector")

    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text)), 0.0] for text in texts]

    index: Any = {"dims": 3, "embed": embed}
    with PGState.open(walled.owner, schema=walled.schema, memory={"index": index}) as state:
        state.setup()
        for tenant in names:
            state.for_tenant(tenant).memory.put(("facts",), "key", {"content": f"of {tenant}"})
        found = [state.for_tenant(tenant).memory.search(("facts",), query="of") for tenant in names]
    assert [[one.value["content"] for one in each] for each in found] == [[f"of {tenant}"] for tenant in names]
    (wall,) = walled.rows(
        "SELECT relforcerowsecurity FROM pg_class WHERE relname = 'memory_vectors_1'"
        " AND relnamespace = '{}'::regnamespace"
    )
    assert wall == (True,)
    later: Any = {"name": "other", "dims": 2, "embed": embed}
    with (
        PGState.open(walled.owner, schema=walled.schema, memory={"index": later}) as state,
        pytest.raises(TenantError, match="must be set up before a tenant"),
    ):
        state.setup()


# What a tenant sees


@pytest.mark.slow
def test_no_difference_between_not_yours_and_not_there(walled: Walled, names: tuple[str, str]) -> None:
    with walled.open(pool=2) as state:
        hers, mine = (state.for_tenant(name) for name in names)
        ids = fill(hers, "shared", "sesame")
        hers.threads.hold("shared", "case", by="eve")
        hers.schedules.put("nightly-2", "agent", cron="0 0 1 1 *")
        hers.files.write(("home", "shared"), "/notes.txt", "sesame")
        hers.runs.enqueue("agent", {"messages": []}, thread_id="shared-2")
        there = {**ids, "run": ids["run"]}
        missing = {
            "thread_id": "absent",
            "interrupt_id": ids["interrupt_id"],
            "run": ("absent-queued", ids["run"][1]),
            "checkpoint_id": ids["checkpoint_id"],
            "recorded": "absent-run",
            "span_id": "absent-span",
            "schedule": "absent-schedule",
            "assistant": "absent-assistant",
            "key": "absent-key",
            "path": "/absent.txt",
            "worker": "absent-worker",
        }

        def at(given: dict[str, Any]) -> dict[str, Any]:
            return {"configurable": {"thread_id": given["thread_id"], "checkpoint_id": given["checkpoint_id"]}}

        calls: list[Callable[[dict[str, Any]], Any]] = [
            lambda g: mine.saver.get_tuple(config_of(g["thread_id"])),
            lambda g: mine.saver.get_tuple({"configurable": {**at(g)["configurable"], "checkpoint_ns": ""}}),
            lambda g: list(mine.saver.list(config_of(g["thread_id"]))),
            lambda g: list(mine.saver.list(None)),
            lambda g: mine.threads.get(g["thread_id"]),
            lambda g: mine.threads.list().items,
            lambda g: mine.threads.count(),
            lambda g: mine.threads.search(text="sesame").items,
            lambda g: mine.threads.branches(g["thread_id"]),
            lambda g: mine.threads.labels(g["thread_id"]),
            lambda g: mine.threads.label(at(g), "mine"),
            lambda g: mine.threads.fork(g["thread_id"], g["checkpoint_id"]),
            lambda g: mine.threads.state_at(at(g)),
            lambda g: mine.threads.diff(at(g), at(g)),
            lambda g: mine.threads.set_title(g["thread_id"], "mine"),
            lambda g: mine.threads.set_status(g["thread_id"], "idle"),
            lambda g: mine.threads.revive(g["thread_id"]),
            lambda g: mine.saver.copy_thread(g["thread_id"], "copied"),
            lambda g: mine.messages.search("sesame").items,
            lambda g: mine.messages.conversation(g["thread_id"]),
            lambda g: mine.events.list(g["thread_id"]).items,
            lambda g: mine.spans.list(g["thread_id"]).items,
            lambda g: mine.runs.list().items,
            lambda g: mine.runs.queued().items,
            lambda g: mine.runs.counts(),
            lambda g: mine.runs.status(*g["run"]),
            lambda g: mine.runs.cancel(*g["run"]),
            lambda g: mine.runs.discard(*g["run"]),
            lambda g: mine.interrupts.threads().items,
            lambda g: mine.interrupts.list(g["thread_id"]),
            lambda g: mine.interrupts.answer(g["thread_id"], "yes", interrupt_id=g["interrupt_id"]),
            lambda g: mine.interrupts.answers(g["thread_id"]),
            lambda g: mine.leases.list().items,
            lambda g: mine.tools.list(g["thread_id"]),
            lambda g: mine.schedules.list().items,
            lambda g: mine.assistants.sorted(),
            lambda g: mine.memory.get(("facts",), "key"),
            lambda g: mine.memory.search((), query="sesame"),
            lambda g: mine.memory.list_namespaces(),
            lambda g: mine.files.ls(("home",)),
            lambda g: mine.files.grep(("home",), "sesame"),
            lambda g: mine.files.read(("home",), "/notes.txt"),
            lambda g: mine.threads.holds(f"{g['thread_id']}-queued").items,
            lambda g: mine.threads.holds().items,
            lambda g: mine.threads.hold(g["thread_id"], "mine", by="bob"),
            lambda g: mine.threads.release(f"{g['thread_id']}-queued", "case", by="bob"),
            lambda g: mine.threads.tree(g["thread_id"]),
            lambda g: mine.threads.lineage(at(g)),
            lambda g: mine.threads.find(g["thread_id"], g["checkpoint_id"][:8]),
            lambda g: mine.threads.find_step(g["thread_id"], 0),
            lambda g: mine.threads.unlabel(at(g)),
            lambda g: mine.threads.update_metadata(g["thread_id"], {"of": "mine"}),
            lambda g: mine.threads.set_ttl(g["thread_id"], timedelta(days=1)),
            lambda g: mine.threads.expire(g["thread_id"], after=timedelta(days=1)),
            lambda g: mine.threads.runaway().items,
            lambda g: mine.interrupts.answered(g["thread_id"], g["interrupt_id"]),
            lambda g: mine.interrupts.answer_run(g["thread_id"], "yes", interrupt_id=g["interrupt_id"]),
            lambda g: mine.interrupts.decisions(g["thread_id"], [g["checkpoint_id"]]),
            lambda g: mine.interrupts.resume(g["thread_id"]),
            lambda g: mine.interrupts.resume_run(g["thread_id"], g["checkpoint_id"], graph="agent"),
            lambda g: mine.runs.get(g["thread_id"], g["recorded"]),
            lambda g: mine.runs.retry(*g["run"]),
            lambda g: mine.runs.wait(*g["run"], timeout=0.01),
            lambda g: list(mine.runs.join(mine.runs.handle(*g["run"]))),
            lambda g: mine.runs.handle(*g["run"]).status(),
            lambda g: mine.runs.provenance(at(g)),
            lambda g: mine.runs.failed().items,
            lambda g: mine.runs.dead_letters().items,
            lambda g: mine.runs.sums(),
            lambda g: mine.runs.drain(g["worker"]),
            lambda g: mine.runs.workers(),
            lambda g: mine.runs.adopt(),
            lambda g: mine.spans.get(g["thread_id"], g["recorded"], g["span_id"]),
            lambda g: mine.spans.tree(g["thread_id"], g["recorded"]),
            lambda g: mine.spans.timeline(g["thread_id"], g["recorded"]),
            lambda g: mine.messages.find_hits("sesame", [g["thread_id"]]),
            lambda g: mine.messages.window(g["thread_id"]),
            lambda g: mine.tools.get(g["thread_id"], "key"),
            lambda g: mine.tools.recent().items,
            lambda g: mine.tools.settle(g["thread_id"], "key", "done", by="bob"),
            lambda g: mine.schedules.get(g["schedule"]),
            lambda g: mine.schedules.pause(g["schedule"]),
            lambda g: mine.schedules.trigger(g["schedule"]),
            lambda g: mine.schedules.update(g["schedule"], cron="0 1 * * *"),
            lambda g: mine.schedules.delete(g["schedule"]),
            lambda g: mine.assistants.get(g["assistant"]),
            lambda g: mine.assistants.versions(g["assistant"]),
            lambda g: mine.assistants.set_version(g["assistant"], 1),
            lambda g: mine.assistants.update(g["assistant"], name="mine"),
            lambda g: mine.assistants.delete(g["assistant"]),
            lambda g: mine.memory.inspect(("facts",), g["key"]),
            lambda g: mine.memory.history(("facts",), g["key"]),
            lambda g: mine.memory.edit(("facts",), g["key"], {"content": "mine"}, expected_version=1, by="bob"),
            lambda g: mine.memory.remove(("facts",), g["key"], expected_version=1, by="bob"),
            lambda g: mine.memory.restore(("facts",), g["key"], 1, by="bob"),
            lambda g: mine.memory.delete(("facts",), g["key"]),
            lambda g: mine.memory.caused_by(g["thread_id"]),
            lambda g: mine.memory.forget(user_id=g["thread_id"]),
            lambda g: mine.files.history(("home",), g["path"]).items,
            lambda g: mine.files.delete(("home",), g["path"]),
            lambda g: mine.files.purge(("home",), g["path"]),
            lambda g: mine.files.restore(("home",), g["path"], 1),
            lambda g: mine.files.changes(g["thread_id"]).items,
            lambda g: mine.files.namespaces().items,
            lambda g: mine.archive.list().items,
            lambda g: mine.archive.check([g["thread_id"]]),
            lambda g: mine.archive.delete([g["thread_id"]], by="bob"),
            lambda g: mine.archive.restore([g["thread_id"]]),
            *(partial(of_cursor, list_page, cursor) for list_page, cursor in cursors_of(hers, mine)),
            lambda g: mine.saver.delete_thread(g["thread_id"]),
        ]
        for number, call in enumerate(calls):
            found = [
                shown(outcome(lambda call=call, given=given: call(given)), there, missing)  # type: ignore[misc]
                for given in (there, missing)
            ]
            assert found[0] == found[1], number
            assert "sesame" not in found[0], number
        # A put to a thread of hers is one to a new thread.
        mine.saver.put(*put_arguments(config_of("shared"), 1))
        assert len(list(mine.saver.list(config_of("shared")))) == 1
        with mine.leases.hold("shared"), hers.leases.hold("shared"):
            pass
        assert hers.threads.get("shared") is not None
        assert hers.interrupts.answer("shared", "yes", interrupt_id=ids["interrupt_id"])
        graph = hers.record(asking_graph().compile(checkpointer=hers.saver))
        command = hers.interrupts.resume("shared")
        assert isinstance(command, Command)
        assert graph.invoke(command, config_of("shared"))["messages"][-1].content == "told yes"
        assert hers.runs.status(*ids["run"]) == "pending"
        assert hers.memory.search((), query="sesame")


def test_an_import_does_not_tell_whose_thread_it_meets(walled: Walled, names: tuple[str, str]) -> None:
    upstream_schema = f"{walled.schema}_theirs"
    with official_saver(walled.server, upstream_schema) as theirs:
        for thread_id in ("shared", "absent"):
            theirs.put(*put_arguments(config_of(thread_id), 1))
    with walled.open(tenant=names[0]) as hers:
        hers.saver.put(*put_arguments(config_of("shared"), 1))
        hers.threads.set_title("shared", "sesame")
    with Admin.open(walled.app, schema=walled.schema) as admin, pytest.raises(TenantError, match="no tenant"):
        admin.import_langgraph(walled.server, source_schema=upstream_schema)
    with Admin.open(walled.app, schema=walled.schema, tenant=names[1]) as admin:
        reports = [
            admin.import_langgraph(walled.server, source_schema=upstream_schema, thread_ids=[thread_id])
            for thread_id in ("shared", "absent")
        ]
        assert repr(reports[0]).replace("shared", "absent") == repr(reports[1])
        assert reports[0].threads == 1
    with walled.open() as state:
        hers, mine = (state.for_tenant(name) for name in names)
        assert [thread.title for thread in mine.threads.list().items] == [None, None]
        assert [thread.title for thread in hers.threads.list().items] == ["sesame"]
    walled.rows(f"DROP SCHEMA {upstream_schema} CASCADE")


@pytest.mark.slow
async def test_what_reads_one_snapshot_does_so_for_a_tenant(walled: Walled, names: tuple[str, str]) -> None:
    target = f"{walled.schema}_theirs"
    strange = f"{names[0]}'\\ \u00e9"
    with walled.open(tenant=strange) as state:
        ids = fill(state, "checked", "sesame")
        assert state.backfill().threads == 2
    with official_saver(walled.server, target) as theirs:
        for tenant, threads in ((strange, 2), (names[1], 0)):
            with Admin.open(walled.app, schema=walled.schema, tenant=tenant) as admin:
                report = admin.check(deep=True)
                assert report.problems == []
                assert report.threads == threads
                assert admin.export_langgraph(walled.server, target_schema=target).threads == threads
        assert theirs.get_tuple(config_of(ids["thread_id"])) is not None
    walled.rows(f"DROP SCHEMA {target} CASCADE")
    async with AsyncPGState.open(walled.app, schema=walled.schema, tenant=strange) as one:
        assert (await one.backfill()).threads == 2


def test_an_archive_has_the_threads_of_its_tenant(walled: Walled, names: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with walled.open() as state:
        hers, mine = (state.for_tenant(name) for name in names)
        for one in (hers, mine):
            one.saver.put(*put_arguments(config_of("shared"), 1, a=one.tenant))
        hers.saver.put(*put_arguments(config_of("of hers"), 1))
        with pytest.raises(NotFoundError, match="no thread 'of hers'"):
            mine.archive.put(["of hers"], to=f"file://{tmp_path}", idle_for=timedelta(0))
        report = mine.archive.put(["shared"], to=f"file://{tmp_path}", idle_for=timedelta(0))
        assert report.threads == 1
        assert [one.thread_id for one in mine.archive.list().items] == ["shared"]
        assert hers.archive.list().items == ()
        kept = hers.saver.get_tuple(config_of("shared"))
        assert kept is not None
        assert kept.checkpoint["channel_values"] == {"a": names[0]}
        assert mine.archive.restore(["shared"]).threads == 1
        found = mine.saver.get_tuple(config_of("shared"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": names[1]}


def test_a_lease_does_not_tell_whose_thread_it_is_on(walled: Walled, names: tuple[str, str]) -> None:
    with walled.open(pool=3) as state:
        hers, mine = (state.for_tenant(name) for name in names)
        hers.saver.put(*put_arguments(config_of("shared"), 1))
        with hers.leases.hold("shared") as held:
            for thread_id in ("shared", "absent"):
                with mine.leases.hold(thread_id) as lease:
                    assert lease.fencing_token != held.fencing_token
                    assert [one.thread_id for one in mine.leases.list().items] == [thread_id]
                    # A lease of hers guards no put of mine, and mine none of hers.
                    mine.saver.put(*put_arguments(config_of(thread_id), 1))
            hers.saver.put(*put_arguments(config_of("shared"), 2))
        assert len(list(hers.saver.list(config_of("shared")))) == 2
        assert len(list(mine.saver.list(config_of("shared")))) == 1


@pytest.mark.slow
def test_raw_sql_sees_rows_of_the_tenant_alone(walled: Walled, names: tuple[str, str]) -> None:
    with walled.open(pool=2) as state:
        for name in names:
            fill(state.for_tenant(name), "thread", f"secret of {name}")
    hers, mine = names
    tables = [
        row[0]
        for row in walled.rows(
            "SELECT relname::text FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind IN ('r', 'p', 'v')"
        )
        if row[0] not in OF_NO_TENANT
    ]
    with psycopg.connect(walled.app) as connection:
        connection.execute("SELECT set_config('pgstate.tenant', %s, true)", [mine])
        for table in tables:
            rows = connection.execute(f"SELECT t::text FROM {walled.schema}.{table} t".encode()).fetchall()
            assert f"secret of {hers}" not in str(rows), table
        own = [
            connection.execute(f"SELECT count(*), min(pgstate_tenant) FROM {walled.schema}.{table}".encode()).fetchone()
            for table in ("threads", "checkpoints", "writes", "messages", "runs", "spans", "memories", "file_texts")
        ]
        assert all(count and tenant == mine for count, tenant in own), own  # type: ignore[misc]
        for change in ("UPDATE {}.threads SET title = 'x'", "DELETE FROM {}.memories"):
            cursor = connection.execute(f"{change} WHERE pgstate_tenant <> '{mine}'".format(walled.schema).encode())
            assert cursor.rowcount == 0
        with connection.cursor().copy(f"COPY {walled.schema}.threads TO STDOUT".encode()) as copy:
            assert hers not in b"".join(copy).decode().replace(f"secret of {mine}", "")
    insert = "INSERT INTO {}.tombstones (pgstate_tenant, thread_id, expires_at) VALUES (%s, 'x', now())"
    for tenant, written in ((mine, hers), (mine, "*"), ("*", "*"), ("*", mine), ("", ""), ("", mine)):
        with psycopg.connect(walled.app) as connection:
            connection.execute("SELECT set_config('pgstate.tenant', %s, true)", [tenant])
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(insert.format(walled.schema).encode(), [written])
    with psycopg.connect(walled.app) as connection:
        connection.execute("SELECT set_config('pgstate.tenant', '*', true)")
        assert connection.execute(f"SELECT * FROM {walled.schema}.threads".encode()).fetchall() == []


def test_a_transaction_that_names_no_tenant_is_refused(walled: Walled, names: tuple[str, str]) -> None:
    with psycopg.connect(walled.app, autocommit=True) as connection:
        for _ in range(2):
            for table in ("threads", "conversations", "spans_default"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no tenant is named"):
                    connection.execute(f"SELECT * FROM {walled.schema}.{table}".encode())
            # The setting of a transaction leaves an empty one behind.
            connection.execute("SELECT set_config('pgstate.tenant', 'a', true)")
    with walled.open() as state:
        graph = loop_graph(1).compile(checkpointer=state.saver)
        for call in (
            lambda: graph.invoke({"count": 0}, config_of("nobodys")),
            state.threads.list,
            lambda: state.threads.create("nobodys"),
            lambda: state.saver.delete_thread("nobodys"),
            lambda: state.runs.enqueue("agent", None, thread_id="nobodys"),
            lambda: state.memory.put(("facts",), "nobodys", {}),
            lambda: state.files.write(("home",), "/nobodys", "text"),
        ):
            with pytest.raises(TenantError, match="keep tenants apart"):
                call()
    assert walled.rows("SELECT count(*) FROM {}.threads WHERE thread_id = 'nobodys'") == [(0,)]


def test_an_operator_sees_all_and_no_tenant_runs_as_one(walled: Walled, names: tuple[str, str]) -> None:
    with walled.open() as state:
        for name in names:
            state.for_tenant(name).threads.create("seen")
    with psycopg.connect(walled.operator) as connection:
        found = connection.execute(
            f"SELECT pgstate_tenant FROM {walled.schema}.threads WHERE pgstate_tenant = ANY(%s) ORDER BY 1".encode(),
            [[*names]],
        ).fetchall()
    assert [row[0] for row in found] == sorted(names)
    for dsn in (walled.operator, walled.server):
        with pytest.raises(TenantError, match="this role bypasses row-level security"):
            PGState.open(dsn, schema=walled.schema, tenant=names[0])
        with PGStateSaver.from_conn_string(dsn, schema=walled.schema, tenant=names[0]) as saver:
            for call in (lambda: saver.get_tuple(config_of("seen")), lambda: list(saver.list(None))):
                with pytest.raises(TenantError, match="this role bypasses row-level security"):
                    call()


def test_a_tenant_needs_walls_and_a_name(walled: Walled, dsn: str, schema: str) -> None:
    with pytest.raises(TenantError, match="does not keep tenants apart"):
        PGState.open(dsn, schema=schema, tenant="acme")
    with PGState.open(dsn, schema=schema) as state:
        acme = state.for_tenant("acme")
        for call in (acme.threads.list, lambda: acme.saver.put(*put_arguments(config_of("t"), 1))):
            with pytest.raises(TenantError, match="does not keep tenants apart"):
                call()
    with walled.open() as state:
        for name in ("", "*", "a\0b", "\ud800", "x" * (MAX_TENANT_BYTES + 1)):
            with pytest.raises(ConfigurationError, match="tenant must be"):
                state.for_tenant(name)
        with pytest.raises(ArgumentTypeError, match="tenant must be a string"):
            state.for_tenant(7)  # type: ignore[arg-type]
    with walled.open(tenant="acme") as state:
        assert state.tenant == "acme"
        assert state.for_tenant("acme") is state
        with pytest.raises(ConfigurationError, match="this state is of tenant 'acme'"):
            state.for_tenant("other")
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        for given in ({"tenancy": "schemas"}, {"operators": ["r"]}, {"workers": ["r"]}):
            with pytest.raises(ConfigurationError, match="tenancy"):
                saver.setup(**given)  # type: ignore[arg-type]


def test_setup_refuses_tables_with_rows(dsn: str, schema: str, request: pytest.FixtureRequest) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.threads.create("somebodys")
        with pytest.raises(TenantError, match="has rows of no tenant"):
            state.setup(tenancy="rls")
        assert state.threads.get("somebodys") is not None


# One pool, many tenants


def storm(walled: Walled, tenants: int, operations: int, **options: Any) -> int:
    """Let many tenants use the same thread ids on five connections at once, and return the number of crossings."""
    crossings, lock = 0, threading.Lock()
    with walled.open(pool=5, **options) as state:
        prefix = f"s{next(_numbers)}-"
        states = [state.for_tenant(f"{prefix}{number}") for number in range(tenants)]

        def check(mine: str, found: str) -> None:
            nonlocal crossings
            if found != mine:
                with lock:
                    crossings += 1

        def turn(number: int) -> None:
            chosen = random.Random(number)
            one = chosen.choice(states)
            tenant, thread_id = str(one.tenant), f"t{chosen.randrange(3)}"
            config = config_of(thread_id)
            match chosen.randrange(5):
                case 0:
                    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"a": tenant}}
                    checkpoint["channel_versions"] = {"a": 1}
                    one.saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"a": 1})
                case 1:
                    found = one.saver.get_tuple(config)
                    check(tenant, tenant if found is None else found.checkpoint["channel_values"]["a"])
                case 2:
                    one.memory.put(("facts",), thread_id, {"content": tenant})
                    item = one.memory.get(("facts",), thread_id)
                    assert item is not None
                    check(tenant, item.value["content"])
                case 3:
                    for thread in one.threads.list().items:
                        check(tenant, thread.title or tenant)
                case 4:
                    try:
                        one.threads.set_title(thread_id, tenant)
                    except NotFoundError:
                        return

        with ThreadPoolExecutor(10) as executor:
            list(executor.map(turn, range(operations)))
    return crossings


@pytest.mark.slow
def test_tenants_share_connections_without_crossing(walled: Walled) -> None:
    assert storm(walled, tenants=10, operations=300) == 0


@pytest.mark.slow
def test_ten_thousand_operations_of_fifty_tenants_do_not_cross(walled: Walled) -> None:
    assert storm(walled, tenants=50, operations=10_000) == 0


@pytest.mark.slow
def test_tenants_do_not_cross_behind_a_pooler_by_transaction(walled: Walled, tmp_path: Path) -> None:
    if not (version := bouncer_version()):
        pytest.skip("PgBouncer is not installed")
    # It tracks prepared statements since then.
    is_tracking = version >= (1, 21)
    bouncer = Bouncer(walled.app, tmp_path, prepared=100 if is_tracking else 0)
    try:
        pooled = replace(walled, app=bouncer.dsn)
        for prepare_threshold in (None, 2) if is_tracking else (None,):
            assert storm(pooled, tenants=10, operations=200, prepare_threshold=prepare_threshold) == 0
        with ExitStack() as stack:
            # Nothing is left on any of its connections to the server.
            for _ in range(3):
                connection = stack.enter_context(psycopg.connect(bouncer.dsn, prepare_threshold=None))
                (left,) = connection.execute("SELECT current_setting('pgstate.tenant', true)").fetchone() or ("?",)
                assert not left
        with pooled.open(prepare_threshold=None) as state, pytest.raises(TenantError):
            state.threads.list()
    finally:
        bouncer.close()


@pytest.mark.slow
def test_tenants_are_kept_apart_on_a_standby(request: pytest.FixtureRequest) -> None:
    servers: Pair = request.getfixturevalue("pair")
    with open_walled(servers.old) as walled:
        with walled.open() as state:
            for name in ("acme", "other"):
                one = state.for_tenant(name)
                one.saver.put(*put_arguments(config_of("same"), 1, a=name))
                one.memory.put(("facts",), "key", {"content": name})
        there = replace(walled, app=make_conninfo(servers.new, user=APP), server=servers.new)
        wait_until(lambda: there.rows("SELECT 1 FROM pg_class WHERE relname = 'memories'") != [], "the tables arrive")
        wait_until(lambda: there.rows("SELECT count(*) FROM {}.memories") == [(2,)], "the rows arrive")
        with there.open(recover_journal=False) as state:
            for name in ("acme", "other"):
                one = state.for_tenant(name)
                found = one.saver.get_tuple(config_of("same"))
                assert found is not None
                assert found.checkpoint["channel_values"]["a"] == name
                assert one.threads.count() == 1
                item = one.memory.get(("facts",), "key")
                assert item is not None
                assert item.value["content"] == name
            # One that was never named.
            assert state.for_tenant("third").threads.list().items == ()
            for call in (state.threads.list, lambda: state.saver.get_tuple(config_of("same"))):
                with pytest.raises(TenantError, match="no tenant is named"):
                    call()
            with pytest.raises(UnavailableError, match="refuses to write"):
                state.for_tenant("acme").saver.put(*put_arguments(config_of("same"), 2))


def test_citus_is_refused_by_name(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        # The extension itself is not here, and its name is not seen outside of this transaction.
        connection.execute("SET LOCAL allow_system_table_mods = on")
        connection.execute(
            "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)"
            " VALUES (987654, 'citus', 10, 11, false, '14.0')"
        )
        saver = PGStateSaver(connection, schema="with_citus")
        with pytest.raises(TenantError, match="with Citus"):
            saver.setup(tenancy="rls")
        assert connection.execute("SELECT to_regnamespace('with_citus')").fetchone() == (None,)
        connection.rollback()


async def test_the_asynchronous_state_serves_tenants(walled: Walled, names: tuple[str, str]) -> None:
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=2) as state:
        for name in names:
            one = state.for_tenant(name)
            graph = one.record(loop_graph(1).compile(checkpointer=one.saver))
            for count in range(2):
                await graph.ainvoke({"count": count}, config_of("same"))
            await one.flush()
            assert [run.status for run in (await one.runs.list()).items] == ["success"] * 2
            assert [thread.thread_id for thread in (await one.threads.list()).items] == ["same"]
            await one.memory.aput(("facts",), "key", {"content": name})
        for name in names:
            item = await state.for_tenant(name).memory.aget(("facts",), "key")
            assert item is not None
            assert item.value == {"content": name}
        with pytest.raises(TenantError):
            await state.threads.list()


def test_a_callers_transaction_names_the_tenant(walled: Walled, names: tuple[str, str]) -> None:
    with psycopg.connect(walled.app) as connection, ExitStack() as stack:
        savers = [PGStateSaver(connection, schema=walled.schema, tenant=name) for name in names]
        connection.execute("SELECT 1")
        for saver in savers:
            saver.put(*put_arguments(config_of("inside"), 1, a=saver._database.tenant))
        found = [saver.get_tuple(config_of("inside")) for saver in savers]
        assert [one and one.checkpoint["channel_values"]["a"] for one in found] == [*names]
        connection.rollback()
        # Outside of a transaction each call is one.
        for saver in savers:
            assert saver.get_tuple(config_of("inside")) is None
            saver.put(*put_arguments(config_of("outside"), 1))
        state = stack.enter_context(walled.open(tenant=names[0]))
        state.runs.enqueue("agent", None, thread_id="later", connection=connection)
        connection.commit()
        assert [run.thread_id for run in state.runs.queued().items] == ["later"]
        assert sorted(thread.thread_id for thread in state.threads.list().items) == ["later", "outside"]
        with state._database.lend() as (lent, _):
            assert lent.execute("SELECT current_setting('pgstate.tenant')").fetchone() == (names[0],)
    with psycopg.connect(walled.app) as connection:
        # Nothing stays in the session.
        assert connection.execute("SELECT current_setting('pgstate.tenant', true)").fetchone() == (None,)


def test_runs_are_worked_on_for_their_tenant(walled: Walled, names: tuple[str, str]) -> None:
    def node(state: Any) -> dict[str, Any]:
        return {"count": state["count"] + 1}

    builder = loop_graph(1)
    with walled.open(pool=3) as state:
        handles = {}
        for name in names:
            one = state.for_tenant(name)
            handles[name] = one.runs.enqueue("agent", {"count": 0}, thread_id="same")
        with Worker(state.for_tenant(names[0]), {"agent": builder}, poll=0.1):
            handles[names[0]].wait(30)
        assert handles[names[0]].status() == "success"
        assert handles[names[1]].status() == "pending"
        assert state.for_tenant(names[1]).saver.get_tuple(config_of("same")) is None


@pytest.mark.slow
def test_maintenance_serves_tenant_after_tenant(walled: Walled, names: tuple[str, str]) -> None:
    with walled.open() as state:
        for name in names:
            one = state.for_tenant(name)
            graph = one.record(loop_graph(1).compile(checkpointer=one.saver))
            graph.invoke({"count": 0}, config_of("old"))
            one.flush()
            one.threads.expire("old", after=timedelta(0))
    walled.rows("UPDATE {}.threads SET updated_at = now() - interval '1 hour' WHERE thread_id = 'old'")
    walled.rows("UPDATE {}.runs SET started_at = now() - interval '1 hour' WHERE thread_id = 'old'")
    walled.rows("UPDATE {}.spans SET started_at = started_at - interval '4 years' WHERE thread_id = 'old'")
    strayed = walled.rows("SELECT count(*) FROM {}.spans_default")[0][0]
    assert strayed
    with PGState.open(walled.owner, schema=walled.schema) as state:
        report = state.maintain()
        assert len(report.months_made) == 1
        assert [(one.name, one.deleted) for one in report.policies] == [("ttl", 1)] * 2
        # The walls are as before.
        with pytest.raises(TenantError):
            state.threads.list()
    assert walled.rows("SELECT count(*) FROM {}.spans_default") == [(0,)]
    assert walled.rows("SELECT bool_and(relforcerowsecurity) FROM pg_class WHERE relname LIKE 'spans%' AND relkind IN "
        "('r', 'p') AND relnamespace = '{}'::regnamespace") == [(True,)]  # fmt: skip
    with walled.open(tenant=names[0]) as state:
        assert state.maintain().months_made == ()


@pytest.mark.slow
def test_a_month_stays_if_one_tenant_holds_a_thread_with_its_spans(walled: Walled, names: tuple[str, str]) -> None:
    """Guard: whoever drops it sees no tenant's holds, and a tenant may hold a thread after it was asked."""
    with walled.open() as state:
        for name in names:
            one = state.for_tenant(name)
            one.record(loop_graph(1).compile(checkpointer=one.saver)).invoke({"count": 0}, config_of("held"))
            one.flush()
        holder = state.for_tenant(names[1])
        holder.threads.hold("held", "case", by="eve")
        walled.rows("UPDATE {}.spans SET started_at = '2021-01-31 12:00Z' WHERE thread_id = 'held'")
        with PGState.open(walled.owner, schema=walled.schema) as owner:
            # The first call makes a partition of what has strayed.
            owner.maintain()
            assert "2021_01" not in owner.maintain(drop_older_than=1).months_dropped
            holder.threads.release("held", "case", by="eve")
            holder.threads.hold("held", "later", by="eve")
            # Whoever drops it has asked the tenants before.
            assert owner._database.run(drop_months, queries(walled.schema), ["2021_01"]) == []
            with pytest.raises(TenantError):
                owner.threads.list()
            with walled.open() as nobodys, pytest.raises(TenantError):
                nobodys.spans.list("held")
            holder.threads.release("held", "later", by="eve")
            assert "2021_01" in owner.maintain(drop_older_than=1).months_dropped


def test_a_notification_names_no_run(walled: Walled) -> None:
    assert wake_key(None, "run") == "run"
    keys = {wake_key(tenant, "run") for tenant in ("a", "b")}
    assert len(keys) == 2
    assert not any("run" in key for key in keys)
