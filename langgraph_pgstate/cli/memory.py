"""The command `memory`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, errors, escape
from langgraph_pgstate.cli.options import AgentOption, LimitOption, TenantOption, UserOption, YesOption
from langgraph_pgstate.cli.output import (
    INTERRUPTED,
    count,
    format_time,
    new_table,
    one_of,
    print_json,
    print_json_page,
    progress,
    show,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from langgraph_pgstate.admin.types import MemoryTransferReport

ACTIONS: Final = (
    *("list", "show", "history", "forget", "indexes", "reindex", "drop-index", "import-langgraph", "export-langgraph"),
)


def memory(
    ctx: typer.Context,
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="list, show, history, forget, indexes, reindex, drop-index, import-langgraph or export-langgraph.",
            callback=one_of(*ACTIONS),
        ),
    ] = "list",
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="With show and history: the memory or item. With forget: only this one. With drop-index: the index.",
            show_default=False,
        ),
    ] = None,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="The namespace, label by label, instead of user, tenant and agent."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this kind, like fact; may be repeated.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="WORDS", help="With list: the best matches of these words come first.")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="With forget: delete the versions, too.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DSN", help="With import-langgraph: database of LangGraph's store."),
    ] = None,
    source_schema: Annotated[
        str, typer.Option("--from-schema", metavar="NAME", help="Schema of these tables.")
    ] = "public",
    goal: Annotated[
        str | None,
        typer.Option("--to", metavar="DSN", help="With export-langgraph: database of LangGraph's store."),
    ] = None,
    goal_schema: Annotated[str, typer.Option("--to-schema", metavar="NAME", help="Schema of these tables.")] = "public",
    index: Annotated[
        str | None, typer.Option(metavar="NAME", help="Copy embeddings to or from this index of the same model.")
    ] = None,
    vectors: Annotated[bool, typer.Option(help="Copy embeddings; otherwise items are embedded again later.")] = True,
    language: Annotated[
        str, typer.Option(metavar="NAME", help="With import-langgraph: the language of the new store.")
    ] = "simple",
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="With reindex: the langgraph.json whose store.index names the model.")
    ] = Path("langgraph.json"),
    limit: LimitOption = 20,
    is_sure: YesOption = False,
) -> None:
    """List, show, forget or move what agents remember.

    `show` also prints the origin of a memory, and `history` prints its versions. `import-langgraph` and
    `export-langgraph` copy from and to LangGraph's own store. Programs may write meanwhile, and a stopped copy can be
    run again. `reindex` embeds the items that an index lacks, with the model of a langgraph.json. Servers and workers
    do this every minute. `drop-index` drops an index that no program uses any more, with its embeddings.
    """
    target: Target = ctx.obj
    if action in ("import-langgraph", "export-langgraph"):
        if key is not None:
            raise ConfigurationError(f"memory {action} takes no KEY")
        if action == "import-langgraph":
            if source is None:
                raise ConfigurationError(
                    "memory import-langgraph requires --from DSN, the database of LangGraph's store"
                )
            _import(target, source, source_schema=source_schema, index=index, vectors=vectors, language=language)
        else:
            if goal is None:
                raise ConfigurationError("memory export-langgraph requires --to DSN, the database of LangGraph's store")
            _export(target, goal, target_schema=goal_schema, index=index, vectors=vectors)
        return
    if (key is None) and action in ("show", "history"):
        raise ConfigurationError(f"memory {action} requires KEY, and --user, --tenant and --agent of the memory")
    if key is None and action == "drop-index":
        raise ConfigurationError("memory drop-index requires the name of an index: `memory indexes` lists the names")
    if key is not None and action in ("list", "indexes", "reindex"):
        raise ConfigurationError(f"memory {action} takes no KEY: use memory show KEY")
    if action == "reindex":
        _reindex(target, config)
        return
    owner: Any = {"user_id": user, "tenant_id": tenant, "agent": agent, "namespace": namespace or None}
    # Reading memories in a command must not extend their time to live.
    with target.connect(memory={"ttl": {"refresh_on_read": False}}) as state:
        if action == "indexes":
            _indexes(target, state.memory.list_indexes())
        elif action == "drop-index":
            _drop_index(target, state.memory, str(key), is_sure)
        elif action == "list":
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
    table = new_table("namespace", "key", "kind", "content", "valid from", right=("repeated",))
    for one in found:
        namespace = " / ".join(one.namespace)
        cells = [namespace, one.key, one.kind, one.content, format_time(one.valid_from)]
        table.add_row(*map(escape, cells), str(one.duplicates or ""))
    show(table, len(found), "memory", None, spare=("repeated", "valid from", "namespace"), prose=("content",))


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
        "deleted": format_time(one.valid_to) if one.valid_to is not None else None,
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


def _indexes(target: Target, found: dict[str, bool]) -> None:
    if target.is_json:
        print_json(found)
        return
    table = new_table("index", "state")
    for name, is_complete in found.items():
        table.add_row(escape(name), "complete" if is_complete else "lacks items; searches use another")
    show(table, len(found), "index", None)


def _reindex(target: Target, config: Path) -> None:
    from langgraph_pgstate.worker.graphs import load_environment
    from langgraph_pgstate.worker.state_config import load_memory_options

    options = None
    if config.exists():
        load_environment(config)
        options = load_memory_options(config)
    if options is None or not options.get("index"):
        raise ConfigurationError(
            f"memory reindex requires store.index in langgraph.json, but {config} has no store.index"
        )
    with target.with_environment().connect(memory=options) as state:
        state.memory.setup_indexes()
        embedded = state.memory.reindex()
        found = state.memory.list_indexes()
    if target.is_json:
        print_json({"embedded": embedded, "indexes": found})
    else:
        console.print(f"embedded {count(embedded, 'item')}")


def _drop_index(target: Target, memory: Any, name: str, is_sure: bool) -> None:
    if not is_sure:
        typer.confirm(f"delete index {name} with its embeddings, if no program uses it any more?", abort=True, err=True)
    memory.drop_index(name)
    if target.is_json:
        print_json({"dropped": name})
    else:
        console.print(f"dropped the index {escape(name)}")


def _import(target: Target, source: str, **options: Any) -> None:
    with target.admin(create=True) as admin:
        admin.setup()
        with _going("importing items") as advance:
            report = admin.import_langgraph_memory(source, progress=advance, **options)
    _print_transfer(target, "imported", report)


def _export(target: Target, goal: str, **options: Any) -> None:
    with target.admin() as admin, _going("exporting items") as advance:
        report = admin.export_langgraph_memory(goal, progress=advance, **options)
    _print_transfer(target, "exported", report)


@contextmanager
def _going(doing: str) -> Iterator[Callable[[int, int], None]]:
    try:
        with progress(doing) as advance:
            yield advance
    except KeyboardInterrupt:
        errors.print("[yellow]stopped; run it again to go on[/]")
        raise typer.Exit(INTERRUPTED) from None


def _print_transfer(target: Target, done: str, report: MemoryTransferReport) -> None:
    if target.is_json:
        print_json(report)
    else:
        console.print(
            f"{done} {count(report.items, 'item')}: {report.written:,} written; {report.verified:,} compared with the "
            f"other side, {report.with_vectors:,} of them with embeddings"
        )
        if report.newer:
            console.print(f"{count(report.newer, 'item')} stored later there were left as they are")
        if report.expired:
            console.print(f"{count(report.expired, 'item')} had expired")
        if report.left:
            console.print(
                f"{count(report.left, 'item')} stored meanwhile {'is' if report.left == 1 else 'are'} left: run it "
                "again when the programs that write there have stopped"
            )
        if report.differences:
            console.print(f"[bold red]{len(report.differences):,} differ:[/]")
            for one in report.differences:
                console.print(f"  {escape(one.namespace)} {escape(one.key)}: {escape(one.why)}", soft_wrap=True)
    if report.differences:
        raise typer.Exit(1)
