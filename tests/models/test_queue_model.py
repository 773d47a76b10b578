"""Random orders of what callers, workers, sweeps and time do to the queue, against a model, on two connections.

The model says which run of each thread may be claimed, and how each has ended. The database must say the same. With
limits, it also says which of them must be claimed, and which must wait.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from psycopg import sql
from support.queue import Queue

from langgraph_pgstate import PGStateSaver, Rate
from langgraph_pgstate.errors import ThreadBusyError
from langgraph_pgstate.runs.queue import put_limit, request_limit
from langgraph_pgstate.runs.types import ClaimedRun
from langgraph_pgstate.worker.claims import Claimer

THREADS = st.sampled_from("abc")
WORKERS = st.sampled_from([0, 1])
INDEXES = st.integers(0, 5)
TABLES = ("queue", "run_requests", "runs", "threads", "leases", "checkpoints", "writes", "events", "spans")
LIMIT_TABLES = ("queue_limits", "queue_keys")
_ENDS = {"cancel": "cancelled", "interrupt": "interrupted", "rollback": None}
_numbers = itertools.count()


@dataclass
class Modelled:
    """A run in the queue, as it should be."""

    run_id: str
    thread_id: str
    attempt: int = 0
    crashes: int = 0
    is_running: bool = False
    is_delayed: bool = False
    is_in_line: bool = True
    cancel: str | None = None


@dataclass
class Held:
    """A run that a worker has claimed and believes to have."""

    worker: int
    claimed: ClaimedRun
    is_fenced: bool = False
    is_expired: bool = False


@dataclass
class Model:
    """What should be in the queue, thread by thread in order, and how runs have ended."""

    runs: dict[str, list[Modelled]] = field(default_factory=dict)
    ends: dict[str, str | None] = field(default_factory=dict)
    # By thread, the runs of its checkpoints, oldest first; also those that were deleted.
    checkpoints: dict[str, list[str]] = field(default_factory=dict)

    def line(self, thread_id: str) -> list[Modelled]:
        return [run for run in self.runs.get(thread_id, []) if run.is_in_line]

    def claimable(self) -> set[str]:
        heads = [line[0] for line in map(self.line, self.runs) if line]
        return {run.run_id for run in heads if not run.is_running and not run.is_delayed}

    def find(self, run_id: str) -> Modelled | None:
        return next((run for runs in self.runs.values() for run in runs if run.run_id == run_id), None)

    def can_go_on(self, thread_id: str, run_id: str) -> bool:
        """Whether a run has stored nothing, or no other run has gone on from it or is about to."""
        stored = [run for run in self.checkpoints.get(thread_id, []) if self.ends.get(run, "") is not None]
        return run_id not in stored or (stored[-1] == run_id and not self.runs.get(thread_id))

    def end(self, run: Modelled, status: str | None) -> None:
        """End a run; with `None` it is deleted."""
        self.runs[run.thread_id].remove(run)
        self.ends[run.run_id] = status

    def cancel(self, run: Modelled, action: str) -> None:
        """Cancel a run; a rollback prevails, or else what was asked for first."""
        run.cancel = action if run.cancel is None or action == "rollback" else run.cancel
        if not run.is_running:
            self.end(run, _ENDS[run.cancel])


class QueueMachine(RuleBasedStateMachine):
    """Callers and two workers."""

    dsn = schema = ""

    @initialize()
    def connect(self) -> None:
        self.stack = ExitStack()
        self.queues = []
        for number in range(2):
            connection = self.stack.enter_context(psycopg.connect(self.dsn, autocommit=True))
            self.queues.append(Queue(connection, self.schema, f"worker {number}"))
        tables = sql.SQL(", ").join(sql.Identifier(self.schema, table) for table in (*TABLES, *LIMIT_TABLES))
        self.queues[0].connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))
        self.model = Model()
        self.held: list[Held] = []

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @property
    def queue(self) -> Queue:
        return self.queues[0]

    def new_id(self) -> str:
        return f"r{next(_numbers)}"

    def key_of(self, run_id: str) -> str:
        """The key with which a run is enqueued."""
        return ""

    @rule(thread_id=THREADS, strategy=st.sampled_from(["enqueue", "enqueue", "reject", "interrupt", "rollback"]))
    def enqueue(self, thread_id: str, strategy: str) -> None:
        run_id = self.new_id()
        line = self.model.line(thread_id)
        is_busy = bool(line) or any(one.claimed.thread_id == thread_id and self.holds(one) for one in self.held)
        try:
            self.queue.add(thread_id, run_id=run_id, key=self.key_of(run_id), multitask_strategy=strategy)
        except ThreadBusyError:
            assert strategy == "reject"
            assert is_busy
            return
        assert strategy != "reject" or not is_busy
        if strategy in ("interrupt", "rollback"):
            for run in line:
                self.model.cancel(run, strategy)
        self.model.runs.setdefault(thread_id, []).append(Modelled(run_id, thread_id))

    @rule(thread_id=THREADS)
    def enqueue_for_later(self, thread_id: str) -> None:
        run_id = self.new_id()
        self.queue.add(thread_id, run_id=run_id, key=self.key_of(run_id), run_after=timedelta(hours=1))
        run = Modelled(run_id, thread_id, is_delayed=True, is_in_line=False)
        self.model.runs.setdefault(thread_id, []).append(run)

    @rule(index=INDEXES)
    def enqueue_again(self, index: int) -> None:
        """As after a lost answer."""
        known = [run for runs in self.model.runs.values() for run in runs]
        if known:
            run = known[index % len(known)]
            (found,) = self.queue.enqueue(_again(run))
            assert not found.is_new

    @rule(worker=WORKERS, limit=st.integers(1, 4))
    def claim(self, worker: int, limit: int) -> None:
        claimable = self.model.claimable()
        claimed = self.claimed_by(worker, limit)
        assert {run.run_id for run in claimed} <= claimable
        self.check_number(claimed, limit, len(claimable))
        for one in claimed:
            run = self.model.find(one.run_id)
            assert run is not None
            run.is_running, run.attempt = True, run.attempt + 1
            assert (one.attempt, one.crashes, one.cancel) == (run.attempt, run.crashes, run.cancel)
            assert all(other.claimed.lease.fencing_token < one.lease.fencing_token for other in self.of(one.thread_id))
            self.held.append(Held(worker, one))

    def claimed_by(self, worker: int, limit: int) -> list[ClaimedRun]:
        return self.queues[worker].claim(limit)

    def check_number(self, claimed: list[ClaimedRun], limit: int, claimable: int) -> None:
        assert len(claimed) == min(limit, claimable)

    @precondition(lambda self: self.held)
    @rule(index=INDEXES, status=st.sampled_from(["success", "error", "interrupted", "cancelled", "timeout"]))
    def finish(self, index: int, status: str) -> None:
        one = self.take(index)
        is_done = self.queues[one.worker].finish(one.claimed, status)
        if (run := self.running(one)) and run.cancel == "rollback":
            assert not is_done
            assert self.queues[one.worker].roll_back(one.claimed)
            self.model.end(run, None)
            return
        # A worker that lost its run may find that another has ended it so.
        assert is_done == self.holds(one) or self.model.ends.get(one.claimed.run_id) == status
        if run:
            self.model.end(run, status)

    @precondition(lambda self: self.held)
    @rule(index=INDEXES, how=st.sampled_from(["give back", "retry", "retry later", "roll back"]))
    def leave(self, index: int, how: str) -> None:
        one = self.take(index)
        queue = self.queues[one.worker]
        run = self.running(one)
        is_done = {
            "give back": lambda: queue.give_back(one.claimed),
            "retry": lambda: queue.fail(one.claimed, 0.0) and queue.make_due() >= 0,
            "retry later": lambda: queue.fail(one.claimed, 3600.0),
            "roll back": lambda: queue.roll_back(one.claimed),
        }[how]()
        assert is_done == (run is not None)
        if run is None:
            return
        run.is_running = False
        if how == "roll back":
            self.model.end(run, None)
        elif run.cancel is not None:
            self.model.end(run, _ENDS[run.cancel])
        elif how == "give back":
            run.attempt -= 1
        elif how == "retry later":
            run.is_delayed = True

    @rule(worker=WORKERS)
    def tend(self, worker: int) -> None:
        mine = [one for one in self.held if one.worker == worker]
        found = self.queues[worker].tend(*(one.claimed for one in mine))
        assert found.still == {one.claimed.key for one in mine if self.holds(one)}
        assert found.unknown == set()
        for one in mine:
            if run := self.running(one):
                assert found.cancels.get(one.claimed.key) == run.cancel
                one.is_expired = False

    @precondition(lambda self: self.held)
    @rule(index=INDEXES)
    def freeze(self, index: int) -> None:
        """A worker stops for longer than its lease."""
        one = self.held[index % len(self.held)]
        if self.holds(one):
            self.queue.expire(one.claimed)
            one.is_expired = True

    @precondition(lambda self: self.held)
    @rule(index=INDEXES)
    def make_checkpoint(self, index: int) -> None:
        one = self.held[index % len(self.held)]
        if run := self.running(one):
            self.queue.put(run.thread_id, run.run_id)
            self.model.checkpoints.setdefault(run.thread_id, []).append(run.run_id)
            self.checkpointed.add(one.claimed.key)

    @property
    def checkpointed(self) -> set[Any]:
        found: set[Any] = self.__dict__.setdefault("_checkpointed", set())
        return found

    @rule()
    def recover(self) -> None:
        found = {one.run_id: one for one in self.queue.recover()}
        for one in [one for one in self.held if one.is_expired and self.holds(one)]:
            run = self.running(one)
            assert run is not None
            one.is_fenced = True
            run.is_running = False
            run.crashes = 0 if one.claimed.key in self.checkpointed else run.crashes + 1
            recovered = found.pop(run.run_id)
            assert recovered.crashes == run.crashes
            if run.crashes >= 3:
                status: str | None = "error"
            elif run.cancel is not None:
                status = _ENDS[run.cancel]
            else:
                continue
            self.model.end(run, status)
        assert found == {}

    @rule()
    def time_passes(self) -> None:
        self.queue.wake()
        self.queue.make_due()
        for thread_id, runs in self.model.runs.items():
            late = [run for run in runs if not run.is_in_line]
            for run in runs:
                run.is_delayed, run.is_in_line = False, True
            self.model.runs[thread_id] = [run for run in runs if run not in late] + late

    @rule(index=INDEXES, action=st.sampled_from(["cancel", "interrupt", "rollback"]))
    def cancel(self, index: int, action: str) -> None:
        known = [run for runs in self.model.runs.values() for run in runs]
        if not known:
            return
        run = known[index % len(known)]
        status = self.queue.cancel(run.thread_id, run.run_id, action)
        self.model.cancel(run, action)
        assert status == ("running" if run.is_running else self.model.ends[run.run_id] or "cancelled")

    @rule(index=INDEXES)
    def retry(self, index: int) -> None:
        ended = [run_id for run_id, status in self.model.ends.items() if status not in (None, "success")]
        if not ended:
            return
        run_id = ended[index % len(ended)]
        ((thread_id,),) = self.queue.execute("SELECT thread_id FROM {}.runs WHERE run_id = %s", run_id)
        is_stored = run_id in self.queue.requests()
        is_retried = is_stored and self.model.can_go_on(thread_id, run_id)
        assert self.queue.retry(thread_id, run_id) == is_retried
        # An interrupted run is forgotten once its thread has gone on from it.
        assert is_stored or self.model.ends[run_id] == "interrupted"
        if is_retried:
            del self.model.ends[run_id]
            self.model.runs.setdefault(thread_id, []).append(Modelled(run_id, thread_id))

    @rule(thread_id=THREADS)
    def delete_thread(self, thread_id: str) -> None:
        PGStateSaver(self.queue.connection, schema=self.schema).delete_thread(thread_id)
        self.model.checkpoints.pop(thread_id, None)
        for run in self.model.runs.pop(thread_id, []):
            self.model.ends[run.run_id] = None
        gone = [run_id for run_id in self.model.ends if not self.queue.execute(_EXISTS, run_id)]
        for run_id in gone:
            self.model.ends[run_id] = None
        self.held = [one for one in self.held if one.claimed.thread_id != thread_id]

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        self.queue.check()
        rows = self.queue.execute(
            "SELECT run_id, status, attempt, crashes, cancel FROM {}.queue WHERE number IS NOT NULL"
            " ORDER BY thread_id, number"
        )
        modelled = [run for thread_id in sorted(self.model.runs) for run in self.model.line(thread_id)]
        assert rows == [
            (run.run_id, "running" if run.is_running else "pending", run.attempt, run.crashes, run.cancel)
            for run in modelled
        ]
        ready = self.queue.execute("SELECT run_id FROM {}.queue WHERE is_ready AND status = 'pending'")
        assert {run_id for (run_id,) in ready} == self.model.claimable()
        ends = dict(self.queue.execute("SELECT run_id, status FROM {}.runs WHERE status NOT IN ('pending', 'running')"))
        assert ends == {run_id: status for run_id, status in self.model.ends.items() if status is not None}

    def take(self, index: int) -> Held:
        return self.held.pop(index % len(self.held))

    def of(self, thread_id: str) -> list[Held]:
        return [one for one in self.held if one.claimed.thread_id == thread_id]

    def holds(self, one: Held) -> bool:
        """Whether a worker still has the run that it believes to have."""
        return self.running(one) is not None

    def running(self, one: Held) -> Modelled | None:
        run = self.model.find(one.claimed.run_id)
        return run if run is not None and run.is_running and not one.is_fenced else None


KEYS = ("", "x", "y")
WINDOW = 3600


class LimitedMachine(QueueMachine):
    """A queue with limits, whose workers claim as those of the package do, and remember what they do."""

    @initialize(concurrency=st.sampled_from([None, 1, 2]), rate=st.sampled_from([None, 1, 2]))
    def limit_keys(self, concurrency: int | None, rate: int | None) -> None:
        if not hasattr(self, "stack"):
            self.connect()
        self.limit("*", concurrency, rate)

    @initialize()
    def connect(self) -> None:
        if hasattr(self, "stack"):
            return
        super().connect()
        self.keys = itertools.cycle(KEYS)
        self.limits: dict[str, tuple[int | None, int | None]] = {}
        # Claims in the present window of the whole queue and of each key, and those since their limit was set.
        self.begun: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.claimers = [
            Claimer(self.queue.queries, f"worker {number}", ["graph"], {}, ttl=60.0, poll=0.0) for number in range(2)
        ]

    def new_id(self) -> str:
        return f"{super().new_id()}{next(self.keys)}"

    def key_of(self, run_id: str) -> str:
        return run_id.lstrip("r0123456789")

    @rule(key=st.sampled_from(KEYS))
    def burst(self, key: str) -> None:
        """A run of one key on each thread."""
        for thread_id in "abc":
            self.keys = itertools.chain([key], self.keys)
            self.enqueue(thread_id, "enqueue")

    def claimed_by(self, worker: int, limit: int) -> list[ClaimedRun]:
        return self.claimers[worker].claim(self.queues[worker].database, "default", limit)

    def take(self, index: int) -> Held:
        one = super().take(index)
        self.claimers[one.worker].ended(one.claimed)
        return one

    def scopes(self, run_id: str) -> set[str]:
        """What a run counts for: the queue, and its key."""
        return {"", self.key_of(run_id)}

    def limit_of(self, scope: str) -> tuple[int | None, int | None]:
        """The runs that may run at once, and begin in a window."""
        return self.limits.get(scope) or (self.limits.get("*") if scope else None) or (None, None)

    def running_in(self, scope: str) -> int:
        query = "SELECT count(*) FROM {}.queue WHERE status = 'running' AND %s IN ('', key)"
        return int(self.queue.execute(query, scope)[0][0])

    def check_number(self, claimed: list[ClaimedRun], limit: int, claimable: int) -> None:
        assert len(claimed) <= limit
        began = Counter(scope for run in claimed for scope in self.scopes(run.run_id))
        self.begun += began
        self.counted += began
        for scope in began:
            concurrency, rate = self.limit_of(scope)
            assert concurrency is None or self.running_in(scope) <= concurrency
            assert rate is None or self.counted[scope] <= rate

    @rule(
        key=st.sampled_from([None, None, "*", "*", "x"]),
        concurrency=st.sampled_from([None, 0, 1, 1, 2]),
        rate=st.sampled_from([None, None, 1, 3]),
    )
    def limit(self, key: str | None, concurrency: int | None, rate: int | None) -> None:
        given = None if rate is None else Rate(rate, per=WINDOW)
        self.queue.do(put_limit, request_limit("default", key, concurrency, given))
        scope = key or ""
        self.limits[scope] = (concurrency, rate)
        if concurrency is None and rate is None:
            del self.limits[scope]
        for one in KEYS if key == "*" else (scope,):
            del self.counted[one]

    @rule()
    def window_passes(self) -> None:
        self.queue.execute("UPDATE {}.queue_keys SET window_started_at = now() - make_interval(secs => %s)", WINDOW)
        self.begun.clear()
        self.counted.clear()

    @rule(worker=WORKERS)
    def what_may_run_is_claimed(self, worker: int) -> None:
        """By a worker that has place for all, in few claims."""
        for _ in range(3):
            self.claim(worker, 10)
        for run_id in self.model.claimable():
            full = []
            for scope in self.scopes(run_id):
                concurrency, rate = self.limit_of(scope)
                full.append(concurrency is not None and self.running_in(scope) >= concurrency)
                full.append(rate is not None and self.begun[scope] >= rate)
            assert any(full), f"{run_id} waits, and nothing keeps it from running"

    @rule(worker=WORKERS, limit=st.integers(1, 4))
    def all_end(self, worker: int, limit: int) -> None:
        """Nobody starves under limits that let one run at a time."""
        for key, (concurrency, rate) in [*self.limits.items()]:
            if concurrency == 0:
                self.limit(key or None, 1, rate)
        for _ in range(5 + sum(map(len, self.model.runs.values()))):
            self.window_passes()
            self.time_passes()
            while self.held:
                self.finish(0, "success")
            self.claim(worker, limit)
        assert self.model.claimable() == set()
        assert not any(self.model.runs.values())


_EXISTS = "SELECT 1 FROM {}.runs WHERE run_id = %s"


def _again(run: Modelled) -> Any:
    from support.queue import request

    return request(run.thread_id, run_id=run.run_id, multitask_strategy="rollback")


@pytest.mark.parametrize("kind", [QueueMachine, LimitedMachine])
@pytest.mark.parametrize(
    ("examples", "steps"),
    [(5, 25), pytest.param(400, 60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
    ids=["short", "long"],
)
def test_the_queue_does_as_its_model(examples: int, steps: int, kind: type, dsn: str, schema: str) -> None:
    machine: Any = type("Machine", (kind,), {"dsn": dsn, "schema": schema})
    run_machine(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=examples < 20,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
