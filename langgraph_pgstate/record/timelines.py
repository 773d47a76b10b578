"""The spans of a run as lines of a tree, a window at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from langgraph_pgstate.arguments import text_of, time_of
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.paging import FIRST, offset_of, page_size
from langgraph_pgstate.record.types import Span, Timeline, TimelineSpan
from langgraph_pgstate.schema.queries import Queries

MOST_SPANS: Final = 20_000
"""Maximum number of spans in a timeline."""


class _Outline(NamedTuple):
    span_id: str
    parent_span_id: str | None
    started_at: datetime
    ended_at: datetime | None
    kind: str
    status: str
    input_tokens: int | None
    output_tokens: int | None
    cost: Decimal | None


class _Place(NamedTuple):
    """The place of a span in the tree, with the tokens and cost of the span and of the spans below it."""

    number: int
    depth: int
    descendants: int
    input_tokens: int
    output_tokens: int
    cost: Decimal | None


def request_timeline(
    thread_id: str,
    run_id: str,
    *,
    offset: int = 0,
    limit: int = 200,
    kind: str | None = None,
    status: str | None = None,
    since: datetime | None = None,
) -> dict[str, Any]:
    """Check the arguments of `get_timeline`, and return them.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    return {
        "thread_id": thread_id,
        "run_id": run_id,
        "offset": offset_of(offset),
        "limit": page_size(limit),
        "kind": text_of("kind", kind),
        "status": text_of("status", status),
        "since": time_of("since", since),
    }


async def get_timeline(db: Connection, queries: Queries, request: dict[str, Any]) -> Timeline:
    """Return a window of a run's spans, each below its parent. Two round trips; reads `MOST_SPANS` spans at most."""
    key = {"thread_id": request["thread_id"], "run_id": request["run_id"]}
    rows = await db.fetch(
        queries.outline_spans, {**key, "since": request["since"] or FIRST, "page_size": MOST_SPANS + 1}
    )
    found = [_Outline(*row) for row in rows[:MOST_SPANS]]
    places = _placed(found)
    if request["kind"] is not None or request["status"] is not None:
        places = [
            place._replace(depth=0)
            for place in places
            if request["kind"] in (None, found[place.number].kind)
            and request["status"] in (None, found[place.number].status)
        ]
    window = places[request["offset"] : request["offset"] + request["limit"]]
    described: dict[tuple[str, datetime], Sequence[Any]] = {}
    if window:
        shown = [found[place.number] for place in window]
        times = [one.started_at for one in shown]
        span_ids = [*dict.fromkeys(one.span_id for one in shown)]
        parameters = {**key, "span_ids": span_ids, "first_at": min(times), "last_at": max(times)}
        for span_id, started_at, *rest in await db.fetch(queries.describe_spans, parameters):
            described[span_id, started_at] = rest
    spans = []
    for place in window:
        outline = found[place.number]
        # A span that was deleted meanwhile is left out.
        if (more := described.get((outline.span_id, outline.started_at))) is not None:
            spans.append(_line(outline, place, more))
    ends = [one.ended_at for one in found if one.ended_at is not None]
    roots = [one.started_at for one in found if one.parent_span_id is None and one.kind == "graph"]
    return Timeline(
        spans=tuple(spans),
        offset=request["offset"],
        total=len(places),
        errors=sum(one.status == "error" for one in found),
        attempts=tuple(roots),
        started_at=found[0].started_at if found else None,
        ended_at=max(ends, default=None),
        next_since=rows[MOST_SPANS][2] if len(rows) > MOST_SPANS else None,
    )


async def get_span(db: Connection, queries: Queries, thread_id: str, run_id: str, span_id: str) -> Span | None:
    """Return one span, or `None`. If several attempts have a span of this id, return the newest."""
    rows = await db.fetch(queries.get_span, {"thread_id": thread_id, "run_id": run_id, "span_id": span_id})
    return Span(*rows[0]) if rows else None


def _placed(spans: Sequence[_Outline]) -> list[_Place]:
    """Return the places of spans, each after its parent. The spans must be sorted oldest first."""
    known: dict[str, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        known[span.span_id].append(number)
    inside: dict[int, list[int]] = defaultdict(list)
    roots: list[int] = []
    for number, span in enumerate(spans):
        parents = known.get(span.parent_span_id or "", ()) if span.parent_span_id != span.span_id else ()
        if not parents:
            roots.append(number)
            continue
        # The roots of all attempts have the same id. A span belongs to the last root that started before the span.
        place = bisect_right(parents, span.started_at, key=lambda one: spans[one].started_at) - 1
        inside[parents[max(0, place)]].append(number)
    order: list[tuple[int, int]] = []
    waiting = [(number, 0) for number in reversed(roots)]
    while waiting:
        number, depth = waiting.pop()
        order.append((number, depth))
        waiting += [(child, depth + 1) for child in reversed(inside.get(number, ()))]
    totals: dict[int, _Place] = {}
    for number, depth in reversed(order):
        span, below = spans[number], [totals[child] for child in inside.get(number, ())]
        costs = [one for one in (span.cost, *(child.cost for child in below)) if one is not None]
        totals[number] = _Place(
            number,
            depth,
            sum(child.descendants + 1 for child in below),
            (span.input_tokens or 0) + sum(child.input_tokens for child in below),
            (span.output_tokens or 0) + sum(child.output_tokens for child in below),
            sum(costs, Decimal(0)) if costs else None,
        )
    return [totals[number] for number, _ in order]


def _line(outline: _Outline, place: _Place, rest: Sequence[Any]) -> TimelineSpan:
    name, node, step, checkpoint_ns, checkpoint_id, agent, provider, model, tool_call_id, error_type, message = rest
    return TimelineSpan(
        span_id=outline.span_id,
        parent_span_id=outline.parent_span_id,
        depth=place.depth,
        descendants=place.descendants,
        kind=outline.kind,
        name=name,
        status=outline.status,
        started_at=outline.started_at,
        ended_at=outline.ended_at,
        checkpoint_ns=checkpoint_ns,
        checkpoint_id=checkpoint_id,
        step=step,
        node=node,
        agent=agent,
        provider=provider,
        model=model,
        tool_call_id=tool_call_id,
        input_tokens=place.input_tokens,
        output_tokens=place.output_tokens,
        cost=place.cost,
        error_type=error_type,
        error_message=message,
    )
