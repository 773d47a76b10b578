"""Workers that are killed, stopped, drained and restarted, as processes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from support import GUARD_SECONDS, Restartable, loop_graph, wait_until
from support.queue import Queue
from support.worker import STEPS, WORKERS, Place, enqueue, kill, runs, stop, wait_for_ends, worker

from langgraph_pgstate import PGState
from tests.db.test_database import Bouncer, bouncer_version


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where the processes of a test meet."""
    return Place(tmp_path)


def begun(place: Place) -> dict[str, int]:
    """How many times each superstep began."""
    return dict(Counter(note for note, _ in place.notes() if note.startswith("begin")))


def once(*again: int) -> dict[str, int]:
    """Each superstep once, and some of them twice."""
    return {f"begin step {count}": 2 if count in again else 1 for count in range(STEPS)}


def stored(state: PGState, thread_id: str) -> int:
    """The number of supersteps in a thread's newest checkpoint."""
    found = state.saver.get_tuple({"configurable": {"thread_id": thread_id}})
    return 0 if found is None else int(found.checkpoint["channel_values"].get("count", 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_run_whose_worker_is_killed_is_finished_by_another(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    graphs = {"agent": place.graph()}
    place.hold("step 2")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs) as first:
        enqueue(state, thread_id="t")
        place.wait_for("begin step 2")
        wait_until(lambda: stored(state, "t") == 2, "the checkpoint before")
        kill(first)
        place.release("step 2")
        with worker(kind, dsn, schema, graphs):
            wait_for_ends(connection, schema)
        assert runs(connection, schema) == [("t", "success", 2)]
        assert stored(state, "t") == STEPS
    assert begun(place) == once(2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_run_that_has_stored_nothing_starts_from_its_input(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    graphs = {"agent": place.graph()}
    place.hold("step 1")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs) as first:
        enqueue(state, thread_id="t", durability="exit")
        place.wait_for("begin step 1")
        kill(first)
        place.release("step 1")
        with worker(kind, dsn, schema, graphs):
            wait_for_ends(connection, schema)
        assert runs(connection, schema) == [("t", "success", 2)]
        assert stored(state, "t") == STEPS
    assert begun(place) == once(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_that_was_stopped_past_its_lease_writes_and_ends_nothing(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    graphs = {"agent": place.graph()}
    place.hold("step 2")
    # On a busy machine a worker renews its leases seconds late.
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs, lease_ttl=4.0) as first:
        enqueue(state, thread_id="t")
        place.wait_for("begin step 2")
        wait_until(lambda: stored(state, "t") == 2, "the checkpoint before")
        stop(first)
        place.hold("step 3")
        place.release("step 2")
        with worker(kind, dsn, schema, graphs):
            other = place.wait_for("begin step 3")
            assert other != first.pid
            wait_until(lambda: stored(state, "t") == 3, "the checkpoint before")
            os.kill(first.pid or 0, signal.SIGCONT)
            # It goes on in the node in which it was stopped, and may begin no other.
            place.wait_for("end step 2", 2)
            head = connection.execute(f"SELECT max(checkpoint_id) FROM {schema}.checkpoints".encode()).fetchone()
            time.sleep(0.5)
            assert (
                head == connection.execute(f"SELECT max(checkpoint_id) FROM {schema}.checkpoints".encode()).fetchone()
            )
            assert runs(connection, schema) == [("t", "running", 2)]
            place.release("step 3")
            wait_for_ends(connection, schema)
            assert first.is_alive()
        assert runs(connection, schema) == [("t", "success", 2)]
        writes = f"SELECT count(*) FROM {schema}.checkpoints WHERE thread_id = 't'".encode()
        assert connection.execute(writes).fetchone() == (STEPS + 2,)
        # It has noticed, and works on.
        enqueue(state, thread_id="u")
        wait_for_ends(connection, schema)
        assert runs(connection, schema)[1] == ("u", "success", 1)
    assert {note for note, pid in place.notes() if pid == first.pid} >= {"end step 2"}
    assert begun(place)["begin step 2"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_drained_run_goes_on_elsewhere_at_once(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """It does not wait until the lease expires."""
    graphs = {"agent": place.graph()}
    place.hold("step 1")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs, lease_ttl=600.0) as first:
        enqueue(state, thread_id="t")
        place.wait_for("begin step 1")
        with worker(kind, dsn, schema, graphs, concurrency=1) as second:
            # It is ready as soon as it has run something.
            enqueue(state, "agent", {"count": STEPS - 1}, thread_id="other")
            place.wait_for(f"end step {STEPS - 1}")
            os.kill(first.pid or 0, signal.SIGTERM)
            time.sleep(0.2)
            assert first.is_alive()
            place.release("step 1")
            assert place.wait_for("begin step 2") == second.pid
            first.join(GUARD_SECONDS)
            assert first.exitcode == 0
            wait_for_ends(connection, schema)
        assert ("t", "success", 1) in runs(connection, schema)
        workers = f"SELECT count(*) FROM {schema}.workers".encode()
        assert connection.execute(workers).fetchone() == (1,)
    assert begun(place) == {**once(), f"begin step {STEPS - 1}": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_run_that_does_not_drain_in_time_is_repeated_elsewhere(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    graphs = {"agent": place.graph()}
    place.hold("step 1")
    with PGState.open(dsn, schema=schema) as state:
        enqueue(state, thread_id="t")
        with worker(kind, dsn, schema, graphs, drain_timeout=0.3) as first:
            place.wait_for("begin step 1")
            os.kill(first.pid or 0, signal.SIGTERM)
            first.join(GUARD_SECONDS)
            assert first.exitcode == 0
        assert runs(connection, schema) == [("t", "pending", 0)]
        place.release("step 1")
        with worker(kind, dsn, schema, graphs):
            wait_for_ends(connection, schema)
        assert runs(connection, schema) == [("t", "success", 1)]
    assert begun(place) == once(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_second_signal_does_not_wait(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    place.hold("step 1")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, {"agent": place.graph()}) as first:
        enqueue(state, thread_id="t")
        place.wait_for("begin step 1")
        # Two that come close upon each other may be one.
        while first.is_alive():
            os.kill(first.pid or 0, signal.SIGINT)
            first.join(1.0)
        assert first.exitcode == 130
        assert runs(connection, schema) == [("t", "pending", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_run_that_kills_its_workers_becomes_a_dead_letter_and_blocks_nobody(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def kill(state: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    killer = StateGraph(dict)
    killer.add_node("kill", kill)
    killer.add_edge(START, "kill")
    graphs = {"killer": killer, "agent": place.graph()}
    deaths = 0
    with PGState.open(dsn, schema=schema) as state:
        enqueue(state, "killer", {}, thread_id="k")
        enqueue(state, thread_id="t")
        while connection.execute(f"SELECT 1 FROM {schema}.queue".encode()).fetchall():
            with worker(kind, dsn, schema, graphs, "run_until_idle", max_crashes=3, concurrency=1) as process:
                process.join(GUARD_SECONDS)
                deaths += process.exitcode == -signal.SIGKILL
            assert deaths <= 9
        error = state.runs.list(thread_id="k").items[0]
        # Those that have stored a checkpoint made progress.
        assert deaths >= 3
        assert (error.status, error.error_type) == ("error", "WorkerDied")
        assert runs(connection, schema)[1] == ("t", "success", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_what_a_worker_writes_late_of_a_run_that_it_lost_changes_nothing(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def told() -> list[Any]:
        found = []
        for query in (
            "SELECT to_jsonb(r) FROM {}.runs r WHERE thread_id = 't'",
            "SELECT to_jsonb(t) - 'updated_at' FROM {}.threads t WHERE thread_id = 't'",
            "SELECT run FROM {}.webhooks WHERE thread_id = 't'",
            "SELECT to_jsonb(e) FROM {}.events e WHERE thread_id = 't' ORDER BY event_id",
            "SELECT thread_id, run_id, last_seq FROM {}.stream_batches WHERE thread_id = 't' ORDER BY 3",
        ):
            found.append(connection.execute(query.replace("{}", schema).encode()).fetchall())
        return found

    graphs = {"agent": place.graph()}
    place.hold("step 2")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs, lease_ttl=1.0) as first:
        run = enqueue(state, thread_id="t", webhook="https://example.invalid/")
        place.wait_for("begin step 2")
        wait_until(lambda: stored(state, "t") == 2, "the checkpoint before")
        stop(first)
        place.release("step 2")
        with worker(kind, dsn, schema, graphs) as other:
            wait_for_ends(connection, schema)
            found = lambda: state.runs.get("t", run.run_id) or run  # noqa: E731
            wait_until(lambda: found().steps >= 2, "the run's record")
            stop(other)
            before = told()
            os.kill(first.pid or 0, signal.SIGCONT)
            # It has noticed, and has written what it had to write before it writes of this run.
            enqueue(state, thread_id="u").wait(GUARD_SECONDS)
            wait_until(lambda: bool(state.runs.list(thread_id="u").items[0].steps), "its record")
            time.sleep(1)
            assert told() == before
    assert place.notes()[-1][1] == first.pid


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_run_that_kills_its_workers_takes_no_neighbours_into_the_dead_letters(
    kind: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def kill(state: Any) -> Any:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    def rest(state: Any) -> Any:
        time.sleep(0.5)
        return {}

    killer, harmless = StateGraph(dict), StateGraph(dict)
    killer.add_node("kill", kill)
    killer.add_edge(START, "kill")
    harmless.add_node("rest", rest)
    harmless.add_edge(START, "rest")
    graphs = {"killer": killer, "harmless": harmless}
    with PGState.open(dsn, schema=schema) as state:
        for number in range(4):
            enqueue(state, "harmless", {}, thread_id=f"a{number}")
        enqueue(state, "killer", {}, thread_id="k")
        for number in range(4):
            enqueue(state, "harmless", {}, thread_id=f"b{number}")
        for _ in range(12):
            with worker(kind, dsn, schema, graphs, "run_until_idle", concurrency=20, lease_ttl=1) as process:
                process.join(GUARD_SECONDS)
            if not connection.execute(f"SELECT 1 FROM {schema}.queue".encode()).fetchall():
                break
    found = {thread: status for thread, status, _ in runs(connection, schema)}
    assert found.pop("k") == "error"
    assert len(found) == 8
    assert {*found.values()} == {"success"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_restart_of_the_server_in_the_middle_of_a_run(
    kind: type,
    place: Place,
    server: Restartable,
) -> None:
    schema = f"restart_{kind.__name__.lower()}"
    place.hold("step 2")
    with PGState.open(server.dsn, schema=schema) as state:
        state.setup()
        with worker(kind, server.dsn, schema, {"agent": place.graph()}):
            enqueue(state, thread_id="t")
            place.wait_for("begin step 2")
            server.stop()
            server.start()
            place.release("step 2")
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                wait_for_ends(connection, schema)
                assert runs(connection, schema) == [("t", "success", 1)]
    assert begun(place) == once()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_workers_fire_each_tick_once_also_over_a_restart_of_the_server(
    kind: type,
    server: Restartable,
) -> None:
    """Of a graph of theirs, and of one that nobody runs."""
    schema = f"scheduled_{kind.__name__.lower()}"

    def counts() -> list[tuple[Any, ...]]:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            return Queue(connection, schema).execute(
                "SELECT agent, status, count(*) FROM {}.runs GROUP BY 1, 2 ORDER BY 1, 2"
            )

    def due(seconds_ago: int) -> None:
        # A tick is known by its second, and the server restarts within one.
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            Queue(connection, schema).execute(
                "UPDATE {}.schedules SET next_at = date_trunc('second', now()) - make_interval(secs => %s)", seconds_ago
            )

    with PGState.open(server.dsn, schema=schema) as state:
        state.setup()
        graphs = {"agent": loop_graph(2)}
        for graph in ("agent", "none"):
            state.schedules.put(graph, graph, {"items": [], "count": 0}, cron="0 0 1 1 *")
        with worker(kind, server.dsn, schema, graphs) as first, worker(kind, server.dsn, schema, graphs) as second:
            due(5)
            wait_until(lambda: counts() == [("agent", "success", 1), ("none", "pending", 1)], "the first tick")
            server.stop()
            server.start()
            due(0)
            wait_until(lambda: counts() == [("agent", "success", 2), ("none", "pending", 2)], "the second tick")
            assert first.is_alive()
            assert second.is_alive()
        found = state.schedules.get("agent")
        assert found is not None
        assert found.next_at is not None
        assert found.next_at - datetime.now(UTC) < timedelta(days=367)


@pytest.mark.parametrize("kind", WORKERS)
def test_a_killed_worker_that_nobody_reaps_is_followed_by_another_after_its_lease(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    graphs, ttl = {"agent": place.graph()}, 1.5
    place.hold("step 1")
    with PGState.open(dsn, schema=schema) as state, worker(kind, dsn, schema, graphs, lease_ttl=ttl) as first:
        enqueue(state, thread_id="t")
        place.wait_for("begin step 1")
        with worker(kind, dsn, schema, graphs, lease_ttl=ttl):
            enqueue(state, "agent", {"count": STEPS - 1}, thread_id="other")
            place.wait_for(f"end step {STEPS - 1}")
            os.kill(first.pid or 0, signal.SIGKILL)
            place.wait_for("begin step 1", 2)
            # It is a zombie, which only the end of its lease tells from a process that lives.
            assert Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            place.release("step 1")
            wait_for_ends(connection, schema)
        assert ("t", "success", 2) in runs(connection, schema)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_workers_behind_pgbouncer_in_transaction_mode(
    kind: type, place: Place, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    if not bouncer_version():
        pytest.skip("PgBouncer is not installed")
    bouncer = Bouncer(dsn, tmp_path, prepared=0)
    graphs, opened = {"agent": place.graph()}, {"prepare_threshold": None}
    place.hold("step 2")
    try:
        with PGState.open(bouncer.dsn, schema=schema, **opened) as state:  # type: ignore[arg-type]
            with worker(kind, bouncer.dsn, schema, graphs, opened=opened) as first:
                killed = enqueue(state, thread_id="t")
                place.wait_for("begin step 2")
                wait_until(lambda: stored(state, "t") == 2, "the checkpoint before")
                kill(first)
            place.release("step 2")
            with worker(kind, bouncer.dsn, schema, graphs, opened=opened):
                others = [enqueue(state, thread_id=f"t{number % 3}") for number in range(12)]
                superseding = enqueue(state, thread_id="t0", multitask_strategy="interrupt")
                for run in (killed, superseding, *others[1::3], *others[2::3]):
                    assert run.wait(GUARD_SECONDS)["count"] == STEPS
                wait_for_ends(connection, schema)
    finally:
        bouncer.close()
