"""The commands on the tool ledger: `executions` and `settle`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.interrupts import shell_user, value_of, value_text
from langgraph_pgstate.cli.options import DECISIONS, LimitOption, ThreadArgument
from langgraph_pgstate.cli.output import format_time, new_table, one_of, print_json, shorten, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from langgraph_pgstate.record.types import ToolExecution
    from langgraph_pgstate.state import PGState

_STYLES = {"success": "green", "error": "red", "timeout": "yellow", "unknown": "yellow", "running": "cyan"}
_SETTLED = {"done": "success", "retry": "pending: it runs when it is called again", "fail": "error"}
_PAGE = 1000


def executions(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only actions of this run.")] = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Only actions with an unknown outcome.")] = False,
    limit: LimitOption = 50,
) -> None:
    """List the actions of a thread in the tool ledger. The newest come first."""
    target: Target = ctx.obj
    with target.connect() as state:
        found = state.tools.list(thread, run_id=run, unknown=unknown, limit=limit)
    if target.is_json:
        print_json(*found)
        return
    table = new_table("key", "tool", "status", "started", "arguments", "result", right=("attempt",))
    for item in found:
        result = item.preview or ": ".join(filter(None, [item.error_type, item.error_message]))
        status = f"[{_STYLES[item.status]}]{item.status}[/]" if item.status in _STYLES else item.status
        cells = [format_time(item.started_at), shorten(value_text(item.arguments), 60), shorten(result, 60)]
        names = map(escape, [item.idempotency_key, item.tool])
        table.add_row(*names, status, *map(escape, cells), str(item.attempt))
    spare = ("attempt", "started", "result", "arguments")
    show(table, len(found), "tool execution", None, spare=spare, prose=("arguments", "result"))


def settle(
    ctx: typer.Context,
    thread: ThreadArgument,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key of the action in `pgstate executions`, or its beginning.")
    ],
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION",
            help="done: it took effect; retry: it did not, so the next call runs it; fail: give it up.",
            callback=one_of(*DECISIONS),
        ),
    ],
    result: Annotated[
        str | None, typer.Option(metavar="VALUE", help="With done: the result of the tool, as JSON or plain text.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; by default the shell's user.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Change the decision of a person.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Take VALUE as text, not as JSON.")] = False,
) -> None:
    """Decide the outcome of an action of the tool ledger. The action must be unknown or failed."""
    if result is not None and decision != "done":
        raise typer.BadParameter("--result requires that DECISION is done")
    given: dict[str, Any] = {} if result is None else {"result": result if text else value_of(result)}
    target: Target = ctx.obj
    with target.connect() as state:
        if state.tools.get(thread, key) is None:
            matching = [each for each in _keys(state, thread) if each.startswith(key)]
            if len(matching) > 1:
                raise ConfigurationError(
                    f"{len(matching)} actions of thread {thread!r} begin with {key!r}: give more of the key"
                )
            if not matching:
                raise NotFoundError(f"thread {thread!r} has no tool execution {key!r}")
            key = matching[0]
        seen = state.tools.get(thread, key) if again else None
        state.tools.settle(thread, key, decision, by=by or shell_user(), seen=seen, **given)
        settled = state.tools.get(thread, key)
    if target.is_json:
        print_json(settled)
    else:
        console.print(f"settled {escape(key)}: {_SETTLED[decision]}")


def _keys(state: PGState, thread: str) -> Iterator[str]:
    """Yield the keys of all actions of a thread."""
    page: Sequence[ToolExecution] = state.tools.list(thread, limit=_PAGE)
    while page:
        yield from (item.idempotency_key for item in page)
        page = state.tools.list(thread, limit=_PAGE, after=page[-1]) if len(page) == _PAGE else ()
