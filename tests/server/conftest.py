"""A server, and LangGraph's client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph_sdk.client import LangGraphClient
from support.http import sdk, serving

from langgraph_pgstate.server import AgentServer


@pytest.fixture
async def server(dsn: str, schema: str) -> AsyncIterator[AgentServer]:
    """A server on empty tables, with a worker."""
    async with serving(dsn, schema) as server:
        yield server


@pytest.fixture
async def client(server: AgentServer) -> AsyncIterator[LangGraphClient]:
    """LangGraph's client."""
    async with sdk(server) as client:
        yield client
