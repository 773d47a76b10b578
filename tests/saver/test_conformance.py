"""LangGraph's own conformance suite, for both APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver

pytestmark = pytest.mark.smoke


@pytest.mark.slow
@pytest.mark.parametrize("api", [PGStateSaver, AsyncPGStateSaver])
async def test_passes_the_official_suite(api: type, dsn: str, schema: str) -> None:
    @checkpointer_test(name=api.__name__)
    async def make() -> AsyncIterator[BaseCheckpointSaver]:
        if api is PGStateSaver:
            # Its asynchronous methods run the blocking ones in a thread: they are the adapter.
            with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
                saver.setup()
                yield saver
        else:
            async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
                await saver.setup()
                yield saver

    report = await validate(make)
    failures = {name: result.failures for name, result in report.results.items() if not result.passed}
    assert not failures
    assert report.passed_all()
