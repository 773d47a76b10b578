"""Limits of the requests that each user may send."""

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
# Users that are known at once: sets of a few each, so that one is found by a few comparisons.
_SETS: Final = 2**13
_WAYS: Final = 8
_MOST: Final = 1_000_000


class RateLimit:
    """A number of requests that each user may send in a minute, all at once or one after another.

    Processes that are forked after it is made count together, in shared memory of one megabyte, whatever the number of
    users. It takes no lock: requests that two processes count at the same moment may count as one.

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
        # Of the monotonic clock, which all processes share: when as much may be sent again as at first.
        self._times = memory[8 * entries :].cast("d")

    def check(self, request: Request, user: User | None) -> None:
        """Count a request of a user; without one, of the client's address, or of its network if it is of IPv6.

        Raises:
            HTTPException: 429 if the user has sent too many. It is not counted.
        """
        key = f"user {user.identity}" if user is not None else _address(request)
        wait = self.count(key, time.monotonic())
        if wait > 0:
            text = f"too many requests: {self._per_minute} may be sent in a minute"
            raise refuse(429, text, {"Retry-After": str(math.ceil(wait))})

    def count(self, key: str, now: float) -> float:
        """Count a request, and return 0; or the seconds until it may be sent, and do not count it."""
        # Forked processes have the same hashes. Zero marks a free place.
        user = hash(key) or 1
        first = user % _SETS * _WAYS
        place, known = first, now
        for one in range(first, first + _WAYS):
            if self._users[one] == user:
                place, known = one, max(now, self._times[one])
                break
            # The user who has sent least is forgotten.
            if self._times[one] < self._times[place]:
                place = one
        wait = known + self._interval - now - _MINUTE
        # Floats are inexact: a wait of a millionth of a second is none.
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
    # A client has all addresses of such a network.
    return str(address.ipv4_mapped or int(address) >> 64)
