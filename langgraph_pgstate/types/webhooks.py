"""Webhooks, which tell a URL that a run has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """A webhook that this process has claimed, to deliver it once.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        ended_at: Time at which the run ended.
        url: Where it is delivered to.
        attempts: Number of this attempt, from 1.
        run: Columns of the run, as it ended.
        sent_at: Time of the claim, by the database's clock.
    """

    thread_id: str
    run_id: str
    ended_at: datetime
    url: str
    attempts: int
    run: Mapping[str, Any]
    sent_at: datetime

    @property
    def id(self) -> str:
        """Its id, the same in all attempts."""
        return f"{self.run_id}-{round(self.ended_at.timestamp() * 1_000_000)}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that could not be delivered.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        ended_at: Time at which the run ended.
        url: Where it was to be delivered to.
        attempts: Number of attempts.
        last_error: Why the last one failed.
    """

    thread_id: str
    run_id: str
    ended_at: datetime
    url: str
    attempts: int
    last_error: str | None
