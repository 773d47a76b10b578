"""The commands `cost`, `prices` and `price`."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import SINCE_HELP, USAGE_KEYS, LimitOption
from langgraph_pgstate.cli.output import format_time, money, new_table, one_of, print_json, print_table, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.options import age


def _keys(by: str) -> list[str]:
    return [key.strip() for key in by.split(",") if key.strip()]


def _check_keys(by: str) -> str:
    for key in _keys(by):
        one_of(*USAGE_KEYS)(key)
    return by


def cost(
    ctx: typer.Context,
    by: Annotated[
        str,
        typer.Option(metavar="KEYS", help=f"Keys, separated by commas: {', '.join(USAGE_KEYS)}.", callback=_check_keys),
    ] = "agent,model",
    since: Annotated[str, typer.Option(metavar="AGE", help=SINCE_HELP)] = "30d",
    limit: LimitOption = 50,
) -> None:
    """Sum up model calls, tokens and cost. The most expensive come first."""
    keys = _keys(by)
    target: Target = ctx.obj
    with target.connect() as state:
        rows = state.runs.usage(keys, since=age(since), limit=limit)
        totals = state.runs.usage([], since=age(since))
    if target.is_json:
        print_json({"by": keys, "usage": rows, "total": totals[0] if totals else None})
        return
    if not totals:
        console.print(f"no model was called in the last {escape(since)}")
        return
    table = new_table(*keys, right=("calls", "input", "cached", "output", "reasoning", "cost", "without price"))
    fields = {"agent": "agent", "model": "model", "tenant": "tenant_id", "user": "user_id", "day": "day"}
    for item in [*rows, *totals]:
        if item is totals[0]:
            table.add_section()
        names = [str(getattr(item, fields[key]) or "–") if item is not totals[0] else "" for key in keys]
        tokens = [item.input_tokens, item.cache_read_tokens, item.output_tokens, item.reasoning_tokens]
        figures = [f"{number:,}" for number in (item.calls, *tokens)]
        unpriced = f"{item.unpriced:,}" if item.unpriced else ""
        style = "bold" if item is totals[0] else None
        table.add_row(*map(escape, names), *figures, money(item.cost), unpriced, style=style)
    print_table(table, spare=("reasoning", "cached", "without price"))
    if totals[0].unpriced:
        console.print("[yellow]calls without a price are not in the cost; set prices with `pgstate price`[/]")


def prices(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only prices of this model.")] = None,
) -> None:
    """List prices per million tokens."""
    target: Target = ctx.obj
    with target.connect() as state:
        found = state.prices.list(model)
    if target.is_json:
        print_json(*found)
        return
    table = new_table("model", "provider", "from", right=("input", "output", "cache read", "reasoning"))
    for item in found:
        amounts = (item.input, item.output, item.cache_read, item.reasoning)
        figures = ["" if amount is None else f"{amount:,f}" for amount in amounts]
        table.add_row(*map(escape, (item.model, item.provider or "any", format_time(item.valid_from))), *figures)
    show(table, len(found), "price", None, spare=("reasoning", "cache read"))


def price(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, as `pgstate cost` names it.")],
    input: Annotated[str, typer.Option(metavar="AMOUNT", help="Price of a million input tokens.")],
    output: Annotated[str, typer.Option(metavar="AMOUNT", help="Price of a million output tokens.")],
    cache_read: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Price of a million cached input tokens; by default as --input."),
    ] = None,
    reasoning: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Price of a million reasoning tokens; by default as --output.")
    ] = None,
    provider: Annotated[str, typer.Option(metavar="NAME", help="The provider; by default any.")] = "",
    since: Annotated[
        datetime | None,
        typer.Option(
            "--from", metavar="DATE", formats=["%Y-%m-%d"], help="Valid from this day (UTC); by default always."
        ),
    ] = None,
) -> None:
    """Set the price of a model. It applies to calls that are recorded from now on."""
    amounts = {"input": input, "output": output, "cache_read": cache_read, "reasoning": reasoning}
    exact = {name: None if text is None else _amount(name, text) for name, text in amounts.items()}
    valid_from = None if since is None else since.replace(tzinfo=UTC)
    target: Target = ctx.obj
    with target.connect() as state:
        state.prices.set(model, **exact, provider=provider, valid_from=valid_from)  # type: ignore[arg-type]
    if target.is_json:
        print_json({"model": model, "provider": provider, "valid_from": valid_from, **exact})
        return
    console.print(
        f"a million tokens of {escape(model)}: {exact['input']} read, {exact['output']} written"
        + (f", at {escape(provider)}" if provider else "")
        + (f", from {since:%Y-%m-%d} on (UTC)" if since else "")
    )


def _amount(name: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ConfigurationError(f"--{name.replace('_', '-')} must be a price like 3 or 0.15, not {text!r}") from None
