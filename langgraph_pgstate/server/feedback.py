"""Operations that LangGraph's SDK does not have: feedback, analytics, and metrics for Prometheus."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from langgraph_pgstate.metrics import Metrics
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.service import Call


async def create(call: Call) -> Any:
    """Store a score or a comment on a run, and return it. Earlier feedback with the same id is replaced."""
    body, run_id = call.body, call.path("run_id")
    thread = await call.thread("update", {"run_id": run_id})
    return await call.state.runs.feedback.add(
        thread.thread_id,
        run_id,
        name=body.name,
        score=body.score,
        comment=body.comment,
        span_id=body.span_id,
        by=body.created_by if call.user is None else call.user.identity,
        source=body.source,
        feedback_id=body.feedback_id,
    )


async def list_feedback(call: Call) -> Any:
    """Return a page of a run's feedback, newest first."""
    run_id = call.path("run_id")
    thread = await call.thread("read", {"run_id": run_id})
    if await call.state.runs.get(thread.thread_id, run_id) is None:
        raise missing("run", run_id)
    return await call.state.runs.feedback.list(
        thread_id=thread.thread_id,
        run_id=run_id,
        name=call.query("name"),
        limit=max(1, call.number("limit", 20, 1000)),
        cursor=call.query("cursor"),
    )


async def delete(call: Call) -> Response:
    """Delete feedback."""
    run_id, feedback_id = call.path("run_id"), call.path("feedback_id")
    thread = await call.thread("update", {"run_id": run_id})
    if not await call.state.runs.feedback.delete(thread.thread_id, run_id, feedback_id):
        raise missing("feedback", feedback_id)
    return Response(status_code=204)


METRICS_PERMISSION: Final = "metrics:read"
"""The permission that an authenticated user needs to see metrics, because metrics cover all users."""

_MOST_DAYS: Final = 3650


async def metrics(call: Call) -> Response:
    """Return the metrics of this process and of the database in the format of Prometheus."""
    if call.user is not None and METRICS_PERMISSION not in call.user.permissions:
        raise refuse(403, f"the user must have the permission {METRICS_PERMISSION!r}, because metrics cover all users")
    service = call.service
    if service.metrics is None:
        # The server measures nothing until the first request for metrics.
        service.metrics = Metrics(service.state)
    body, content_type = await service.metrics.expose(call.request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


async def analytics(call: Call) -> Any:
    """Return statistics of the last days: threads by status, feedback, and the runs' outcomes, durations and cost."""
    scope = await call.authorize_search({"metadata": {}, "limit": 0, "offset": 0})
    return await call.state.runs.analytics(
        call.names("by") or "agent",
        since=timedelta(days=call.number("days", 30, _MOST_DAYS)),
        agent=call.query("agent"),
        user_id=call.query("user_id"),
        tenant_id=call.query("tenant_id"),
        scope=scope,
    )
