"""Operations over a blocking connection: none may suspend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import run_blocking


def test_an_operation_that_suspends_is_refused() -> None:
    class Suspending:
        def __await__(self) -> Iterator[None]:
            yield None

    async def operation() -> None:
        await Suspending()

    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(operation())


def test_a_suspending_operation_runs_its_cleanup_before_it_is_refused() -> None:
    closed = []

    class Suspending:
        def __await__(self) -> Iterator[None]:
            yield None

    async def operation() -> None:
        try:
            await Suspending()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(operation())
    assert closed == [True]


def test_what_an_operation_raises_reaches_the_caller(connection: psycopg.Connection) -> None:
    async def operation(db: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Database(connection, schema="pgstate").run(operation)
