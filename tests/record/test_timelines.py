"""The spans of a run as lines, a window at a time."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.record import Parts, Record, ask, at

pytestmark = pytest.mark.smoke


def trace(record: Record) -> None:
    """Two agents side by side, one of which calls a model and a tool that fails."""
    record.span("root", "graph", 0, 20)
    record.span("left", "node", 1, 8, parent_span_id="root", node="left")
    record.span("right", "node", 2, 9, parent_span_id="root", checkpoint_id="c1")
    record.span("ask", "llm", 3, 2, parent_span_id="left", input_tokens=10, output_tokens=4, cost=Decimal("0.5"))
    record.span("pay", "tool", 4, 1, parent_span_id="right", status="error", error_type="E", error_message="x" * 500)
    record.span("late", "llm", 6, 1, parent_span_id="left", input_tokens=1, output_tokens=1, cost=Decimal("0.25"))


async def test_a_line_follows_its_parent_and_sums_what_is_below_it(parts: Parts, record: Record) -> None:
    trace(record)
    found = await ask(parts.spans.timeline("t", "r"))
    lines = [(one.name, one.depth, one.descendants, one.input_tokens, one.cost) for one in found.spans]
    assert lines == [
        ("root", 0, 5, 11, Decimal("0.75")),
        ("left", 1, 2, 11, Decimal("0.75")),
        ("ask", 2, 0, 10, Decimal("0.5")),
        ("late", 2, 0, 1, Decimal("0.25")),
        ("right", 1, 1, 0, None),
        ("pay", 2, 0, 0, None),
    ]
    assert (found.total, found.errors, found.started_at, found.ended_at) == (6, 1, at(0), at(20))
    assert (found.spans[4].checkpoint_id, len(found.spans[5].error_message)) == ("c1", 400)


async def test_a_window_has_its_lines_only_and_a_filter_no_tree(parts: Parts, record: Record) -> None:
    trace(record)
    window = await ask(parts.spans.timeline("t", "r", offset=2, limit=2))
    assert ([one.name for one in window.spans], window.offset, window.total) == (["ask", "late"], 2, 6)
    models = await ask(parts.spans.timeline("t", "r", kind="llm"))
    assert [(one.name, one.depth) for one in models.spans] == [("ask", 0), ("late", 0)]
    failed = await ask(parts.spans.timeline("t", "r", status="error"))
    assert [one.name for one in failed.spans] == ["pay"]
    assert (await ask(parts.spans.timeline("t", "other"))).spans == ()
    assert (await ask(parts.spans.timeline("t", "r", offset=50))).total == 6


async def test_attempts_have_one_id_and_their_own_spans(parts: Parts, record: Record) -> None:
    for started in (0, 10):
        record.span("root", "graph", started, 5, status="error" if started == 0 else "success")
        record.span(f"in {started}", "node", started + 1, parent_span_id="root")
    found = await ask(parts.spans.timeline("t", "r"))
    assert [(one.name, one.status, one.depth) for one in found.spans] == [
        ("root", "error", 0),
        ("in 0", "success", 1),
        ("root", "success", 0),
        ("in 10", "success", 1),
    ]
    assert found.attempts == (at(0), at(10))
    newest = await ask(parts.spans.get("t", "r", "root"))
    assert newest.started_at == at(10)
    assert await ask(parts.spans.get("t", "r", "nothing")) is None


async def test_what_is_too_much_for_one_timeline_is_said(
    parts: Parts, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_pgstate.record.spans.MOST_SPANS", 3)
    trace(record)
    first = await ask(parts.spans.timeline("t", "r"))
    assert ([one.name for one in first.spans], first.next_since) == (["root", "left", "right"], at(3))
    rest = await ask(parts.spans.timeline("t", "r", since=first.next_since))
    assert ([(one.name, one.depth) for one in rest.spans], rest.next_since) == (
        [("ask", 0), ("pay", 0), ("late", 0)],
        None,
    )


@pytest.mark.slow
async def test_a_trace_may_be_deep(parts: Parts, record: Record) -> None:
    record.span("s0", "graph", 0)
    for number in range(1, 1200):
        record.span(f"s{number}", "chain", number, parent_span_id=f"s{number - 1}")
    found = await ask(parts.spans.timeline("t", "r", offset=1190))
    assert (found.spans[-1].depth, found.total) == (1199, 1200)
