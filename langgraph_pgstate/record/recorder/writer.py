"""The writer of a recorder's queue, for the blocking and the async recorder.

The writer awaits only its runner, which never suspends with a blocking database. So the blocking recorder needs no
event loop.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from langgraph_pgstate.codec.ids import new_entry_id
from langgraph_pgstate.db.runners import Runner
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.process_identity import holder_id, is_known_dead
from langgraph_pgstate.record import journal
from langgraph_pgstate.record.recorder.records import RunRecord
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from langgraph_pgstate.schema.queries import Queries

_log = logging.getLogger("langgraph_pgstate.record")
# After this number of seconds, a journal entry counts as left by a dead process.
_LEFT_SECONDS = 30.0
# After this number of seconds, a journal entry counts as forgotten. A live process moves entries every 0.4 seconds.
_STUCK_SECONDS = 1.0
_CLOCK_SECONDS = 60.0


class Writer:
    """A writer of the rows of a queue, and of journal entries that dead processes left.

    Attributes:
        recovers_at: The monotonic time from which a reader calls `recover_again`.
    """

    def __init__(self, runner: Runner, queries: Queries, queue: WriteQueue) -> None:
        self._runner, self._queries = runner, queries
        self._queue = queue
        self._clock_at = self.recovers_at = float("-inf")

    async def learn_clock(self) -> None:
        """Read the database's clock, and set the `clock_offset` of the queue."""
        before = time.time()
        database = await self._runner.run(journal.tell_time, self._queries)
        self._queue.clock_offset = database - (before + time.time()) / 2

    async def write(self, include_recent: bool) -> PGStateError | None:
        """Write the due rows, or with `include_recent` all rows. After an error, return the error and keep the rows."""
        try:
            if time.monotonic() - self._clock_at > _CLOCK_SECONDS:
                await self.learn_clock()
                self._clock_at = time.monotonic()
                await self.recover(_LEFT_SECONDS)
            ttl = self._queue.settings.ttl
            await self._runner.run(
                journal.write_pending, self._queries, self._queue, is_known_dead, holder_id(), ttl, include_recent
            )
        except PGStateError as error:
            self._log(error)
            return error
        except Exception as error:
            _log.exception("%d spans and events are not written yet", self._queue.waiting)
            return PGStateError(str(error))
        return None

    async def write_end(self, run: RunRecord) -> bool:
        """Commit the remaining rows of a run to the journal. After an error or timeout, a later `write` writes them.

        Returns:
            Whether the rows were sent: false if there are no rows, or too many for one entry.
        """
        timeout = self._queue.settings.timeout
        pending = self._queue.take(run, with_run=True)
        if pending is None or not pending.is_complete:
            return False
        entry = journal.entry_of(run.key, new_entry_id(), pending.journal_entry)
        owner = {"agent": run.agent, "user_id": run.user_id, "tenant_id": run.tenant_id}
        until = time.monotonic() + timeout
        try:
            await self._runner.run_within(
                timeout, journal.put_entry, self._queries, entry, lambda: until - time.monotonic(), owner
            )
        except PGStateError as error:
            self._log(error)
        else:
            self._queue.note_journaled(run.key[0])
            self._queue.acknowledge(pending)
        return True

    async def recover(self, seconds: float) -> int:
        """Move journal entries that are at least `seconds` old into the tables, and return their number."""
        own = self._queue.own_runs()
        return await self._runner.run(journal.recover, self._queries, seconds, is_known_dead, own)

    async def recover_again(self) -> None:
        """Move the journal entries that have no writer. Errors are ignored."""
        is_first = self.recovers_at < 0
        self.recovers_at = time.monotonic() + _STUCK_SECONDS
        with suppress(PGStateError):
            await self.recover(0.0 if is_first else _STUCK_SECONDS)

    def _log(self, error: PGStateError) -> None:
        _log.warning("%d spans and events are not written yet: %s", self._queue.waiting, error)
