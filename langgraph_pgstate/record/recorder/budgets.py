"""The check of budgets: model calls are refused once today's cost has reached the budget."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import BudgetExceededError, PGStateError
from langgraph_pgstate.record.budgets import Owner, Spending, cost_of, read_spending
from langgraph_pgstate.record.recorder.awaiting import Awaited
from langgraph_pgstate.record.recorder.genai import describe_llm
from langgraph_pgstate.record.recorder.records import RunRecord, SpanRecord
from langgraph_pgstate.record.types import Price
from langgraph_pgstate.schema.queries import Queries

_log = logging.getLogger("langgraph_pgstate.record")

SpendingReader = Callable[[Collection[Owner], Callable[[], Collection[str]]], Awaitable[Spending]]

_ZERO: Final = Decimal(0)
# Minimum pause between two readings of the spending, in seconds, and as a multiple of the last reading's duration.
_FRESH_SECONDS: Final = 2.0
_SHARE: Final = 20
READ_SECONDS: Final = 5.0
"""Maximum seconds to wait for a connection that reads the spending."""
# Seconds without a call after which an owner's spending is no longer read.
_OWNER_SECONDS: Final = 60.0
# Seconds after which the cost of an ended call is surely in the tables. A later reading includes this cost.
_OWN_SECONDS: Final = 120.0


class _Known(NamedTuple):
    """The budget and the cost of an owner, as one reading found them.

    Attributes:
        reading: Number of the reading.
        read_at: End of the reading, by the monotonic clock.
        budget: The amount, and the recorded cost without the calls that this process counts; `None` without a budget.
    """

    reading: int
    read_at: float
    budget: tuple[Decimal, Decimal] | None


class _Started(NamedTuple):
    """A model call of this process that is in progress."""

    run: RunRecord
    owners: tuple[Owner, ...]
    model: str


class _Call(NamedTuple):
    """A model call of this process that has ended."""

    span_id: str
    owners: tuple[Owner, ...]
    cost: Decimal
    started_at: float
    ended: float


class Budgets:
    """The check of budgets before model calls. Thread-safe.

    All runs of a process are counted together. A call in progress is assumed to cost as much as the last call of the
    same model. After the call, the real cost is counted. Costs of other processes are read from the record, at most
    every two seconds.
    """

    def __init__(self, runner: Runner, queries: Queries) -> None:
        self._runner, self._queries = runner, queries
        self._lock = threading.Lock()
        self._prices: Sequence[Price] = ()
        self._has_budgets = False
        self._day = 0.0
        # Until this time the spending is not read, because there are no budgets or the last reading has failed.
        self._unchecked_until = float("-inf")
        self._fresh_for = _FRESH_SECONDS
        self._readings = itertools.count(1)
        self._newest = self._in_progress = 0
        self._succeeded_at = float("-inf")
        self._seen: dict[Owner, float] = {}
        self._known: dict[Owner, _Known] = {}
        self._started: dict[UUID, _Started] = {}
        self._calls: deque[_Call] = deque()
        # The cost of the last call of each model.
        self._usual: dict[str, Decimal] = {}

    def is_known(self, run: RunRecord) -> bool:
        """Return whether a call of a run can be checked without reading the spending."""
        with self._lock:
            now = time.monotonic()
            if now < self._unchecked_until:
                return True
            # While one thread reads the spending, other threads may use values that are twice as old.
            oldest = now - self._fresh_for * (2 if self._in_progress else 1)
            known = [self._known.get(owner) for owner in owners_of(run)]
            return all(one is not None and one.read_at > oldest for one in known)

    async def read(self, run: RunRecord, reader: SpendingReader | None = None) -> None:
        """Read the spending of a run's owners and of other recent owners. If that fails, earlier values stay in use.

        Args:
            reader: Reads the spending like `read_spending`; by default on the recorder's connections.
        """
        began = time.monotonic()
        with self._lock:
            self._in_progress += 1
            number = next(self._readings)
            self._seen |= dict.fromkeys(owners_of(run), began)
            self._seen = {owner: seen for owner, seen in self._seen.items() if seen > began - _OWNER_SECONDS}
            asked = frozenset(self._seen)
            self._known = {owner: known for owner, known in self._known.items() if owner in asked}
            while self._calls and self._calls[0].ended < self._succeeded_at - _OWN_SECONDS:
                self._calls.popleft()
        try:
            spending = await (reader or self._read_spending)(asked, self._counted_ids)
        except PGStateError as error:
            _log.warning("today's costs could not be read; budgets are checked with the last known costs: %s", error)
            spending = None
        finally:
            with self._lock:
                self._in_progress -= 1
        now = time.monotonic()
        with self._lock:
            self._fresh_for = max(_FRESH_SECONDS, _SHARE * (now - began))
            if spending is None:
                self._unchecked_until = now + self._fresh_for
                return
            # Keep the values of a newer reading, because a reading that began earlier may end later.
            for owner in asked:
                if owner not in self._known or self._known[owner].reading < number:
                    self._known[owner] = _Known(number, now, spending.budgets.get(owner))
            if number > self._newest:
                self._newest, self._succeeded_at = number, began
                self._has_budgets, self._day, self._prices = spending.has_budgets, spending.day, spending.prices
                self._unchecked_until = float("-inf") if spending.has_budgets else now + self._fresh_for

    def admit(self, run: RunRecord, id: UUID, model: str) -> BudgetExceededError | None:
        """Count a call that is about to begin, or return an error if a budget is used up.

        Call `settle` when the call has ended, or `release` when the call has failed.
        """
        owners = owners_of(run)
        with self._lock:
            if not self._has_budgets:
                return None
            self._seen |= dict.fromkeys(owners, time.monotonic())
            # Forget the calls of ended runs. These calls were abandoned, and no callback reports their end.
            self._started = {id: one for id, one in self._started.items() if one.run.ended_at is None}
            for owner in owners:
                known = self._known.get(owner)
                if known is None or known.budget is None:
                    continue
                amount, spent = known.budget
                ended = [one for one in self._calls if owner in one.owners and one.started_at >= self._day]
                begun = [one for one in self._started.values() if owner in one.owners]
                spent += sum((one.cost for one in ended), _ZERO)
                reserved = sum((self._usual.get(one.model, _ZERO) for one in begun), _ZERO)
                if spent + reserved >= amount:
                    return BudgetExceededError(*owner, spent, amount, reserved)
            self._started[id] = _Started(run, owners, model)
        return None

    def settle(self, span: SpanRecord) -> None:
        """Count the cost of a model call that has ended."""
        with self._lock:
            started = self._started.pop(span.id, None)
            prices = self._prices
        if not prices:
            return
        facts = describe_llm(span)
        cost = cost_of(prices, facts["model"], facts["provider"], facts, span.started_at)
        if cost:
            owners = owners_of(span.run)
            with self._lock:
                self._calls.append(_Call(span.text_id, owners, cost, span.started_at, time.monotonic()))
                if started is not None:
                    self._usual[started.model] = cost

    def release(self, id: UUID) -> None:
        """Stop counting a model call that has failed."""
        with self._lock:
            self._started.pop(id, None)

    async def _read_spending(self, owners: Collection[Owner], counted: Callable[[], Collection[str]]) -> Spending:
        return await self._runner.run_within(READ_SECONDS, read_spending, self._queries, owners, counted)

    def _counted_ids(self) -> list[str]:
        """Return the ids of ended calls whose cost this process counts."""
        with self._lock:
            return [call.span_id for call in self._calls]


def owners_of(run: RunRecord) -> tuple[Owner, ...]:
    """Return the owners whose budgets a run uses."""
    named = (("tenant", run.tenant_id), ("user", run.user_id), ("agent", run.agent), ("key", run.queue_key))
    return tuple(Owner(scope, name) for scope, name in named if name)


class BudgetGuard(BaseCallbackHandler):
    """A callback handler that refuses model calls if a budget is used up.

    Errors of this handler end the run. Errors of the recorder must not, so the recorder is another handler.

    Args:
        check: Called with the id of the span that makes a call, the id of the call and the name of the model. Raises an
            error to refuse the call. Async managers await the result.
    """

    raise_error = True
    run_inline = True
    ignore_agent = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, check: Callable[[UUID | None, UUID, str], Awaitable[None]]) -> None:
        self._check = check
        self.on_chat_model_start = Awaited(self._on_start)  # type: ignore[method-assign]
        self.on_llm_start = Awaited(self._on_start)  # type: ignore[method-assign]

    def _on_start(
        self,
        *args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Awaitable[None]:
        model = (metadata or {}).get("ls_model_name") or kwargs.get("name")
        return self._check(parent_run_id, run_id, str(model))
