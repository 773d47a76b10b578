"""The threads that the caller of a page may see, and the filters in the address of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from starlette.exceptions import HTTPException

from langgraph_pgstate.inspector.page import PageCall
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server.errors import refuse

PERIODS: Final[Mapping[str, timedelta]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
"""Periods that end now, by their names in addresses."""


async def scope_of(call: PageCall, limit: int = 50) -> Alternatives | None:
    """Return the filter for the threads that the caller may see; `None` if the caller may see all."""
    value: dict[str, Any] = {"metadata": {}, "limit": limit, "offset": 0, "status": None}
    return await call.authorize_search(value)


async def check_sees_crons(call: PageCall, action: str, cron_id: str | None = None) -> None:
    """Refuse a caller who may not see all threads, or may not do an action on every schedule.

    LangGraph's clients and the handlers of `Auth` call a schedule a cron.
    """
    await check_sees_all(call)
    if await call.authorize("crons", action, {"cron_id": cron_id, "metadata": {}}) is not None:
        raise refuse(403, "only users who may see all schedules may do this")


async def check_sees_all(call: PageCall) -> None:
    """Refuse a caller who may not see all threads."""
    if await scope_of(call) is not None:
        raise refuse(403, "only users who may see all threads may do this")


async def sees_all(call: PageCall) -> bool:
    """Return whether the caller may see all threads."""
    try:
        await check_sees_all(call)
    except (HTTPException, AuthError):
        return False
    return True


async def check_sees_memory(call: PageCall, action: str, namespace: Sequence[str] = ()) -> None:
    """Refuse a caller who may not see all threads, or may not do the action in the whole namespace."""
    await check_sees_all(call)
    value: dict[str, Any] = {"namespace": tuple(namespace), "key": None, "filter": None, "query": None}
    if await call.authorize("store", action, value) is not None or tuple(value["namespace"]) != tuple(namespace):
        raise refuse(403, "only users who may see all memories may do this")


async def sees_memory(call: PageCall, action: str) -> bool:
    """Return whether the caller may see memories."""
    try:
        await check_sees_memory(call, action)
    except (HTTPException, AuthError):
        return False
    return True


def period_of(call: PageCall, default: str) -> tuple[str, timedelta]:
    """Return the period that the address names, or the default period."""
    name = call.query("since") or default
    if name not in PERIODS:
        raise refuse(422, f"since must be one of {', '.join(PERIODS)}, not {name!r}")
    return name, PERIODS[name]
