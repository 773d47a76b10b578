"""The commands `limits` and `budgets`."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import escape
from langgraph_pgstate.cli.output import new_table, print_json, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.options import age
from langgraph_pgstate.runs.types import Rate

_SCOPES: Final = ("tenant", "user", "agent", "key")


def limits(
    ctx: typer.Context,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="The queue whose limit is set or removed; by default list all."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Limit this key, or each key with `*`; by default the whole queue."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Maximum number of runs at the same time; with 0, none begin."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="Maximum number of runs that begin in a time, like 60/1m.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the limit.")] = False,
) -> None:
    """List the limits of queues and keys, or set one. A new limit replaces the old one."""
    target: Target = ctx.obj
    is_set = concurrency is not None or rate is not None
    if queue is None and (is_set or remove or key is not None):
        raise ConfigurationError("QUEUE must be given if a limit is set or removed")
    if queue is not None and is_set is remove:
        raise ConfigurationError("limits QUEUE requires --concurrency or --rate, or only --remove")
    with target.connect() as state:
        if queue is not None:
            state.runs.limit(queue, key=key, concurrency=concurrency, rate=None if rate is None else read_rate(rate))
        found = state.runs.limits()
    if target.is_json:
        print_json(*found)
        return
    table = new_table("queue", "key", right=("at once", "rate", "running", "waiting"))
    for limit in found:
        each = "" if limit.rate is None else f"{limit.rate.count:,} in {limit.rate.seconds:g} s"
        numbers = ("" if limit.concurrency is None else f"{limit.concurrency:,}", each)
        waiting = "" if limit.key is None else f"{limit.waiting:,}"
        table.add_row(escape(limit.queue), escape(limit.key or ""), *numbers, f"{limit.running:,}", waiting)
    show(table, len(found), "limit", None, spare=("waiting",))


def budgets(
    ctx: typer.Context,
    scope: Annotated[
        str | None, typer.Argument(metavar="SCOPE", help="tenant, user, agent or key; by default list all.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name of the tenant, user, agent or key; `*` for each.")
    ] = None,
    amount: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Maximum cost of one day (UTC).")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the budget.")] = False,
) -> None:
    """List the budgets of money, or set one. The list shows today's spending. A new budget replaces the old one."""
    target: Target = ctx.obj
    if scope is not None and scope not in _SCOPES:
        raise ConfigurationError(f"scope must be {', '.join(_SCOPES[:-1])} or {_SCOPES[-1]}, not {scope!r}")
    if (scope is None) is not (name is None) or (scope is not None) is not ((amount is not None) is not remove):
        raise ConfigurationError(
            "budgets takes SCOPE NAME --amount AMOUNT, or SCOPE NAME --remove, or no argument to list all budgets"
        )
    with target.connect() as state:
        if scope is not None:
            owner: Any = {scope: name}
            state.runs.budget(amount, **owner)
        found = state.runs.budgets()
    if target.is_json:
        print_json(*found)
        return
    table = new_table("scope", "name", right=("a day", "spent today"))
    for budget in found:
        spent = "" if budget.spent is None else f"{budget.spent.normalize():,f}"
        table.add_row(budget.scope, escape(budget.name), f"{budget.amount.normalize():,f}", spent)
    show(table, len(found), "budget", None)


def read_rate(text: str) -> Rate:
    """Read a rate like `60/1m` or `5/s`."""
    number, _, per = text.partition("/")
    try:
        return Rate(int(number), age(per if per[:1].isdigit() else f"1{per}"))
    except ValueError:
        raise ConfigurationError(f"--rate must be a number and a time, like 60/1m or 5/s, not {text!r}") from None
