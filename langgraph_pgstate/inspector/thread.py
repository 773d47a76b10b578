"""The page of a thread: its tree, and one checkpoint with its conversation, state, changes or origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from langgraph_pgstate.inspector.archive import archived, verified
from langgraph_pgstate.inspector.differences import changes_of
from langgraph_pgstate.inspector.drawing import waits
from langgraph_pgstate.inspector.events import views_of
from langgraph_pgstate.inspector.formatting import view, views
from langgraph_pgstate.inspector.forms import said
from langgraph_pgstate.inspector.holds import holds_of
from langgraph_pgstate.inspector.interrupts import asked_shown
from langgraph_pgstate.inspector.memory import kept
from langgraph_pgstate.inspector.messages import conversation, file_of
from langgraph_pgstate.inspector.page import Page, PageCall, sees_all, sees_memory
from langgraph_pgstate.inspector.tools import is_outcome_unknown, unknown_effects, unknown_effects_of
from langgraph_pgstate.langgraph_compat import is_anything_scheduled
from langgraph_pgstate.record.types import Event
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.json import to_json
from langgraph_pgstate.threads.types import CheckpointState, CheckpointTree, Thread, TreeNode

VIEWS: Final = ("conversation", "state", "changes", "origin", "events")
_TREE: Final = 100
_EVENTS: Final = 100
# Maximum numbers of characters and rows that a page shows.
_MOST_STATE: Final = 48_000
_MOST_BESIDE: Final = 12_000
_MOST_CHANGES: Final = 100
_MOST_CHANGE: Final = 600
_MOST_SPANS: Final = 200
_MOST_KEYS: Final = 5


async def thread(call: PageCall) -> Page | Response:
    """Show a thread or subgraph at a checkpoint, by default the newest.

    The default view is the conversation, or the state if it has no messages.
    """
    shown = call.query("view")
    if shown not in (None, *VIEWS):
        raise refuse(422, f"view must be one of {', '.join(VIEWS)}, not {shown!r}")
    found, ns = await call.thread_or_stub("read"), _namespace(call)
    if found.archived_at is not None:
        return await _stub(call, found)
    if call.query("step") is not None:
        return await _go_to_step(call, found)
    tree = await call.state.threads.tree(found.thread_id, call.query("at"), checkpoint_ns=ns, limit=_TREE)
    node = _node(call, tree)
    if node is None and ns:
        raise missing("subgraph", ns)
    if node is not None and not ns and call.query("at") is None and node.checkpoint_id != found.head_checkpoint_id:
        # A run has stored a checkpoint between the two reads. Read the thread again, so that it fits the tree.
        found = await call.thread("read")
    tree = await _named(call, found, tree)
    data: dict[str, Any] = {
        "thread": found,
        "ns": ns,
        "tree": tree,
        "checkpoint": node,
        "waits": node is not None and waits(tree, node),
        "parent_id": None,
        "at": call.query("at"),
        "view": shown or VIEWS[0],
        "views": VIEWS,
        "graph": call.service.graphs.of_thread(found),
        "graphs": call.service.graphs.names,
        "has_source": await _has_source(call, found),
        "nodes": (),
        "has_ended": False,
        **await _keeping(call, found),
    }
    if node is not None:
        data |= await (_default(call, found, node) if shown is None else _SHOWN[shown](call, found, node))
        shown = data["view"]
        added = call.query("added")
        is_elsewhere = added is not None and "conversation" in data and data["conversation"].hit is None
        if added is not None and is_elsewhere and await _exists(call, found, added):
            return RedirectResponse(_here(call, found, at=added), 303)
        asked = data.get("interrupts", []) if data["waits"] else []
        data["answers"] = await _answers(call, found) if asked and node.answered else {}
    said = data.get("conversation")
    ids = [] if said is None else [one.id for one in said.messages if one.id is not None]
    data["kept"] = await kept(call, found.thread_id, ids)
    data["sees_memory"] = await sees_memory(call, "search")
    data |= await _unsettled(call, found, data.get("unknown_effects"))
    if node is not None:
        data["settled"] = await _settled(call, found, asked, data["unsettled"])
        data["not_run"] = await _not_run(call, found, node) if data.get("errors") else None
    is_live = all(call.query(name) is None for name in ("at", "before", "message")) and shown != "changes"
    return Page("thread.html", found.title or found.thread_id, data, is_live=is_live)


async def _keeping(call: PageCall, found: Thread) -> dict[str, Any]:
    """Return the holds of a thread, and whether the caller may place and release holds."""
    may_keep = call.may_act and await sees_all(call)
    return {"holds": await holds_of(call, found.thread_id) if found.is_held else (), "may_keep": may_keep}


async def _stub(call: PageCall, found: Thread) -> Page:
    """Show an archived thread. Callers who may see all threads also see its archive."""
    keeping, seen = await _keeping(call, found), await sees_all(call)
    ids = [found.thread_id] if seen and call.flag("check") else []
    place = await archived(call, found.thread_id) if seen else None
    data: dict[str, Any] = {"thread": found, "place": place, "sees_memory": False, **keeping}
    data |= {"has_source": await _has_source(call, found), **await verified(call, ids)}
    return Page("thread_archived.html", found.title or found.thread_id, data)


async def value(call: PageCall) -> Response:
    """Return a channel's whole value at a checkpoint, or one item of the value, as JSON."""
    found = await call.thread("read")
    state = await call.state.threads.state_at(_config(call, found, call.query("at")))
    channel = call.query("channel") or ""
    if channel not in state.values:
        raise missing("channel", channel)
    value = state.values[channel]
    if call.query("item") is not None:
        item = call.number("item", 0)
        if not isinstance(value, list) or item >= len(value):
            raise missing("item", str(item))
        value = value[item]
        if call.query("part") is not None:
            return _file(value, call.number("part", 0))
    # Send a download, so that no browser shows the content as a page.
    headers = {"Content-Disposition": 'attachment; filename="value.json"'}
    return Response(to_json(value), 200, headers, "application/json")


