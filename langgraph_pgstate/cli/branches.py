"""The commands about a thread's branches: draw them, name their checkpoints, fork off them, compare their states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from langchain_core.messages import BaseMessage
from rich.text import Text

from langgraph_pgstate.cli.output import console
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.cli.tree import draw, message_text, outline, short_id
from langgraph_pgstate.codec.serializer import plain_serializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import NotFoundError, StateVersionError
from langgraph_pgstate.operations.admin import schema as schemas
from langgraph_pgstate.operations.checkpoints.addresses import Address
from langgraph_pgstate.operations.threads import branches
from langgraph_pgstate.saver import PGStateSaver
from langgraph_pgstate.sql import queries
from langgraph_pgstate.threads import Threads
from langgraph_pgstate.types.branches import ChannelDifference, Difference, MessageChange, ValueChange

_SIGNS: Final = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "edited": ("~", "yellow"),
    "changed": ("~", "yellow"),
}
_MOST_LINES: Final = 40
_PLACE_HELP: Final = "THREAD for its newest checkpoint, or THREAD@CHECKPOINT: an id, a part of one, or a label."

PlaceArgument = Annotated[str, typer.Argument(metavar="THREAD@CHECKPOINT", help=_PLACE_HELP)]


def tree(
    ctx: typer.Context,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")],
    limit: Annotated[int, typer.Option(min=1, help="At most so many checkpoints, the newest.")] = 500,
) -> None:
    """Draw a thread's checkpoints with all their forks and labels."""
    target: Target = ctx.obj
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    options: Any = {"schema": target.schema, "pool": False, "serde": plain_serializer()}
    with target.open() as dsn, PGStateSaver.from_conn_string(dsn, **options) as saver:
        try:
            nodes = outline(saver.list(config, limit=limit))
        except StateVersionError:
            # Only the application knows what they hold; the tree's shape can be drawn without it.
            nodes = outline(saver.list(config, limit=limit, metadata_only=True))
    if not nodes:
        raise NotFoundError(f"there is no thread {thread!r} in schema {target.schema}")
    older = 0
    with _threads(target) as part:
        if len(nodes) == limit:
            first = Address(thread, "", nodes[0].id)
            older = part._database.run(branches.count_older, part._queries, first)
        labels = {item.checkpoint_id: item.label for item in part.labels(thread) if not item.checkpoint_ns}
        found = part.get(thread)
    title = thread
    if found is not None and found.forked_from_thread_id is not None:
        title += f", forked off {found.forked_from_thread_id} at {short_id(found.forked_from_checkpoint_id or '')}"
    console.print(draw(nodes, title, console.width, labels))
    if older:
        console.print(f"… {older:,} older, not shown (--limit)", style="dim")


def label(
    ctx: typer.Context,
    place: PlaceArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to call it.", show_default=False)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take its label away.")] = False,
) -> None:
    """Give a checkpoint a label, like "before refund"; a prune keeps it."""
    if remove == (text is not None):
        raise typer.BadParameter("say what to call it, or --remove")
    with _threads(ctx.obj) as part:
        config = _config_of(part, place)
        if text is not None:
            part.label(config, text)
            console.print(_sentence(f"{_place_of(config)} is [{text.strip()}] now"))
        else:
            had = part.unlabel(config)
            console.print(_sentence(f"{_place_of(config)} has no label {'any more' if had else 'as it is'}"))


def fork(
    ctx: typer.Context,
    place: PlaceArgument,
    to: Annotated[
        str | None, typer.Option(metavar="ID", show_default=False, help="The new thread; else a random id.")
    ] = None,
) -> None:
    """Make a new thread that starts from a checkpoint of another."""
    with _threads(ctx.obj) as part:
        config = _config_of(part, place)["configurable"]
        forked = part.fork(config["thread_id"], config["checkpoint_id"], to)
        steps = len(part.lineage(forked))
    line = _sentence(f"forked {_place_of({'configurable': config})} to thread ")
    line.append(forked["configurable"]["thread_id"], style="bold")
    console.print(line.append(f", with {steps:,} checkpoint{'' if steps == 1 else 's'} that led to it"))


def diff(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help=_PLACE_HELP)],
    second: Annotated[str, typer.Argument(metavar="B", help="Likewise.")],
    full: Annotated[bool, typer.Option("--full", help="Every difference, and whole values.")] = False,
) -> None:
    """Show how the states of two checkpoints differ."""
    # Of the application's own types it takes what they hold: they need not be built to be compared.
    with _threads(ctx.obj, ValueCodec(plain_serializer())) as part:
        configs = [_config_of(part, place) for place in (first, second)]
        difference = part.diff(*configs)
    print_difference(difference, full=full)


def print_difference(difference: Difference, *, full: bool = False) -> None:
    """A difference, channel by channel."""
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
        # What differs cannot be seen in what is said: metadata, ids of tool calls and the like.
        return [Text(f"{start}{now} (other fields)", style=style)]
    return [Text(f"{start}{was}", style=style), Text(f"{'':>{len(start) - 2}}→ {now}", style=style)]


def _said(message: BaseMessage) -> str:
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
    known = config["configurable"]
    return f"{known['thread_id']}@{short_id(known['checkpoint_id'])}"


def _sentence(text: str) -> Text:
    return Text(text, overflow="fold")


def _config_of(part: Threads, place: str) -> dict[str, Any]:
    """The checkpoint a person means with `THREAD` or `THREAD@CHECKPOINT`.

    Raises:
        NotFoundError: If there is none.
    """
    thread_id, at, name = place.rpartition("@")
    if not at or part.get(place) is not None:
        thread_id, name = place, ""
    steps = part.lineage({"configurable": {"thread_id": thread_id}})
    if not steps:
        raise NotFoundError(f"there is no thread {thread_id!r}")
    if not name:
        return steps[-1].config
    return part.find(thread_id, name)


@contextmanager
def _threads(target: Target, codec: ValueCodec | None = None) -> Iterator[Threads]:
    with target.open() as dsn, Database.open(dsn, schema=target.schema, pool=False) as database:
        known = queries(target.schema)
        database.run(schemas.check_version, known)
        yield Threads(database, known, codec)
