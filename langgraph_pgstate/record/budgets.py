"""Budgets of money, and what is spent of them. The costs of deleted runs count, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.prices import list_prices
from langgraph_pgstate.record.types import Budget, Price
from langgraph_pgstate.schema.queries import Queries

SCOPES: Final = ("tenant", "user", "agent", "key")
EACH: Final = "*"
_MILLION: Final = Decimal(1_000_000)


class Owner(NamedTuple):
    """An owner of a budget: a tenant, a user, an agent, or the `key` with which runs were enqueued."""

    scope: str
    name: str


class Spending(NamedTuple):
    """The budgets of some owners, and what they have spent today.

    Attributes:
        day: Start of today in UTC, in seconds since 1970.
        budgets: For each owner with a budget, the amount of the budget and the recorded cost.
        prices: All prices; empty if there are no budgets.
    """

    has_budgets: bool
    day: float
    budgets: dict[Owner, tuple[Decimal, Decimal]]
    prices: Sequence[Price]


def request_budget(amount: Decimal | float | str | None, **owner: str | None) -> dict[str, Any]:
    """Validate a budget, and return its row.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    given = {scope: name for scope, name in owner.items() if name is not None}
    if len(given) != 1:
        raise ConfigurationError(f"a budget must name one of {', '.join(SCOPES)}, got {', '.join(given) or 'none'}")
    ((scope, name),) = given.items()
    if not identifier(scope, name):
        raise ConfigurationError(f"{scope} must not be empty")
    try:
        exact = None if amount is None else Decimal(str(amount))
    except InvalidOperation:
        exact = Decimal("NaN")
    if exact is not None and not (exact.is_finite() and exact >= 0):
        raise ConfigurationError(f"amount must be a number of 0 or more, got {amount!r}")
    return {"scope": scope, "name": name, "amount": None if exact is None else str(exact)}


async def put_budget(db: Connection, queries: Queries, budget: dict[str, Any]) -> None:
    """Store a budget. A budget without an amount is deleted. One statement; safe to repeat."""
    if budget["amount"] is None:
        await db.execute(queries.delete_budget, {"scope": budget["scope"], "name": budget["name"]})
    else:
        await db.execute(queries.put_budget, budget)


async def list_budgets(db: Connection, queries: Queries) -> list[Budget]:
    """Return all budgets, with today's spending. At most three statements, which read today's model calls."""
    rows = await db.fetch(queries.list_budgets, {})
    owners = [Owner(scope, name) for scope, name, _ in rows if name != EACH]
    spending = await read_spending(db, queries, owners, tuple)
    spent = {owner: cost for owner, (_, cost) in spending.budgets.items()}
    return [Budget(scope, name, amount, spent.get(Owner(scope, name))) for scope, name, amount in rows]


async def read_spending(
    db: Connection, queries: Queries, owners: Collection[Owner], counted: Callable[[], Collection[str]]
) -> Spending:
    """Return the budgets of some owners and what they have spent today. One statement, or two if there are budgets.

    Args:
        counted: Returns the ids of spans whose cost the caller counts, so that the spending leaves this cost out.
            Called right before the statement is sent.
    """
    given = [*owners]
    parameters = {
        "scopes": [owner.scope for owner in given],
        "names": [owner.name for owner in given],
        "span_ids": [*counted()],
    }
    first, *rows = await db.fetch(queries.read_spending, parameters)
    budgets = {Owner(scope, name): (amount, spent) for scope, name, amount, spent, _, _ in rows}
    return Spending(first[4], first[5], budgets, await list_prices(db, queries) if first[4] else ())


def cost_of(
    prices: Sequence[Price], model: str | None, provider: str | None, tokens: dict[str, int | None], at: float
) -> Decimal:
    """Return the cost of a model call, computed as in `put_spans`; 0 if the model has no price.

    Args:
        tokens: `input_tokens`, `output_tokens`, `cache_read_tokens` and `reasoning_tokens`.
        at: Start of the call, in seconds since 1970.
    """
    fitting = [
        price
        for price in prices
        if price.model == model
        and price.provider in ("", provider or "")
        and (price.valid_from is None or price.valid_from.timestamp() <= at)
    ]
    if not fitting or (tokens.get("input_tokens") is None and tokens.get("output_tokens") is None):
        return Decimal(0)
    price = max(
        fitting,
        key=lambda one: (
            one.provider != "",
            float("-inf") if one.valid_from is None else one.valid_from.timestamp(),
        ),
    )
    read, reasoned = tokens.get("cache_read_tokens") or 0, tokens.get("reasoning_tokens") or 0
    parts = (
        ((tokens.get("input_tokens") or 0) - read) * price.input,
        read * (price.input if price.cache_read is None else price.cache_read),
        ((tokens.get("output_tokens") or 0) - reasoned) * price.output,
        reasoned * (price.output if price.reasoning is None else price.reasoning),
    )
    return sum(parts, Decimal(0)) / _MILLION


async def gather_costs(db: Connection, queries: Queries, thread_id: str) -> bool:
    """Prepare the deletion of a thread's record. Return whether the deletion must call `keep_costs`. Safe to repeat.

    If there are budgets, the thread's journal entries are moved into the tables, which `keep_costs` reads.
    """
    has_budgets = bool((await db.fetch(queries.has_budgets, {}))[0][0])
    if has_budgets:
        await journal.write(db, queries, [thread_id])
    return has_budgets


async def keep_costs(db: Connection, queries: Queries, thread_id: str, run_ids: Sequence[str] | None = None) -> None:
    """Store today's costs of model calls that are about to be deleted: those of a thread, or of some of its runs.

    Call this function first in the transaction that deletes the calls.
    """
    given = None if run_ids is None else [*run_ids]
    await db.execute(queries.keep_costs, {"thread_id": thread_id, "run_ids": given})


async def forget_deleted_costs(db: Connection, queries: Queries) -> None:
    """Delete the costs of deleted model calls that began before today. One statement; safe to repeat."""
    await db.execute(queries.sweep_costs, {})
