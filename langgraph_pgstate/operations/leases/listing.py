"""Lists of leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.operations.threads.paging import FIRST, decode_cursor, page_of, page_size
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Lease, Page

_KIND: Final = "leases"


def request_leases(limit: int, cursor: str | None) -> dict[str, Any]:
    """Validate a request for leases, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    at, thread_id = decode_cursor(_KIND, cursor, (FIRST, ""))
    return {"cursor_at": at, "cursor_id": thread_id, "page_size": page_size(limit) + 1}


async def list_leases(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Lease]:
    """Return a page of the live leases, the earliest to expire first. One round trip."""
    rows = await db.fetch(queries.list_leases, parameters)
    return page_of(rows, parameters["page_size"] - 1, lambda row: Lease(*row), _KIND, _position)


def _position(lease: Lease) -> tuple[datetime, str]:
    return lease.expires_at, lease.thread_id
