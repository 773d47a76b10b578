"""Actions of persons on a thread: fork, run on, edit, label and delete."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.utils.uuid import uuid7
from langgraph.types import Command

from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.pages.page import Done, Page, PageCall
from langgraph_pgstate.server.pages.tools import unknown_effects
from langgraph_pgstate.server.pages.values import views
from langgraph_pgstate.server.runs import config_of
from langgraph_pgstate.types import Thread

_MOST_STATE = 48_000


async def fork(call: PageCall) -> Done:
    """Make a thread that starts from a checkpoint, and run it if that is asked for."""
    source = await call.thread("read")
    at, target_id = _checkpoint(call), call.field("to") or str(uuid7())
    value: dict[str, Any] = {"thread_id": target_id, "metadata": dict(source.metadata)}
    scope = await call.authorize("threads", "create", value)
    if await call.state.threads.get(target_id) is not None:
        # Maybe of somebody who may not see it.
        raise refuse(409, f"there is a thread {target_id!r} already")
    await call.state.threads.fork(source.thread_id, at, target_id, by=call.actor)
    if value["metadata"] != source.metadata:
        await call.state.threads.update_metadata(target_id, value["metadata"])
    made = await call.visible(target_id, scope)
    run_id = await _run(call, made, at) if call.field("run") else None
    return Done(call.link("threads", target_id), {"thread_id": target_id, "run_id": run_id})


async def run(call: PageCall) -> Done:
    """Run a thread from a checkpoint; with the answers that were given if it is the newest one."""
    found = await call.thread("update")
    at = _checkpoint(call)
    thread = await call.state.threads.get(found.thread_id)
    is_head = thread is not None and thread.head_checkpoint_id == at
    command = await call.state.threads.resume(found.thread_id) if is_head else None
    run_id = await _run(call, found, at, command)
    return Done(call.link("threads", found.thread_id), {"run_id": run_id})


async def ask_for_edit(call: PageCall) -> Page:
    """Show the form for a change of the state."""
    found = await call.thread("read")
    name = _graph(call, found)
    state = await call.state.threads.state_at(config_at(found.thread_id, checkpoint_ns="", checkpoint_id=_at(call)))
    async with open_graph(call, name, found) as graph:
        nodes = [node for node in graph.nodes if not node.startswith("__")]
    data = {
        "thread": found,
        "at": state.checkpoint_id,
        "graph": name,
        "nodes": nodes,
        "values": views(state.values, _MOST_STATE),
        "unsettled": await unknown_effects(call, found.thread_id) if call.may_act else [],
    }
    return Page("edit.html", "Edit the state", data)


async def edit(call: PageCall) -> Done:
    """Change the state at a checkpoint, as if a node had returned the values, and run on if that is asked for."""
    found = await call.thread("update")
    if found.status == "busy":
        raise refuse(409, f"thread {found.thread_id!r} is busy: a run is on it")
    at, name = _checkpoint(call), _graph(call, found)
    text = call.field("values") or ""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(422, f"the values are no JSON: {error}") from None
    if not isinstance(values, dict):
        raise refuse(422, "the values are a JSON object with a field for each channel that changes")
    # LangGraph takes any id for a checkpoint, and an empty state for that of none.
    if all(node.checkpoint_id != at for node in (await call.state.threads.tree(found.thread_id, at, limit=1)).nodes):
        raise missing("checkpoint", at)
    config = config_at(found.thread_id, checkpoint_ns="", checkpoint_id=at)
    async with open_graph(call, name, found, "threads.update") as graph:
        updated = await graph.aupdate_state(config, values, as_node=call.field("as_node"))
    made = updated["configurable"]["checkpoint_id"]
    await call.record(found.thread_id, "edit", checkpoint_id=made, edited=at, channels=sorted(map(str, values)))
    run_id = await _run(call, found, made) if call.field("run") else None
    location = call.link("threads", found.thread_id, at=None if run_id else made)
    return Done(location, {"checkpoint_id": made, "run_id": run_id})


async def label(call: PageCall) -> Done:
    """Set the label of a checkpoint, or remove it if the text is empty."""
    found = await call.thread("update")
    at, text = _checkpoint(call), call.field("label")
    config = config_at(found.thread_id, checkpoint_ns="", checkpoint_id=at)
    if text is None:
        await call.state.threads.unlabel(config, by=call.actor)
    else:
        await call.state.threads.label(config, text, by=call.actor)
    return Done(call.link("threads", found.thread_id, at=at), {"label": text})


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
    await call.state.saver.adelete_thread(found.thread_id, by=call.actor)
    return Done(call.link("threads"), {"thread_id": found.thread_id})


async def _run(call: PageCall, thread: Thread, at: str, command: Command[Any] | None = None) -> str:
    """Enqueue a run from a checkpoint, and return its id.

    It is the user's who acts, as one that is created through the API; without authentication, the thread's owner's.
    """
    name = _graph(call, thread)
    graph = {"graph_id": name, "assistant_id": call.service.graphs.id_of(name)}
    run_id = str(uuid7())
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
    handle = await call.state.runs.enqueue(
        name,
        command=command,
        thread_id=thread.thread_id,
        run_id=run_id,
        # A command goes to the newest checkpoint.
        checkpoint_id=None if command is not None else at,
        config=config,
        metadata=value.get("metadata") or metadata,
        stream_mode=["values"],
    )
    await call.record(thread.thread_id, "run", checkpoint_id=at, run_id=handle.run_id)
    return handle.run_id


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
