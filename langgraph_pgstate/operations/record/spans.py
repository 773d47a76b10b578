"""Queries for spans, span trees and the provenance of checkpoints."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Unpack

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.filters import SpanFilter, check_filters
from langgraph_pgstate.operations.arguments import texts_of
from langgraph_pgstate.operations.checkpoints.requests import Address
from langgraph_pgstate.operations.threads.paging import FIRST, MAX_PAGE, decode_cursor, page_of, page_size
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Page, Provenance, Run, Span, SpanNode, ToolExecution

_KIND = "spans"


def request_spans(thread_id: str, **filters: Unpack[SpanFilter]) -> dict[str, Any]:
    """Validate a request for spans, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, SpanFilter)
    started_at, span_id = decode_cursor(_KIND, filters.get("cursor"), (FIRST, ""))
    return {
        "thread_id": thread_id,
        **texts_of(filters, "run_id", "kind", "name", "status"),
        "cursor_started_at": started_at,
        "cursor_span": span_id,
        "page_size": page_size(filters.get("limit", 100)) + 1,
    }


async def list_spans(db: Connection, queries: Queries, parameters: dict[str, Any]) -> Page[Span]:
    """Return a page of a thread's spans, oldest first. One round trip."""
    rows = await db.fetch(queries.list_spans, parameters)
    return page_of(
        rows,
        parameters["page_size"] - 1,
        lambda row: Span(*row),
        _KIND,
        lambda item: (item.started_at, item.span_id),
    )


async def get_tree(db: Connection, queries: Queries, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
    """Return the spans of a run as trees, one root per attempt or missing parent. `MAX_PAGE` spans per round trip."""
    spans: list[Span] = []
    position: tuple[Any, str] = (FIRST, "")
    while True:
        started_at, span_id = position
        rows = await db.fetch(
            queries.list_spans_of_run,
            {
                "thread_id": thread_id,
                "run_id": run_id,
                "cursor_started_at": started_at,
                "cursor_span": span_id,
                "page_size": MAX_PAGE,
            },
        )
        spans += [Span(*row) for row in rows]
        if len(rows) < MAX_PAGE:
            return build_tree(spans)
        position = (spans[-1].started_at, spans[-1].span_id)


def build_tree(spans: Sequence[Span]) -> tuple[SpanNode, ...]:
    """Return trees of spans, which must be sorted oldest first. A span without its parent is a root.

    The roots of a run's attempts have the same id. A child belongs to the last attempt that started no later than the
    child.
    """
    known: dict[str, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        known[span.span_id].append(number)
    inside: dict[int | None, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        parents = known.get(span.parent_span_id or "", ()) if span.parent_span_id != span.span_id else ()
        place = 0
        if len(parents) > 1:
            place = max(0, bisect_right(parents, span.started_at, key=lambda one: spans[one].started_at) - 1)
        inside[parents[place] if parents else None].append(number)
    # From the leaves up, without recursion: spans may nest deeper than Python's recursion limit.
    order = list(inside[None])
    for number in order:
        order += inside.get(number, ())
    made: dict[int, SpanNode] = {}
    for number in reversed(order):
        made[number] = SpanNode(spans[number], tuple(made[child] for child in inside.get(number, ())))
    return tuple(made[root] for root in inside[None])


async def get_provenance(db: Connection, queries: Queries, address: Address) -> Provenance | None:
    """Return the origin of a checkpoint, or `None` if it does not exist. Up to three round trips.

    The spans of a superstep name the checkpoint from which it started, which is this one's parent. Those of subgraphs
    are their descendants.
    """
    rows = await db.fetch(queries.get_provenance, address._asdict())
    if not rows:
        return None
    checkpoint_id, parent_id, source, step, created_at, run_id, depth, forked_from, run_ids, branch_cost = rows[0][:10]
    run = None if rows[0][10] is None else Run(*rows[0][10:])
    spans: tuple[Span, ...] = ()
    executions: tuple[ToolExecution, ...] = ()
    if run_id is not None:
        key = {"thread_id": address.thread_id, "run_id": run_id, "parent_id": parent_id}
        found = await db.fetch(
            queries.list_superstep_spans, {**key, "step": step, "checkpoint_ns": address.checkpoint_ns}
        )
        spans = tuple(Span(*row) for row in found)
        calls = [span.tool_call_id for span in spans if span.tool_call_id is not None]
        found = await db.fetch(queries.list_superstep_executions, {**key, "tool_call_ids": calls})
        executions = tuple(ToolExecution(*row) for row in found)
    return Provenance(
        address.thread_id,
        address.checkpoint_ns,
        checkpoint_id,
        parent_id,
        source,
        step,
        created_at,
        run,
        spans,
        executions,
        sum((span.cost for span in spans if span.cost is not None), Decimal(0)),
        depth,
        forked_from,
        tuple(run_ids or ()),
        branch_cost,
    )
