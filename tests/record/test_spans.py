"""Spans, as applications ask for them."""

from __future__ import annotations

import pytest
from support.record import Parts, Record, ask, at, every_page

pytestmark = pytest.mark.smoke


async def test_spans_are_listed_oldest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number, kind in enumerate(["graph", "node", "llm", "tool", "tool"]):
        record.span(f"s{number}", kind, number // 2, name="pay" if number == 4 else kind)
    record.span("other", run_id="q", started=-1, attributes={"a": [1]}, input={"x": 1}, output="null")
    pages = await every_page(parts.spans.list, "t", limit=2)
    assert [[item.span_id for item in page] for page in pages] == [["other", "s0"], ["s1", "s2"], ["s3", "s4"]]
    assert (pages[0][0].attributes, pages[0][0].input, pages[0][0].output) == ({"a": [1]}, {"x": 1}, None)
    for filters, found in [
        ({"run_id": "q"}, ["other"]),
        ({"kind": "tool"}, ["s3", "s4"]),
        ({"kind": "tool", "name": "pay"}, ["s4"]),
        ({"status": "error"}, []),
    ]:
        assert [item.span_id for item in (await ask(parts.spans.list("t", **filters))).items] == found


async def test_the_trace_of_a_run_is_a_tree(parts: Parts, record: Record) -> None:
    record.span("graph", "graph", 0, 9)
    record.span("agent", "node", 1, parent_span_id="graph")
    record.span("model", "llm", 2, parent_span_id="agent")
    record.span("tools", "node", 3, parent_span_id="graph")
    record.span("lost", "tool", 4, parent_span_id="never recorded")
    record.span("elsewhere", run_id="q")
    graph, lost = await ask(parts.spans.tree("t", "r"))
    assert (graph.span.name, [node.span.name for node in graph.children]) == ("graph", ["agent", "tools"])
    assert [node.span.name for node in graph.children[0].children] == ["model"]
    assert (lost.span.span_id, lost.children) == ("lost", ())
    assert await ask(parts.spans.tree("t", "nothing")) == ()


async def test_each_attempt_of_a_run_has_its_own_spans(parts: Parts, record: Record) -> None:
    """The same run id invoked again: a child belongs to the last root that started not later than it did."""
    for attempt, started in enumerate((0, 10, 20)):
        record.span("graph", "graph", started, 9)
        record.span(f"first {attempt}", "node", started, parent_span_id="graph")
        record.span(f"second {attempt}", "node", started + 2, parent_span_id="graph")
        record.span(f"model {attempt}", "llm", started + 3, parent_span_id=f"second {attempt}")
    record.span("early", "node", -1, parent_span_id="graph")
    roots = await ask(parts.spans.tree("t", "r"))
    assert [(root.span.span_id, root.span.started_at) for root in roots] == [
        ("graph", at(started)) for started in (0, 10, 20)
    ]
    assert [[node.span.name for node in root.children] for root in roots] == [
        ["early", "first 0", "second 0"], ["first 1", "second 1"], ["first 2", "second 2"]
    ]  # fmt: skip
    for attempt, root in enumerate(roots):
        assert [node.span.name for node in root.children[-1].children] == [f"model {attempt}"]
