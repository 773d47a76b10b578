"""The tools that checks of leases allowed to start or refused to start, during an attempt at an action."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final
from uuid import UUID

from langgraph_pgstate.errors import LeaseLostError


class ToolStarts:
    """The starts of the tool of one attempt, and of tools that this tool calls.

    The object belongs to a context, so it follows the attempt into tasks and OS threads.
    """

    def __init__(self) -> None:
        self._refusal: LeaseLostError | None = None
        # Whether each tool may start, by run id. If several leases are checked, all checks must allow the start.
        self._is_allowed: dict[UUID, bool] = {}

    def allow(self, run_id: UUID) -> None:
        """Remember that a check has allowed the start of a tool."""
        self._is_allowed.setdefault(run_id, True)

    def refuse(self, run_id: UUID, refusal: LeaseLostError) -> None:
        """Remember that a check has refused the start of a tool."""
        self._refusal = refusal
        self._is_allowed[run_id] = False

    @property
    def refusal(self) -> LeaseLostError | None:
        """The error of the check, if every start was refused so far; `None` if a tool has begun or none was started."""
        return None if any(self._is_allowed.values()) else self._refusal


tool_starts: Final[ContextVar[ToolStarts | None]] = ContextVar("pgstate_tool_starts", default=None)
