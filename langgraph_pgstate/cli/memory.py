"""The command `memory`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import AgentOption, LimitOption, TenantOption, UserOption, YesOption
from langgraph_pgstate.cli.output import count, format_time, new_table, one_of, print_json, print_json_page, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

ACTIONS: Final = ("list", "show", "history", "forget")


def memory(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="list, show, history or forget.", callback=one_of(*ACTIONS))
    ] = "list",
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="With show and history: the memory, or item. With forget: only this one.",
            show_default=False,
        ),
    ] = None,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="The namespace instead, label by label, as of an item or notes."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this kind, like fact; may be repeated.")
    ] = None,
    query: Annotated[str | None, typer.Option(metavar="WORDS", help="With list: what fits these words first.")] = None,
    purge: Annotated[bool, typer.Option("--purge", help="With forget: delete the versions, too.")] = False,
    limit: LimitOption = 20,
    is_sure: YesOption = False,
) -> None:
    """List, show or forget what agents remember.

    A memory is shown with where it comes from; its history is its versions.
    """
    target: Target = ctx.obj
    if (key is None) and action in ("show", "history"):
        raise ConfigurationError(f"memory {action} takes the KEY, and the user, tenant and agent it was stored with")
    if key is not None and action == "list":
        raise ConfigurationError("memory list takes no KEY: use memory show KEY")
    owner: Any = {"user_id": user, "tenant_id": tenant, "agent": agent, "namespace": namespace or None}
    # Looking at memories does not let them live longer.
    with target.connect(memory={"ttl": {"refresh_on_read": False}}) as state:
        if action == "list":
            _list(target, state.memory.recall(query, kinds=kind or None, limit=limit, **owner))
        elif action == "forget":
            _forget(target, state.memory, key, {**owner, "kinds": kind or None, "purge": purge}, is_sure)
        else:
            where = namespace or _namespace(tenant, user, agent)
            found = state.memory.history(where, str(key), limit=1 if action == "show" else limit)
            if not found:
                raise NotFoundError(f"there is no memory {key!r} in namespace {tuple(where)}")
            _show(target, found) if action == "show" else _history(target, found)


def _namespace(tenant: str | None, user: str | None, agent: str | None) -> tuple[str, ...]:
    from langgraph_pgstate.memory.memories import ROOT, namespace_of, owner_of

    return namespace_of(ROOT, owner_of(tenant, user, agent))


def _list(target: Target, found: Any) -> None:
    if target.is_json:
        print_json_page(found)
        return
    table = new_table("namespace", "key", "kind", "content", "valid from", right=("told again",))
    for one in found:
        namespace = " / ".join(one.namespace)
        cells = [namespace, one.key, one.kind, one.content, format_time(one.valid_from)]
        table.add_row(*map(escape, cells), str(one.duplicates or ""))
    show(table, len(found), "memory", None, spare=("told again", "valid from", "namespace"), prose=("content",))


def _show(target: Target, found: Any) -> None:
    (one,) = found
    if target.is_json:
        print_json(one)
        return
    table = new_table("", "")
    origin = {
        "version": one.version,
        "kind": one.kind,
        "valid from": format_time(one.valid_from),
        "deleted": format_time(one.valid_to) if one.is_deleted else None,
        "deleted by": one.deleted_by,
        "stored by": one.changed_by,
        "thread": one.thread_id,
        "run": one.run_id,
        "checkpoint": one.checkpoint_id,
        "message": one.message_id,
    }
    for name, value in origin.items():
        if value is not None:
            table.add_row(name, escape(str(value)))
    console.print(table)
    console.print(escape(json.dumps(one.value, ensure_ascii=False, indent=2)), soft_wrap=True)


def _history(target: Target, found: Any) -> None:
    if target.is_json:
        print_json_page(found)
        return
    table = new_table("version", "from", "until", "by", "value")
    for one in found:
        value = json.dumps(one.value, ensure_ascii=False)
        cells = [str(one.version), format_time(one.valid_from), format_time(one.valid_to), one.changed_by or "", value]
        table.add_row(*map(escape, cells))
    show(table, len(found), "version", None, spare=("by", "until"), prose=("value",))


def _forget(target: Target, memory: Any, key: str | None, options: dict[str, Any], is_sure: bool) -> None:
    if not is_sure:
        what = "one memory" if key is not None else "all memories with these labels"
        typer.confirm(f"forget {what}{' and the versions' if options['purge'] else ''}?", abort=True, err=True)
    number = memory.forget(key, by="pgstate memory", **options)
    if target.is_json:
        print_json({"forgotten": number})
    else:
        console.print(f"forgot {count(number, 'memory')}")
