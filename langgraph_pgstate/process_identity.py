"""Who holds something that is under way: the identity of this process, and whether another one is known to be dead.

A holder's id names the machine's boot, the namespace of process ids and the process, so that another process of the
same machine can tell at once that a holder was killed. Wherever that cannot be told (another machine, another
container, a system without `/proc`), time has to decide: a holder renews how long it is to be taken for alive.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_SEPARATOR = "/"
_UNKNOWN = "-"
_START_TIME = 19
"""Where a process's start time is among the fields of `/proc/self/stat` that follow its command's name."""

_own: dict[int, str] = {}
_places: dict[int, list[str]] = {}


def holder_id() -> str:
    """Tell who this process is.

    Returns:
        Host, boot, namespace of process ids, process id, start time and a random part, separated by slashes. It is the
        same for as long as the process lives; a forked child has another one.
    """
    pid = os.getpid()
    known = _own.get(pid)
    return known or _own.setdefault(pid, _SEPARATOR.join([*_place(), str(pid), _start_time(), uuid4().hex]))


def is_known_dead(holder_id: str) -> bool:
    """Tell whether a holder is certainly gone.

    Args:
        holder_id: What `holder_id` answered there.

    Returns:
        True only if the process was one of this boot of this machine and of this namespace of process ids, and no
        process has its id now. False means that it may be alive: then time decides.
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
    """Where process ids mean the same: host, boot and namespace; what cannot be told is unknown.

    Looked up once per process: an event loop, which must not read files, asks whether other holders are alive.
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
        # The command's name stands in parentheses and may contain blanks and parentheses itself.
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[_START_TIME]
    return _UNKNOWN


def _parts_of(holder_id: str) -> tuple[list[str], int]:
    parts = holder_id.split(_SEPARATOR)
    if len(parts) != 6 or not (parts[3].isascii() and parts[3].isdigit()):
        return [], 0
    return parts[:3], int(parts[3])
