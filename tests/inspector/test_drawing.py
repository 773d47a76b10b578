"""The drawing of a tree."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from langgraph_pgstate.inspector.drawing import ROW, draw
from langgraph_pgstate.threads.types import CheckpointTree, TreeNode


def node(id: str, parent: str | None, **fields: Any) -> TreeNode:
    given: dict[str, Any] = {"step": 1, "source": "loop", "run_id": None, "label": None}
    given |= {"tasks": (), "interrupts": 0, "pending": 0, "answered": (), "interrupted_run_id": None}
    return TreeNode(id, parent, created_at=datetime.now(UTC), **{**given, **fields})


def drawn(*nodes: TreeNode) -> Any:
    return draw(CheckpointTree(nodes, False, False))


def test_a_line_is_one_lane() -> None:
    found = drawn(node("c", "b"), node("b", "a"), node("a", None))
    assert len({one.x for one in found.nodes}) == 1
    assert [one.y for one in found.nodes] == [ROW // 2, ROW + ROW // 2, 2 * ROW + ROW // 2]
    assert len(found.lines) == 2
    assert found.height == 3 * ROW


def test_a_branch_has_its_own_lane_which_is_used_again() -> None:
    found = drawn(node("f", "a"), node("e", "d"), node("d", "a"), node("c", "b"), node("b", "a"), node("a", None))
    x = {one.node.checkpoint_id: one.x for one in found.nodes}
    assert x["a"] == x["f"]
    assert x["e"] == x["d"] == x["c"] == x["b"] > x["a"]
    assert len(found.lines) == 5


def test_what_is_not_shown_is_hinted_at() -> None:
    found = drawn(node("c", "b"))
    assert found.lines == (f"M{found.nodes[0].x} {ROW // 2}V{ROW}",)
    assert drawn().nodes == ()


def test_many_branches_stay_narrow() -> None:
    found = drawn(*(node(f"{number:03}", "root") for number in reversed(range(100))))
    assert found.width < 200


def test_a_checkpoint_is_named_after_what_made_it() -> None:
    found = drawn(
        node("d", "c", source="update"),
        node("c", "b"),
        node("b", "a", tasks=("agent", "tools", "tools", "")),
        node("a", None, source="input", tasks=("__start__",)),
    )
    assert [one.title for one in found.nodes] == ["update", "agent, tools ×2, 1 sent", "start", "input"]


def test_only_the_end_of_a_branch_waits() -> None:
    drawing = drawn(node("c", "b", pending=1), node("b", "a", pending=1), node("a", None))
    assert [one.waits for one in drawing.nodes] == [True, False, False]
