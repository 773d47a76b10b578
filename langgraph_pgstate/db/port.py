"""The connection protocol that operations are written against, and the runner of the blocking colour.

Operations are `async def` functions that await nothing but a `Port`. A blocking port answers without
ever suspending, so a synchronous caller drives the same function to its end with one `send`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.types import Parameters, Query, Rows

T = TypeVar("T")
P = ParamSpec("P")


class Port(Protocol):
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

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """Run statements as one transaction in one round trip; how many rows each touched. All or nothing.

        Inside a transaction it is a savepoint's worth, in three round trips.
        """
        ...

    def leave(self, query: Query, parameters: Parameters) -> bool:
        """Send a statement without waiting for its answer; nothing else can be sent before that is taken.

        A server that has it runs it, even if this process is killed then.

        Returns:
            Whether all of it is on its way; if not, it may be in part.
        """
        ...

    def take(self) -> bool | None:
        """Take the answer to what was left, without waiting.

        Returns:
            Whether it was done; `None` while there is no answer yet. Of a lost connection nobody knows: it is false.
        """
        ...

    async def settle(self) -> bool:
        """Wait some seconds for the answer to what was left, and take it, as `take` does; false if there is none.

        Who is cancelled does not cancel the statement.
        """
        ...

    async def prepare(self, query: Query) -> None:
        """Have a statement prepared, if this connection prepares any. One round trip."""
        ...

    async def script(self, text: str) -> None:
        """Run several parameterless statements, as a migration has them, inside the current transaction."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """An explicit `BEGIN … COMMIT`; a savepoint inside a caller's transaction."""
        ...


Operation = Callable[Concatenate[Port, P], Awaitable[T]]


def run_blocking(operation: Awaitable[T]) -> T:
    """Drive an operation over a blocking port to its end.

    Raises:
        RuntimeError: If the operation suspends, which only an operation that awaits something other
            than its port can do.
    """
    coroutine: Coroutine[Any, Any, T] = operation  # type: ignore[assignment]
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended: an operation may await nothing but its port")
