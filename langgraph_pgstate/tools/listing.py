"""Lists of tool executions, of a thread and of all threads."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from langgraph_pgstate.arguments import request_scope, text_of
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.paging import LAST, Page, decode_cursor, read_page
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.tools.executions import execution_of

_KIND: Final = "tool executions"


async def list_executions(
    db: Connection,
    queries: Queries,
    thread_id: str,
    run_id: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
    *,
    unknown: bool = False,
) -> list[ToolExecution]:
    """Return a page of a thread's executions, newest first, or only of those whose outcome is unknown."""
    started_at, key = after or (None, None)
    rows = await db.fetch(
        queries.list_tool_executions,
        {
            "thread_id": thread_id,
            "run_id": run_id,
            "unknown": unknown,
            "cursor_started_at": started_at,
            "cursor_key": key,
            "page_size": limit,
        },
    )
    return [execution_of(row) for row in rows]


def list_recent(
    *,
    tool: str | None = None,
    unknown: bool = False,
    scope: Scope | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> Read[Page[ToolExecution]]:
    """Return the reading of a page of the executions of all threads, newest first.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    at, cursor_thread, cursor_key = decode_cursor(_KIND, cursor, (LAST, "", ""))
    position = {"cursor_at": at, "cursor_thread": cursor_thread, "cursor_key": cursor_key}
    return read_page(
        "list_unknown_executions" if unknown else "list_recent_executions",
        {"tool": text_of("tool", tool), "scope": request_scope(scope), **position},
        limit,
        lambda *row: execution_of(row),
        _KIND,
        lambda item: (item.started_at, item.thread_id, item.idempotency_key),
    )
