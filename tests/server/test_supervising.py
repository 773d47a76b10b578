"""Processes under a supervisor; the command with its servers is in `tests/cli/test_serve.py`."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import FORK, GUARD_SECONDS, wait_until

from langgraph_pgstate.server.supervising import Membership, Supervisor

pytestmark = pytest.mark.once


def until_told(place: Path, member: Membership) -> int:
    """Note this process, report, and wait for the supervisor's end for longer than tests do."""
    (place / str(os.getpid())).write_text("first" if member.is_first else "")
    member.report()
    select.select([member.supervisor], [], [], 2 * GUARD_SECONDS)
    (place / str(os.getpid())).unlink()
    return 0


@pytest.fixture
def supervised() -> Iterator[Any]:
    """Starts a supervisor of three processes, in a process; kills it at the end."""
    started: list[Any] = []

    def start(serve: Callable[[Membership], int], close: Any = lambda: None) -> Any:
        started.append(FORK.Process(target=lambda: os._exit(Supervisor(serve, 3, close).run())))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def code_of(process: Any) -> int | None:
    process.join(GUARD_SECONDS)
    return process.exitcode


def pids(place: Path) -> list[int]:
    return sorted(int(path.name) for path in place.iterdir())


@pytest.mark.slow
def test_processes_that_die_are_started_again_and_all_drain(supervised: Any, tmp_path: Path) -> None:
    process = supervised(lambda member: until_told(tmp_path, member))
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes")
    before = pids(tmp_path)
    assert [(tmp_path / str(pid)).read_text() for pid in before].count("first") == 1
    for pid in before[:2]:
        os.kill(pid, signal.SIGKILL)
        (tmp_path / str(pid)).unlink()
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes again")
    assert before[2] in pids(tmp_path)
    os.kill(process.pid, signal.SIGTERM)
    assert (code_of(process), pids(tmp_path)) == (0, [])


def test_the_processes_see_that_their_supervisor_was_killed(supervised: Any, tmp_path: Path) -> None:
    process = supervised(lambda member: until_told(tmp_path, member))
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes")
    process.kill()
    wait_until(lambda: not pids(tmp_path), "the end of all")


@pytest.mark.slow
def test_a_second_signal_does_not_wait(supervised: Any, tmp_path: Path) -> None:
    def never_drain(member: Membership) -> int:
        (tmp_path / str(os.getpid())).touch()
        member.report()
        time.sleep(GUARD_SECONDS)
        return 0

    process = supervised(never_drain, (tmp_path / "closed").touch)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3, "three processes")
    members = pids(tmp_path)
    os.kill(process.pid, signal.SIGTERM)
    wait_until((tmp_path / "closed").exists, "the first signal's effect")
    os.kill(process.pid, signal.SIGINT)
    assert code_of(process) == 128 + signal.SIGINT
    for pid in members:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_first_process_that_does_not_start_is_the_only_one(supervised: Any, tmp_path: Path) -> None:
    def fail(member: Membership) -> int:
        (tmp_path / str(os.getpid())).touch()
        return 3

    assert code_of(supervised(fail)) == 3
    assert len(pids(tmp_path)) == 1


@pytest.mark.slow
def test_a_process_that_dies_at_once_is_started_again_after_a_pause(supervised: Any, tmp_path: Path) -> None:
    def die(member: Membership) -> int:
        if not member.is_first:
            (tmp_path / str(os.getpid())).touch()
            return 0
        member.report()
        select.select([member.supervisor], [], [], GUARD_SECONDS)
        return 0

    started = time.monotonic()
    process = supervised(die)
    wait_until(lambda: len(pids(tmp_path)) >= 4, "the second start of two")
    # Two processes, started twice.
    assert time.monotonic() - started >= 2.0
    os.kill(process.pid, signal.SIGTERM)
    assert code_of(process) == 0
    assert len(pids(tmp_path)) == 4


@pytest.mark.slow
def test_a_process_that_cannot_be_started_is_tried_again(supervised: Any, tmp_path: Path) -> None:
    process = supervised(lambda member: until_told(tmp_path, member))
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes")
    files = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4, files[1]))
    killed = pids(tmp_path)[0]
    os.kill(killed, signal.SIGKILL)
    (tmp_path / str(killed)).unlink()
    process.join(3.0)
    assert (process.exitcode, len(pids(tmp_path))) == (None, 2)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, files)
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes again")
    os.kill(process.pid, signal.SIGTERM)
    assert code_of(process) == 0


def test_a_process_that_fails_while_it_drains_is_told_by_the_exit_code(supervised: Any, tmp_path: Path) -> None:
    def fail(member: Membership) -> int:
        until_told(tmp_path, member)
        return int(member.is_first)

    process = supervised(fail)
    wait_until(lambda: len(pids(tmp_path)) == 3, "three processes")
    os.kill(process.pid, signal.SIGTERM)
    assert code_of(process) == 1
