"""A run's last rows on their way to the journal, while the graph has its answer already."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from langgraph_pgstate.db.port import Port
from langgraph_pgstate.recorder.tracker import Pending, Tracker
from langgraph_pgstate.sql import Queries

# More may not fit what a socket holds, and would not be on its way.
_MAX_BYTES: Final = 64 * 1024
# Nobody holds the lock for longer, unless he was interrupted between taking it and having it.
_PATIENCE: Final = 5.0


class Courier:
    """Sends entries to the journal and does not wait for the server's answer: half a millisecond less for each run.

    A server stores what it has, even if this process is killed in the next moment. An answer is taken before the next
    entry is sent, or by the writer when it comes. What the server has not acknowledged stays with the tracker, and is
    written by the writer: how a run ended is lost only if it did not get to the server, or was refused there, and the
    process is lost, too, before the writer has come.

    Any number of threads may send; who finds it at work, or without a port, puts an entry otherwise. The rest is for
    one writer.

    Args:
        queries: The queries of the schema.
        tracker: Whose rows they are.
    """

    def __init__(self, queries: Queries, tracker: Tracker) -> None:
        self._queries, self._tracker = queries, tracker
        self._lock = threading.Lock()
        self._port: Port | None = None
        self._process = os.getpid()
        self._sent: tuple[str, Pending] | None = None
        self._is_lost = False
        self._is_stopped = False

    @property
    def is_ready(self) -> bool:
        """Whether it has a port of its own in this process that is not lost."""
        return self._port is not None and not self._is_lost and self.is_at_home

    @property
    def is_at_home(self) -> bool:
        """Whether this is the process it was made in: what a fork has left is the parent's."""
        return os.getpid() == self._process

    @property
    def has_sent(self) -> bool:
        """Whether an answer is still to be taken."""
        return self._sent is not None and self.is_ready

    async def start(self, port: Port) -> None:
        """Let it have a port of its own; it must have none."""
        await port.prepare(self._queries.put_entry)
        self._sent, self._is_lost = None, False
        self._port = port

    def drop(self) -> None:
        """Take its port away. What was sent and not acknowledged is left to the writer."""
        if self.is_at_home:
            is_locked = self._lock.acquire(timeout=_PATIENCE)
            self._port = self._sent = None
            if is_locked:
                self._lock.release()

    def stop(self) -> None:
        """From now on it sends nothing."""
        self._is_stopped = True

    def send(self, entry: dict[str, Any], pending: Pending) -> bool:
        """Send an entry. Waits for nothing.

        Args:
            entry: The entry.
            pending: The rows it has, to be acknowledged when the server has answered.

        Returns:
            Whether it is on its way; if not, it has to be put otherwise, and may be put twice.
        """
        # A run of which the server knows nothing yet would bring back a thread that is deleted meanwhile.
        if self._is_stopped or pending.note.begun or len(entry["entry"]) > _MAX_BYTES:
            return False
        if not self.is_ready or not self._lock.acquire(blocking=False):
            return False
        try:
            # Once more, for somebody may have had the lock in between.
            if self._port is None or self._is_lost or self._is_stopped:
                return False
            if self._sent is not None and not self._acknowledge(self._port.take()):
                return False
            self._sent = entry["thread_id"], pending
            if self._port.leave(self._queries.put_entry, entry):
                return True
            # Nobody knows how much of it was sent.
            self._sent, self._is_lost = None, True
            return False
        finally:
            self._lock.release()

    async def settle(self) -> None:
        """Wait for the answer to what was sent. Safe to cancel: who comes next goes on."""
        if not self.has_sent or not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            if self._sent is not None and self._port is not None:
                self._acknowledge(await self._port.settle())
        finally:
            self._lock.release()

    def _acknowledge(self, is_done: bool | None) -> bool:
        if is_done is None or self._sent is None:
            return False
        (thread_id, pending), self._sent = self._sent, None
        if is_done:
            self._tracker.note(thread_id)
            self._tracker.acknowledge(pending)
        else:
            self._is_lost = True
        return is_done
