"""A plugin for LangGraph's own tests of its PostgreSQL store: our stores take the place of its stores.

The tests read and change LangGraph's table `store` behind the store's back; a view of that name has our rows.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.store.postgres
import psycopg
import pytest
from psycopg.rows import dict_row

from langgraph_pgstate.memory import AsyncPGMemoryStore, PGMemoryStore

_VIEW = """
CREATE OR REPLACE VIEW store AS
SELECT namespace, array_to_string(namespace, '.') AS prefix, key, value, created_at, updated_at, expires_at
FROM pgstate.memories
"""
# LangGraph's store returns expired items unless `omit_expired` is set; ours never does. It counts how often LangGraph's
# own function takes a connection from its pool.
_DIFFERENT = ("test_omit_expired_disabled_preserves_expired_rows", "test_abatch_uses_single_pool_checkout")


class SwappedStore(PGMemoryStore):
    """Our store with the parts of LangGraph's that its tests use."""

    MIGRATIONS = langgraph.store.postgres.PostgresStore.MIGRATIONS

    @classmethod
    @contextmanager
    def from_conn_string(
        cls, dsn: str, *, pipeline: bool = False, pool_config: Any = None, **options: Any
    ) -> Iterator[Any]:
        with super().from_conn_string(dsn, **options) as store:
            store.dsn = dsn
            yield store

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        self.flush()
        with psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row) as connection:
            connection.execute(_VIEW)
            yield connection.cursor()

    def start_ttl_sweeper(self) -> None: ...

    def stop_ttl_sweeper(self) -> None: ...


class SwappedAsyncStore(AsyncPGMemoryStore):
    """The same of the async store."""

    MIGRATIONS = langgraph.store.postgres.PostgresStore.MIGRATIONS

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, dsn: str, *, pipeline: bool = False, pool_config: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        async with super().from_conn_string(dsn, **options) as store:
            store.dsn = dsn
            yield store

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Any]:
        await self.flush()
        connecting = psycopg.AsyncConnection.connect(self.dsn, autocommit=True, row_factory=dict_row)
        async with await connecting as connection:
            await connection.execute(_VIEW)
            yield connection.cursor()

    async def start_ttl_sweeper(self) -> None: ...

    async def stop_ttl_sweeper(self) -> None: ...


langgraph.store.postgres.PostgresStore = SwappedStore
langgraph.store.postgres.AsyncPostgresStore = SwappedAsyncStore


def pytest_configure(config: pytest.Config) -> None:
    from tests import conftest

    conftest.DEFAULT_URI = os.environ["PGSTATE_SUITE_DSN"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", item.name) in _DIFFERENT:
            item.add_marker(pytest.mark.skip(reason="our store differs by design"))
