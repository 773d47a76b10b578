"""Spans: timed operations in runs, as lists, trees and timelines."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Unpack

from langgraph_pgstate.arguments import Address, Moment, identifier, text_of, texts_of, thread_id_of, time_of
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.paging import (
    FIRST,
    MAX_PAGE,
    Page,
    check_filters,
    decode_cursor,
    offset_of,
    page_size,
    read_page,
)
from langgraph_pgstate.record import statistics
from langgraph_pgstate.record.filters import SpanFilter
from langgraph_pgstate.record.types import (
    Provenance,
    Run,
    Span,
    SpanNode,
    Timeline,
    TimelineSpan,
    ToolExecution,
    ToolStatistics,
)
from langgraph_pgstate.schema.queries import Queries

_KIND = "spans"
MOST_SPANS: Final = 20_000
"""Maximum number of spans in a timeline."""


def list_spans(thread_id: str, **filters: Unpack[SpanFilter]) -> Read[Page[Span]]:
    """Return a `Read` of a page of a thread's spans, oldest first.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, SpanFilter)
    started_at, span_id = decode_cursor(_KIND, filters.get("cursor"), (FIRST, ""))
    position = {"cursor_started_at": started_at, "cursor_span": span_id}
    parameters = {"thread_id": thread_id, **texts_of(filters, "run_id", "kind", "name", "status"), **position}
    limit = filters.get("limit", 100)
    return read_page("list_spans", parameters, limit, Span, _KIND, lambda item: (item.started_at, item.span_id))


async def get_tree(db: Connection, queries: Queries, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
    """Return the spans of a run as trees. Each attempt has a root. A span whose parent is missing is also a root."""
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
    """Return trees of spans, which must be sorted oldest first. A span whose parent is missing is a root.

    The roots of all attempts have the same id. A child belongs to the last root that started before the child.
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
    # The trees are built from the leaves up, because spans may nest deeper than Python's recursion limit.
    order = list(inside[None])
    for number in order:
        order += inside.get(number, ())
    made: dict[int, SpanNode] = {}
    for number in reversed(order):
        made[number] = SpanNode(spans[number], tuple(made[child] for child in inside.get(number, ())))
    return tuple(made[root] for root in inside[None])


async def get_provenance(db: Connection, queries: Queries, address: Address) -> Provenance | None:
    """Return the origin of a checkpoint, or `None` if it does not exist. Up to three round trips.

    The spans of a superstep name its starting checkpoint, which is the parent of the given checkpoint.
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


class AsyncSpans:
    """Recorded spans, and statistics of tools: `state.spans`, read-only."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def list(self, thread_id: str, **filters: Unpack[SpanFilter]) -> Page[Span]:
        """Return a page of a thread's spans, oldest first. One round trip.

        Args:
            thread_id: The thread.
            **filters: See `SpanFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, list_spans(thread_id_of(thread_id), **filters))

    async def tree(self, thread_id: str, run_id: str) -> tuple[SpanNode, ...]:
        """Return the spans of a run as trees, children ordered by start time. Empty if the run has no spans.

        Each attempt of the run has a root. A span whose parent is missing is also a root.
        """
        key = thread_id_of(thread_id), identifier("run_id", run_id)
        return await self._database.run(get_tree, self._queries, *key)

    async def get(self, thread_id: str, run_id: str, span_id: str) -> Span | None:
        """Return one span, or `None`. If several attempts have a span of this id, return the newest."""
        key = thread_id_of(thread_id), identifier("run_id", run_id), identifier("span_id", span_id)
        return await self._database.run(get_span, self._queries, *key)

    async def timeline(
        self,
        thread_id: str,
        run_id: str,
        *,
        offset: int = 0,
        limit: int = 200,
        kind: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
    ) -> Timeline:
        """Return a window of a run's spans as lines of a tree, each below its parent, without contents.

        Args:
            thread_id: The thread.
            run_id: The run.
            offset: Number of spans before the window.
            limit: Size of the window, 1,000 at most.
            kind: Only spans of this kind.
            status: Only spans of this status.
            since: Only spans that started at this time or later. A timeline has at most 20,000 spans. Pass its
                `next_since` to get the next timeline.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = request_timeline(
            thread_id_of(thread_id),
            identifier("run_id", run_id),
            offset=offset,
            limit=limit,
            kind=kind,
            status=status,
            since=since,
        )
        return await self._database.run(get_timeline, self._queries, request)

    async def tools(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        newest: int | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Return calls, durations and error rate by tool, the most called first. Reads all tool calls of the period.

        Args:
            since: Only calls that started at this time or later; a timedelta counts back from now; `None` for all.
            until: Only calls that started before this time.
            agent: Only calls of this agent.
            newest: Maximum number of calls to read, the newest first; by default all.
            limit: Maximum number of tools.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        found = statistics.measure_tools("measure_tools", since, until, agent, limit, newest)
        return await self._database.read(self._queries, found)

    async def executions(
        self,
        *,
        since: Moment | None = timedelta(days=30),
        until: datetime | None = None,
        agent: str | None = None,
        newest: int | None = None,
        limit: int = 1000,
    ) -> tuple[ToolStatistics, ...]:
        """Return the statistics of `tools`, but from the tool ledger. An action counts once, not once per attempt."""
        found = statistics.measure_tools("measure_executions", since, until, agent, limit, newest)
        return await self._database.read(self._queries, found)


class Spans:
    """Blocking twin of `AsyncSpans`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    list = blocking(AsyncSpans.list)
    tree = blocking(AsyncSpans.tree)
    get = blocking(AsyncSpans.get)
    timeline = blocking(AsyncSpans.timeline)
    tools = blocking(AsyncSpans.tools)
    executions = blocking(AsyncSpans.executions)
