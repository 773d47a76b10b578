"""Limits of queues and keys: kept by racing claims of two processes, fair, and cheap for what is below them."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import psycopg
import pytest
from support import FORK, GUARD_SECONDS
from support.queue import Queue

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.runs import claiming
from langgraph_pgstate.runs.queue import list_limits, put_limit, request_limit
from langgraph_pgstate.runs.types import Claims, QueueLimit, Rate, RunKey

WAITING = 10_000


class Limited(Queue):
    """A queue whose claims open keys first, as a worker's do."""

    def limit(self, queue: str = "default", key: str | None = None, **limit: Any) -> None:
        self.do(put_limit, request_limit(queue, key, limit.get("concurrency"), limit.get("rate")))

    def open(self, queue: str = "default") -> None:
        self.do(claiming.open_keys, queue, ["graph"])

    def claims(self, limit: int = 10, **options: Any) -> Claims:
        found: Claims = self.do(claiming.claim, self.worker_id, "default", ("graph",), limit, 60.0, **options)
        return found

    def opened(self, limit: int = 10) -> list[str]:
        """The threads of runs that are claimed after the keys have been opened."""
        self.open()
        return [run.thread_id for run in self.claim(limit)]


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Limited:
    return Limited(connection, schema)


def test_the_queue_has_no_more_running_runs_than_its_limit(queue: Limited) -> None:
    for number in range(5):
        queue.add(f"t{number}")
    queue.limit(concurrency=2)
    first, _ = queue.claim()
    assert queue.claim() == []
    queue.finish(first)
    assert [run.thread_id for run in queue.claim()] == ["t2"]
    queue.limit(concurrency=None)
    assert [run.thread_id for run in queue.claim()] == ["t3", "t4"]
    queue.check()


def test_a_key_has_no_more_running_runs_than_its_limit(queue: Limited) -> None:
    queue.limit(key="*", concurrency=1)
    queue.limit(key="big", concurrency=2)
    for number in range(3):
        for key in ("a", "b", "big", ""):
            queue.add(f"{key}{number}", key=key)
    claimed = queue.claim(20)
    assert Counter(run.queue_key for run in claimed) == {"a": 1, "b": 1, "big": 2, "": 3}
    assert queue.claim() == []
    a0 = next(run for run in claimed if run.thread_id == "a0")
    queue.finish(a0)
    assert queue.claim() == []
    assert queue.opened() == ["a1"]
    assert queue.opened() == []
    queue.check()


def test_runs_of_a_key_are_run_in_order_also_while_they_wait_for_its_limit(queue: Limited) -> None:
    queue.limit(key="k", concurrency=1)
    for number in range(4):
        queue.add(f"t{number}", key="k")
    order = []
    for number in range(4, 8):
        (run,) = queue.claim()
        order.append(run.thread_id)
        queue.add(f"t{number}", key="k", priority=int(number == 7))
        queue.finish(run)
        queue.open()
    while claimed := queue.claim():
        order.append(claimed[0].thread_id)
        queue.finish(claimed[0])
        queue.open()
    assert order == ["t0", "t1", "t2", "t3", "t7", "t4", "t5", "t6"]


def test_nothing_is_claimed_under_a_limit_of_zero(queue: Limited) -> None:
    queue.limit(concurrency=0)
    queue.add("t")
    assert queue.claim() == []
    queue.limit(concurrency=1)
    assert len(queue.claim()) == 1


def test_a_rate_lets_so_many_runs_begin_in_its_time(queue: Limited) -> None:
    queue.limit(key="*", rate=Rate(2, per=1000))
    queue.limit(rate=Rate(3, per=1000))
    for number in range(3):
        queue.add(f"a{number}", key="a")
        queue.add(f"b{number}", key="b")
    claimed = [run.thread_id for run in queue.claim(3)]
    assert sorted(claimed) == ["a0", "a1", "b0"]
    assert queue.opened() == []
    queue.execute("UPDATE {}.queue_keys SET window_started_at = window_started_at - interval '1001 s' WHERE key = ''")
    # The queue's time has passed, that of `a` has not.
    assert queue.opened() == ["b1"]
    queue.execute("UPDATE {}.queue_keys SET window_started_at = window_started_at - interval '1001 s'")
    assert sorted(queue.opened()) == ["a2", "b2"]
    assert queue.opened() == []


def test_queues_share_no_limits(queue: Limited) -> None:
    for name, many in (("other", 1), ("default", 2)):
        queue.limit(name, concurrency=many + 1, rate=Rate(many + 1, per=1000))
        queue.limit(name, "*", concurrency=many, rate=Rate(many, per=1000))
    for name in ("other", "default", "free"):
        for key in ("a", "b"):
            for number in range(3):
                queue.add(f"{name} {key}{number}", key=key, queue=name)

    def finish(name: str) -> None:
        running = "SELECT thread_id, run_id, fencing_token FROM {}.queue WHERE queue = %s AND status = 'running'"
        for run in queue.execute(running, name):
            queue.finish(RunKey(*run))

    assert sorted(run.thread_id for run in queue.claim(3, "other")) == ["other a0", "other b0"]
    assert sorted(run.thread_id for run in queue.claim(3)) == ["default a0", "default a1", "default b0"]
    queue.claim(3, "other")
    assert queue.opened() == []
    finish("default")
    queue.execute("UPDATE {}.queue_keys SET window_started_at = now() - interval '1001 s' WHERE queue = 'default'")
    assert sorted(queue.opened()) == ["default a2", "default b1", "default b2"]
    finish("other")
    queue.open("other")
    assert queue.claim(9, "other") == []
    for has_limits in (False, True):
        found = queue.do(claiming.claim, "worker", "free", ["graph"], 3, 60.0, has_limits=has_limits)
        assert (len(found.runs), found.has_limits, found.has_waiting, found.has_suspects) == (3, False, False, False)
    queue.check()


