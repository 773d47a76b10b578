"""Operations over a blocking connection: none may suspend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
