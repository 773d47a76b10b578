"""Leases of threads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to advance a thread, as it was when it was read.

    Attributes:
        thread_id: The thread.
        holder_id: Who holds it: host, boot, namespace of process ids, process id, start time, and a number of its own.
        fencing_token: Its number; every later lease of the thread has a higher one.
        acquired_at: Since when, by the database's clock.
        renewed_at: When the holder last said that it is alive.
        expires_at: Until when, unless it is renewed.
    """

    thread_id: str
    holder_id: str
    fencing_token: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
