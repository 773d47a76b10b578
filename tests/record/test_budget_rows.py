"""Budgets in the database: what is refused, whose they are, and costs that are computed as the record's."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record import budgets, prices
from langgraph_pgstate.record.budgets import Owner, cost_of, request_budget
from langgraph_pgstate.record.types import Price
from langgraph_pgstate.schema.queries import queries

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens")
DAY = 86_400.0
AMOUNTS = st.decimals(0, 100, places=3)
PRICES = st.builds(
    Price,
    st.just("m"),
    st.sampled_from(["", "p"]),
    st.sampled_from([None, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)]),
    AMOUNTS,
    AMOUNTS,
    st.none() | AMOUNTS,
    st.none() | AMOUNTS,
)


@pytest.mark.parametrize(
    ("amount", "owner"),
    [(1, {}), (1, {"user": "a", "agent": "b"}), (-1, {"user": "a"}), ("x", {"user": "a"}), (1, {"user": ""})],
)
def test_an_unusable_budget_is_refused(amount: Any, owner: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        request_budget(amount, **owner)


def test_an_owner_has_its_own_budget_or_that_of_each(connection: psycopg.Connection, schema: str) -> None:
    database, given = Database(connection, schema=schema), queries(schema)
    read = lambda *owners: database.run(budgets.read_spending, given, owners, tuple)  # noqa: E731
    assert not read(Owner("user", "a")).has_budgets
    for amount, owner in (("0.1", {"user": "*"}), (5, {"user": "a"}), (7, {"key": "k"}), (3, {"agent": "a"})):
        database.run(budgets.put_budget, given, request_budget(amount, **owner))
    found = read(Owner("user", "a"), Owner("user", "b"), Owner("tenant", "a"), Owner("key", "k"), Owner("key", "l"))
    assert {owner: amount for owner, (amount, _) in found.budgets.items()} == {
        Owner("user", "a"): 5,
        Owner("user", "b"): Decimal("0.1"),
        Owner("key", "k"): 7,
    }
    database.run(budgets.put_budget, given, request_budget(None, user="a"))
    assert read(Owner("user", "a"), Owner("agent", "a")).budgets == {
        Owner("user", "a"): (Decimal("0.1"), Decimal(0)),
        Owner("agent", "a"): (Decimal(3), Decimal(0)),
    }
    assert read().has_budgets


def test_only_what_was_spent_today_counts(connection: psycopg.Connection, schema: str) -> None:
    database, given = Database(connection, schema=schema), queries(schema)
    database.run(budgets.put_budget, given, request_budget(5, user="a"))
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, attempt, status, user_id, started_at)"
        " VALUES ('t', 'r', 1, 'success', 'a', now())".encode()
    )
    began = "date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
    for span_id, moment, cost in (("before", f"{began} - interval '1 s'", 1), ("first", began, 2), ("own", began, 4)):
        connection.execute(
            f"INSERT INTO {schema}.spans (thread_id, run_id, span_id, started_at, kind, name, status, cost,"
            " semconv_version)"
            f" VALUES ('t', 'r', '{span_id}', {moment}, 'llm', 'm', 'success', {cost}, '1')".encode()
        )
    found = database.run(budgets.read_spending, given, [Owner("user", "a")], lambda: ["own"])
    assert found.budgets == {Owner("user", "a"): (Decimal(5), Decimal(2))}
    assert found.day % DAY == 0


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    table=st.lists(PRICES, max_size=4, unique_by=lambda price: (price.provider, price.valid_from)),
    provider=st.sampled_from([None, "p", "q"]),
    counts=st.tuples(*[st.none() | st.integers(0, 10**6)] * 4),
    at=st.sampled_from([datetime(2025, 5, 5, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)]),
)
def test_a_cost_is_that_of_the_record(
    connection: psycopg.Connection,
    schema: str,
    table: list[Price],
    provider: str | None,
    counts: tuple[int | None, ...],
    at: datetime,
) -> None:
    database, given = Database(connection, schema=schema), queries(schema)
    connection.execute(f"TRUNCATE {schema}.prices, {schema}.spans".encode())
    for price in table:
        database.run(prices.set_price, given, price)
    connection.execute(
        f"INSERT INTO {schema}.runs (thread_id, run_id, attempt, status, started_at)"
        " VALUES ('t', 'r', 1, 'success', now()) ON CONFLICT DO NOTHING".encode()
    )
    tokens = dict(zip(COUNTS, counts, strict=True))
    row = {
        "thread_id": "t",
        "run_id": "r",
        "span_id": "s",
        "started_at": at.timestamp(),
        "kind": "llm",
        "name": "m",
        "status": "success",
        "model": "m",
        "provider": provider,
        **tokens,
    }
    put_spans(database, schema, row)
    ((stored,),) = connection.execute(f"SELECT coalesce(cost, 0) FROM {schema}.spans".encode()).fetchall()
    assert cost_of(table, "m", provider, tokens, at.timestamp()) == stored


def put_spans(database: Database, schema: str, row: dict[str, Any]) -> None:
    import json

    from langgraph_pgstate.db.protocol import Connection

    async def put(db: Connection) -> None:
        parameters = {"rows": json.dumps([row]), "thread_ids": ["t"], "semconv_version": "1"}
        await db.execute(queries(schema).put_spans, parameters)

    database.run(put)