def _file(message: Any, part: int) -> Response:
    """Return a file of a message as a download. An `<img>` element of a page still shows an image."""
    file = file_of(message, part)
    if file is None:
        raise missing("file", str(part))
    headers = {"Content-Disposition": "attachment", "Cache-Control": "private, max-age=600"}
    return Response(file[1], 200, headers, file[0])


async def _named(call: PageCall, found: Thread, tree: CheckpointTree) -> CheckpointTree:
    """Fill in the names of copied tasks in a fork's tree. Only the source thread's tree has them."""
    source_id = found.forked_from_thread_id
    if source_id is None or all("" not in node.tasks for node in tree.nodes) or not await _may_read(call, source_id):
        return tree
    source = await call.state.threads.tree(source_id, found.forked_from_checkpoint_id, limit=_TREE)
    names = {node.checkpoint_id: node.tasks for node in source.nodes}
    nodes = (
        replace(node, tasks=names.get(node.checkpoint_id, node.tasks)) if "" in node.tasks else node
        for node in tree.nodes
    )
    return replace(tree, nodes=tuple(nodes))


async def _has_source(call: PageCall, found: Thread) -> bool:
    """Return whether the thread from which a fork was made still exists, and the caller may see it."""
    source_id = found.forked_from_thread_id
    if source_id is None or not await _may_read(call, source_id):
        return False
    return await call.state.threads.get(source_id) is not None


async def _may_read(call: PageCall, thread_id: str) -> bool:
    """Return whether the caller may see another thread. For a caller who sees all, the thread need not exist."""
    try:
        scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    except (HTTPException, AuthError):
        return False
    return scope is None or await call.state.threads.get(thread_id, scope=scope) is not None


async def _unsettled(call: PageCall, found: Thread, known: list[dict[str, str]] | None) -> dict[str, Any]:
    """Return the unknown effects of a thread, for persons who may start runs.

    A run that starts before an unknown effect repeats it without asking, so the page warns these persons. Right after a
    fork, the page also shows the unknown effects of the source thread.
    """
    if not call.may_act or call.person is None:
        return {"unsettled": [], "source_unsettled": []}
    source_id, of_source = found.forked_from_thread_id, []
    if call.query("notice") == "thread.fork" and source_id is not None and await _may_read(call, source_id):
        of_source = await unknown_effects(call, source_id)
    return {"unsettled": known or await unknown_effects(call, found.thread_id), "source_unsettled": of_source}