def test_keys_are_opened_whatever_other_queues_do(queue: Limited) -> None:
    for name, many in (("other", 1), ("default", 2)):
        queue.limit(name, "*", concurrency=many, rate=Rate(2 * many, per=1000))
        for number in range(5):
            queue.add(f"{name}{number}", key="k", queue=name)
    limited = "SELECT queue, count(*) FROM {}.queue WHERE is_limited GROUP BY 1 ORDER BY 1"
    (other,) = queue.claim(9, "other")
    assert other.thread_id == "other0"
    first = queue.claim()
    assert [run.thread_id for run in first] == ["default0", "default1"]
    assert queue.execute(limited) == [("default", 3), ("other", 4)]
    for run in (other, *first):
        queue.finish(run)
    # A run of the other queue that may be claimed uses up no limit of this one.
    queue.open("other")
    queue.open()
    second = queue.claim()
    assert [run.thread_id for run in second] == ["default2", "default3"]
    for run in second:
        queue.finish(run)
    # The time of the rate has not passed.
    queue.open()
    assert queue.execute(limited) == [("default", 1), ("other", 3)]


@pytest.mark.parametrize("key", [None, "*"])
def test_a_window_that_began_before_the_clock_was_set_back_ends_in_its_time(queue: Limited, key: str | None) -> None:
    queue.limit(key=key, rate=Rate(1, per=1000))
    for number in range(3):
        queue.add(f"t{number}", key="k")
    assert queue.opened() == ["t0"]
    queue.execute("UPDATE {}.queue_keys SET window_started_at = now() + interval '900 s'")
    assert queue.opened() == []
    queue.execute("UPDATE {}.queue_keys SET window_started_at = now() + interval '1 day'")
    assert queue.opened() == ["t1"]
    assert queue.opened() == []


@pytest.mark.parametrize("key", [None, "*"])
def test_a_run_whose_thread_is_held_elsewhere_uses_up_no_rate(queue: Limited, key: str | None) -> None:
    queue.limit(key=key, rate=Rate(3, per=1000))
    queue.add("held", key="k")
    queue.do(leases.take, "held", "somebody", 60.0)
    for _ in range(4):
        assert queue.opened() == []
        queue.wake()
        queue.make_due()
    for number in range(4):
        queue.add(f"t{number}", key="k")
    assert queue.opened() == ["t0", "t1", "t2"]


def test_a_run_that_waits_for_a_limit_is_claimed_when_there_is_none_any_more(queue: Limited) -> None:
    queue.limit(key="k", concurrency=0)
    queue.add("t", key="k")
    assert queue.claims(has_limits=False) == Claims([], True, True, False, False)
    queue.limit(key="k", concurrency=None)
    assert queue.claims().has_limits, "one run still waits"
    assert queue.opened() == ["t"]
    assert not queue.claims(has_limits=True).has_limits


def test_a_cancelled_run_of_a_limited_key_leaves_the_queue(queue: Limited) -> None:
    queue.limit(key="k", concurrency=1)
    ids = [queue.add(f"t{number}", key="k") for number in range(3)]
    (run,) = queue.claim()
    assert queue.cancel("t1", ids[1]) == "cancelled"
    queue.finish(run)
    assert queue.opened() == ["t2"]


def test_the_runs_of_a_dead_worker_do_not_count(queue: Limited) -> None:
    queue.limit(concurrency=1)
    queue.limit(key="k", concurrency=1)
    queue.add("t0", key="k")
    queue.add("t1", key="k")
    (run,) = queue.claim()
    assert queue.opened() == []
    queue.expire(run)
    queue.recover()
    assert queue.opened() == ["t0"]


@pytest.mark.parametrize("other", [{"version": "old"}, {"graph": "other"}])
@pytest.mark.parametrize("opens_ended", [True, False])
def test_a_run_that_no_worker_accepts_keeps_no_other_of_its_key_waiting(
    queue: Limited, other: dict[str, str], opens_ended: bool
) -> None:
    queue.limit(key="*", concurrency=1)
    queue.add("t0", key="k")
    (run,) = queue.claim()
    queue.add("left", key="k", **other)
    queue.add("t1", key="k")
    assert queue.claim() == []
    queue.finish(run)
    if opens_ended:
        found = [run.thread_id for run in queue.claims(has_limits=True, ended=["k"]).runs]
    else:
        found = queue.opened()
    assert found == ["t1"]
    queue.check()


