"""The database that a command works on, and the parts of the package on it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from langgraph_pgstate.errors import NotFoundError, PGStateError
from langgraph_pgstate.options import (
    DEFAULT_EMBEDDED_PATH,
    DEFAULT_SCHEMA,
    DSN_VARIABLE,
    check_schema_name,
    dsn_from_environment,
)

if TYPE_CHECKING:
    from langgraph_pgstate.admin.api import Admin
    from langgraph_pgstate.codec.values import ValueCodec
    from langgraph_pgstate.db.database import Database
    from langgraph_pgstate.interrupts import Interrupts
    from langgraph_pgstate.record.events import Events
    from langgraph_pgstate.record.messages import Messages
    from langgraph_pgstate.record.prices import Prices
    from langgraph_pgstate.record.spans import Spans
    from langgraph_pgstate.runs import Runs
    from langgraph_pgstate.schedules import Schedules
    from langgraph_pgstate.schema.queries import Queries
    from langgraph_pgstate.threads import Threads
    from langgraph_pgstate.tools import ToolLedger


@dataclass(frozen=True, slots=True)
class Target:
    """The database and schema that the global options name.

    Attributes:
        dsn: The given DSN; `None` for the embedded server.
        schema: The schema.
        is_json: Whether the command prints JSON.
    """

    dsn: str | None = field(repr=False)
    schema: str
    is_json: bool = False

    @property
    def place(self) -> str:
        """A description of the server, without its password."""
        return "the given server" if self.dsn else f"embedded, data in {DEFAULT_EMBEDDED_PATH}/"

    def program(self) -> str:
        """Return the command line of `pgstate` on the same database, to be pasted."""
        if shutil.which("pgstate"):
            name = "pgstate"
        elif sys.argv[0].endswith("__main__.py"):
            name = "python -m langgraph_pgstate"
        else:
            name = min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)
            name = shlex.quote(name)
        # The variable may name another database.
        dsn = " --dsn ..." if self.dsn and os.environ.get(DSN_VARIABLE) != self.dsn else ""
        schema = f" --schema {shlex.quote(self.schema)}" if self.schema != DEFAULT_SCHEMA else ""
        return name + dsn + schema

    def with_environment(self) -> Target:
        """Return this target, or without a DSN that of the environment, which may have been loaded meanwhile."""
        return self if self.dsn is not None else replace(self, dsn=dsn_from_environment(os.environ))

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[str]:
        """Return the DSN; the embedded server runs until the end of the `with` block.

        Args:
            create: Whether an embedded database may be made if there is none.

        Raises:
            NotFoundError: If there is no database.
            ConfigurationError: If the DSN is empty or cannot be read.
        """
        check_schema_name(self.schema)
        if self.dsn is not None:
            from langgraph_pgstate.db.dsn import read_dsn

            read_dsn(self.dsn, DSN_VARIABLE if self.dsn == os.environ.get(DSN_VARIABLE) else "--dsn")
            yield self.dsn
            return
        # An empty variable is no option for typer.
        dsn_from_environment(os.environ)
        if not create and not _holds_data(Path(DEFAULT_EMBEDDED_PATH)):
            raise NotFoundError(
                f"no database: give --dsn or set {DSN_VARIABLE}; there is no embedded one in "
                f"{DEFAULT_EMBEDDED_PATH}/ here (`pgstate setup` and `pgstate demo` make it)"
            )
        from langgraph_pgstate.db.embedded import embedded_server

        with embedded_server(DEFAULT_EMBEDDED_PATH) as dsn:
            yield dsn

    @contextmanager
    def admin(self, *, create: bool = False) -> Iterator[Admin]:
        """Connect for work on the tables themselves, whatever their version.

        Args:
            create: Whether an embedded database may be made if there is none.
        """
        from langgraph_pgstate.admin.api import Admin

        with self.open(create=create) as dsn, Admin.open(dsn, schema=self.schema) as admin:
            yield admin

    def check(self, dsn: str) -> None:
        """Check that there are tables that are up to date. Writes nothing.

        Raises:
            SchemaError: If there are none, or they are of another version.
        """
        from langgraph_pgstate.db.database import Database
        from langgraph_pgstate.schema import setup as schemas
        from langgraph_pgstate.schema.queries import queries

        with Database.open(dsn, schema=self.schema, pool=False) as database:
            database.run(schemas.check_version, queries(self.schema))

    @contextmanager
    def connect(self) -> Iterator[Parts]:
        """Connect to tables that are up to date.

        Raises:
            SchemaError: If there are none, or they are of another version.
        """
        from langgraph_pgstate.db.database import Database
        from langgraph_pgstate.process_identity import is_known_dead
        from langgraph_pgstate.record import journal
        from langgraph_pgstate.schema import setup as schemas
        from langgraph_pgstate.schema.queries import queries

        with self.open() as dsn, Database.open(dsn, schema=self.schema, pool=False) as database:
            known = queries(self.schema)
            database.run(schemas.check_version, known)
            # A dead process may have left entries in the journal; a role that may only read cannot move them.
            with suppress(PGStateError):
                database.run(journal.recover, known, 0.0, is_known_dead)
            yield Parts(database, known)


class Parts:
    """The parts of the package on one connection; each is imported when it is used."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self.database, self.queries = database, queries

    @cached_property
    def plain_codec(self) -> ValueCodec:
        """A codec that reads types of the application as plain data, and imports nothing of the application."""
        from langgraph_pgstate.codec.serializer import plain_serializer
        from langgraph_pgstate.codec.values import ValueCodec

        return ValueCodec(plain_serializer())

    @cached_property
    def threads(self) -> Threads:
        """Threads and their branches."""
        from langgraph_pgstate.threads import Threads

        return Threads(self.database, self.queries)

    @cached_property
    def runs(self) -> Runs:
        """Runs."""
        from langgraph_pgstate.runs import Runs

        return Runs(self.database, self.queries)

    @cached_property
    def interrupts(self) -> Interrupts:
        """Interrupts of threads, and their answers."""
        from langgraph_pgstate.interrupts import Interrupts

        return Interrupts(self.database, self.queries, self.runs)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules."""
        from langgraph_pgstate.schedules import Schedules

        return Schedules(self.database, self.queries, self.runs)

    @cached_property
    def spans(self) -> Spans:
        """Spans, and statistics of tools."""
        from langgraph_pgstate.record.spans import Spans

        return Spans(self.database, self.queries)

    @cached_property
    def messages(self) -> Messages:
        """Messages."""
        from langgraph_pgstate.record.messages import Messages

        return Messages(self.database, self.queries)

    @cached_property
    def events(self) -> Events:
        """Events."""
        from langgraph_pgstate.record.events import Events

        return Events(self.database, self.queries)

    @cached_property
    def prices(self) -> Prices:
        """Prices."""
        from langgraph_pgstate.record.prices import Prices

        return Prices(self.database)

    @cached_property
    def ledger(self) -> ToolLedger:
        """The ledger of tool executions."""
        from langgraph_pgstate.tools import ToolLedger

        return ToolLedger(self.database, self.queries)


def _holds_data(directory: Path) -> bool:
    try:
        return (directory / "PG_VERSION").exists()
    except PermissionError:
        return True  # of another user; opening it says so