async def _not_run(call: PageCall, found: Thread, node: TreeNode) -> str | None:
    """Return why a failure at the newest checkpoint is not current; `None` if it is current.

    `source`: a fork copied the failure, and has not run since. `pending` and `running`: a new run resumes from the
    checkpoint.
    """
    if node.checkpoint_id != found.head_checkpoint_id:
        return None
    newest = (await call.state.runs.list(thread_id=found.thread_id, limit=1)).items
    if newest:
        return newest[0].status if newest[0].status in ("pending", "running") else None
    return "source" if node.checkpoint_id == found.forked_from_checkpoint_id else None


async def _answers(call: PageCall, found: Thread) -> dict[str, dict[str, Any]]:
    """Return the answers that no run has used yet, by the id of the interrupt."""
    return {
        one.interrupt_id: {"by": one.answered_by, "value": said(one.value), "run_id": one.run_id}
        for one in await call.state.interrupts.answers(found.thread_id)
    }


async def _settled(
    call: PageCall, found: Thread, asked: list[dict[str, Any]], unsettled: list[dict[str, str]]
) -> dict[str, str]:
    """Return the decided outcomes of actions that interrupts asked about, by the action's key."""
    open_keys = {None, *(one["key"] for one in unsettled)}
    keys = [one["key"] for one in asked if one["key"] not in open_keys][:_MOST_KEYS]
    decided = [await call.state.tools.get(found.thread_id, key) for key in keys]
    return {one.idempotency_key: one.status for one in decided if one is not None and not is_outcome_unknown(one)}


async def _go_to_step(call: PageCall, found: Thread) -> Response:
    """Open the newest checkpoint of a superstep, or of the last superstep before it."""
    text = call.query("step") or ""
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise refuse(422, f"step must be a number, got {text!r}")
    at = await call.state.threads.find_step(found.thread_id, int(text), checkpoint_ns=_namespace(call))
    return RedirectResponse(_here(call, found, at=at, message=None), 303)


def _here(call: PageCall, found: Thread, **changes: str | None) -> str:
    """Return the address of another checkpoint in the same view."""
    query: dict[str, Any] = {**call.request.query_params, **changes}
    for left_out in ("step", "cursor", "past", "before", "to", "added"):
        query.pop(left_out, None)
    return call.link("threads", found.thread_id, **query)


async def _exists(call: PageCall, found: Thread, checkpoint_id: str) -> bool:
    tree = await call.state.threads.tree(found.thread_id, checkpoint_id, checkpoint_ns=_namespace(call), limit=1)
    return any(one.checkpoint_id == checkpoint_id for one in tree.nodes)


