"""Ids of the processes that hold leases and runs, the detection of dead holders, and the clock of leases.

Another process of the same machine can detect a killed holder at once by the holder's id. A process of another machine
or container, or of a system without `/proc`, waits until the holder's lease or run has expired.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_SEPARATOR = "/"
_UNKNOWN = "-"
_START_TIME = 19
"""Index of the start time among the fields of `/proc/self/stat` after the command name."""

_BOOT_TIME: Final = getattr(time, "CLOCK_BOOTTIME", None)

_own: dict[int, str] = {}
_places: dict[int, list[str]] = {}


def lease_clock() -> float:
    """Return the seconds of a monotonic clock.

    Leases expire while a machine is suspended, so the clock counts suspended time where the system has such a clock.
    """
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


def holder_id() -> str:
    """Return the id of this process, which is constant. A forked child has another id.

    The id has these parts, separated by slashes: host, boot id, namespace of process ids, process id, start time, and a
    random part.
    """
    pid = os.getpid()
    known = _own.get(pid)
    return known or _own.setdefault(pid, _SEPARATOR.join([*_place(), str(pid), _start_time(), uuid4().hex]))


def short_holder(holder_id: str) -> str:
    """Return a holder as `host:pid`, for people. Return other ids unchanged."""
    place, pid = _parts_of(holder_id)
    return f"{place[0]}:{pid}" if place else holder_id


def is_known_dead(holder_id: str) -> bool:
    """Return whether a holder is certainly dead.

    True only if the process belonged to this boot of this machine and to this namespace of process ids, and no process
    has its process id now. False means that the holder may be alive.
    """
    place, pid = _parts_of(holder_id)
    if pid <= 0 or _UNKNOWN in place or place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _place() -> list[str]:
    """Return host, boot id and namespace. Process ids are comparable only within these; unknown parts are `_UNKNOWN`.

    The parts are cached, because event loops call `is_known_dead` and must not read files.
    """
    pid = os.getpid()
    known = _places.get(pid)
    return known or _places.setdefault(pid, _look_around())


def _look_around() -> list[str]:
    boot = namespace = _UNKNOWN
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or _UNKNOWN
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]") or _UNKNOWN
    host = socket.gethostname().replace(_SEPARATOR, "_") or _UNKNOWN
    return [host, boot, namespace]


def _start_time() -> str:
    with suppress(OSError, IndexError):
        # The command name is in parentheses, and may contain spaces and parentheses.
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[_START_TIME]
    return _UNKNOWN


def _parts_of(holder_id: str) -> tuple[list[str], int]:
    parts = holder_id.split(_SEPARATOR)
    if len(parts) != 6 or not (parts[3].isascii() and parts[3].isdigit()):
        return [], 0
    return parts[:3], int(parts[3])
