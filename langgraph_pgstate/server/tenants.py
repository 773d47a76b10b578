"""For each tenant, the part of the server that reaches only this tenant's rows. The last used parts stay open."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from langgraph_pgstate.db.finishing import complete

T = TypeVar("T")

_log = logging.getLogger("langgraph_pgstate.server")

MOST_PARTS: Final = 200
"""Maximum number of parts that are kept open, besides the parts of requests in progress."""
_USED: Final = "pgstate.tenant_parts"


@dataclass(slots=True, eq=False)
class _Part(Generic[T]):
    """The open part of one tenant. `users` is the number of requests in progress that use the part."""

    content: T
    resources: AsyncExitStack
    users: int = 0


class TenantParts(Generic[T]):
    """The parts by tenant, for one event loop.

    If there are more than `most` parts, the least recently used parts that serve no request are closed. A tenant whose
    part is being closed gets a new part.

    Args:
        open: Opens the part of a tenant, and registers its closing on the stack.
        most: Maximum number of parts that are kept open.
    """

    def __init__(self, open: Callable[[str, AsyncExitStack], T], most: int = MOST_PARTS) -> None:
        self._open, self._most = open, most
        self._parts: OrderedDict[str, _Part[T]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, tenant: str, scope: MutableMapping[str, Any]) -> T:
        """Return the part of a tenant, which stays open until the block of `request_of` with this scope ends.

        If `open` fails, everything that `open` has registered on the stack is closed.
        """
        part = self._parts.get(tenant)
        if part is None:
            resources = AsyncExitStack()
            try:
                part = self._parts[tenant] = _Part(self._open(tenant, resources), resources)
            except BaseException:
                self._close_soon(tenant, resources)
                raise
        self._parts.move_to_end(tenant)
        part.users += 1
        scope[_USED].append((self, part))
        return part.content

    def _give_back(self, part: _Part[T]) -> None:
        part.users -= 1
        if (surplus := len(self._parts) - self._most) <= 0:
            return
        # The first entries were used least recently.
        for tenant in [name for name, one in self._parts.items() if not one.users][:surplus]:
            self._close_soon(tenant, self._parts.pop(tenant).resources)

    def _close_soon(self, tenant: str, resources: AsyncExitStack) -> None:
        task = asyncio.get_running_loop().create_task(_close(tenant, resources))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all parts, and wait until they are closed. A cancellation does not shorten the wait.

        A part that a request takes afterwards is closed at the end of the request.
        """
        self._most = 0
        await complete(self._close())

    async def _close(self) -> None:
        while self._parts:
            tenant, part = self._parts.popitem()
            await _close(tenant, part.resources)
        await asyncio.gather(*self._closing)


@contextmanager
def request_of(scope: MutableMapping[str, Any]) -> Iterator[None]:
    """Release the parts that a request has taken, however the request ends."""
    used: list[tuple[TenantParts[Any], _Part[Any]]] = []
    scope[_USED] = used
    try:
        yield
    finally:
        for parts, part in used:
            parts._give_back(part)


async def _close(tenant: str, resources: AsyncExitStack) -> None:
    try:
        await resources.aclose()
    except Exception as error:
        _log.warning("the part of tenant %r could not be closed completely: %s", tenant, error)
