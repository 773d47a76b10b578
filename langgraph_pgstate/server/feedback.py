"""Operations on feedback, which LangGraph's SDK does not have."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from langgraph_pgstate.server.errors import missing
from langgraph_pgstate.server.service import Call


async def create(call: Call) -> Any:
    """Store a score or a comment on a run, or replace that of the same id, and return it."""
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
