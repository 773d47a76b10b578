"""Handles by which callers wait for enqueued runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from langgraph_pgstate.errors import RunTimeoutError
from langgraph_pgstate.runs.outcomes import UNFINISHED
from langgraph_pgstate.runs.types import StreamEvent

if TYPE_CHECKING:
    from langgraph_pgstate.runs.api import AsyncRuns, Runs

# Seconds between two polls.
_FIRST_PAUSE: Final = 0.02
# Factor by which pauses grow. On average, a wait takes a tenth longer than the run.
_LENGTHENING: Final = 1.25
_LONGEST_PAUSE: Final = 0.5


class _Handle:
    """The part of `RunHandle` and `AsyncRunHandle` that needs no database.

    Attributes:
        thread_id: Id of the thread.
        run_id: Id of the run.
        is_new: Whether the call that returned the handle enqueued the run; false if the run was enqueued before.
    """

    def __init__(self, thread_id: str, run_id: str, is_new: bool, is_known: bool) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.is_new = is_new
        # A run that is known to have existed, and is missing, was rolled back or deleted.
        self._is_known = is_known

    def __repr__(self) -> str:
        return f"{type(self).__name__}(thread_id={self.thread_id!r}, run_id={self.run_id!r})"


class RunHandle(_Handle):
    """An enqueued run.

    Another process can make an equal handle from the ids: `state.runs.handle(thread_id, run_id)`.
    """

    def __init__(self, runs: Runs, thread_id: str, run_id: str, is_new: bool = False, *, is_known: bool = True) -> None:
        super().__init__(thread_id, run_id, is_new, is_known)
        self._runs = runs

    def status(self) -> str:
        """Return the run's status: `pending`, `running`, `interrupted`, `success`, `error`, `cancelled`, `timeout`.

        Raises:
            NotFoundError: If the run no longer exists.
        """
        return self._runs.status(self.thread_id, self.run_id)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the run ends, and return its final state; see `Runs.wait`."""
        return self._runs.wait(self.thread_id, self.run_id, timeout, is_known=self._is_known)

    def join(self, *, last_event_id: str | int | None = None) -> Iterator[StreamEvent]:
        """Yield the run's events, past and live; see `Runs.join`."""
        return self._runs.join(self, last_event_id=last_event_id)

    def cancel(self, action: str = "cancel") -> str:
        """Cancel the run; see `Runs.cancel`."""
        return self._runs.cancel(self.thread_id, self.run_id, action)


class AsyncRunHandle(_Handle):
    """Async twin of `RunHandle`."""

    def __init__(
        self, runs: AsyncRuns, thread_id: str, run_id: str, is_new: bool = False, *, is_known: bool = True
    ) -> None:
        super().__init__(thread_id, run_id, is_new, is_known)
        self._runs = runs

    async def status(self) -> str:
        """Async twin of `RunHandle.status`."""
        return await self._runs.status(self.thread_id, self.run_id)

    async def wait(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Async twin of `RunHandle.wait`."""
        return await self._runs.wait(self.thread_id, self.run_id, timeout, is_known=self._is_known)

    def join(self, *, last_event_id: str | int | None = None) -> AsyncIterator[StreamEvent]:
        """Async twin of `RunHandle.join`."""
        return self._runs.join(self, last_event_id=last_event_id)

    async def cancel(self, action: str = "cancel") -> str:
        """Async twin of `RunHandle.cancel`."""
        return await self._runs.cancel(self.thread_id, self.run_id, action)


class PollPauses:
    """The pauses of a `wait` between polls of a run. The first pauses are short.

    Attributes:
        is_first: Whether `next` has returned the first pause.
    """

    def __init__(self, thread_id: str, run_id: str, timeout: float | None) -> None:
        self._ids, self._timeout = (thread_id, run_id), timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = _FIRST_PAUSE
        self.is_first = False

    def next(self, status: str) -> float | None:
        """Return the seconds until the next poll; `None` if the run has ended.

        Raises:
            RunTimeoutError: If there is no time left.
        """
        if status not in UNFINISHED:
            return None
        self.is_first = self._pause == _FIRST_PAUSE
        pause, self._pause = self._pause, min(self._pause * _LENGTHENING, _LONGEST_PAUSE)
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise RunTimeoutError(*self._ids, status, self._timeout or 0.0)
            pause = min(pause, left)
        return pause
