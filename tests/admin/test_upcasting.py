"""The job that brings stored checkpoints up to the state's version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.types import Command
from support.samples import checkpoint_of, config_of, id_of, message, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.admin.api import Admin
from tests.checkpoints.test_versions import (
    BIG,
    START_ONE,
    STEPS,
    Open,
    T,
    graph_one,
    graph_three,
    rename,
    states_of,
    versions_of,
)


@pytest.fixture
def open_saver(dsn: str, schema: str) -> Iterator[Open]:
    """Programs of different versions over the same tables; each has a memory of its own."""
    opened = []

    def open_saver(version: int | None = None, upcasters: Any = None, **options: Any) -> PGStateSaver:
        context = PGStateSaver.from_conn_string(
            dsn, schema=schema, state_version=version, upcasters=upcasters, pool=2, **options
        )
        saver = context.__enter__()
        opened.append(context)
        saver.setup()
        return saver

    yield open_saver
    for context in opened:
        context.__exit__(None, None, None)


# The job that brings everything up


@pytest.fixture
def admin(dsn: str, schema: str) -> Iterator[Admin]:
    with Admin.open(dsn, schema=schema) as admin:
        yield admin


def fill(saver: PGStateSaver) -> None:
    for name in ("a", "b", "c"):
        graph_one(saver).invoke(START_ONE, config_of(name))
    put_values(saver, config_of("d", "sub:1"), {"inner": [message(1)]})


def test_a_dry_run_tells_what_would_change(open_saver: Open, admin: Admin, connection: Any, schema: str) -> None:
    fill(open_saver())
    before = states_of(connection, schema)
    progress = []
    report = admin.upcast(3, STEPS, dry_run=True, progress=progress.append)
    assert states_of(connection, schema) == before
    assert (report.threads, report.outdated, report.upcast, report.dry_run) == (4, 10, 10, True)
    assert report.added == {"first": 6, "last": 6}
    assert report.removed == {"user": 6}
    assert report.changed == {"log": 6}
    assert report.problems == []
    assert [(item.threads, item.total) for item in progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert admin.upcast(3, STEPS, thread_ids=["a"], dry_run=True).outdated == 3


@pytest.mark.slow
def test_the_job_brings_everything_up(open_saver: Open, admin: Admin, connection: Any, schema: str) -> None:
    fill(open_saver())
    lazy = open_saver(3, STEPS)
    expected = {name: list(lazy.list(config_of(name))) for name in ("a", "b", "c", "d")}
    report = admin.upcast(3, STEPS)
    assert (report.outdated, report.upcast) == (10, 10)
    assert set(versions_of(connection, schema)) == {3}
    assert admin.check(deep=True).problems == []
    plain = open_saver(3)
    for name, items in expected.items():
        assert list(plain.list(config_of(name))) == items
    assert admin.upcast(3, STEPS).outdated == 0
    graph = graph_three(plain)
    assert graph.invoke(Command(resume="yes"), config_of("a"))["log"][-1] == {"text": "yes", "for": "Ada"}
    plain.prune(["a"])
    assert admin.check(deep=True).problems == []
    assert graph_three(open_saver(3)).get_state(config_of("a")).values["untouched"] == BIG


def test_a_checkpoint_that_cannot_be_brought_up_is_named_and_left(open_saver: Open, admin: Admin) -> None:
    old = open_saver()
    good, bad = put_values(old, config_of("good"), {"user": "Ada"}), put_values(old, config_of("bad"), {"user": 7})
    newer = put_values(open_saver(5), config_of("newer"), {"first": "x"})

    def up(values: dict[str, Any]) -> dict[str, Any]:
        return {"name": values["user"].title()}

    report = admin.upcast(2, {2: up})
    assert (report.outdated, report.upcast) == (3, 1)
    assert {problem.thread_id for problem in report.problems} == {"bad", "newer"}
    assert id_of(bad) in str(report.problems)
    assert id_of(newer) in str(report.problems)
    found = open_saver(2).get_tuple(good)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"name": "Ada"}
    assert old.get_tuple(bad) is not None


def test_the_job_leaves_alone_what_is_written_in_the_meantime(
    open_saver: Open, admin: Admin, connection: Any, schema: str
) -> None:
    config = put_values(open_saver(), T, {"user": "Ada", "log": ["a" * 200] * 20})
    other = open_saver(2, {2: rename})

    def interfering(values: dict[str, Any]) -> dict[str, Any]:
        # Between reading and writing, the checkpoint is written again by somebody else.
        changed = {"name": "Grace", "log": [{"text": "theirs"}]}
        other.put(
            config_of("t"),
            checkpoint_of(changed, id=id_of(config)),
            {"source": "loop", "step": 0},
            dict.fromkeys(changed, f"{1:032}.{1:016}"),
        )  # type: ignore[arg-type]
        return rename(values)

    report = admin.upcast(2, {2: interfering})
    assert (report.outdated, report.upcast) == (1, 0)
    found = open_saver(2).get_tuple(T)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"name": "Grace", "log": [{"text": "theirs"}]}
    row = connection.execute(
        f'SELECT count(*) FROM "{schema}".segments s WHERE NOT EXISTS '
        f'(SELECT 1 FROM "{schema}".checkpoints c WHERE s.segment_id = ANY(c.segment_ids))'
    ).fetchone()
    assert row == (0,)
