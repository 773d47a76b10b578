"""Operations that answer numbers: metrics for Prometheus, and analytics."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from langgraph_pgstate.metrics import Metrics
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.service import Call

METRICS_PERMISSION: Final = "metrics:read"
"""The permission without which an authenticated user sees no metrics, which are those of all users."""

_MOST_DAYS: Final = 3650


async def metrics(call: Call) -> Response:
    """Return the metrics of this process and of the database, as Prometheus reads them."""
    if call.user is not None and METRICS_PERMISSION not in call.user.permissions:
        raise refuse(403, f"metrics are those of all users: they need the permission {METRICS_PERMISSION!r}")
    service = call.service
    if service.metrics is None:
        # Made at the first request, so that a server that is not scraped measures nothing.
        service.metrics = Metrics(service.state)
    body, content_type = await service.metrics.expose(call.request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


async def analytics(call: Call) -> Any:
    """Return threads by status, outcomes, durations and cost of runs, and feedback of the last days."""
    scope = await call.authorize_search({"metadata": {}, "limit": 0, "offset": 0})
    return await call.state.runs.analytics(
        call.names("by") or "agent",
        since=timedelta(days=call.number("days", 30, _MOST_DAYS)),
        agent=call.query("agent"),
        user_id=call.query("user_id"),
        tenant_id=call.query("tenant_id"),
        scope=scope,
    )
