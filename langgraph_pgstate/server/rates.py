"""A limit on the number of requests of each user."""

from __future__ import annotations

import ipaddress
import math
import mmap
import time
from typing import Final

from starlette.requests import Request

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server.auth import User
from langgraph_pgstate.server.errors import refuse

_MINUTE: Final = 60.0
# The counts are in a hash table: 8,192 sets with 8 entries each.
_SETS: Final = 2**13
_WAYS: Final = 8
_MOST: Final = 1_000_000


class RateLimit:
    """The maximum number of requests that each user may send in a minute, at once or one after another.

    Processes that are forked later share the counts, which take one megabyte of memory. Counting takes no lock, so two
    requests that two processes count at once may count as one.

    Args:
        per_minute: Number of requests.

    Raises:
        ConfigurationError: If the number is not usable.
    """

    def __init__(self, per_minute: int) -> None:
        if isinstance(per_minute, bool) or not isinstance(per_minute, int) or not 0 < per_minute <= _MOST:
            raise ConfigurationError(f"per_minute must be a number from 1 to {_MOST:,}, not {per_minute!r}")
        self._per_minute = per_minute
        self._interval = _MINUTE / per_minute
        entries = _SETS * _WAYS
        memory = memoryview(mmap.mmap(-1, 16 * entries))
        self._users = memory[: 8 * entries].cast("q")
        # For each entry, the time from which its user may again send the full number of requests. The monotonic clock
        # is the same in all processes.
        self._times = memory[8 * entries :].cast("d")

    def check(self, request: Request, user: User | None) -> None:
        """Count a request of a user. Without a user, count it for the client's IPv4 address or IPv6 network.

        Raises:
            HTTPException: 429 if there were too many requests. The request is not counted.
        """
        key = f"user {user.identity}" if user is not None else _address(request)
        wait = self.count(key, time.monotonic())
        if wait > 0:
            text = f"too many requests: {self._per_minute} may be sent in a minute"
            raise refuse(429, text, {"Retry-After": str(math.ceil(wait))})

    def count(self, key: str, now: float) -> float:
        """Count a request and return 0. After too many requests, return the seconds to wait instead."""
        # Forked processes compute the same hashes. Zero marks a free entry, so no user may have the hash 0.
        user = hash(key) or 1
        first = user % _SETS * _WAYS
        place, known = first, now
        for one in range(first, first + _WAYS):
            if self._users[one] == user:
                place, known = one, max(now, self._times[one])
                break
            # If the user has no entry, take the entry with the earliest time, which is 0 for a free entry.
            if self._times[one] < self._times[place]:
                place = one
        wait = known + self._interval - now - _MINUTE
        # Floats are inexact, so a wait of a millionth of a second counts as none.
        if wait > 1e-6:
            return wait
        self._users[place] = user
        self._times[place] = known + self._interval
        return 0.0


def _address(request: Request) -> str:
    host = "" if request.client is None else request.client.host
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    # Count requests by IPv6 network, because one client can use all addresses of a network.
    return str(address.ipv4_mapped or int(address) >> 64)
