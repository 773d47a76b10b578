"""Starts of tools within an attempt at an action, as allowed or refused by the checks of leases."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final
from uuid import UUID

from langgraph_pgstate.errors import LeaseLostError


class ToolStarts:
    """The starts of tools in one attempt: the one of its own tool, and those of tools that it calls.

    It belongs to a context, so it follows the attempt into its tasks and threads.
    """

    def __init__(self) -> None:
        self._refusal: LeaseLostError | None = None
        # One for each lease, because several may be checked at one start.
        self._is_allowed: dict[UUID, bool] = {}

    def allow(self, run_id: UUID) -> None:
        """Remember that a check has let a tool begin."""
        self._is_allowed.setdefault(run_id, True)

    def refuse(self, run_id: UUID, refusal: LeaseLostError) -> None:
        """Remember that a check has refused to let a tool begin."""
        self._refusal = refusal
        self._is_allowed[run_id] = False

    @property
    def refusal(self) -> LeaseLostError | None:
        """The error of the check that has refused each start so far; `None` if a tool has begun, or none was to."""
        return None if any(self._is_allowed.values()) else self._refusal


tool_starts: Final[ContextVar[ToolStarts | None]] = ContextVar("pgstate_tool_starts", default=None)
