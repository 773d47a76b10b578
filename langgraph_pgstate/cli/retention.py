"""The command `retention`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import THREAD_STATUSES, AgentOption, TenantOption, UserOption
from langgraph_pgstate.cli.output import bytes_in_words, count, format_time, new_table, one_of, print_json, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.keep.types import TTL, Policy, PolicyReport
from langgraph_pgstate.options import age

ACTIONS: Final = ("list", "set", "remove", "apply")


def _age_option(text: str) -> Any:
    return typer.Option(metavar="AGE", help=f"With set: {text}, like 30d.", show_default=False)


def retention(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="list, set, remove or apply.", callback=one_of(*ACTIONS))
    ] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The policy.", show_default=False)] = None,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With set: only threads of this status.", callback=one_of(*THREAD_STATUSES)),
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="With set: only threads whose metadata contain this object.")
    ] = None,
    content_after: Annotated[str | None, _age_option("remove contents of spans, messages and runs of this age")] = None,
    prune_after: Annotated[str | None, _age_option("prune checkpoints of this age")] = None,
    keep_last: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --prune-after: number of newest checkpoints to keep.")
    ] = 1,
    archive_after: Annotated[str | None, _age_option("archive threads after this time without activity")] = None,
    archive_to: Annotated[
        str | None, typer.Option(metavar="URL", help="With --archive-after: the place, like s3://bucket/prefix.")
    ] = None,
    delete_after: Annotated[
        str | None, _age_option("delete threads, also archived ones, after this time without activity")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With apply: only count, and estimate the bytes.")] = False,
) -> None:
    """Set how long threads are kept, and what happens then.

    `maintain` and workers apply the policies. Policies do not change a thread under a legal hold. The exit code of
    `apply` is 1 if a policy failed on some threads.
    """
    target: Target = ctx.obj
    if name is None and action in ("set", "remove"):
        raise ConfigurationError(f"retention {action} requires the NAME of the policy")
    with target.connect() as state:
        if action == "set":
            ages = {
                "content_after": content_after,
                "prune_after": prune_after,
                "archive_after": archive_after,
                "delete_after": delete_after,
            }
            fields: Any = {key: age(text) for key, text in ages.items() if text is not None}
            chosen = {"user_id": user, "tenant_id": tenant, "agent": agent, "status": status, "archive_to": archive_to}
            fields |= {key: value for key, value in chosen.items() if value is not None}
            if metadata is not None:
                fields["metadata"] = _object(metadata)
            policy = state.retention.put(str(name), keep_last=keep_last, **fields)
            _print_policies(target, [policy])
        elif action == "remove":
            if not state.retention.delete(str(name)):
                raise NotFoundError(f"there is no policy {name!r}")
            if target.is_json:
                print_json({"removed": name})
            else:
                console.print(f"removed policy {escape(str(name))}")
        elif action == "apply":
            reports = state.retention.apply(name, dry_run=dry_run)
            if target.is_json:
                print_json(*reports)
            else:
                print_applied(reports)
            raise typer.Exit(int(any(one.problems for one in reports)))
        else:
            _print_policies(target, state.retention.policies())


def print_applied(reports: Sequence[PolicyReport]) -> None:
    """Print what the policies did or would do."""
    if not reports:
        console.print("no policies")
    for one in reports:
        would = "would be " if one.dry_run else ""
        parts = [
            f"{count(number, noun)} {would}{done}"
            for number, noun, done in (
                (one.deleted, "thread", "deleted"),
                (one.archived, "thread", "archived"),
                (one.checkpoints, "checkpoint", "pruned"),
                (one.contents, "content", "removed"),
            )
            if number
        ]
        size = f", {bytes_in_words(one.bytes)}" if one.bytes else ""
        nothing = "nothing was done" if one.problems else "nothing to do"
        console.print(f"{escape(one.name)}: {', '.join(parts) or nothing}{size}")
        for problem in one.problems:
            console.print(f"  [bold red]{escape(problem)}[/]", soft_wrap=True)
        for thread_id in one.held:
            console.print(f"  {escape(thread_id)} is held by a person")


def _print_policies(target: Target, policies: Sequence[Policy]) -> None:
    if target.is_json:
        print_json(*policies)
        return
    table = new_table("policy", "threads", "contents", "checkpoints", "archive", "delete", "applied")
    for one in policies:
        chosen = {"agent": one.agent, "tenant": one.tenant_id, "user": one.user_id, "status": one.status}
        texts = [f"{key}={value}" for key, value in chosen.items() if value is not None]
        texts += [json.dumps(one.metadata)] if one.metadata else []
        prune = "" if one.prune_after is None else f"{_days(one.prune_after)}, but {one.keep_last}"
        archive = "" if one.archive_after is None else f"{_days(one.archive_after)} to {one.archive_to}"
        chosen_by = "with a time to live" if one.name == TTL else " ".join(texts) or "all"
        applied = format_time(one.applied_at)
        cells = [one.name, chosen_by, _days(one.content_after), prune, archive, _days(one.delete_after), applied]
        table.add_row(*map(escape, cells))
    show(table, len(policies), "policy", None, spare=("applied",), prose=("threads",))
    for one in policies:
        if one.last_error is not None:
            console.print(f"[bold red]{escape(one.name)}: {escape(one.last_error)}[/]", soft_wrap=True)


def _days(time: timedelta | None) -> str:
    if time is None:
        return ""
    return f"{time.days}d" if time == timedelta(days=time.days) else str(time)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(f"--metadata must be a JSON object, got {text!r}")
    return found
