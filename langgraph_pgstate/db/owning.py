"""Objects that open connections. They are closed at the end of a block, by a call, or at exit."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from langgraph_pgstate.errors import ArgumentTypeError

T = TypeVar("T")

_log = logging.getLogger("langgraph_pgstate")


class Opening(Generic[T]):
    """An object that opens connections on the running event loop.

    Use it in `async with`, or await it and close the result.
    """

    def __init__(
        self, open: Callable[[], Coroutine[Any, Any, T]], close: Callable[[T], Coroutine[Any, Any, None]]
    ) -> None:
        self._open, self._close = open, close
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise ArgumentTypeError(
                "an async class must be opened by `async with`, not `with`, or use its blocking twin"
            )

        def __exit__(self, *exception: object) -> None: ...

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await self._close(opened)


class AtExit(Generic[T]):
    """A method of `owner` that is called when the process exits, unless the call is cancelled or `owner` is deleted.

    A forked child does not call the method. The method must end in bounded time. Its exceptions are logged.
    """

    def __init__(self, owner: T, close: Callable[[T], object]) -> None:
        self._owner, self._close, self._process = weakref.ref(owner), close, os.getpid()
        atexit.register(self._call)
        # Cancel the call when the owner no longer exists. Without `atexit = False`, the finalizer would also cancel the
        # call at exit.
        weakref.finalize(owner, self.cancel).atexit = False

    def cancel(self) -> None:
        """Cancel the call."""
        atexit.unregister(self._call)

    def _call(self) -> None:
        owner = self._owner()
        if owner is None or os.getpid() != self._process:
            return
        try:
            self._close(owner)
        except Exception as error:
            _log.warning("an object could not be closed when the process ended: %s", error)
