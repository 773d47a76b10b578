"""Token prices."""

from __future__ import annotations

from datetime import datetime

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.checkpoints.requests import identifier
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Price


async def set_price(db: Connection, queries: Queries, price: Price) -> None:
    """Set a model's price from a time on; replaces the price for the same time. One statement; safe to repeat.

    Raises:
        ConfigurationError: If a name cannot be stored, or an amount is negative or not finite.
    """
    amounts = {name: getattr(price, name) for name in ("input", "output", "cache_read", "reasoning")}
    for name, amount in amounts.items():
        if amount is not None and not (amount.is_finite() and amount >= 0):
            raise ConfigurationError(f"{name} must be a price of 0 or more, not {amount}")
    if not price.model:
        raise ConfigurationError("a price needs a model name")
    await db.execute(
        queries.set_price,
        {
            "model": identifier("model", price.model),
            "provider": identifier("provider", price.provider),
            "valid_from": price.valid_from,
            **{name: None if amount is None else str(amount) for name, amount in amounts.items()},
        },
    )


async def list_prices(db: Connection, queries: Queries, model: str | None = None) -> list[Price]:
    """Return all prices, or those of one model, each model's newest first."""
    return [Price(*row) for row in await db.fetch(queries.list_prices, {"model": model})]


async def delete_price(
    db: Connection, queries: Queries, model: str, provider: str = "", valid_from: datetime | None = None
) -> bool:
    """Remove a price. Costs computed with it are kept. One statement; safe to repeat.

    Returns:
        Whether the price existed.
    """
    parameters = {"model": model, "provider": provider, "valid_from": valid_from}
    return await db.execute(queries.delete_price, parameters) > 0
