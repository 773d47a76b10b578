"""The connection protocol that operations are written against, and the runner that drives them without an event loop.

Operations are `async def` functions that await nothing but a `Connection`. A blocking one answers without
ever suspending, so a synchronous caller drives the same function to its end with one `send`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.types import Parameters, Query, Rows

T = TypeVar("T")
P = ParamSpec("P")


class Connection(Protocol):
    """One connection, for as long as an operation holds it."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open: this operation's own, or the caller's."""
        ...

    async def fetch(self, query: Query, parameters: Parameters) -> Rows:
        """Run a statement and return its rows. One round trip; atomic by itself."""
        ...

    async def execute(self, query: Query, parameters: Parameters) -> int:
        """Run a statement and return how many rows it touched. One round trip; atomic by itself."""
        ...

    async def execute_within(self, seconds: float, query: Query, parameters: Parameters) -> int:
        """Run a statement as `execute` does, and give it up, with the connection, if the server takes too long.

        Raises:
            psycopg.OperationalError: If the time is up. The statement may have been done, or be done later.
        """
        ...

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """Run statements as one transaction in one round trip; how many rows each touched. All or nothing.

        Inside a transaction it is a savepoint's worth, in three round trips.
        """
        ...

    async def script(self, text: str) -> None:
        """Run several parameterless statements, as a migration has them, inside the current transaction."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """An explicit `BEGIN … COMMIT`; a savepoint inside a caller's transaction."""
        ...


Operation = Callable[Concatenate[Connection, P], Awaitable[T]]


def run_blocking(operation: Awaitable[T]) -> T:
    """Drive an operation over a blocking connection to its end.

    Raises:
        RuntimeError: If the operation suspends, which only an operation that awaits something other
            than its connection can do.
    """
    coroutine: Coroutine[Any, Any, T] = operation  # type: ignore[assignment]
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended: an operation may await nothing but its connection")
