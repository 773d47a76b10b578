"""Actions of persons on a thread: fork, run, label and delete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from langgraph_pgstate.errors import (
    AlreadyDoneError,
    ArchiveError,
    ArchiveUnavailableError,
    StaleHeadError,
    ThreadBusyError,
)
from langgraph_pgstate.inspector.changes import busy, check_free, done, gone, is_by, last_action, moved, within
from langgraph_pgstate.inspector.holds import holds_of
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.runs import config_of
from langgraph_pgstate.threads.types import Thread

_MODES: Final = ("on", "replay")


async def fork(call: PageCall) -> Done:
    """Create a thread that starts from a checkpoint. Run the thread if the form asks for it."""
    source = await call.thread("read")
    at, nonce = checkpoint_of(call), call.nonce
    target_id = call.field("to") or nonce
    value: dict[str, Any] = {"thread_id": target_id, "metadata": dict(source.metadata)}
    scope = await call.authorize("threads", "create", value)
    existing = await call.state.threads.get(target_id)
    if existing is None:
        try:
            await call.state.threads.fork(
                source.thread_id,
                at,
                target_id,
                by=call.actor,
                unless_done_within=within(call),
                owner=call.owner_of(value),
            )
        except AlreadyDoneError as error:
            raise done("the checkpoint", error, f": thread {error.details.get('target')!r}") from None
    elif (existing.forked_from_thread_id, existing.forked_from_checkpoint_id) != (source.thread_id, at) or (
        target_id != nonce and await call.state.runs.get(target_id, nonce) is None
    ):
        # Another form has created the thread. Do not describe the thread, which the person may not be allowed to see.
        raise refuse(409, f"there is a thread {target_id!r} already")
    made = await call.visible(target_id, scope)
    run_id = await enqueue(call, made, nonce, expected_head=at, at=at) if call.field("run") else None
    place = ("edit",) if call.field("edit") else ()
    location = call.link("threads", target_id, *place, at=at if place else None)
    return Done(location, {"thread_id": target_id, "run_id": run_id})


async def run(call: PageCall) -> Done:
    """Resume from the newest checkpoint with the given answers, or replay from an older checkpoint."""
    found = await call.thread("update")
    at, head, mode, nonce = checkpoint_of(call), call.field("head"), call.field("mode"), call.nonce
    if mode not in _MODES or head is None or (mode == "on") != (at == head):
        raise refuse(422, "mode must be 'on' if 'at' and 'head' name the same checkpoint, otherwise 'replay'")
    location = call.link("threads", found.thread_id)
    if await call.state.runs.get(found.thread_id, nonce) is not None:
        return Done(location, {"run_id": nonce})
    await check_head(call, found, head)
    await check_free(call, found)
    if mode == "on":
        command = await call.state.interrupts.resume(found.thread_id)
        run_id = await enqueue(call, found, nonce, expected_head=head, command=command)
    else:
        run_id = await enqueue(call, found, nonce, expected_head=head, at=at)
    return Done(location, {"run_id": run_id})


async def label(call: PageCall) -> Done:
    """Set the label of a checkpoint. An empty text removes the label."""
    found = await call.thread("update")
    at, text = checkpoint_of(call), call.field("label")
    config = config_at(found.thread_id, checkpoint_ns="", checkpoint_id=at)
    try:
        await _label(call, config, text, within(call))
    except AlreadyDoneError as error:
        if error.done_by != call.actor:
            raise done("the checkpoint", error, f": {error.details.get('label') or 'no label'!r}") from None
        await _label(call, config, text, None)
    return Done(call.link("threads", found.thread_id, at=at), {"label": text})


async def _label(call: PageCall, config: RunnableConfig, text: str | None, unless: timedelta | None) -> None:
    if text is None:
        await call.state.threads.unlabel(config, by=call.actor, unless_done_within=unless)
    else:
        await call.state.threads.label(config, text, by=call.actor, unless_done_within=unless)


async def ask_for_deletion(call: PageCall) -> Page:
    """Show what the deletion of a thread would delete."""
    if not call.may_act:
        raise refuse(403, "pages are read-only here")
    found = await call.thread_or_stub("delete")
    if found.archived_at is not None:
        await check_sees_all(call)
    counts = await call.state.saver.aprune([found.thread_id], strategy="delete", dry_run=True)
    data = {"thread": found, "counts": counts, "holds": await holds_of(call, found.thread_id) if found.is_held else ()}
    return Page("delete.html", "Delete a thread", data)


async def delete(call: PageCall) -> Done:
    """Delete a thread, also from archives. An event that names the person stays."""
    found = await call.thread_or_stub("delete")
    if call.time("archived") != found.archived_at:
        raise refuse(
            409, f"thread {found.thread_id!r} was archived or restored since you looked. Look at the thread again"
        )
    if found.archived_at is not None:
        return await _delete_archived(call, found)
    if call.field("head") is not None:
        await check_head(call, found, call.field("head"))
    if call.field("saw_busy") is None and call.seen_at is not None:
        await check_free(call, found)
    await call.state.saver.adelete_thread(found.thread_id, by=call.actor)
    # Only the first deletion is recorded. Tell a later person who deleted the thread.
    event = await last_action(call, found.thread_id, ("delete",))
    if event is not None and not is_by(event, call.actor):
        raise await gone(call, found.thread_id)
    return Done(call.link("threads"), {"thread_id": found.thread_id})


async def _delete_archived(call: PageCall, found: Thread) -> Done:
    await check_sees_all(call)
    try:
        report = await call.state.archive.delete([found.thread_id], by=call.actor)
    except ArchiveUnavailableError as error:
        raise refuse(503, str(error)) from None
    except ArchiveError as error:
        raise refuse(500, str(error)) from None
    if not report.threads:
        await call.visible(found.thread_id, None)
        raise refuse(409, f"thread {found.thread_id!r} is in the database again. Look at it again, then decide")
    return Done(call.link("archive"), {"thread_id": found.thread_id})


async def enqueue(
    call: PageCall,
    thread: Thread,
    run_id: str,
    *,
    expected_head: str,
    at: str | None = None,
    command: Command[Any] | None = None,
    waits: bool = False,
) -> str:
    """Enqueue a run, and return its id. Safe to repeat with the same id.

    The run belongs to the acting user or, without authentication, to the thread's owner.

    Args:
        expected_head: The checkpoint that must be the thread's newest, now and when the run begins.
        at: Checkpoint from which the run starts; the newest by default.
        waits: Whether the run may wait behind the thread's current run. Otherwise, refuse a busy thread.
    """
    name = graph_of(call, thread)
    graph = {"graph_id": name, "assistant_id": call.service.graphs.id_of(name)}
    metadata = {**call.metadata(thread.metadata), **graph, "started_by": call.actor}
    value: dict[str, Any] = {
        "assistant_id": graph["assistant_id"],
        "thread_id": thread.thread_id,
        "run_id": run_id,
        "metadata": dict(metadata),
        "kwargs": {"input": None, "command": command, "config": {}, "context": None},
    }
    await call.visible(thread.thread_id, await call.authorize("threads", "create_run", value))
    config = config_of(call, {})
    config["configurable"] |= graph
    if call.user is None:
        owner = {"user_id": thread.user_id, "tenant_id": thread.tenant_id}
        config["configurable"] |= {name: one for name, one in owner.items() if one is not None}
    try:
        handle = await call.state.runs.enqueue(
            name,
            command=command,
            thread_id=thread.thread_id,
            run_id=run_id,
            checkpoint_id=at,
            expected_head=expected_head,
            multitask_strategy="enqueue" if waits else "reject",
            config=config,
            metadata=value.get("metadata") or metadata,
            stream_mode=["values"],
        )
    except StaleHeadError:
        raise await moved(call, thread.thread_id) from None
    except ThreadBusyError:
        raise await busy(call, thread.thread_id) from None
    if handle.is_new:
        await call.record(thread.thread_id, "run", checkpoint_id=at or expected_head, run_id=handle.run_id)
    return handle.run_id


async def check_head(call: PageCall, thread: Thread, head: str | None) -> None:
    """Refuse an action on a thread that has a newer checkpoint than its page showed."""
    if thread.head_checkpoint_id != head:
        raise await moved(call, thread.thread_id)


def graph_of(call: PageCall, thread: Thread) -> str:
    """Return the name of a thread's graph. Refuse a thread whose graph the server does not serve."""
    name = call.service.graphs.of_thread(thread)
    if name is None:
        raise refuse(422, f"the server has no graph for thread {thread.thread_id!r}")
    return name


def checkpoint_of(call: PageCall) -> str:
    """Return the checkpoint that a form names. There is no default, because the thread may have advanced."""
    at = call.field("at")
    if at is None:
        raise refuse(422, "the form must name a checkpoint in the field at")
    return at
