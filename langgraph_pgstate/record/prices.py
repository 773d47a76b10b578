"""Token prices of models."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.types import Price
from langgraph_pgstate.schema.queries import Queries, queries


async def set_price(db: Connection, queries: Queries, price: Price) -> None:
    """Store the price of a model from a time on. A price for the same model, provider and time is replaced.

    One statement; safe to repeat.

    Raises:
        ConfigurationError: If a name cannot be stored, or an amount is negative or not finite.
    """
    amounts = {name: getattr(price, name) for name in ("input", "output", "cache_read", "reasoning")}
    for name, amount in amounts.items():
        if amount is not None and not (amount.is_finite() and amount >= 0):
            raise ConfigurationError(f"{name} must be a price of 0 or more, not {amount}")
    if not price.model:
        raise ConfigurationError("model must not be empty")
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
    """Return all prices, or the prices of one model. The newest price of each model comes first."""
    return [Price(*row) for row in await db.fetch(queries.list_prices, {"model": model})]


async def delete_price(
    db: Connection, queries: Queries, model: str, provider: str = "", valid_from: datetime | None = None
) -> bool:
    """Remove a price, and return whether there was one. Costs are not computed again. Safe to repeat."""
    parameters = {"model": model, "provider": provider, "valid_from": valid_from}
    return await db.execute(queries.delete_price, parameters) > 0


Amount = Decimal | int | str | float


class AsyncPrices:
    """Prices per million tokens: `state.prices`. The cost of a span is computed once, when the span is written."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._queries = queries(database.schema)

    async def set(
        self,
        model: str,
        input: Amount,
        output: Amount,
        *,
        provider: str = "",
        valid_from: datetime | None = None,
        cache_read: Amount | None = None,
        reasoning: Amount | None = None,
    ) -> None:
        """Set the price of a model. One statement; safe to repeat.

        Args:
            model: The model's name as in the column `model` of spans.
            input: Price per million input tokens.
            output: Price per million output tokens.
            provider: The provider as in the column `provider` of spans; by default any. A price with a provider takes
                precedence.
            valid_from: The price applies to spans that start at this time or later; by default to all spans.
            cache_read: Price per million input tokens read from the provider's cache; by default the price of `input`.
            reasoning: Price per million reasoning tokens; by default the price of `output`.

        Raises:
            ConfigurationError: If a name is invalid, or an amount is negative or not finite.
        """
        price = _price(model, input, output, provider, valid_from, cache_read, reasoning)
        await self._database.run(set_price, self._queries, price)

    async def list(self, model: str | None = None) -> list[Price]:
        """Return all prices, or the prices of one model. The newest price of each model comes first."""
        return await self._database.run(list_prices, self._queries, model)

    async def delete(self, model: str, *, provider: str = "", valid_from: datetime | None = None) -> bool:
        """Remove a price, and return whether there was one. Costs are not computed again. Safe to repeat."""
        return await self._database.run(delete_price, self._queries, model, provider, valid_from)


class Prices:
    """Blocking twin of `AsyncPrices`."""

    def __init__(self, database: Database) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries(database.schema)

    set = blocking(AsyncPrices.set)
    list = blocking(AsyncPrices.list)
    delete = blocking(AsyncPrices.delete)


def _price(
    model: str,
    input: Amount,
    output: Amount,
    provider: str,
    valid_from: datetime | None,
    cache_read: Amount | None,
    reasoning: Amount | None,
) -> Price:
    # Convert the text, because Decimal(0.15) is 0.1499999….
    exact = [None if amount is None else Decimal(str(amount)) for amount in (input, output, cache_read, reasoning)]
    assert exact[0] is not None
    assert exact[1] is not None
    return Price(model, provider, valid_from, exact[0], exact[1], exact[2], exact[3])
