"""One worker that serves many tenants, who share its executions and see nothing of each other."""

from __future__ import annotations

import re
import signal
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.request import urlopen

import psycopg
import pytest
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from support import FORK, GUARD_SECONDS, loop_graph, wait_until
from support.cli import Forked
from support.tenants import Walled, open_walled
from support.worker import WORKERS, Place, kill, work, worker

from langgraph_pgstate import (
    AsyncPGState,
    AsyncWorker,
    CallableMasterKey,
    Encryption,
    LocalMasterKey,
    PGState,
    Worker,
)
from langgraph_pgstate.db.tenants import NO_TENANT
from langgraph_pgstate.errors import RunFailedError, TenantError
from langgraph_pgstate.runs import ending
from langgraph_pgstate.runs.claiming import find_work
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.worker import lane as lane_module
from langgraph_pgstate.worker import run_state, tenants
from langgraph_pgstate.worker.executing import RunExecution, RunOutcome
from langgraph_pgstate.worker.lane import Lane
from langgraph_pgstate.worker.settings import WorkerSettings


@pytest.fixture
def walled(dsn: str) -> Iterator[Walled]:
    """A schema that keeps tenants apart."""
    with open_walled(dsn) as made:
        yield made


def config_of(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def telling() -> Any:
    """A graph that stores whose state executes it, in the state, the memory and the record."""

    def tell(state: dict[str, Any]) -> dict[str, Any]:
        mine = run_state()
        mine.memory.put(("found",), state["given"], {"tenant": mine.tenant})
        return {"given": state["given"], "tenant": mine.tenant}

    return StateGraph(dict).add_node(tell).add_edge(START, "tell").compile()


@pytest.mark.slow
def test_runs_of_many_tenants_with_the_same_ids_do_not_cross(walled: Walled) -> None:
    names = [f"t{number}" for number in range(12)]
    with walled.open(pool=4) as state:
        handles = {}
        for thread in ("a", "b", "c"):
            for name in names:
                given = {"given": f"{name}-{thread}"}
                one = state.for_tenant(name)
                handles[name, thread] = one.runs.enqueue("agent", given, thread_id=thread, run_id=f"run-{thread}")
        with Worker(state, {"agent": telling()}, concurrency=3):
            for (name, thread), handle in handles.items():
                assert handle.wait(GUARD_SECONDS)["__root__"] == {
                    "given": f"{name}-{thread}",
                    "tenant": name,
                }
        for name in names:
            one = state.for_tenant(name)
            assert {run.thread_id: run.status for run in one.runs.list().items} == dict.fromkeys("abc", "success")
            found = {item.key: item.value["tenant"] for item in one.memory.search(("found",))}
            assert found == {f"{name}-{thread}": name for thread in "abc"}
            assert {one.saver.get_tuple(config_of(thread)).checkpoint["channel_values"]["__root__"]["given"]
                for thread in "abc"} == {f"{name}-{thread}" for thread in "abc"}  # fmt: skip
        assert walled.rows("SELECT count(*) FROM {}.workers") == [(0,)]


@pytest.mark.slow
async def test_an_asynchronous_worker_serves_tenants(walled: Walled) -> None:
    async def tell(state: dict[str, Any]) -> dict[str, Any]:
        mine = run_state()
        await mine.memory.aput(("found",), "key", {"tenant": mine.tenant})
        return {"tenant": mine.tenant}

    graph = StateGraph(dict).add_node(tell).add_edge(START, "tell").compile()
    async with AsyncPGState.open(walled.app, schema=walled.schema, pool=3) as state:
        handles = {
            name: await state.for_tenant(name).runs.enqueue("agent", {}, thread_id="same") for name in ("x", "y", "z")
        }
        async with AsyncWorker(state, {"agent": graph}):
            for name, handle in handles.items():
                assert await handle.wait(GUARD_SECONDS) == {"__root__": {"tenant": name}}


@pytest.mark.slow
def test_a_tenant_that_is_new_is_served_by_notification(walled: Walled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "ROTATION_SECONDS", 1e9)
    with walled.open(pool=3) as state, Worker(state, {"agent": loop_graph(1)}, poll=0.05):
        for name in ("new", "newer"):
            for _ in range(2):
                handle = state.for_tenant(name).runs.enqueue("agent", {"count": 0})
                assert handle.wait(GUARD_SECONDS)["count"] == 1


@pytest.mark.slow
def test_a_tenant_without_a_notification_is_found_by_the_rotation(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "ROTATION_SECONDS", 0.2)
    monkeypatch.setattr(tenants.TenantLanes, "notice", lambda *_: None)
    with walled.open(pool=3) as state, Worker(state, {"agent": loop_graph(1)}, poll=0.05):
        for name in ("old", "new"):
            assert state.for_tenant(name).runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1


@pytest.mark.slow
def test_a_tenant_with_many_runs_does_not_keep_others_waiting(walled: Walled) -> None:
    order: list[str] = []

    def note(count: int) -> None:
        order.append(str(run_state().tenant))

    with walled.open(pool=3) as state:
        runs = state.for_tenant("many").runs
        many = [runs.enqueue("agent", {"count": 0}, thread_id=f"t{number}") for number in range(60)]
        for name in ("one", "two"):
            many.append(state.for_tenant(name).runs.enqueue("agent", {"count": 0}, thread_id="t0"))
        with Worker(state, {"agent": loop_graph(1, note)}, concurrency=2):
            for handle in many:
                handle.wait(GUARD_SECONDS)
    assert len(order) == 62
    assert max(order.index("one"), order.index("two")) < 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_a_killed_worker_is_followed_by_one_that_resumes_the_runs_of_each_tenant(
    walled: Walled, kind: type, tmp_path: Any
) -> None:
    place, names = Place(tmp_path), ["a", "b", "c"]
    place.hold("step 2")
    handles = {}
    with walled.open(pool=3) as state:
        for name in names:
            handles[name] = state.for_tenant(name).runs.enqueue(
                "agent", {"count": 0}, thread_id="same", durability="sync"
            )
        graphs = {"agent": place.graph(3)}
        with worker(kind, walled.app, walled.schema, graphs) as first:
            place.wait_for("begin step 2", 3)
            kill(first)
        place.release("step 2")
        with worker(kind, walled.app, walled.schema, graphs):
            for name in names:
                assert handles[name].wait(GUARD_SECONDS)["count"] == 3
    notes = [note for note, _ in place.notes()]
    assert notes.count("begin step 1") == 3
    assert notes.count("begin step 2") == 6


@pytest.mark.slow
def test_delayed_runs_and_schedules_of_tenants_without_runs_begin_at_their_time(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "ROTATION_SECONDS", 1e9)
    with walled.open(pool=3) as state:
        delayed = state.for_tenant("delayed").runs.enqueue("agent", {"count": 0}, run_after=timedelta(seconds=1))
        planned = state.for_tenant("planned")
        planned.schedules.put("tick", "agent", {"count": 0}, cron="0 0 1 1 *")
        walled.rows("UPDATE {}.schedules SET next_at = now() + interval '1 second'")
        with Worker(state, {"agent": loop_graph(1)}, poll=0.05):
            assert delayed.wait(GUARD_SECONDS)["count"] == 1
            wait_until(lambda: any(run.status == "success" for run in planned.runs.list().items), "the schedule's run")


@pytest.mark.slow
def test_runs_are_cancelled_and_given_back_in_each_tenant(walled: Walled) -> None:
    gate = threading.Event()
    begun = threading.Semaphore(0)

    def hold(count: int) -> None:
        begun.release()
        gate.wait(GUARD_SECONDS)

    with walled.open(pool=3) as state:
        handles = {name: state.for_tenant(name).runs.enqueue("agent", {"count": 0}, thread_id="t") for name in "ab"}
        with Worker(state, {"agent": loop_graph(2, hold)}, poll=0.05) as one:
            for _ in range(2):
                assert begun.acquire(timeout=GUARD_SECONDS)
            lanes = one._control._duties.lanes
            handles["a"].cancel()
            wait_until(lambda: any(run.stop == "cancel" for run in lanes["a"].executions.values()), "the cancel")
            threading.Timer(0.1, gate.set).start()
            one.stop()
        assert {name: handle.status() for name, handle in handles.items()} == {"a": "cancelled", "b": "pending"}


@pytest.mark.slow
def test_lanes_and_states_of_tenants_without_runs_are_closed(walled: Walled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_IDLE_SECONDS", 0.1)
    with walled.open(pool=3) as state, Worker(state, {"agent": loop_graph(1)}, poll=0.05) as one:
        for _ in range(2):
            for name in ("a", "b"):
                state.for_tenant(name).runs.enqueue("agent", {"count": 0}, stream_mode="values").wait(GUARD_SECONDS)
            wait_until(lambda: not one._control._duties.lanes and not one._parts, "the end of the lanes")
            wait_until(lambda: len(one._writer._members) == 1, "the end of the writers")
        assert walled.rows("SELECT count(*) FROM {}.workers") == [(0,)]


@pytest.mark.slow
def test_a_tenant_cannot_drain_the_worker_of_all(walled: Walled) -> None:
    gate = threading.Event()
    graphs = {"agent": loop_graph(1, lambda _: gate.wait(GUARD_SECONDS))}
    with walled.open(pool=3) as state, Worker(state, graphs, lease_ttl=0.8) as one:
        eve, bob = state.for_tenant("eve"), state.for_tenant("bob")
        run = eve.runs.enqueue("agent", {"count": 0})
        wait_until(lambda: bool(walled.rows("SELECT 1 FROM {}.workers")), "the worker")
        assert eve.runs.drain(one.worker_id)
        # With the request, the worker would not be chosen for runs that must be alone.
        wait_until(lambda: walled.rows("SELECT drain_asked_at FROM {}.workers") == [(None,)], "the end of the request")
        gate.set()
        assert run.wait(GUARD_SECONDS)["count"] == 1
        assert bob.runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1


@pytest.mark.slow
def test_what_a_run_that_deletes_its_thread_leaves_is_deleted_without_other_runs_of_the_tenant(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_OUTLIVING_SECONDS", 1.0)
    monkeypatch.setattr(tenants, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(tenants, "ROTATION_SECONDS", 0.2)
    with walled.open(pool=3) as state:
        with Worker(state, {"agent": loop_graph(1)}, poll=0.05):
            options: Any = {"thread_id": "t", "on_completion": "delete", "stream_mode": "values"}
            state.for_tenant("acme").runs.enqueue("agent", {"count": 0}, **options).wait(GUARD_SECONDS)
            wait_until(lambda: walled.rows("SELECT 1 FROM {}.runs") == [], "the deletion of the run")
            assert walled.rows("SELECT 1 FROM {}.stream_batches") == []
            monkeypatch.setattr(ending, "_OUTLIVING_SECONDS", 0.0)
            state.for_tenant("acme").runs.enqueue("agent", {"count": 0}, **options | {"thread_id": "held"}).wait()
        # What is held is no work for a worker.
        columns = "pgstate_tenant, thread_id, reason, held_by"
        walled.rows(f"INSERT INTO {{}}.holds ({columns}) VALUES ('acme', 'held', 'x', 'y')")
        assert state._database.run(find_work, queries(walled.schema), ["acme"], ["default"], ["agent"]) == []


@pytest.mark.slow
def test_a_run_that_must_be_alone_is_alone_among_all_tenants(walled: Walled) -> None:
    begun, gate = threading.Event(), threading.Event()
    running: set[str] = set()
    beside: list[set[str]] = []

    def note(count: int) -> None:
        name = str(run_state().tenant)
        running.add(name)
        if name == "suspect":
            beside.append({*running})
        begun.set()
        gate.wait(GUARD_SECONDS)
        running.discard(name)

    with walled.open(pool=3) as state, Worker(state, {"agent": loop_graph(1, note)}, concurrency=4, poll=0.05) as one:
        first = state.for_tenant("first").runs.enqueue("agent", {"count": 0})
        assert begun.wait(GUARD_SECONDS)
        with psycopg.connect(walled.server) as connection:
            # As the sweep of a dead worker leaves it.
            suspect = state.for_tenant("suspect").runs.enqueue(
                "agent", {"count": 0}, run_after=timedelta(days=1), thread_id="t"
            )
            statement = f"UPDATE {walled.schema}.queue SET is_suspect = true, run_after = now() WHERE thread_id = 't'"
            connection.execute(statement.encode())
        state.for_tenant("suspect").runs.enqueue("agent", {"count": 0}, thread_id="another")
        duties = one._control._duties
        wait_until(lambda: duties.alone is not None or bool(beside), "the choice of the worker")
        # No other tenant begins a run before.
        later = state.for_tenant("later").runs.enqueue("agent", {"count": 0})
        seen = "SELECT seen_at FROM {}.workers WHERE pgstate_tenant = 'suspect'"
        before = walled.rows(seen)
        # Guard: after ten seconds, the worker would not be chosen any more.
        wait_until(lambda: walled.rows(seen) > before, "that the worker is seen for the tenant that waits")
        assert later.status() == "pending"
        gate.set()
        for handle in (first, suspect, later):
            assert handle.wait(GUARD_SECONDS)["count"] == 1
    assert beside[0] == {"suspect"}


@pytest.mark.slow
def test_stores_that_tenants_would_share_are_refused(walled: Walled) -> None:
    graph = StateGraph(dict).add_node("one", lambda _: {}).add_edge(START, "one").compile(store=InMemoryStore())
    with walled.open() as state, pytest.raises(TenantError, match="graph 'agent' must be"), ExitStack() as stack:
        stack.enter_context(Worker(state, {"agent": graph}))


@pytest.mark.slow
def test_a_factory_gives_no_tenant_the_store_of_others(walled: Walled) -> None:
    shared, seen = InMemoryStore(), []

    def tell(_: dict[str, Any]) -> dict[str, Any]:
        seen.append(type(get_store()).__name__)
        get_store().put(("found",), "key", {"tenant": run_state().tenant})
        return {}

    builder = StateGraph(dict).add_node(tell).add_edge(START, "tell")
    graphs: dict[str, Any] = {
        "shared": lambda _: builder.compile(store=shared),
        "own": lambda _: builder.compile(store=run_state().memory),
    }
    with walled.open(pool=3) as state, Worker(state, graphs, poll=0.05):
        runs = state.for_tenant("acme").runs
        with pytest.raises(RunFailedError, match="InMemoryStore"):
            runs.enqueue("shared", {}).wait(GUARD_SECONDS)
        runs.enqueue("own", {}).wait(GUARD_SECONDS)
        item = state.for_tenant("acme").memory.get(("found",), "key")
        assert item is not None
        assert item.value == {"tenant": "acme"}
    assert seen == ["PGMemoryStore"]


@pytest.mark.slow
def test_the_state_s_memory_is_that_of_the_tenant(walled: Walled) -> None:
    def put(state: dict[str, Any]) -> dict[str, Any]:
        get_store().put(("found",), "key", {"by": state["by"]})
        return {}

    with walled.open(pool=3) as state:
        graph = StateGraph(dict).add_node(put).add_edge(START, "put").compile(store=state.memory)
        with Worker(state, {"agent": graph}):
            for name in "ab":
                state.for_tenant(name).runs.enqueue("agent", {"by": name}).wait(GUARD_SECONDS)
        for name in "ab":
            assert state.for_tenant(name).memory.get(("found",), "key").value == {"by": name}


@pytest.mark.slow
def test_only_roles_that_may_list_tenants_serve_all(walled: Walled) -> None:
    for dsn in (walled.operator, walled.server):
        with PGState.open(dsn, schema=walled.schema) as state, pytest.raises(TenantError, match="bypasses row-level"):
            Worker(state, {"agent": loop_graph(1)}).run_until_idle()
    with psycopg.connect(walled.server, autocommit=True) as connection:
        name = f"other_{walled.schema}"
        connection.execute(f"CREATE ROLE {name} LOGIN".encode())
        try:
            connection.execute(f"GRANT USAGE ON SCHEMA {walled.schema} TO {name}".encode())
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {walled.schema} TO {name}".encode())
            dsn = walled.app.replace("user=pgstate_test_app", f"user={name}")
            with PGState.open(dsn, schema=walled.schema) as state, pytest.raises(TenantError, match="may not list"):
                Worker(state, {"agent": loop_graph(1)}).run_until_idle()
        finally:
            connection.execute(f"DROP OWNED BY {name}".encode())
            connection.execute(f"DROP ROLE {name}".encode())


@pytest.mark.slow
def test_the_role_of_a_worker_sees_names_and_no_content(walled: Walled) -> None:
    with walled.open() as state:
        state.for_tenant("acme").runs.enqueue("agent", {"count": 0}, thread_id="secret")
        work = state._database.run(find_work, queries(walled.schema), ["acme", "none"], ["default"], ["agent"])
        assert [(one.tenant, one.is_ready) for one in work] == [("acme", True)]
        assert state._database.run(find_work, queries(walled.schema), ["acme"], ["other"], ["agent"]) == []
    with psycopg.connect(walled.app) as connection:
        connection.execute("SELECT set_config('pgstate.tenant', %s, true)", [NO_TENANT])
        statement = f"SELECT * FROM {walled.schema}.find_work(ARRAY['acme'], ARRAY['default'], ARRAY['agent'], false)"
        assert "secret" not in repr(connection.execute(statement.encode()).fetchall())
        # It names no tenant afterwards.
        assert connection.execute("SELECT current_setting('pgstate.tenant')").fetchone() == (NO_TENANT,)
        for table in ("queue", "runs", "run_requests", "threads", "checkpoints", "webhooks", "schedules"):
            found = connection.execute(f"SELECT count(*) FROM {walled.schema}.{table}".encode()).fetchone()
            assert found == (0,)
        assert connection.execute(f"SELECT pgstate_tenant FROM {walled.schema}.tenants".encode()).fetchall()


@pytest.mark.slow
def test_run_until_idle_ends_after_the_runs_of_all_tenants(walled: Walled) -> None:
    with walled.open(pool=3) as state:
        for name in "abcdef":
            for number in range(3):
                state.for_tenant(name).runs.enqueue("agent", {"count": 0}, thread_id=f"t{number}")
    process = FORK.Process(
        target=lambda: work(Worker, walled.app, walled.schema, {"agent": loop_graph(1)}, "run_until_idle")
    )
    process.start()
    process.join(GUARD_SECONDS)
    assert process.exitcode == 0
    assert walled.rows("SELECT status, count(*) FROM {}.runs GROUP BY status") == [("success", 18)]


AGENT = """
import os, time
from pathlib import Path
from langgraph.graph import START, StateGraph
from langgraph_pgstate.worker import run_state

def node(number):
    def say(state):
        name = run_state().tenant
        Path(f"{number} {name}").touch()
        while number == 1 and not os.path.exists("go on"):
            time.sleep(0.01)
        return {"said": f"{name} {number}"}
    return say

builder = StateGraph(dict)
builder.add_node("one", node(1)).add_node("two", node(2))
builder.add_edge(START, "one").add_edge("one", "two")
graph = builder.compile()
"""


@pytest.mark.slow
def test_the_command_serves_all_tenants_and_gives_their_runs_back_at_sigterm(walled: Walled, tmp_path: Path) -> None:
    """What was in progress ends its superstep, and goes on in the next process."""
    (tmp_path / "agent.py").write_text(AGENT)
    command = "--dsn", walled.app, "--schema", walled.schema, "worker", "agent.py:graph"
    with walled.open(pool=3) as state:
        handles = {name: state.for_tenant(name).runs.enqueue("agent", {}, thread_id="same") for name in "ab"}
        with Forked(*command, "--metrics-port", "0", cwd=tmp_path) as process:
            for name in "ab":
                wait_until((tmp_path / f"1 {name}").exists, f"the run of {name}: {process.said}")
            address = re.search(r"metrics at (\S+)", process.said)
            assert address is not None
            with urlopen(address[1], timeout=30) as answer:
                text = answer.read().decode()
            # Gauges are those of one tenant.
            assert ("process_cpu_seconds_total" in text, "pgstate_queue_runs{" in text) == (True, False)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: "drains; runs to stop: 2" in process.said, "the signal")
            # Enqueued while it drains: not begun.
            late = state.for_tenant("c").runs.enqueue("agent", {}, thread_id="same")
            (tmp_path / "go on").touch()
            assert process.wait() == 0
            assert "runs requeued: 2" in process.said
        assert [*tmp_path.glob("2 *")] == []
        assert {one.status() for one in (*handles.values(), late)} == {"pending"}
        assert walled.rows("SELECT count(*) FROM {}.workers") == [(0,)]
        with Forked(*command, "--once", cwd=tmp_path) as process:
            assert process.wait() == 0, process.said
        for name, handle in handles.items():
            assert handle.wait(GUARD_SECONDS)["__root__"] == {"said": f"{name} 2"}
        assert late.status() == "success"


class SlowMaster:
    """A master key that does not answer about some data keys, until it is let go on.

    Attributes:
        slow: Ids of these data keys.
        asked: Set when it is asked about one of them.
        gate: Lets it go on.
    """

    def __init__(self) -> None:
        self.slow: set[str] = set()
        self.asked, self.gate = threading.Event(), threading.Event()
        self._inner = LocalMasterKey(bytes(range(32)))

    def encryption(self) -> Encryption:
        return Encryption(CallableMasterKey("slow", self._inner.wrap, self.unwrap))

    def unwrap(self, key: bytes, context: Any) -> bytes:
        if context["key_id"] in self.slow:
            self.asked.set()
            assert self.gate.wait(2 * GUARD_SECONDS)
        return self._inner.unwrap(key, context)

    def hold(self, walled: Walled, tenant: str) -> None:
        """Let it not answer about the data keys of a tenant."""
        rows = walled.rows(f"SELECT key_id FROM {{}}.data_keys WHERE pgstate_tenant = '{tenant}'")
        self.slow = {key_id for (key_id,) in rows}
        assert self.slow


@pytest.mark.slow
def test_a_slow_master_key_of_one_tenant_delays_no_other(walled: Walled) -> None:
    """Neither the claims of others, nor the renewal of their leases; its own runs wait for it."""
    master = SlowMaster()
    with walled.open(pool=3, encryption=master.encryption()) as state:
        slow = state.for_tenant("a-slow").runs.enqueue("agent", {"count": 0})
    master.hold(walled, "a-slow")
    begun, gate = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if run_state().tenant == "held":
            begun.set()
            gate.wait(GUARD_SECONDS)

    graphs: Any = {"agent": loop_graph(1, hold)}
    with (
        walled.open(pool=5, encryption=master.encryption()) as state,
        Worker(state, graphs, poll=0.05, lease_ttl=1.0, concurrency=5) as one,
    ):
        held = state.for_tenant("held").runs.enqueue("agent", {"count": 0}, thread_id="held")
        assert begun.wait(GUARD_SECONDS)
        assert master.asked.wait(GUARD_SECONDS)
        leases = "SELECT expires_at FROM {}.leases WHERE thread_id = 'held'"
        before = walled.rows(leases)
        for name in ("quick", "quicker"):
            assert state.for_tenant(name).runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1
        wait_until(lambda: walled.rows(leases) > before, "the renewal of a lease")
        assert one._control._duties.lanes["held"].executions
        assert walled.rows("SELECT status, attempt FROM {}.queue WHERE thread_id <> 'held'") == [("pending", 0)]
        master.gate.set()
        gate.set()
        assert held.wait(GUARD_SECONDS)["count"] == 1
        done = f"SELECT status FROM {{}}.runs WHERE thread_id = '{slow.thread_id}'"
        wait_until(lambda: walled.rows(done) == [("success",)], "the run of the slow one")


@pytest.mark.slow
def test_a_slow_master_key_of_a_run_that_must_be_alone_delays_no_other_tenant(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the worker has waited for its other runs to end. It does not wait again and again."""
    monkeypatch.setattr(lane_module, "_ALONE_AGAIN_SECONDS", 10 * GUARD_SECONDS)
    master = SlowMaster()
    with walled.open(pool=3, encryption=master.encryption()) as state:
        state.for_tenant("slow").runs.enqueue("agent", {"count": 0}, thread_id="t", run_after=timedelta(days=1))
    master.hold(walled, "slow")
    begun, gate = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if run_state().tenant == "held":
            begun.set()
            gate.wait(GUARD_SECONDS)

    graphs: Any = {"agent": loop_graph(1, hold)}
    with (
        walled.open(pool=5, encryption=master.encryption()) as state,
        Worker(state, graphs, poll=0.05, concurrency=5) as one,
    ):
        held = state.for_tenant("held").runs.enqueue("agent", {"count": 0})
        assert begun.wait(GUARD_SECONDS)
        # As the sweep of a dead worker leaves it.
        walled.rows("UPDATE {}.queue SET is_suspect = true, run_after = now() WHERE thread_id = 't'")
        state.for_tenant("slow").runs.limit("another", concurrency=None)
        duties = one._control._duties
        wait_until(lambda: duties.alone is not None, "the choice of the worker")
        gate.set()
        assert held.wait(GUARD_SECONDS)["count"] == 1
        assert master.asked.wait(GUARD_SECONDS)
        begun.clear()
        gate.clear()
        held = state.for_tenant("held").runs.enqueue("agent", {"count": 0})
        assert begun.wait(GUARD_SECONDS)
        for _ in range(40):
            assert state.for_tenant("quick").runs.enqueue("agent", {"count": 0}).wait(GUARD_SECONDS)["count"] == 1
        gate.set()
        assert held.wait(GUARD_SECONDS)["count"] == 1
        master.gate.set()
        duties.lanes["slow"]._alone_after = float("-inf")
        done = "SELECT status FROM {}.runs WHERE thread_id = 't'"
        wait_until(lambda: walled.rows(done) == [("success",)], "the run of the slow one")


@pytest.mark.slow
def test_a_lease_is_renewed_while_the_end_of_another_run_waits_for_its_key(
    walled: Walled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the runs of this tenant would be lost to other workers."""
    master, report = SlowMaster(), Lane.report
    begun, gate = threading.Semaphore(0), threading.Event()

    def hold(count: int) -> None:
        begun.release()
        gate.wait(0 if count else GUARD_SECONDS)
        if count:
            raise ValueError("its message is encrypted")

    with walled.open(pool=5, encryption=master.encryption()) as state:
        acme = state.for_tenant("acme")
        keys = acme._database.keys

        def expiring(lane: Lane, execution: RunExecution, outcome: RunOutcome) -> None:
            if execution.key.thread_id == "failing":
                master.hold(walled, "acme")
                keys.expire()
            report(lane, execution, outcome)

        monkeypatch.setattr(Lane, "report", expiring)
        with Worker(state, {"agent": loop_graph(1, hold)}, poll=0.05, lease_ttl=1.0, concurrency=5):
            held = acme.runs.enqueue("agent", {"count": 0}, thread_id="held")
            assert begun.acquire(timeout=GUARD_SECONDS)
            failing = acme.runs.enqueue("agent", {"count": 1}, thread_id="failing")
            assert master.asked.wait(GUARD_SECONDS)
            leases = "SELECT expires_at FROM {}.leases WHERE thread_id = 'held'"
            renewals: set[Any] = set()
            wait_until(lambda: renewals.add(walled.rows(leases)[0]) or len(renewals) > 3, "renewals of its lease")
            assert walled.rows("SELECT status, crashes FROM {}.queue WHERE thread_id = 'held'") == [("running", 0)]
            master.gate.set()
            wait_until(lambda: failing.status() == "error", "the end of the run")
            gate.set()
            assert held.wait(GUARD_SECONDS)["count"] == 1


class Lanes(OrderedDict[str, Any]):
    """Lanes among which an ended execution looks for its own, at the moment at which a lane is taken out."""

    def pop(self, name: str) -> Any:  # type: ignore[override]
        lane = super().pop(name)
        assert self.get(name) is not None, "the outcome of the execution would be lost"
        return lane


def test_a_lane_whose_work_fails_is_never_missing_when_an_execution_reports() -> None:
    def failing(tenant: str) -> Any:
        return SimpleNamespace(tenant=tenant, is_busy=True, executions={}, failed_at=0.0, turn=lambda: False)

    lanes = Lanes(a=failing("a"), b=failing("b"))
    lanes["b"].turn = lambda: True
    duties: Any = SimpleNamespace(lanes=lanes, settings=WorkerSettings(), is_draining=True, alone=None)
    tenants.TenantLanes(duties, cast(Any, None), ["a", "b"], lambda _: None).turn()
    assert list(lanes) == ["b", "a"]
