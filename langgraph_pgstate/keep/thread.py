"""A worker's thread that applies policies of retention."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Final

from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.runners import BlockingRunner
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.heavy import start
from langgraph_pgstate.keep.retention import apply_policies
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import list_tenants, of_tenant

PERIOD_SECONDS: float = 300.0
"""Seconds between two applications of the policies."""
# Minimum time between the starts of two visits of all threads by one policy.
_PAUSE: Final = timedelta(hours=1)
_STOP_SECONDS: Final = 5.0
# A pause is 39 times as long as the batch before the pause. So batches take a fortieth of the time, and delay few puts.
_PAUSES: Final = 39
_MOST_PAUSE_SECONDS: Final = 30.0
_log = logging.getLogger("langgraph_pgstate.keep")


class Pace:
    """Pauses between batches. The event `stopped` ends them."""

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._began = time.monotonic()

    def goes_on(self) -> bool:
        """Pause, and return whether another batch may begin."""
        is_stopped = self._stopped.wait(min(_PAUSES * (time.monotonic() - self._began), _MOST_PAUSE_SECONDS))
        self._began = time.monotonic()
        return not is_stopped


class RetentionThread:
    """A thread that applies policies every five minutes, so that archiving does not delay a worker's runs.

    The thread connects for each application, and holds no connection in between. Any number of workers may run such a
    thread. With `of_tenants`, it applies the policies of all tenants, one tenant after the other.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractContextManager[Database]],
        queries: Queries,
        *,
        of_tenants: bool = False,
    ) -> None:
        self._opening, self._queries, self._of_tenants = opening, queries, of_tenants
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pgstate-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        start(self._thread)

    def stop(self) -> None:
        """Stop after the current batch, but wait at most 5 seconds. A killed batch leaves a consistent state."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _work(self) -> None:
        while not self._stopped.wait(PERIOD_SECONDS):
            try:
                with self._opening() as database:
                    for one in self._databases(database):
                        self._apply(one)
            except PGStateError as error:
                _log.warning("policies of retention cannot be applied: %s", error)
            except Exception:
                _log.exception("policies of retention cannot be applied")

    def _databases(self, database: Database) -> Iterator[Database]:
        if not self._of_tenants:
            yield database
            return
        for name in database.run(list_tenants, self._queries):
            if self._stopped.is_set():
                return
            yield of_tenant(database, name, self._queries)

    def _apply(self, database: Database) -> None:
        applying = apply_policies(
            BlockingRunner(database),
            self._queries,
            goes_on=Pace(self._stopped).goes_on,
            pause=_PAUSE,
        )
        for report in run_blocking(applying):
            _log.debug("policy applied: %s", report)
