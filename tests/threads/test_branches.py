"""Labels and forks beside prunes and deletions, and what a lineage costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support import config_of, counted, put_arguments, usual, wait_until

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import Threads, branches
from tests.test_state import APIS, open_state
from tests.threads.test_branches_api import Rows, id_of


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    async with open_state(request.param, dsn, schema, project=("answers",)) as state:
        yield state


@pytest.fixture
def rows(connection: psycopg.Connection, schema: str) -> Rows:
    """What a query answers, with the schema on `search_path`."""

    def rows(query: str, *arguments: Any) -> list[Any]:
        with connection.transaction():
            connection.execute(f"SET LOCAL search_path = {schema}")
            return connection.execute(query.encode(), arguments).fetchall()

    return rows


def test_a_lineage_is_one_query(dsn: str, saver: PGStateSaver) -> None:
    config: Any = config_of("t")
    for step in range(30):
        config = saver.put(*put_arguments(config, step))
    with counted(dsn) as proxy, Database.open(proxy.dsn, schema=saver.schema, pool=False) as database:
        part = Threads(database, queries(saver.schema))
        for ask in (part.lineage, lambda _: part.branches("t")):
            trips = []
            for _ in range(5):
                before = proxy.count
                assert ask(config)
                trips.append(proxy.count - before)
            assert usual(trips) == 1


def test_a_label_waits_for_a_prune(dsn: str, saver: PGStateSaver, rows: Rows) -> None:
    """It is never given to a checkpoint that a prune has decided to remove; puts go on meanwhile."""
    config: Any = config_of("t")
    configs = [config := saver.put(*put_arguments(config, step)) for step in range(3)]
    with ThreadPoolExecutor(1) as other, Database.open(dsn, schema=saver.schema, pool=False) as database:
        with psycopg.connect(dsn) as prune:
            prune.execute(f"SELECT 1 FROM {saver.schema}.threads WHERE thread_id = 't' FOR KEY SHARE")
            late = other.submit(Threads(database, queries(saver.schema)).label, configs[0], "late")
            wait_until(lambda: late.done() or has_waiter(rows), "the label's wait")
            prune.execute(f"DELETE FROM {saver.schema}.checkpoints WHERE checkpoint_id = %s", [id_of(configs[0])])
            prune.commit()
        with pytest.raises(NotFoundError):
            late.result(30)
    assert rows("SELECT count(*) FROM labels") == [(0,)]


def test_a_prune_waits_for_a_label(dsn: str, saver: PGStateSaver, rows: Rows) -> None:
    config: Any = config_of("t")
    configs = [config := saver.put(*put_arguments(config, step)) for step in range(3)]
    with ThreadPoolExecutor(1) as other:
        with psycopg.connect(dsn) as label:
            label.execute(f"SELECT 1 FROM {saver.schema}.threads WHERE thread_id = 't' FOR UPDATE")
            prune = other.submit(saver.prune, ["t"])
            wait_until(lambda: prune.done() or has_waiter(rows), "the prune's wait")
            label.execute(
                f"INSERT INTO {saver.schema}.labels VALUES ('t', '', %s, 'in time', now())", [id_of(configs[0])]
            )
            label.commit()
        assert prune.result(30).checkpoints == 1
    assert rows("SELECT checkpoint_id FROM checkpoints ORDER BY 1") == [(id_of(configs[0]),), (id_of(configs[2]),)]


def test_a_deletion_of_runs_waits_for_a_label(dsn: str, saver: PGStateSaver, rows: Rows) -> None:
    """And takes it along."""
    put = put_arguments(config_of("t"), 0)
    config = saver.put(put[0], put[1], {**put[2], "run_id": "r"}, put[3])
    with ThreadPoolExecutor(1) as other:
        with psycopg.connect(dsn) as label:
            label.execute(f"SELECT 1 FROM {saver.schema}.threads WHERE thread_id = 't' FOR UPDATE")
            deletion = other.submit(saver.delete_for_runs, ["r"])
            wait_until(lambda: deletion.done() or has_waiter(rows), "the deletion's wait")
            label.execute(f"INSERT INTO {saver.schema}.labels VALUES ('t', '', %s, 'in time', now())", [id_of(config)])
            label.commit()
        deletion.result(30)
    assert rows("SELECT count(*) FROM labels") == [(0,)]
    assert rows("SELECT count(*) FROM checkpoints") == [(0,)]


def has_waiter(rows: Rows) -> bool:
    return bool(rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def test_a_fork_whose_answer_was_lost_is_the_same_when_it_is_tried_again(dsn: str, saver: PGStateSaver) -> None:
    """Although the source has gone on since."""
    config = saver.put(*put_arguments(config_of("t"), 0))
    request = branches.request_fork("t", None, "u")
    with Database.open(dsn, schema=saver.schema, pool=False) as database:
        known = queries(saver.schema)
        first = database.run(branches.fork_thread, known, ValueCodec(None), request)
        saver.put(*put_arguments(config, 1))
        assert database.run(branches.fork_thread, known, ValueCodec(None), request) == first


def test_two_forks_to_one_thread_never_mix(dsn: str, saver: PGStateSaver, rows: Rows) -> None:
    """The second waits for the first, and then finds a history there."""
    for name in ("t", "s"):
        saver.put(*put_arguments(config_of(name), 0))
    known, request = queries(saver.schema), branches.request_fork("s", None, "u")
    with ThreadPoolExecutor(1) as other, Database.open(dsn, schema=saver.schema, pool=False) as database:
        with psycopg.connect(dsn) as first:
            # A fork of the other thread that has begun, and not yet copied.
            first.execute(f"INSERT INTO {saver.schema}.threads (thread_id) VALUES ('u')")
            waiting = other.submit(database.run, branches.fork_thread, known, ValueCodec(None), request)
            wait_until(lambda: waiting.done() or has_waiter(rows), "the second's wait")
            first.execute(
                f"INSERT INTO {saver.schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, segment_ids, "
                "metadata, state) SELECT 'u', checkpoint_ns, checkpoint_id, segment_ids, metadata, state "
                f"FROM {saver.schema}.checkpoints WHERE thread_id = 't'"
            )
            first.commit()
        with pytest.raises(ConfigurationError, match="history of its own"):
            waiting.result(30)
    ours = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s"
    assert rows(ours, "u") == rows(ours, "t")
