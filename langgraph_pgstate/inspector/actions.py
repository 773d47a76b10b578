"""Actions of persons on a thread: fork, run on, edit, label and delete."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import AlreadyDoneError, LeaseHeldError, PGStateError, StaleHeadError, ThreadBusyError
from langgraph_pgstate.inspector.changes import busy, check_free, done, gone, is_by, last_action, moved, within
from langgraph_pgstate.inspector.editing import changes, check_channels, editable
from langgraph_pgstate.inspector.page import Done, Page, PageCall
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.inspector.tools import unknown_effects
from langgraph_pgstate.inspector.values import views
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.runs import config_of
from langgraph_pgstate.threads.types import Thread

_MOST_STATE: Final = 48_000
_MODES: Final = ("on", "replay")
# Time that the second of two edits waits for the first.
_EDIT_SECONDS: Final = 5.0


async def fork(call: PageCall) -> Done:
    """Make a thread that starts from a checkpoint, and run it if that is asked for."""
    source = await call.thread("read")
    at, nonce = _checkpoint(call), call.nonce
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
        # Not by this form. Maybe of somebody who may not see it.
        raise refuse(409, f"there is a thread {target_id!r} already")
    made = await call.visible(target_id, scope)
    run_id = await _run(call, made, nonce, expected_head=at, at=at) if call.field("run") else None
    return Done(call.link("threads", target_id), {"thread_id": target_id, "run_id": run_id})


async def run(call: PageCall) -> Done:
    """Run on from the newest checkpoint, with the answers that were given, or replay from an older one."""
    found = await call.thread("update")
    at, head, mode, nonce = _checkpoint(call), call.field("head"), call.field("mode"), call.nonce
    if mode not in _MODES or head is None or (mode == "on") != (at == head):
        raise refuse(422, "mode must be 'on' for the checkpoint that is named as head, 'replay' for another")
    location = call.link("threads", found.thread_id)
    if await call.state.runs.get(found.thread_id, nonce) is not None:
        return Done(location, {"run_id": nonce})
    await _check_head(call, found, head)
    await check_free(call, found)
    if mode == "on":
        command = await call.state.interrupts.resume(found.thread_id)
        run_id = await _run(call, found, nonce, expected_head=head, command=command)
    else:
        run_id = await _run(call, found, nonce, expected_head=head, at=at)
    return Done(location, {"run_id": run_id})


async def ask_for_edit(call: PageCall) -> Page:
    """Show the form for a change of the state."""
    found = await call.thread("read")
    return await _edit_form(call, found, _at(call))


async def _edit_form(call: PageCall, found: Thread, at: str, problem: HTTPException | None = None) -> Page:
    """Return the page with the form for a change of the state; after a refusal, with what a person has typed."""
    name = _graph(call, found)
    state = await call.state.threads.state_at(config_at(found.thread_id, checkpoint_ns="", checkpoint_id=at))
    async with open_graph(call, name, found) as graph:
        nodes = [node for node in graph.nodes if not node.startswith("__")]
    text, left_out = editable(state.values)
    data = {
        "thread": found,
        "text": text if problem is None else call.form.get("values", ""),
        "problem": None if problem is None else problem.detail,
        "as_node": call.field("as_node"),
        "left_out": left_out,
        "at": state.checkpoint_id,
        "head": found.head_checkpoint_id if problem is None else call.field("head") or found.head_checkpoint_id,
        "graph": name,
        "nodes": nodes,
        "values": views(state.values, _MOST_STATE),
        "unsettled": await unknown_effects(call, found.thread_id) if call.may_act else [],
    }
    return Page("edit.html", "Edit the state", data, status=200 if problem is None else problem.status_code)


async def edit(call: PageCall) -> Done | Page:
    """Change the state at a checkpoint, as if a node had returned the values, and run on if that is asked for.

    A person who is refused gets the form again, with what was typed.
    """
    found = await call.thread("update")
    at = _checkpoint(call)
    try:
        return await _edit_and_run(call, found, at)
    except HTTPException as error:
        if error.status_code not in (409, 422) or call.field("whole") is None or wants_json(call.request):
            raise
        return await _edit_form(call, found, at, error)


async def _edit_and_run(call: PageCall, found: Thread, at: str) -> Done:
    name, nonce = _graph(call, found), call.nonce
    text, head = call.field("values") or "", call.field("head") or found.head_checkpoint_id
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(422, f"the values are no JSON: {error}") from None
    if not isinstance(values, dict):
        raise refuse(422, "the values are a JSON object with a field for each channel that changes")
    # LangGraph takes any id for a checkpoint, and an empty state for that of none.
    if all(node.checkpoint_id != at for node in (await call.state.threads.tree(found.thread_id, at, limit=1)).nodes):
        raise missing("checkpoint", at)
    if (made := await _edited(call, found, nonce)) is None:
        made = await _edit(call, found, name, nonce, head, at, values)
    run_id = await _run(call, found, nonce, expected_head=made, waits=True) if call.field("run") else None
    location = call.link("threads", found.thread_id, at=None if run_id else made)
    return Done(location, {"checkpoint_id": made, "run_id": run_id})


async def _edit(
    call: PageCall, thread: Thread, name: str, nonce: str, head: str | None, at: str, values: dict[str, Any]
) -> str:
    """Make the checkpoint of an edit under the thread's lease, which no run of the queue has meanwhile."""
    thread_id = thread.thread_id
    try:
        async with call.state.leases.hold(thread_id, on_busy="wait", wait_timeout=_EDIT_SECONDS):
            if (made := await _edited(call, thread, nonce)) is not None:
                return made
            current = await call.state.threads.get(thread_id)
            if current is None:
                raise await gone(call, thread_id)
            await _check_head(call, current, head)
            if current.status == "busy":
                raise await busy(call, thread_id)
            config = config_at(thread_id, checkpoint_ns="", checkpoint_id=at)
            async with open_graph(call, name, thread, "threads.update") as graph:
                check_channels(values, graph)
                if call.field("whole"):
                    values = changes(values, (await call.state.threads.state_at(config)).values, graph)
                    if not values and call.field("as_node") is None:
                        raise refuse(422, "nothing is changed: the values are those of the state")
                try:
                    updated = await graph.aupdate_state(config, values, as_node=call.field("as_node"))
                except PGStateError:
                    raise
                except (ValueError, TypeError, KeyError, NotImplementedError) as error:
                    # A reducer, or an edge that reads the state.
                    why = str(error).partition("\nFor troubleshooting")[0][:1000]
                    raise refuse(422, f"the graph refuses the values: {type(error).__name__}: {why}") from None
            made = str(updated["configurable"]["checkpoint_id"])
            given = {} if call.field("nonce") is None else {"form": nonce}
            channels = sorted(map(str, values))
            await call.record(thread_id, "edit", checkpoint_id=made, edited=at, channels=channels, **given)
            return made
    except LeaseHeldError:
        raise await busy(call, thread_id) from None