async def _default(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    state = await _state(call, found, node)
    shown = _said(call, state)
    return shown if shown["conversation"].channel is not None else {**_kept(state), "view": "state"}


async def _conversation(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    return _said(call, await _state(call, found, node))


def _said(call: PageCall, state: CheckpointState) -> dict[str, Any]:
    before = call.number("before", 0) or None
    said = conversation(state.values, call.query("channel"), before, call.query("message"))
    others = {name: value for name, value in state.values.items() if name != said.channel}
    beside = views(others, _MOST_BESIDE)
    return {"conversation": said, "older": said.older, "beside": beside, **_parent(state), **_outcome(state)}


async def _values(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    return _kept(await _state(call, found, node))


def _kept(state: CheckpointState) -> dict[str, Any]:
    return {
        "values": views(state.values, _MOST_STATE),
        "metadata": view(dict(state.metadata)),
        **_parent(state),
        **_outcome(state),
    }


async def _changes(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    other = call.query("to") or node.parent_checkpoint_id
    if other is None:
        return {"to": None, "changes": None, "left_out": 0}
    configs = _config(call, found, other), _config(call, found, node.checkpoint_id)
    difference = await call.state.threads.diff(*configs, plain=True)
    changes, left_out = changes_of(difference, _MOST_CHANGES)
    return {"to": other, "changes": changes, "left_out": left_out}


async def _origin(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    """Return the superstep that made the checkpoint, and the checkpoint's branch."""
    origin = await call.state.runs.provenance(_config(call, found, node.checkpoint_id))
    if origin is None:
        return {"origin": None, "unknown_effects": []}
    spans = [
        {
            "span_id": span.span_id,
            "kind": span.kind,
            "name": span.name,
            "status": span.status,
            "duration": None if span.ended_at is None else (span.ended_at - span.started_at).total_seconds(),
            "input_tokens": span.input_tokens,
            "output_tokens": span.output_tokens,
            "cost": span.cost,
            "error": span.error_message,
        }
        for span in origin.spans[:_MOST_SPANS]
    ]
    effects = [
        {"tool": one.tool, "status": one.status, "attempt": one.attempt, "key": one.idempotency_key}
        for one in origin.executions[:_MOST_SPANS]
    ]
    run = origin.run
    return {
        "unknown_effects": await unknown_effects_of(call, run),
        "origin": {
            "run_id": None if run is None else run.run_id,
            "run_status": None if run is None else run.status,
            "error_type": None if run is None else run.error_type,
            "error_message": None if run is None or run.error_message is None else run.error_message[:_MOST_CHANGE],
            "cost": origin.cost,
            "depth": origin.depth,
            "forked_from": origin.forked_from,
            "run_ids": [*dict.fromkeys(filter(None, (*origin.run_ids[-_EVENTS:], node.interrupted_run_id)))],
            "branch_cost": origin.branch_cost,
            "spans": spans,
            "effects": effects,
            "left_out": max(0, len(origin.spans) - _MOST_SPANS),
        },
    }


async def _events(call: PageCall, found: Thread, node: TreeNode) -> dict[str, Any]:
    page = await call.state.events.list(
        found.thread_id, newest_first=True, limit=_EVENTS, cursor=call.query("cursor"), kind=call.query("kind")
    )
    events = [event for event in page.items if not _is_deletion(event)]
    answered = {one.checkpoint_id for one in events if one.kind == "answer" and one.checkpoint_id is not None}
    decisions = await call.state.interrupts.decisions(found.thread_id, sorted(answered)) if answered else ()
    return {"events": views_of(events, decisions), "next": page.next}


def _is_deletion(event: Event) -> bool:
    """Return whether an event is about an earlier thread with this id, which may be another user's."""
    return event.kind == "action" and isinstance(event.payload, dict) and event.payload.get("action") == "delete"


_SHOWN: Final = {
    "conversation": _conversation,
    "state": _values,
    "changes": _changes,
    "origin": _origin,
    "events": _events,
}


async def _state(call: PageCall, found: Thread, node: TreeNode) -> CheckpointState:
    return await call.state.threads.state_at(_config(call, found, node.checkpoint_id))


def _parent(state: CheckpointState) -> dict[str, Any]:
    """Return the checkpoint from which a subgraph was started."""
    parents = state.metadata.get("parents")
    outer = state.checkpoint_ns.rpartition("|")[0]
    return {"parent_id": parents.get(outer) if state.checkpoint_ns and isinstance(parents, Mapping) else None}


def _namespace(call: PageCall) -> str:
    return call.query("ns") or ""


def _config(call: PageCall, found: Thread, checkpoint_id: str | None) -> Any:
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return config_at(found.thread_id, checkpoint_ns=_namespace(call), **named)


def _node(call: PageCall, tree: CheckpointTree) -> TreeNode | None:
    """Return the checkpoint that the address names, or the newest; `None` for a thread without checkpoints."""
    at = call.query("at")
    if at is None:
        return tree.nodes[0] if tree.nodes else None
    for node in tree.nodes:
        if node.checkpoint_id == at:
            return node
    raise missing("checkpoint", at)


def _outcome(state: CheckpointState) -> dict[str, Any]:
    """Return the interrupts and errors of the tasks after a checkpoint, and whether no node is left to run."""
    asked = [asked_shown(getattr(one, "id", None), getattr(one, "value", one)) for one in state.interrupts]
    errors = [one if isinstance(one, str) else repr(one) for one in state.errors]
    has_ended = not asked and not errors and not is_anything_scheduled(state.schedule)
    return {"interrupts": asked[:20], "errors": [text[:_MOST_CHANGE] for text in errors[:20]], "has_ended": has_ended}
