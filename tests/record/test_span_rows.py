"""Trees of spans, and what led to a checkpoint."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.record import Parts, Record, ask

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.record.spans import build_tree
from langgraph_pgstate.record.types import Span

pytestmark = pytest.mark.smoke


async def test_a_trace_of_more_than_a_page_is_whole(
    parts: Parts, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_pgstate.record.spans.MAX_PAGE", 4)
    record.span("root", "graph")
    for number in range(8):
        record.span(f"s{number}", parent_span_id="root")
    (root,) = await ask(parts.spans.tree("t", "r"))
    assert len(root.children) == 8


def test_a_deep_trace_needs_no_deep_stack(record: Record, saver: PGStateSaver) -> None:
    blank = dict.fromkeys(field for field in Span.__dataclass_fields__)
    spans = [
        Span(**{**blank, "span_id": str(number), "parent_span_id": str(number - 1) if number else None})
        for number in range(5000)
    ]
    (node,) = build_tree(spans)
    for _ in range(4999):
        (node,) = node.children
    assert node.span.span_id == "4999"


def superstep(record: Record) -> None:
    """Checkpoints 1 to 4 of two runs, a fork at 2, and what the superstep from 3 to 4 did."""
    record.run("first", cost=Decimal(1))
    record.run("r", 10, cost=Decimal(2), agent="travel")
    record.run("aside", cost=Decimal(4))
    record.checkpoint("1", None, run_id="first", source="input", step=-1)
    record.checkpoint("2", "1", run_id="first", source="loop", step=0)
    record.checkpoint("2b", "2", run_id="aside", source="fork", step=1)
    record.checkpoint("3", "2", run_id="r", source="loop", step=1)
    record.checkpoint("4", "3", run_id="r", source="loop", step=2)
    record.span("graph", "graph", 0, 9, checkpoint_id="3")
    record.span("before", "llm", 1, parent_span_id="graph", checkpoint_id="2", step=1, cost=Decimal(8))
    record.span("agent", "node", 2, parent_span_id="graph", checkpoint_id="3", step=2)
    record.span("model", "llm", 3, parent_span_id="agent", checkpoint_id="3", cost=Decimal("0.5"), input_tokens=7)
    record.span("inner", "llm", 4, parent_span_id="agent", checkpoint_id="sub-1", cost=Decimal("0.25"))
    record.span("pay", "tool", 5, parent_span_id="agent", checkpoint_id="3", step=2, tool_call_id="call")
    record.span("not yet known where from", "node", 6, parent_span_id="graph", step=2)
    record.span("elsewhere", "node", 6, parent_span_id="graph", step=2, checkpoint_ns="sub:1")
    record.span("late", "tool", 6, run_id="aside", checkpoint_id="3")
    record.execution("key", 5, run_id="r", checkpoint_id="3")
    record.execution("key in a subgraph", 6, run_id="r", checkpoint_id="sub-1", tool_call_id="call")
    record.execution("before", 1, run_id="r", checkpoint_id="2")


async def test_a_checkpoint_says_what_led_to_it(parts: Parts, record: Record) -> None:
    superstep(record)
    found = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "4"}}))
    assert (found.checkpoint_id, found.parent_checkpoint_id, found.source, found.step) == ("4", "3", "loop", 2)
    assert (found.run.run_id, found.run.agent) == ("r", "travel")
    assert found.run == await ask(parts.runs.get("t", "r"))
    assert [span.span_id for span in found.spans] == ["agent", "model", "inner", "pay", "not yet known where from"]
    assert [item.idempotency_key for item in found.executions] == ["key", "key in a subgraph"]
    assert found.cost == Decimal("0.75")
    assert (found.depth, found.forked_from, found.run_ids) == (3, "2", ("first", "r"))
    assert found.branch_cost == Decimal(3)
    newest = await ask(parts.runs.provenance({"configurable": {"thread_id": "t"}}))
    assert newest == found
    fork = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "2b"}}))
    assert (fork.run_ids, fork.branch_cost, fork.spans) == (("first", "aside"), Decimal(5), ())
    root = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "1"}}))
    assert (root.depth, root.forked_from, root.spans) == (0, None, ())
    assert await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "x"}})) is None


async def test_a_checkpoint_without_a_record_has_a_branch(parts: Parts, record: Record) -> None:
    record.chain(["1", "2"])
    found = await ask(parts.runs.provenance({"configurable": {"thread_id": "t"}}))
    assert (found.run, found.spans, found.executions, found.run_ids, found.branch_cost) == (None, (), (), (), 0)


def test_the_view_says_what_led_to_a_checkpoint(record: Record) -> None:
    superstep(record)
    record.span("step only", "llm", 7, parent_span_id="agent", step=2, cost=Decimal(16))
    record.span("in a subgraph", "llm", 7, parent_span_id="agent", step=2, cost=Decimal(32), checkpoint_ns="sub:1")
    columns = "run_id, agent, tools, model_calls, cost, branches"
    query = f"SELECT {columns} FROM provenance WHERE thread_id = %s AND checkpoint_id = %s"
    assert record.rows(query, "t", "4") == [("r", "travel", ["pay"], 2, Decimal("16.5"), 1)]
    assert record.rows(query, "t", "3") == [("r", "travel", None, 1, Decimal(8), 2)]
