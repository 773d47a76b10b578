"""Pages of a server, and who visits them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.pages import Visitor, inspected

from langgraph_pgstate.server import AgentServer

Place = tuple[AgentServer, Visitor]


@pytest.fixture
async def place(dsn: str, schema: str) -> AsyncIterator[Place]:
    """A server on empty tables, without a worker, and a visitor on the same machine."""
    async with inspected(dsn, schema) as place:
        yield place
