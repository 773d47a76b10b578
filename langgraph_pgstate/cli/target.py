"""Which database a command works on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.settings import DEFAULT_EMBEDDED_PATH, DEFAULT_SCHEMA, DSN_VARIABLE, check_schema_name


@dataclass(frozen=True, slots=True)
class Target:
    """The database and schema that the global options name.

    Attributes:
        dsn: The given DSN; `None` for the embedded server.
        schema: The schema.
    """

    dsn: str | None
    schema: str

    @property
    def place(self) -> str:
        """Where it is, in words that hold no password."""
        return "the given server" if self.dsn else f"embedded, data in {DEFAULT_EMBEDDED_PATH}/"

    def program(self) -> str:
        """How to call `pgstate` from here on the same database, for a command that can be pasted."""
        if shutil.which("pgstate"):
            name = "pgstate"
        elif sys.argv[0].endswith("__main__.py"):
            name = "python -m langgraph_pgstate"
        else:
            name = min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len)
        dsn = " --dsn ..." if self.dsn and not os.environ.get(DSN_VARIABLE) else ""
        schema = f" --schema {self.schema}" if self.schema != DEFAULT_SCHEMA else ""
        return name + dsn + schema

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[str]:
        """The DSN, for as long as the embedded server runs.

        Args:
            create: Whether an embedded database may be made where there is none.

        Raises:
            NotFoundError: If there is none and it may not.
        """
        check_schema_name(self.schema)
        if self.dsn:
            yield self.dsn
            return
        if not create and not _holds_data(Path(DEFAULT_EMBEDDED_PATH)):
            raise NotFoundError(
                f"no database: give --dsn or set {DSN_VARIABLE}; there is no embedded one in "
                f"{DEFAULT_EMBEDDED_PATH}/ here (`pgstate setup` and `pgstate demo` make it)"
            )
        with embedded_server(DEFAULT_EMBEDDED_PATH) as dsn:
            yield dsn


def _holds_data(directory: Path) -> bool:
    try:
        return (directory / "PG_VERSION").exists()
    except PermissionError:
        return True  # of another user; opening it says so