def test_a_single_run_waits_for_one_run_of_a_key_with_many(queue: Limited) -> None:
    queue.limit(key="*", concurrency=2)
    for number in range(20):
        queue.add(f"many{number}", key="many")
    first = queue.claim()
    queue.add("single", key="single")
    queue.finish(first[0])
    queue.open()
    assert "single" in [run.thread_id for run in queue.claim(2)]


@pytest.mark.slow
def test_a_claim_does_not_read_the_runs_that_wait_for_a_limit(queue: Limited) -> None:
    queue.limit(key="*", concurrency=1)
    queue.execute(
        "INSERT INTO {}.queue (thread_id, run_id, queue, graph, is_ready, number, position, key)"
        " SELECT 'big' || i, 'r' || i, 'default', 'graph', true, 0, i, 'big' FROM generate_series(1, %s) AS i",
        WAITING,
    )
    for _ in range(WAITING // 1000 + 1):
        queue.claim(1)
    ((aside,),) = queue.execute("SELECT count(*) FROM {}.queue WHERE is_limited")
    assert aside == WAITING - 1
    queue.execute("ANALYZE {}.queue")
    queue.add("later", key="big")
    assert queue.execute("SELECT is_limited FROM {}.queue WHERE thread_id = 'later'") == [(True,)]
    queue.add("other", key="other")
    pages = queue.explain(
        "claim_limited_runs",
        {
            "worker_id": "w",
            "queue": "default",
            "graphs": "{graph}",
            "versions": '{""}',
            "limit": 10,
            "ttl": "60",
            "suspects": "false",
            "lock_timeout": "1s",
        },
    )
    assert pages < 150
    assert queue.explain("find_limited_keys", {"queue": "default", "cursor_key": "", "page_size": 200}) < 20
    accepted = {"graphs": "{graph}", "versions": '{""}'}
    assert queue.explain("open_keys", {"queue": "default", "keys": "{big,other}", "page_size": 1000, **accepted}) < 200
    assert queue.opened() == ["other"]


@pytest.mark.slow
def test_limits_are_listed_with_what_they_let_run_and_wait(queue: Limited) -> None:
    queue.limit(concurrency=5)
    queue.limit(key="*", rate=Rate(1, per=60))
    queue.limit(key="k", concurrency=1)
    for number in range(3):
        queue.add(f"k{number}", key="k")
        queue.add(f"o{number}", key="o")
    queue.claim()
    assert queue.do(list_limits) == [
        QueueLimit("default", None, 5, None, 2, 0),
        QueueLimit("default", "*", None, Rate(1, 60.0), 1, 2),
        QueueLimit("default", "k", 1, None, 1, 2),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("", None, 1, None),
        ("q", "", 1, None),
        ("q", None, -1, None),
        ("q", None, True, None),
        ("q", None, 2**31, None),
        ("q", None, None, 5),
    ],
)
def test_an_unusable_limit_is_refused(arguments: Any) -> None:
    with pytest.raises((ConfigurationError, ArgumentTypeError)):
        request_limit(*arguments)


@pytest.mark.parametrize("arguments", [(0,), (True,), (1.5,), (1, 0), (1, "1"), (1, float("inf"))])
def test_an_unusable_rate_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        Rate(*arguments)


@pytest.mark.slow
def test_racing_claims_of_several_processes_keep_all_limits(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Four processes claim and end runs; a row for each count that they have seen above a limit."""
    runs, keys = 240, 4
    queue = Limited(connection, schema)
    queue.limit(concurrency=6)
    queue.limit(key="*", concurrency=2)
    for number in range(runs):
        queue.add(f"t{number}", key=f"k{number % keys}" if number % 5 else "")

    def work(name: int) -> None:
        rng = random.Random(name)
        with psycopg.connect(dsn, autocommit=True) as own:
            mine = Limited(own, schema, f"worker {name}")
            until = time.monotonic() + GUARD_SECONDS
            while time.monotonic() < until:
                found = mine.claims(rng.randint(1, 4), has_limits=rng.random() < 0.5)
                over = mine.execute(
                    "SELECT count(*) FROM {0}.queue WHERE status = 'running' HAVING count(*) > 6 UNION ALL"
                    " SELECT count(*) FROM {0}.queue WHERE status = 'running' AND key <> '' GROUP BY key"
                    " HAVING count(*) > 2"
                )
                if over:
                    mine.execute("UPDATE {}.threads SET title = 'over' WHERE thread_id = 't0'")
                for run in found.runs:
                    (mine.give_back if rng.random() < 0.2 else mine.finish)(run)
                mine.open()
                if not found.runs and mine.execute("SELECT count(*) FROM {}.queue") == [(0,)]:
                    return

    processes = [FORK.Process(target=work, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(GUARD_SECONDS + 10)
    assert [process.exitcode for process in processes] == [0] * 4
    assert queue.execute("SELECT title FROM {}.threads WHERE thread_id = 't0'") == [(None,)]
    assert queue.execute("SELECT status, count(*) FROM {}.runs GROUP BY status") == [("success", runs)]
