"""The database that a command works on, and the parts of the package on it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from langgraph_pgstate.errors import NotFoundError, PGStateError, ThreadArchivedError
from langgraph_pgstate.options import (
    DEFAULT_EMBEDDED_PATH,
    DEFAULT_SCHEMA,
    DSN_VARIABLE,
    check_schema_name,
    dsn_from_environment,
)

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from langgraph_pgstate import Encryption
    from langgraph_pgstate.admin.api import Admin
    from langgraph_pgstate.state import PGState, StateOptions
    from langgraph_pgstate.threads import Threads


@dataclass(frozen=True, slots=True)
class Target:
    """The database and schema that the global options name.

    Attributes:
        dsn: The given DSN; `None` for the embedded server.
        schema: The schema.
        is_json: Whether the command prints JSON.
        tenant: The tenant, if the tables keep tenants apart.
    """

    dsn: str | None = field(repr=False)
    schema: str
    is_json: bool = False
    tenant: str | None = None

    @property
    def place(self) -> str:
        """Description of the server, without its password."""
        return "the given server" if self.dsn else f"embedded, data in {DEFAULT_EMBEDDED_PATH}/"

    def program(self) -> str:
        """Return the command line of `pgstate` on the same database, for users to paste."""
        if shutil.which("pgstate"):
            name = "pgstate"
        elif sys.argv[0].endswith("__main__.py"):
            name = "python -m langgraph_pgstate"
        else:
            name = min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)
            name = shlex.quote(name)
        # Leave the DSN out only if the environment variable names the same database.
        dsn = " --dsn ..." if self.dsn and os.environ.get(DSN_VARIABLE) != self.dsn else ""
        schema = f" --schema {shlex.quote(self.schema)}" if self.schema != DEFAULT_SCHEMA else ""
        tenant = "" if self.tenant is None else f" --tenant {shlex.quote(self.tenant)}"
        return name + dsn + schema + tenant

    def encryption(self, *, accept_plain: bool = False) -> Encryption | None:
        """Return the encryption that the environment configures. With `accept_plain`, plain content is read, too."""
        from langgraph_pgstate import Encryption

        return Encryption.from_environment(os.environ, accept_plain=accept_plain)

    def with_environment(self) -> Target:
        """Return this target, with the DSN of the environment if no DSN is given.

        Call it after loading a configuration file, because the file may set the environment's DSN.
        """
        return self if self.dsn is not None else replace(self, dsn=dsn_from_environment(os.environ))

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[str]:
        """Yield the DSN. An embedded server runs until the block ends. `create` allows a new database."""
        check_schema_name(self.schema)
        if self.dsn is not None:
            from langgraph_pgstate.db.dsn import read_dsn

            read_dsn(self.dsn, DSN_VARIABLE if self.dsn == os.environ.get(DSN_VARIABLE) else "--dsn")
            yield self.dsn
            return
        # Refuse an empty environment variable, which typer ignores.
        dsn_from_environment(os.environ)
        if not create and not _holds_data(Path(DEFAULT_EMBEDDED_PATH)):
            raise NotFoundError(
                f"{DEFAULT_EMBEDDED_PATH}/ contains no database: give --dsn, set {DSN_VARIABLE}, or make an embedded "
                "database by `pgstate setup`"
            )
        from langgraph_pgstate.db.embedded import embedded_server

        with embedded_server(DEFAULT_EMBEDDED_PATH) as dsn:
            yield dsn

    @contextmanager
    def admin(
        self, *, create: bool = False, serde: SerializerProtocol | None = None, accept_plain: bool = False
    ) -> Iterator[Admin]:
        """Connect for administration of tables of any version."""
        from langgraph_pgstate.admin.api import Admin

        given: Any = {"schema": self.schema, "tenant": self.tenant, "serde": serde}
        given["encryption"] = self.encryption(accept_plain=accept_plain)
        with self.open(create=create) as dsn, Admin.open(dsn, **given) as admin:
            yield admin

    def check(self, dsn: str) -> None:
        """Check that the tables exist and are up to date."""
        from langgraph_pgstate.state import PGState

        with PGState.open(dsn, schema=self.schema, pool=False) as state:
            state.check_schema()

    @contextmanager
    def connect(self, **options: Unpack[StateOptions]) -> Iterator[PGState]:
        """Connect to tables that are up to date."""
        from langgraph_pgstate.state import PGState

        where = {"schema": self.schema, "tenant": self.tenant, "encryption": self.encryption()}
        given: Any = {**where, "pool": False, **options}
        with self.open() as dsn, PGState.open(dsn, **given) as state:
            state.check_schema()
            yield state


def absent(threads: Threads, thread_id: str, why: str | None = None) -> PGStateError:
    """Return the error for a thread that is archived or missing. `why` is the message for a missing thread."""
    found = threads.get(thread_id)
    if found is not None and found.archived_at is not None:
        return ThreadArchivedError(thread_id, "", found.archived_at)
    return NotFoundError(why or f"there is no thread {thread_id!r}")


def _holds_data(directory: Path) -> bool:
    try:
        return (directory / "PG_VERSION").exists()
    except PermissionError:
        return True  # The directory belongs to another user, and opening it raises an error.
