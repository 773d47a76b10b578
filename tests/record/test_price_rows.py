"""Token prices in the table."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.recorder import recording_async

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.prices import AsyncPrices


async def test_prices_are_set_listed_and_deleted(dsn: str, schema: str) -> None:
    async with recording_async(dsn, schema) as (saver, _):
        prices = AsyncPrices(saver._database)
        await prices.set("m", 1, 2.5)
        await prices.set("m", "0.15", "0.6", provider="openai", reasoning=1)
        await prices.set("m", 3, 2.5)
        first, second = await prices.list("m")
        assert (first.input, first.output, first.valid_from) == (Decimal(3), Decimal("2.5"), None)
        assert (second.input, second.reasoning) == (Decimal("0.15"), Decimal(1))
        with pytest.raises(ConfigurationError):
            await prices.set("m", -1, 0)
        with pytest.raises(ConfigurationError):
            await prices.set("m", float("nan"), 0)
        assert await prices.delete("m")
        assert not await prices.delete("m")
        assert len(await prices.list()) == 1
