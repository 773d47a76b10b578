"""The command `schedule`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import LimitOption
from langgraph_pgstate.cli.output import format_time, new_table, one_of, print_json, print_json_page, shorten, show
from langgraph_pgstate.cli.queue import input_of
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from langgraph_pgstate.state import PGState

ACTIONS: Final = ("list", "add", "pause", "resume", "trigger", "delete")


def schedule(
    ctx: typer.Context,
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION", help="list, add, pause, resume, trigger (run now) or delete.", callback=one_of(*ACTIONS)
        ),
    ] = "list",
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="With all but list: the schedule.", show_default=False)
    ] = None,
    graph: Annotated[
        str | None,
        typer.Argument(metavar="GRAPH", help="With add: the graph, as the workers know it.", show_default=False),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Argument(metavar="CRON", help="With add: five fields, like '0 9 * * 1-5'.", show_default=False),
    ] = None,
    input: Annotated[
        str | None, typer.Argument(metavar="JSON", help="With add: the input of the runs.", show_default=False)
    ] = None,
    timezone: Annotated[str, typer.Option(metavar="NAME", help="The time zone, like Europe/Prague.")] = "UTC",
    missed: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For ticks that no worker handled in time: skip them, run once, or run all.",
            callback=one_of("skip", "once", "all"),
        ),
    ] = "skip",
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="The thread; by default a new one for each run.")
    ] = None,
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue.")] = "default",
    limit: LimitOption = 20,
) -> None:
    """List schedules; add, pause, resume, trigger or delete one. A schedule enqueues runs."""
    target: Target = ctx.obj
    if (action == "list") is not (name is None) or (action == "add") is not (cron is not None):
        raise ConfigurationError(
            "schedule takes add NAME GRAPH CRON [JSON]; pause, resume, trigger or delete NAME; or nothing to list all"
        )
    with target.connect() as state:
        if name is None:
            _list(target, state, limit)
        elif graph is not None and cron is not None:
            options: Any = {"thread_id": thread, "queue": queue, "missed": missed, "timezone": timezone}
            _print(target, state.schedules.put(name, graph, input_of(input), cron=cron, **options))
        elif action == "trigger":
            run = state.schedules.trigger(name)
            if target.is_json:
                print_json({"thread_id": run.thread_id, "run_id": run.run_id})
            else:
                console.print(f"enqueued run {run.run_id}\non thread {escape(run.thread_id)}", soft_wrap=True)
        elif action == "delete":
            if not state.schedules.delete(name):
                raise NotFoundError(f"there is no schedule {name!r}")
            if target.is_json:
                print_json({"name": name, "action": action})
            else:
                console.print("deleted")
        else:
            _print(target, state.schedules.pause(name) if action == "pause" else state.schedules.resume(name))


def _list(target: Target, state: PGState, limit: int) -> None:
    page = state.schedules.list(limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("name", "graph", "cron", "time zone", "next", "last", "error")
    for one in page.items:
        following = format_time(one.next_at) if one.next_at is not None else _without_ticks(one)
        cells = [one.name, one.graph, one.cron, one.timezone, following, format_time(one.last_at)]
        table.add_row(*map(escape, cells), escape(shorten(one.last_error or "", 80)))
    show(table, len(page.items), "schedule", page.next, spare=("last", "time zone", "graph"), prose=("error",))


def _print(target: Target, schedule: Any) -> None:
    if target.is_json:
        print_json(schedule)
    elif schedule.next_at is None:
        console.print(_without_ticks(schedule))
    else:
        console.print(f"next: {', '.join(map(format_time, schedule.next_ticks[:3]))}")


def _without_ticks(schedule: Any) -> str:
    return "paused" if schedule.is_paused else "ended"
