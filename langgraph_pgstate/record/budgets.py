"""Budgets of money: model calls are refused once what was spent today has reached the budget."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import BudgetExceededError, PGStateError
from langgraph_pgstate.operations.record.budgets import Owner, Spending, cost_of, read_spending
from langgraph_pgstate.record.awaiting import Awaited
from langgraph_pgstate.record.genai import describe_llm
from langgraph_pgstate.record.records import RunRecord, SpanRecord
from langgraph_pgstate.sql import Queries

_log = logging.getLogger("langgraph_pgstate.record")

# What others spend is known so many seconds late. Reading it takes at most a twentieth of the time.
_FRESH_SECONDS: Final = 2.0
_SHARE: Final = 20
_READ_SECONDS: Final = 5.0
# Owners that are not seen for so long are not read any more.
_OWNER_SECONDS: Final = 60.0
# Calls of this process that ended longer ago are in the tables.
_OWN_SECONDS: Final = 120.0


class _Call(NamedTuple):
    """A model call of this process that has ended."""

    span_id: str
    owners: tuple[Owner, ...]
    cost: Decimal
    started_at: float
    ended: float


class Budgets:
    """Check of budgets before model calls. Thread-safe.

    Costs of other processes are read from the record, at most every two seconds; those of this process count at once.

    Args:
        runner: The database.
        queries: The queries of its schema.
    """

    def __init__(self, runner: Runner, queries: Queries) -> None:
        self._runner, self._queries = runner, queries
        self._lock = threading.Lock()
        self._spending = Spending(False, 0.0, {}, ())
        self._read_at = float("-inf")
        self._fresh_for = _FRESH_SECONDS
        self._is_reading = self._has_read = False
        self._owners: dict[Owner, float] = {}
        self._asked: frozenset[Owner] = frozenset()
        self._calls: deque[_Call] = deque()

    def is_known(self, run: RunRecord) -> bool:
        """Return whether a call of a run can be decided without reading what was spent."""
        with self._lock:
            if time.monotonic() < self._read_at + self._fresh_for or (self._is_reading and self._has_read):
                return not self._spending.has_budgets or self._asked.issuperset(owners_of(run))
        return False

    async def read(self, run: RunRecord) -> None:
        """Read what was spent by the owners of a run, and by other owners. If that fails, nothing is refused."""
        began = time.monotonic()
        with self._lock:
            self._is_reading = True
            self._owners |= dict.fromkeys(owners_of(run), began)
            self._owners = {owner: seen for owner, seen in self._owners.items() if seen > began - _OWNER_SECONDS}
            while self._calls and self._calls[0].ended < began - _OWN_SECONDS:
                self._calls.popleft()
            asked, known = frozenset(self._owners), [call.span_id for call in self._calls]
        try:
            spending = await self._runner.run_within(_READ_SECONDS, read_spending, self._queries, asked, known)
        except PGStateError as error:
            _log.warning("what was spent of budgets is not known: %s", error)
            spending = None
        finally:
            with self._lock:
                self._is_reading = False
        with self._lock:
            self._read_at = time.monotonic()
            self._fresh_for = max(_FRESH_SECONDS, _SHARE * (self._read_at - began))
            if spending is not None:
                # A call that ended during the reading is in the record or not; it counts as this process's.
                self._spending, self._asked, self._has_read = spending, asked, True

    def note(self, span: SpanRecord) -> None:
        """Count the cost of a model call that has ended."""
        if not self._spending.budgets:
            return
        owners = tuple(owner for owner in owners_of(span.run) if owner in self._spending.budgets)
        if not owners:
            return
        facts = describe_llm(span)
        cost = cost_of(self._spending.prices, facts["model"], facts["provider"], facts, span.started_at)
        if cost:
            with self._lock:
                self._calls.append(_Call(span.text_id, owners, cost, span.started_at, time.monotonic()))

    def find_exceeded(self, run: RunRecord) -> BudgetExceededError | None:
        """Return the error for a call of a run whose budget is used up."""
        with self._lock:
            if not self._spending.budgets:
                return None
            for owner in owners_of(run):
                self._owners[owner] = time.monotonic()
            own: dict[Owner, Decimal] = defaultdict(Decimal)
            for call in self._calls:
                if call.started_at >= self._spending.day:
                    for owner in call.owners:
                        own[owner] += call.cost
            for owner in owners_of(run):
                if owner in self._spending.budgets:
                    amount, spent = self._spending.budgets[owner]
                    if spent + own[owner] >= amount:
                        return BudgetExceededError(*owner, spent + own[owner], amount)
        return None


def owners_of(run: RunRecord) -> tuple[Owner, ...]:
    """Return whose budgets a run uses."""
    named = (("tenant", run.tenant_id), ("user", run.user_id), ("agent", run.agent), ("key", run.queue_key))
    return tuple(Owner(scope, name) for scope, name in named if name)


class BudgetGuard(BaseCallbackHandler):
    """A callback handler that refuses model calls. Apart from the recorder, whose own errors must end no run.

    Args:
        check: Called with the id of the span that makes a call. Raises if it is refused; what it returns is awaited by
            async managers.
    """

    raise_error = True
    run_inline = True
    ignore_agent = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, check: Callable[[UUID | None], Awaitable[None]]) -> None:
        self._check = check
        self.on_chat_model_start = Awaited(self._on_start)  # type: ignore[method-assign]
        self.on_llm_start = Awaited(self._on_start)  # type: ignore[method-assign]

    def _on_start(self, *args: Any, parent_run_id: UUID | None = None, **kwargs: Any) -> Awaitable[None]:
        return self._check(parent_run_id)