async def _edited(call: PageCall, thread: Thread, nonce: str) -> str | None:
    """Return the checkpoint that the same form has made before; `None` if it was not sent before."""
    event = None if call.field("nonce") is None else await last_action(call, thread.thread_id, ("edit",))
    return event.checkpoint_id if event is not None and event.payload.get("form") == nonce else None


async def label(call: PageCall) -> Done:
    """Set the label of a checkpoint, or remove it if the text is empty."""
    found = await call.thread("update")
    at, text = _checkpoint(call), call.field("label")
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
    """Show what deleting a thread would delete."""
    if not call.may_act:
        raise refuse(403, "pages may only be read here")
    found = await call.thread("delete")
    counts = await call.state.saver.aprune([found.thread_id], strategy="delete", dry_run=True)
    return Page("delete.html", "Delete a thread", {"thread": found, "counts": counts})


async def delete(call: PageCall) -> Done:
    """Delete a thread. The event that says who did it stays."""
    found = await call.thread("delete")
    if call.field("head") is not None:
        await _check_head(call, found, call.field("head"))
    if call.field("saw_busy") is None and call.seen_at is not None:
        await check_free(call, found)
    await call.state.saver.adelete_thread(found.thread_id, by=call.actor)
    # Of several persons, the first one is recorded.
    event = await last_action(call, found.thread_id, ("delete",))
    if event is not None and not is_by(event, call.actor):
        raise await gone(call, found.thread_id)
    return Done(call.link("threads"), {"thread_id": found.thread_id})


async def _run(
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

    It is the user's who acts, as one that is created through the API; without authentication, the thread's owner's.

    Args:
        call: The request.
        thread: The thread.
        run_id: The run.
        expected_head: The checkpoint that must be the thread's newest, now and when the run begins.
        at: Checkpoint from which it starts; the newest by default.
        command: The answers with which it goes on.
        waits: Whether it waits if the thread is busy, with somebody who holds the lease to look at the head.

    Raises:
        HTTPException: 409 with the name of who was first, if the thread has gone on or is busy.
    """
    name = _graph(call, thread)
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


async def _check_head(call: PageCall, thread: Thread, head: str | None) -> None:
    """Refuse an action on a thread that has gone on since its page was made.

    Raises:
        HTTPException: 409 with the name of who was first.
    """
    if thread.head_checkpoint_id != head:
        raise await moved(call, thread.thread_id)


def _graph(call: PageCall, thread: Thread) -> str:
    name = call.service.graphs.of_thread(thread)
    if name is None:
        raise refuse(422, f"the server has no graph for thread {thread.thread_id!r}")
    return name


def _checkpoint(call: PageCall) -> str:
    """Return the checkpoint that a form names. It always does, because the thread may have gone on meanwhile."""
    at = call.field("at")
    if at is None:
        raise refuse(422, "the form names no checkpoint")
    return at


def _at(call: PageCall) -> str:
    at = call.query("at")
    if at is None:
        raise missing("checkpoint", "")
    return at
