"""Leases of threads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to advance a thread, as of the time of reading.

    Attributes:
        thread_id: The thread.
        holder_id: The holder: host, boot id, process id namespace, process id, process start time, and a number within
            the process.
        fencing_token: Number of the lease. Every later lease of the thread has a higher number.
        acquired_at: Start of the lease, by the database's clock.
        renewed_at: Time of the last renewal.
        expires_at: End of the lease, unless it is renewed.
    """

    thread_id: str
    holder_id: str
    fencing_token: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
