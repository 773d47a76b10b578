"""Several processes of one server, which are started, restarted when they die, and drained together."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

_log = logging.getLogger("langgraph_pgstate.server")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PAUSE_SECONDS: Final = 2.0
# Maximum seconds of a wait for the processes. The supervisor reacts to a signal only after a wait.
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Membership:
    """The connection of a server process to its supervisor.

    Attributes:
        is_first: Whether the other processes wait until this process serves.
        supervisor: File descriptor that reaches its end when the supervisor stops or dies.
        report: Tells the supervisor that the process serves.
    """

    is_first: bool
    supervisor: int
    report: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Member:
    process: Any
    ready: Connection
    started: float


class Supervisor:
    """A process that forks several server processes and keeps them running.

    The first process starts alone, so that a wrong setting is reported once. The other processes start when the first
    process serves. A process that dies is started again, at least two seconds after its last start. When the supervisor
    is killed, its processes drain.

    Args:
        serve: Serves in a process until SIGTERM or until `Membership.supervisor` ends, and returns the exit code.
        count: Number of processes.
        close: Closes the socket. Called in the supervisor before the processes drain.
    """

    def __init__(self, serve: Callable[[Membership], int], count: int, close: Callable[[], None]) -> None:
        self._target, self._count, self._close = serve, count, close
        self._members: dict[int, _Member] = {}
        self._signals: list[int] = []
        # The pipe ends when the supervisor dies, because only the supervisor keeps the writing end.
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)

    def run(self) -> int:
        """Keep the processes running until SIGTERM or SIGINT, then drain them. A second signal kills them.

        Returns:
            0 after a drain; 1 if a process failed while it drained; 143 or 130 after a second signal; the first
            process's exit code if that process did not start.
        """
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            failed = self._supervise()
            return self._drain() if failed is None else failed
        finally:
            for member in self._members.values():
                member.process.kill()
                member.process.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()

    def _signalled(self, number: int, _: Any = None) -> None:
        self._signals.append(number)

    def _supervise(self) -> int | None:
        """Keep processes running until a signal. Return the exit code of the first process if it did not start."""
        due, serves = {1: 0.0}, False
        while not self._signals:
            now = time.monotonic()
            for number in [number for number, at in due.items() if at <= now]:
                del due[number]
                try:
                    self._members[number] = self._start(number, is_first=not serves)
                except OSError as error:
                    if not serves:
                        raise
                    _log.error("server-%d cannot be started yet: %s", number, error)
                    due[number] = now + _PAUSE_SECONDS
            self._wait(() if serves else (self._members[1].ready,))
            if not serves and (serves := _is_serving(self._members[1])):
                due = dict.fromkeys(range(2, self._count + 1), 0.0)
            for number, member in self._ended():
                if not serves:
                    if member.process.exitcode < 0:
                        _log.error("%s %s at its start", member.process.name, _describe_end(member.process))
                    return abs(member.process.exitcode) or 1
                due[number] = member.started + _PAUSE_SECONDS
                level = logging.WARNING if member.process.exitcode else logging.INFO
                _log.log(level, "%s %s; it is started again", member.process.name, _describe_end(member.process))
        return None

    def _drain(self) -> int:
        self._writer.close()
        self._close()
        code = 0
        while self._members:
            if len(self._signals) > 1:
                return 128 + self._signals[-1]
            self._wait()
            for _, member in self._ended():
                if member.process.exitcode:
                    _log.error("%s %s while it drained", member.process.name, _describe_end(member.process))
                    code = 1
        return code

    def _wait(self, others: tuple[Connection, ...] = ()) -> None:
        wait([*(member.process.sentinel for member in self._members.values()), *others], _POLL_SECONDS)

    def _ended(self) -> list[tuple[int, _Member]]:
        """Remove the processes that have ended, and return them."""
        found = [(number, one) for number, one in self._members.items() if one.process.exitcode is not None]
        for number, member in found:
            del self._members[number]
            member.process.join()
            member.ready.close()
        return found

    def _start(self, number: int, *, is_first: bool) -> _Member:
        context: Any = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        # The process is not a daemon, because graphs may start processes.
        process = context.Process(target=self._serve, args=(is_first, writer), name=f"server-{number}")
        process.start()
        writer.close()
        return _Member(process, reader, time.monotonic())

    def _serve(self, is_first: bool, ready: Connection) -> None:
        self._writer.close()
        # Ctrl-C reaches all processes of a terminal. Ignore the signal here, because the supervisor ends this process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(self._target(Membership(is_first, self._reader.fileno(), lambda: _report(ready))))


def _report(ready: Connection) -> None:
    # The pipe is broken if the supervisor has died. `Membership.supervisor` tells this process.
    with suppress(BrokenPipeError):
        ready.send(True)


def _is_serving(member: _Member) -> bool:
    with suppress(EOFError):
        return member.ready.poll() and bool(member.ready.recv())
    return False


def _describe_end(process: Any) -> str:
    code = process.exitcode
    how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    return f"(process {process.pid}) {how}"
