"""The commands on the checkpoints of a thread: `tree`, `show`, `diff`, `label` and `fork`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import Text, console
from langgraph_pgstate.cli.options import CheckpointOption, ThreadArgument
from langgraph_pgstate.cli.output import as_json, count, format_time, print_command, print_json
from langgraph_pgstate.cli.target import Target, absent
from langgraph_pgstate.errors import NotFoundError, StateVersionError

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from langgraph_pgstate.checkpoints.types import ChannelDifference, Difference, MessageChange, ValueChange
    from langgraph_pgstate.state import PGState
    from langgraph_pgstate.threads import Threads
    from langgraph_pgstate.threads.types import LineageStep

_SIGNS: Final = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "edited": ("~", "yellow"),
    "changed": ("~", "yellow"),
}
_MOST_LINES: Final = 40
# Reasons why an interrupted thread needs no answer. The command `resume` continues such a thread.
_STOPS: Final = {
    "breakpoint": "a breakpoint; it waits for no answer",
    "updated": "its state was updated since it asked; it waits for no answer",
    "cancelled": "its run was cancelled with the action interrupt, or drained; it waits for no answer",
    "answered": "it was answered, and has not gone on yet",
}
_PLACE_HELP: Final = "THREAD: its newest checkpoint; or THREAD@CHECKPOINT: an id, a part of one, or a label."

PlaceArgument = Annotated[str, typer.Argument(metavar="THREAD@CHECKPOINT", help=_PLACE_HELP)]


def tree(
    ctx: typer.Context,
    thread: ThreadArgument,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N checkpoints.")] = 500,
) -> None:
    """Draw the checkpoints of a thread with forks and labels."""
    from langgraph_pgstate.cli.tree import draw, outline, short_id
    from langgraph_pgstate.codec.serializer import plain_serializer

    target: Target = ctx.obj
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    with target.connect(serde=plain_serializer()) as state:
        try:
            nodes = outline(state.saver.list(config, limit=limit + 1))
        except StateVersionError:
            # Only the application can read values of this state version.
            nodes = outline(state.saver.list(config, limit=limit + 1, metadata_only=True))
        labels = {item.checkpoint_id: item.label for item in state.threads.labels(thread) if not item.checkpoint_ns}
        found = state.threads.get(thread)
    if not nodes:
        raise NotFoundError(f"there is no thread {thread!r} in schema {target.schema}")
    nodes, has_older = nodes[-limit:], len(nodes) > limit
    if target.is_json:
        print_json(*(as_json(node) | {"label": labels.get(node.id)} for node in nodes))
        return
    title = thread
    if found is not None and found.forked_from_thread_id is not None:
        title += f", forked from {found.forked_from_thread_id} at {short_id(found.forked_from_checkpoint_id or '')}"
    console.print(draw(nodes, title, console.width, labels))
    if has_older:
        console.print("… older ones are not shown (--limit)", style="dim")


def show(
    ctx: typer.Context,
    thread: ThreadArgument,
    checkpoint: CheckpointOption = None,
    full: Annotated[bool, typer.Option("--full", help="Show whole values, and LangGraph's channels.")] = False,
) -> None:
    """Show the state of a thread, and why it is interrupted.

    By default, show the newest checkpoint. Custom types are shown as plain data.
    """
    from langgraph_pgstate.cli.tree import short_id
    from langgraph_pgstate.codec.serializer import plain_serializer

    target: Target = ctx.obj
    with target.connect(serde=plain_serializer()) as state:
        step = _find_step(state.threads, thread, checkpoint)
        at = state.threads.state_at(step.config)
        newest = state.threads.get(thread)
        is_newest = newest is not None and newest.head_checkpoint_id == step.checkpoint_id
        interrupts = state.interrupts.list(thread) if is_newest else ()
        answers = state.interrupts.answers(thread) if is_newest else ()
        status = newest.status if newest is not None and is_newest else ""
        stop = None
        if answers and not interrupts:
            stop = "answered"
        elif status == "interrupted" and not interrupts:
            stop = _stop_of(state, thread)
    if target.is_json:
        found = {"interrupts": interrupts, "answers": answers}
        print_json(as_json(step) | {"values": as_json({**at.values, **at.schedule}), **as_json(found), "stop": stop})
        return
    _print_state(step, {**at.values, **at.schedule} if full else at.values, full=full)
    if stop is not None:
        before = f", before {', '.join(at.next)}" if at.next else ""
        console.print(Text(f"interrupted{before}: {_STOPS[stop]}", style="yellow", overflow="fold"))
    for given in answers:
        by = " by default" if given.is_default else f" by {given.answered_by}" if given.answered_by else ""
        start = f"answer to {given.interrupt_id}{by}, {format_time(given.answered_at)}: "
        console.print(_line(start, given.value, "yellow", full))
    if stop is not None and status == "busy":
        console.print("a run of it is in the queue, or runs (`pgstate runs --queued`)")
    elif stop is not None:
        console.print("to go on:")
        print_command(target.program(), "resume", thread, checkpoint=short_id(step.checkpoint_id))
    for interrupt in interrupts:
        console.print(
            _line(f"interrupt {interrupt.interrupt_id}: ", interrupt.error or interrupt.value, "yellow", full)
        )


def label(
    ctx: typer.Context,
    place: PlaceArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The label.", show_default=False)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label of the checkpoint.")] = False,
) -> None:
    """Give a checkpoint a label, like "before refund". A prune keeps checkpoints with labels."""
    if remove == (text is not None):
        raise typer.BadParameter("label requires TEXT or --remove, but not both")
    target: Target = ctx.obj
    with target.connect() as state:
        config = _step_of(state.threads, place).config
        if text is not None:
            state.threads.label(config, text)
            line = f"{_place_of(config)} is [{text.strip()}] now"
        else:
            had = state.threads.unlabel(config)
            line = f"{_place_of(config)} has no label {'any more' if had else 'as it is'}"
    if target.is_json:
        print_json(config["configurable"] | {"label": text and text.strip()})
    else:
        console.print(_sentence(line))


def fork(
    ctx: typer.Context,
    place: PlaceArgument,
    to: Annotated[
        str | None, typer.Option(metavar="ID", show_default=False, help="The new thread; by default a random id.")
    ] = None,
) -> None:
    """Make a new thread from a checkpoint of another."""
    target: Target = ctx.obj
    with target.connect() as state:
        config = _step_of(state.threads, place).config["configurable"]
        forked = state.threads.fork(config["thread_id"], config["checkpoint_id"], to)
        steps = len(state.threads.lineage(forked))
    if target.is_json:
        print_json(forked["configurable"] | {"checkpoints": steps})
        return
    line = _sentence(f"forked {_place_of({'configurable': config})} to thread ")
    line.append(forked["configurable"]["thread_id"], style="bold")
    console.print(line.append(f", with {count(steps, 'checkpoint')}"))


def diff(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help=_PLACE_HELP)],
    second: Annotated[str, typer.Argument(metavar="B", help=_PLACE_HELP)],
    full: Annotated[bool, typer.Option("--full", help="Show all differences, with whole values.")] = False,
) -> None:
    """Compare the states of two checkpoints. Custom types are compared as plain data."""
    target: Target = ctx.obj
    with target.connect() as state:
        difference = state.threads.diff(*(_step_of(state.threads, one).config for one in (first, second)), plain=True)
    if target.is_json:
        print_json(difference)
    else:
        _print_difference(difference, full=full)


def _stop_of(state: PGState, thread_id: str) -> str:
    """Return the key of `_STOPS` that says why a thread is interrupted."""
    run_id = next((run.run_id for run in state.runs.list(thread_id=thread_id, limit=1).items), None)
    events = state.events.list(thread_id, kind="interrupt", run_id=run_id, newest_first=True, limit=1).items
    if not events:
        return "cancelled"
    return "updated" if events[0].payload.get("interrupts") else "breakpoint"


def _print_state(step: LineageStep, values: Mapping[str, Any], *, full: bool) -> None:
    from langchain_core.messages import BaseMessage

    head = Text(_place_of(step.config), style="bold", overflow="fold")
    details = [f"step {step.step}", step.source or "", format_time(step.created_at)]
    details += [f"run {step.run_id}" if step.run_id else "", f"[{step.label}]" if step.label else ""]
    head.append(" · " + " · ".join(filter(None, details)), style="dim")
    console.print(head, soft_wrap=not console.is_terminal)
    for name, value in values.items():
        if isinstance(value, list) and value and all(isinstance(item, BaseMessage) for item in value):
            console.print(Text(name, style="bold").append(f"  {count(len(value), 'message')}", style="dim"))
            shown = value if full else value[-_MOST_LINES:]
            if len(shown) < len(value):
                console.print(f"    … {len(value) - len(shown):,} older (--full)", style="dim")
            for message in shown:
                console.print(_line("    ", _said(message), "", full))
        else:
            console.print(_line(f"{name} = ", value, "", full))


def _line(start: str, value: Any, style: str, full: bool) -> Text:
    """Return a line with a value, truncated at the width of the terminal unless `full`."""
    text = value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False)
    line = Text(start, style=style or "bold" if start.strip() else "").append(text if full else " ".join(text.split()))
    if not full and console.is_terminal:
        line.truncate(console.width, overflow="ellipsis")
    return line


def _print_difference(difference: Difference, *, full: bool = False) -> None:
    console.print(Text(f"--- {_place_of(difference.first)}", style="red"))
    console.print(Text(f"+++ {_place_of(difference.second)}", style="green"))
    if not difference:
        console.print("the states are the same")
    for channel in difference.channels:
        sign, style = _SIGNS[channel.change]
        console.print(Text(f"{sign} {channel.channel}", style=f"bold {style}").append(_summary(channel), style="dim"))
        lines = [*map(_message_lines, channel.messages), *map(_value_lines, channel.values)]
        shown = lines if full else lines[:_MOST_LINES]
        for group in shown:
            for line in group:
                if not full:
                    line.truncate(console.width, overflow="ellipsis")
                console.print(line, soft_wrap=full)
        if len(shown) < len(lines):
            console.print(f"    … {len(lines) - len(shown):,} more (--full)", style="dim")


def _summary(channel: ChannelDifference) -> str:
    changes = [item.change for item in channel.messages] + [item.change for item in channel.values]
    if not channel.messages and all(not item.path for item in channel.values):
        return ""
    counts = {change: changes.count(change) for change in ("added", "edited", "changed", "removed")}
    return "  " + ", ".join(f"{number:,} {change}" for change, number in counts.items() if number)


def _message_lines(item: MessageChange) -> list[Text]:
    sign, style = _SIGNS[item.change]
    start = f"    {sign} {item.position:>3} "
    if item.change != "edited":
        return [Text(start + _said(item.after or item.before), style=style)]
    was, now = _said(item.before), _said(item.after)
    if was == now:
        # Other fields differ, such as metadata or ids of tool calls.
        return [Text(f"{start}{now} (other fields)", style=style)]
    return [Text(f"{start}{was}", style=style), Text(f"{'':>{len(start) - 2}}→ {now}", style=style)]


def _said(message: BaseMessage) -> str:
    from langgraph_pgstate.cli.tree import message_text

    return " ".join(f"{message.type}: {message_text(message)}".split())


def _value_lines(item: ValueChange) -> list[Text]:
    sign, style = _SIGNS[item.change]
    start = f"    {sign} {_path(item.path)}"
    if item.change == "changed":
        return [Text(f"{start}{_shown(item.before)} → {_shown(item.after)}", style=style)]
    return [Text(start + _shown(item.after if item.change == "added" else item.before), style=style)]


def _path(path: Sequence[Any]) -> str:
    return "".join(f".{key}" if isinstance(key, str) else f"[{key!r}]" for key in path).lstrip(".") + (
        ": " if path else ""
    )


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())


def _place_of(config: Mapping[str, Any]) -> str:
    from langgraph_pgstate.cli.tree import short_id

    known = config["configurable"]
    return f"{known['thread_id']}@{short_id(known['checkpoint_id'])}"


def _sentence(text: str) -> Text:
    return Text(text, overflow="fold")


def _step_of(part: Threads, place: str) -> LineageStep:
    """Return the checkpoint that `THREAD` or `THREAD@CHECKPOINT` names."""
    thread_id, at, name = place.rpartition("@")
    if not at or part.get(place) is not None:
        return _find_step(part, place, None)
    return _find_step(part, thread_id, name)


def _find_step(part: Threads, thread_id: str, name: str | None) -> LineageStep:
    steps = part.lineage({"configurable": {"thread_id": thread_id}})
    if not steps:
        raise absent(part, thread_id)
    return part.lineage(part.find(thread_id, name))[-1] if name else steps[-1]
