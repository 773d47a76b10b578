"""Operations run on a connection: what they raise reaches the caller."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from langgraph_pgstate.db.database import Database


def test_what_an_operation_raises_reaches_the_caller(connection: psycopg.Connection) -> None:
    async def operation(db: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Database(connection, schema="pgstate").run(operation)
