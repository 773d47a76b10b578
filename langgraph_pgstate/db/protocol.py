"""A named query, its parameters and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.heavy import HEAVY_BYTES

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Rows = Sequence[Row]

MAX_TEXT: Final = "\U0010ffff"
"""A text that sorts after every id: the cursor of a list's first page. See `Connection.max_text`."""


class Packed(bytes):
    """A value in PostgreSQL's binary format, of the type that the statement states for the parameter."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """A statement that only reads, with checked parameters.

    Attributes:
        query: Name of the statement.
        parameters: Parameters of the statement.
        decode: Converts the rows to the result.
        weigh: Returns the number of bytes to decode. Many bytes are decoded outside the event loop. `None`: always few.
    """

    query: str
    parameters: Parameters
    decode: Callable[[Rows], T]
    weigh: Callable[[Rows], int] | None = None


def read_all(query: str, parameters: Parameters, make: Callable[..., T]) -> Read[tuple[T, ...]]:
    """Return a `Read` of all rows, each converted by `make`."""
    return Read(query, parameters, lambda rows: tuple(make(*row) for row in rows))


def number(rows: Rows) -> int:
    """Return the count that a statement returns."""
    return int(rows[0][0])


class Query(Protocol):
    """A named statement, ready for one schema."""

    @property
    def name(self) -> str:
        """Name in the `.sql` file."""
        ...

    @property
    def text(self) -> bytes:
        """The statement, with `$n` placeholders."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in placeholder order."""
        ...

    @property
    def is_planned_each_time(self) -> bool:
        """Whether the statement is never prepared, so that each plan is made for the actual arguments."""
        ...

    @property
    def contents(self) -> Contents | None:
        """The statement's content that may be encrypted."""
        ...


class Connection(Protocol):
    """One connection, for the duration of an operation.

    Attributes:
        tenant: The tenant that each transaction sets first, so that only this tenant's rows are visible; `None`
            for none.
        keys: The data keys with which content is encrypted and decrypted; `None` for none.
    """

    tenant: str | None
    keys: KeyRing | None

    @property
    def max_text(self) -> str:
        """`MAX_TEXT`, or the text that replaces it if the encoding of the database or client does not have it."""
        ...

    def recall(self, name: str) -> Any:
        """Return a fact that `remember` stored for this connection in the last ten seconds, or `None`."""
        ...

    def remember(self, name: str, value: Any) -> None:
        """Remember a fact about the database, for `recall`."""
        ...

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open: the operation's own or the caller's."""
        ...

    async def fetch(self, query: Query, parameters: Parameters) -> Rows:
        """Run a statement and return its rows. One round trip; atomic by itself."""
        ...

    async def execute(self, query: Query, parameters: Parameters) -> int:
        """Run a statement and return the number of rows it affected. One round trip; atomic by itself."""
        ...

    async def execute_within(self, seconds: float, query: Query, parameters: Parameters) -> int:
        """Run a statement as `execute` does, but close the connection if there is no response in time.

        Raises:
            psycopg.OperationalError: If the time is up. The statement may have run, or may still be running.
        """
        ...

    async def execute_together(self, statements: Sequence[tuple[Query, Parameters]]) -> list[int]:
        """Run statements as one transaction, and return the number of rows that each affected. One round trip; atomic.

        Inside a transaction, the statements run in a savepoint, in three round trips.
        """
        ...

    async def fetch_together(
        self, statements: Sequence[tuple[Query, Parameters]], after_commit: tuple[Query, Parameters] | None = None
    ) -> Rows:
        """Run statements as `execute_together` does, and return the rows of the last statement.

        Args:
            statements: Queries with their parameters.
            after_commit: A statement that runs after the commit, in the same round trip. Its failure is ignored. Must
                not be used inside a transaction.
        """
        ...

    async def fetch_readable(self, statements: Sequence[tuple[Query, Parameters]]) -> Rows:
        """Run statements as `fetch_together` does, but commit only if the rows decrypt. Two round trips with keys."""
        ...

    async def give_way(self) -> None:
        """Let other tasks of the event loop run first. Without an event loop, do nothing."""
        ...

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a slow function. On an event loop, the function runs in a thread."""
        ...

    async def script(self, text: str) -> None:
        """Run several statements without parameters, such as a migration, inside the current transaction."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Open an explicit transaction, or a savepoint inside the caller's transaction."""
        ...


async def read(db: Connection, queries: Any, what: Read[T]) -> T:
    """Run a statement that reads. One round trip."""
    parameters = what.parameters
    if (most := db.max_text) != MAX_TEXT:
        parameters = {name: most if value == MAX_TEXT else value for name, value in parameters.items()}
    rows = await db.fetch(getattr(queries, what.query), parameters)
    if what.weigh is not None and what.weigh(rows) > HEAVY_BYTES:
        return await db.compute(what.decode, rows)
    return what.decode(rows)
