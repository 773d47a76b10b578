"""A state of each API, and its files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langgraph_pgstate import PGState
from langgraph_pgstate.files import Files


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    """A state on empty tables."""
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def files(state: PGState) -> Files:
    """Its files."""
    return state.files
