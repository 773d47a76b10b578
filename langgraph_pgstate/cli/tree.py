"""The drawing of a thread's checkpoints as a tree. Long sequences are folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.cli.drawing import Style, Text, Tree
from langgraph_pgstate.cli.output import shorten

WRITER_KEY: Final = "process"
"""Metadata key of the process that wrote a checkpoint, as `make demo` sets it in its configs."""

_STYLES: Final = ("red", "green", "magenta", "cyan", "yellow", "blue")
_HEAD, _TAIL = 5, 2
_NEWEST: Final = ""
_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Node:
    """A checkpoint in a drawing.

    Attributes:
        nodes: The nodes that ran in the superstep, or the source if none did.
        summary: What the superstep added.
        writer: The process that wrote the checkpoint, if the metadata names it.
    """

    id: str
    parent_id: str | None
    step: int
    nodes: str
    summary: str
    writer: str | None


def short_id(checkpoint_id: str) -> str:
    """Return the end of a checkpoint id, as the inspector shows it.

    Beginnings of ids are often equal, because a UUIDv6 begins with the time.
    """
    return checkpoint_id[-12:]


def outline(checkpoints: Iterable[CheckpointTuple]) -> list[Node]:
    """Return the checkpoints of the root namespace, oldest first. The given checkpoints are newest first."""
    nodes = []
    # Children that wait for their parent, by the parent's id. A child comes before its parent.
    pending: dict[str | None, list[CheckpointTuple]] = defaultdict(list)
    for item in checkpoints:
        if not item.config["configurable"].get("checkpoint_ns"):
            nodes += [_node(child, item) for child in pending.pop(item.checkpoint["id"], [])]
            pending[_parent_id(item)].append(item)
    nodes += [_node(item, None) for items in pending.values() for item in items]
    return sorted(nodes, key=lambda node: node.id)


def draw(nodes: Sequence[Node], title: str, width: int, labels: Mapping[str, str] = _NO_LABELS) -> Tree:
    """Return the tree of nodes, which are oldest first. Checkpoints with labels are not folded."""
    children: dict[str | None, list[Node]] = defaultdict(list)
    known = {node.id for node in nodes}
    for node in nodes:
        children[node.parent_id if node.parent_id in known else None].append(node)
    writers = list(dict.fromkeys(node.writer for node in nodes if node.writer))
    styles = {writer: _STYLES[at % len(_STYLES)] for at, writer in enumerate(writers)}
    tree = Tree(Text(title, style="bold"), guide_style="dim")
    branching = any(len(following) > 1 for following in children.values())
    marks = {**labels, _NEWEST: nodes[-1].id} if branching else labels
    for root in children[None]:
        _draw_chain(tree, root, children, styles, marks, width - 4)
    return tree


def _draw_chain(
    tree: Tree,
    first: Node,
    children: Mapping[str | None, list[Node]],
    styles: Mapping[str, str],
    marks: Mapping[str, str],
    width: int,
) -> None:
    chain = [first]
    while len(following := children.get(chain[-1].id, [])) == 1:
        chain.append(following[0])
    folded: list[Node] = []
    for at, node in enumerate(chain):
        if _HEAD <= at < len(chain) - _TAIL and node.id not in marks:
            folded.append(node)
            continue
        _draw_folded(tree, folded, styles, marks, width)
        folded = []
        last = tree.add(_line(node, styles, marks, width))
    for number, branch in enumerate(following, 1):
        marked = last.add(Text(f"branch {number}", style="bold yellow"))
        _draw_chain(marked, branch, children, styles, marks, width - 8)


def _draw_folded(
    tree: Tree, nodes: Sequence[Node], styles: Mapping[str, str], marks: Mapping[str, str], width: int
) -> None:
    if len(nodes) > 2:
        steps = f"steps {nodes[0].step} to {nodes[-1].step}"
        tree.add(Text(f"⋮  {len(nodes)} more checkpoints, {steps}", style="dim"))
    else:
        for node in nodes:
            tree.add(_line(node, styles, marks, width))


def _line(node: Node, styles: Mapping[str, str], marks: Mapping[str, str], width: int) -> Text:
    style = Style(color=styles.get(node.writer or "", "default"))
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{node.step:>3} ", style="bold")
    line.append(f"{shorten(node.nodes, 12):<6} ")
    line.append(f"{short_id(node.id)} ", style="dim")
    if node.id in marks:
        line.append(f"[{shorten(marks[node.id], 40)}] ", style="bold yellow")
    if node.id == marks.get(_NEWEST):
        line.append("newest ", style="bold green")
    if node.writer:
        line.append(f"{node.writer} ", style=style)
    line.append(shorten(node.summary, max(width - line.cell_len, 8)), style=style)
    return line


def _parent_id(item: CheckpointTuple) -> str | None:
    parent: str | None = (item.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    return parent


def _node(item: CheckpointTuple, parent: CheckpointTuple | None) -> Node:
    metadata: Mapping[str, Any] = item.metadata
    writer = metadata.get(WRITER_KEY)
    source = str(metadata.get("source", "?"))
    new = _new_messages(item, parent)
    return Node(
        id=item.checkpoint["id"],
        parent_id=_parent_id(item),
        step=int(metadata.get("step", 0)),
        nodes=_nodes(source, item, parent, new),
        summary=_summary(new, item, parent),
        writer=str(writer) if writer is not None else None,
    )


def _nodes(source: str, item: CheckpointTuple, parent: CheckpointTuple | None, new: Sequence[BaseMessage]) -> str:
    """Return the nodes of a superstep: their entries in `versions_seen` differ from those in the parent."""
    if source != "loop":
        return source
    seen = item.checkpoint.get("versions_seen") or {}
    before = (parent.checkpoint.get("versions_seen") or {}) if parent else {}
    names = [name for name, versions in seen.items() if versions != before.get(name)]
    shown = [name.strip("_") for name in names if name not in ("__input__", "__interrupt__")]
    if not shown and new and all(isinstance(message, ToolMessage) for message in new):
        return "tools"  # A node that a Send starts is not in `versions_seen`.
    return "+".join(shown) or source


def _new_messages(item: CheckpointTuple, parent: CheckpointTuple | None) -> list[BaseMessage]:
    """Return the messages of a checkpoint that its parent does not have."""
    before = (parent.checkpoint.get("channel_values") or {}) if parent else {}
    for channel, value in (item.checkpoint.get("channel_values") or {}).items():
        if isinstance(value, list) and value and all(isinstance(element, BaseMessage) for element in value):
            old = before.get(channel)
            known = {element.id for element in old} if isinstance(old, list) else set()
            if new := [element for element in value if element.id is None or element.id not in known]:
                return new
    return []


def _summary(new: Sequence[BaseMessage], item: CheckpointTuple, parent: CheckpointTuple | None) -> str:
    if new:
        return "; ".join(message_text(message) for message in new)
    values = item.checkpoint.get("channel_values") or {}
    before = (parent.checkpoint.get("channel_values") or {}) if parent else {}
    shown = [name for name in values if not name.startswith(("branch:", "__")) and values[name] != before.get(name)]
    return ", ".join(f"{name}={values[name]!r}" for name in shown if not _is_messages(values[name]))


def _is_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseMessage)


def message_text(message: BaseMessage) -> str:
    """Return the text of a message, or the tools it calls."""
    text = message.text if isinstance(message.text, str) else str(message.content)
    if isinstance(message, HumanMessage):
        return f"“{text}”"
    if isinstance(message, AIMessage) and message.tool_calls:
        return "→ " + ", ".join(call["name"] for call in message.tool_calls)
    if isinstance(message, ToolMessage):
        return f"{message.name}: {text}"
    return text
