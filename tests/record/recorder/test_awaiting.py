"""Callbacks that are awaited where that is possible."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from support.recorder import recording_async

pytestmark = pytest.mark.smoke


async def test_ends_are_awaited_by_asynchronous_managers_and_only_called_by_blocking_ones(
    dsn: str, schema: str
) -> None:
    """What the trick of `_Awaited` rests on, on this version of Python and of LangChain."""
    async with recording_async(dsn, schema) as (_, recorder):
        assert inspect.iscoroutinefunction(recorder.on_chain_end)
        answer = recorder.on_chain_end({}, run_id=__import__("uuid").uuid4())
        assert not asyncio.iscoroutine(answer)
        await answer
