"""Lists of token prices, in both APIs."""

from __future__ import annotations

from support.recorder import recording

from langgraph_pgstate.record.prices import Prices


def test_a_blocking_price_list_answers_the_same(dsn: str, schema: str) -> None:
    with recording(dsn, schema) as (saver, _):
        prices = Prices(saver._database)
        prices.set("m", 1, 2)
        assert [price.model for price in prices.list()] == ["m"]
        assert prices.delete("m")
