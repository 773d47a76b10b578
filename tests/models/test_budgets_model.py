"""Random orders of model calls, deletions and days, against a model of what was spent."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from support.queue import Queue

from langgraph_pgstate.record import budgets
from langgraph_pgstate.record.budgets import Owner, request_budget
from langgraph_pgstate.threads import rows as threads

THREADS = st.sampled_from("st")
RUNS = st.sampled_from(["r1", "r2"])
USERS = st.sampled_from(["ada", "eve"])
OWNERS = [Owner("user", "ada"), Owner("user", "eve"), Owner("agent", "agent"), Owner("key", "k")]
TABLES = ("threads", "runs", "spans", "budgets", "deleted_costs", "checkpoints", "journal")
_numbers = itertools.count()


@dataclass
class Call:
    """A model call of today, whose run may have been deleted."""

    thread_id: str
    run_id: str
    user_id: str
    cost: Decimal
    is_deleted: bool = False


class BudgetMachine(RuleBasedStateMachine):
    """Runs that spend money, and whoever deletes them."""

    connection: Any
    schema = ""

    @initialize(user=USERS)
    def start(self, user: str) -> None:
        self.queue = Queue(self.connection, self.schema)
        for table in TABLES:
            self.queue.execute(f"TRUNCATE {{}}.{table} CASCADE")
        self.calls: list[Call] = []
        self.limited: set[str] = set()
        self.limit(user, 5)

    @rule(user=USERS, amount=st.sampled_from([None, 0, 5]))
    def limit(self, user: str, amount: int | None) -> None:
        self.queue.do(budgets.put_budget, request_budget(amount, user=user))
        (self.limited.discard if amount is None else self.limited.add)(user)

    @rule(thread_id=THREADS, run_id=RUNS, user=USERS, cents=st.integers(0, 300))
    def spend(self, thread_id: str, run_id: str, user: str, cents: int) -> None:
        run_id = f"{thread_id}-{run_id}"
        # A run stays its user's.
        found = self.queue.execute(
            "INSERT INTO {}.runs (thread_id, run_id, status, user_id, agent, key, started_at)"
            " VALUES (%s, %s, 'running', %s, 'agent', 'k', now())"
            " ON CONFLICT (thread_id, run_id) DO UPDATE SET status = 'running' RETURNING user_id",
            thread_id,
            run_id,
            user,
        )
        cost = Decimal(cents) / 100
        self.queue.execute(
            "INSERT INTO {}.spans (thread_id, run_id, span_id, started_at, kind, name, status, cost, semconv_version)"
            " VALUES (%s, %s, %s, now(), 'llm', 'm', 'success', %s, '1')",
            thread_id,
            run_id,
            f"span{next(_numbers)}",
            cost,
        )
        self.calls.append(Call(thread_id, run_id, found[0][0], cost))

    @rule(thread_id=THREADS)
    def delete_thread(self, thread_id: str) -> None:
        self.queue.do(threads.delete_thread, thread_id)
        self.forget(lambda call: call.thread_id == thread_id)

    @rule(thread_id=THREADS, run_id=RUNS)
    def delete_run(self, thread_id: str, run_id: str) -> None:
        run_id = f"{thread_id}-{run_id}"
        self.queue.do(threads.delete_runs_of, thread_id, [run_id])
        self.forget(lambda call: call.run_id == run_id)

    def forget(self, is_deleted: Any) -> None:
        """Keep what deleted calls have cost, if there are budgets."""
        going = [call for call in self.calls if not call.is_deleted and is_deleted(call)]
        for call in going:
            call.is_deleted = True
            if not self.limited:
                self.calls.remove(call)

    @rule()
    def day_passes(self) -> None:
        for table in ("spans", "deleted_costs"):
            self.queue.execute(f"UPDATE {{}}.{table} SET started_at = started_at - interval '1 day'")
        self.calls.clear()

    @rule()
    def maintain(self) -> None:
        self.queue.do(budgets.forget_deleted_costs)
        (days,) = self.queue.execute(
            "SELECT count(*) FROM {}.deleted_costs WHERE started_at < now() - interval '1 day'"
        )
        assert days == (0,)

    @invariant()
    def what_was_spent_counts(self) -> None:
        if not hasattr(self, "calls"):
            return
        found = self.queue.do(budgets.read_spending, OWNERS, tuple).budgets
        assert {owner: spent for owner, (_, spent) in found.items()} == {
            Owner("user", user): sum(call.cost for call in self.calls if call.user_id == user) for user in self.limited
        }


@pytest.mark.slow
def test_what_was_spent_is_what_the_model_says(connection: psycopg.Connection, schema: str) -> None:
    machine: Any = type("Machine", (BudgetMachine,), {"connection": connection, "schema": schema})
    run_machine(
        machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
