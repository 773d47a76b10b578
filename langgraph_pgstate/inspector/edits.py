"""The page on which a person changes the state: the form, a preview, and conflicting changes of others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple, DeltaChannelHistory
from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import LeaseHeldError
from langgraph_pgstate.inspector.actions import check_head, checkpoint_of, enqueue, graph_of
from langgraph_pgstate.inspector.changes import busy, gone, last_action, since
from langgraph_pgstate.inspector.differences import words_of
from langgraph_pgstate.inspector.editing import (
    Change,
    Edit,
    Node,
    channels_of,
    check_channels,
    lost,
    merged,
    nodes,
    place_of,
    plain,
    read_edit,
    texts_of,
    updates,
)
from langgraph_pgstate.inspector.page import Done, Page, PageCall
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.inspector.tools import unknown_effects
from langgraph_pgstate.langgraph_compat import is_anything_scheduled, next_nodes
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.threads import refusing_values
from langgraph_pgstate.threads.types import Thread

_TITLE: Final = "Edit the state"
# Seconds that an edit waits for the thread's lease.
_WAIT_SECONDS: Final = 5.0
# Maximum number of changes that a page shows, of characters of one change, and of characters of all changes.
_MOST_CHANGES: Final = 60
_MOST_CHANGE: Final = 1200
_MOST_OF_ALL: Final = 12_000


async def ask(call: PageCall) -> Page:
    """Show the form for a change of the state.

    A form that is open in a browser repeats the request with `head`, the newest checkpoint that it knows. The response
    says whether the thread has advanced.
    """
    found, at = await call.thread("read"), call.query("at")
    if at is None:
        raise refuse(404, "the address must name a checkpoint: at=CHECKPOINT")
    if (head := call.query("head")) is not None:
        data = {**_data(call, found, at, head), "meanwhile": await _meanwhile(call, found, head)}
        return Page("edit.html", _TITLE, data, is_live=True)
    return await _form(call, found, at, await _state(call, found, at))


async def edit(call: PageCall) -> Done | Page:
    """Take the step of an edit that the form's field `step` names.

    * `apply`, the default, changes the state as if a node had returned the values, and resumes the run if the form asks
      for it.
    * `preview` shows what would change.
    * `form` shows the form again.
    * `json PLACE` and `fields PLACE` show the form with the value at a place as JSON or as fields.
    * `until NUMBER` shows the form with only the messages before a number.

    If a step is refused with status 409 or 422, the person gets a page with the reason and the typed values.
    """
    found = await call.thread("update")
    at, step = checkpoint_of(call), call.field("step") or "apply"
    try:
        if step == "apply":
            return await _apply(call, found, at)
        before = await _state(call, found, at)
        change = read_edit(before, call.form)
        if step == "preview":
            return await _preview(call, found, at, change)
        return await _form(call, found, at, before, step)
    except HTTPException as error:
        if error.status_code not in (409, 422) or "values" in call.form or wants_json(call.request):
            raise
        return await _refused(call, found.thread_id, at, error)


async def _refused(call: PageCall, thread_id: str, at: str, error: HTTPException) -> Page:
    """Return the page after a refusal. If the thread has changed, the page shows both versions."""
    thread = await call.thread("read")
    if (before := await _state(call, thread, at)) is None:
        raise error
    if error.status_code == 409:
        change = read_edit(before, call.form)
        if call.field("head") in (None, thread.head_checkpoint_id):
            return await _preview(call, thread, at, change, error.detail)
        return await _both(call, thread, at, change, error.detail)
    return await _form(call, thread, at, before, problem=error.detail)


async def _form(
    call: PageCall, thread: Thread, at: str, before: Mapping[str, Any], step: str = "form", problem: str = ""
) -> Page:
    sent = {**call.form}
    kind, _, place = step.partition(" ")
    if kind == "json":
        sent |= {f"as_json {place}": "1"}
    edit = _readable(before, sent)
    if kind == "json" and edit.removed:
        edit = Edit(edit.before, edit.written, problems=edit.problems)
    if kind == "fields":
        sent.pop(f"as_json {place}", None)
    until = place if kind == "until" else sent.get("until", "")
    name = graph_of(call, thread)
    async with open_graph(call, name, thread) as graph:
        unset = [one for one in channels_of(graph) if one not in before]
        names = [node for node in graph.nodes if not node.startswith("__")]
    until_number = int(until) if until.isdecimal() and len(until) < 9 else None
    shown, hidden = nodes(edit, sent, unset, until_number)
    hidden |= {name: "1" for name in sent if name.startswith("as_json ")}
    if problem and edit.problems and edit.problems.keys() <= {*_problems(shown)}:
        count = len(edit.problems)
        problem = f"{'One field' if count == 1 else f'{count} fields'} cannot be read: see below. Nothing was changed."
    data = {
        **_data(call, thread, at, call.field("head") or thread.head_checkpoint_id),
        "step": "form",
        "problem": problem,
        "as_node": call.field("as_node"),
        "names": names,
        "nodes": shown,
        "hidden": {**hidden, **({} if until_number is None else {"until": str(until_number)})},
    }
    return Page("edit.html", _TITLE, data, is_live=call.may_act, status=422 if problem else 200)


def _problems(shown: Iterable[Node]) -> Iterator[str]:
    for one in shown:
        if one.problem:
            yield one.name
        yield from _problems(one.parts)


def _readable(before: Mapping[str, Any], form: Mapping[str, str]) -> Edit:
    """Return the changes of a form, without fields for missing places of the state."""
    try:
        return read_edit(before, form)
    except HTTPException:
        return Edit(before, before)


async def _preview(call: PageCall, thread: Thread, at: str, change: Edit, problem: str = "") -> Page:
    if not problem:
        await check_head(call, thread, call.field("head") or thread.head_checkpoint_id)
        _check(call, change)
    changed = change.changes
    data = {
        **_data(call, thread, at, call.field("head") or thread.head_checkpoint_id),
        "step": "preview",
        "problem": problem,
        "as_node": call.field("as_node"),
        "changes": _lines(changed, change.after),
        "left_out": max(0, len(changed) - _MOST_CHANGES),
        "next_nodes": await _next(call, thread, at, change),
        "hidden": {**change.fields, **_display(call)},
        "unsettled": await unknown_effects(call, thread.thread_id),
    }
    return Page("edit.html", _TITLE, data, is_live=True, status=409 if problem else 200)


async def _both(call: PageCall, thread: Thread, at: str, change: Edit, problem: str) -> Page:
    """Return a page with the version that was stored first, and the person's version to edit."""
    head = thread.head_checkpoint_id or ""
    theirs = await _state(call, thread, head)
    # Merge only an edit of the newest checkpoint. Later checkpoints do not affect an edit of an older checkpoint.
    is_on_top = at == call.field("head")
    own = merged(change, theirs) if is_on_top else change
    gone_changes = lost(change, theirs) if is_on_top else []
    meanwhile = Edit(change.before, theirs).changes if is_on_top else []
    before = {one.path: one.before for one in change.changes}
    both = {one.path for one in meanwhile}
    data = {
        **_data(call, thread, head if is_on_top else at, head),
        "step": "both",
        "problem": problem.partition(". Look at it again")[0] + ". Nothing was changed by you.",
        "as_node": call.field("as_node"),
        "theirs": head,
        "since": at if is_on_top else None,
        "changes": [
            {**line, "both": one.path in both and one.path in before}
            for one, line in zip(own.changes, _lines(own.changes, own.after), strict=False)
        ],
        "left_out": max(0, len(own.changes) - _MOST_CHANGES),
        "lost": _lines(gone_changes, change.after),
        "meanwhile_changes": _lines(meanwhile, theirs),
        "next_nodes": await _next(call, thread, head if is_on_top else at, own),
        "hidden": {**own.fields, **_display(call)},
        "unsettled": await unknown_effects(call, thread.thread_id),
    }
    return Page("edit.html", _TITLE, data, is_live=True, status=409)


def _display(call: PageCall) -> dict[str, str]:
    return {name: text for name, text in call.form.items() if name == "until" or name.startswith("as_json ")}


def _data(call: PageCall, thread: Thread, at: str, head: str | None) -> dict[str, Any]:
    return {
        "thread": thread,
        "at": at,
        "head": head,
        "step": "news",
        "problem": "",
        "meanwhile": None,
        "as_node": None,
        "unsettled": [],
        "hidden": {},
        "next_nodes": None,
        "live_from": _news_of(call, thread, at, head),
    }


async def _meanwhile(call: PageCall, thread: Thread, head: str) -> dict[str, Any] | None:
    """Return how the thread has advanced since a form was opened; `None` if it has not."""
    if thread.head_checkpoint_id == head:
        return None
    told = (await since(call, thread.thread_id)).removeprefix(": ")
    return {"told": told, "checkpoint_id": thread.head_checkpoint_id}


def _news_of(call: PageCall, thread: Thread, at: str, head: str | None) -> str:
    """Return the address at which an open page asks whether the thread has changed."""
    step = "preview" if call.field("step") not in (None, "form") else None
    return call.link("threads", thread.thread_id, "edit", at=at, head=head, step=step)


class _Discarding(BaseCheckpointSaver[str]):
    """A saver for a trial of an edit. It reads from another saver, and keeps only the last channels, in memory."""

    def __init__(self, saver: AsyncPGStateSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._found: dict[str, CheckpointTuple | None] = {}
        self.channels: Mapping[str, Any] = {}

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._saver.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint. Only the first call reads a checkpoint from the other saver."""
        key = str(config["configurable"].get("checkpoint_id"))
        if key not in self._found:
            self._found[key] = await self._saver.aget_tuple(config)
        return self._found[key]

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    async def aput(self, config: RunnableConfig, checkpoint: Checkpoint, *_: Any) -> RunnableConfig:
        self.channels = checkpoint["channel_values"]
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(self, *_: Any, **__: Any) -> None:
        """Write nothing."""


async def _next(call: PageCall, thread: Thread, at: str, change: Edit) -> tuple[str, ...] | None:
    """Return the nodes that run next after a change; empty for none, `None` if unknown."""
    saver = _Discarding(call.state.saver)
    config = config_at(thread.thread_id, checkpoint_ns="", checkpoint_id=at)
    try:
        async with open_graph(call, graph_of(call, thread), thread, saver=saver) as graph:
            read = await saver.aget_tuple(config)
            state = {} if read is None else read.checkpoint["channel_values"]
            values = updates(change.written, state, graph)
            await graph.aupdate_state(config, values, as_node=call.field("as_node"))
    except Exception:
        # Ignore errors of the graph's own code, because the edit itself will report these errors.
        return None
    found = tuple(next_nodes(saver.channels))
    return found if found or not is_anything_scheduled(saver.channels) else None


def _lines(changes: Iterable[Change], state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return changes for a page: the place, and one text with marked differences or two texts."""
    found = []
    left = _MOST_OF_ALL
    for one in [*changes][:_MOST_CHANGES]:
        texts = texts_of(one)
        most = max(80, min(_MOST_CHANGE, left))
        before, after = texts
        words = None if before is None or after is None else words_of(before, after)
        found.append(
            {
                "channel": str(one.path[0]),
                "place": place_of(one, state),
                "change": "added" if one.is_added else "removed" if one.is_removed else "changed",
                "words": None if words is None else [(kind, text[:most]) for kind, text in words],
                "before": None if before is None else before[:most],
                "after": None if after is None else after[:most],
                "is_whole": all(len(text or "") <= most for text in texts),
                "both": False,
            }
        )
        left -= sum(len(text[:most]) for text in texts if text is not None)
    return found


async def _state(call: PageCall, thread: Thread, at: str) -> dict[str, Any]:
    state = await call.state.threads.state_at(config_at(thread.thread_id, checkpoint_ns="", checkpoint_id=at))
    return plain(state.values)


def _check(call: PageCall, change: Edit) -> None:
    """Refuse a change that cannot be read, or that changes nothing."""
    if change.problems:
        raise refuse(422, next(iter(change.problems.values())))
    if not change.changes and call.field("as_node") is None:
        raise refuse(422, "nothing is changed: all values equal the state")


async def _apply(call: PageCall, found: Thread, at: str) -> Done:
    name, nonce = graph_of(call, found), call.nonce
    head = call.field("head") or found.head_checkpoint_id
    values = _values(call)
    # Check that the checkpoint exists. LangGraph would read an empty state for a missing checkpoint.
    if all(node.checkpoint_id != at for node in (await call.state.threads.tree(found.thread_id, at, limit=1)).nodes):
        raise missing("checkpoint", at)
    if (made := await _edited(call, found, nonce)) is None:
        made = await _edit(call, found, name, nonce, head, at, values)
    run_id = await enqueue(call, found, nonce, expected_head=made, waits=True) if call.field("run") else None
    location = call.link("threads", found.thread_id, at=None if run_id else made)
    return Done(location, {"checkpoint_id": made, "run_id": run_id})


def _values(call: PageCall) -> dict[str, Any] | None:
    """Return the object in the field `values`, to which the graph's reducers apply; `None` without this field."""
    if "values" not in call.form:
        return None
    try:
        values = json.loads(call.form["values"])
    except (ValueError, RecursionError) as error:
        raise refuse(422, f"the values must be JSON: {error}") from None
    if not isinstance(values, dict):
        raise refuse(422, "the values must be a JSON object with a field for each channel that changes")
    return values


async def _edit(
    call: PageCall, thread: Thread, name: str, nonce: str, head: str | None, at: str, values: dict[str, Any] | None
) -> str:
    """Create the checkpoint of an edit. The thread's lease keeps runs of the queue from executing meanwhile."""
    thread_id = thread.thread_id
    try:
        async with call.state.leases.hold(thread_id, on_busy="wait", wait_timeout=_WAIT_SECONDS):
            if (made := await _edited(call, thread, nonce)) is not None:
                return made
            current = await call.state.threads.get(thread_id)
            if current is None:
                raise await gone(call, thread_id)
            await check_head(call, current, head)
            if current.status == "busy":
                raise await busy(call, thread_id)
            config = config_at(thread_id, checkpoint_ns="", checkpoint_id=at)
            async with open_graph(call, name, thread, "threads.update") as graph:
                if values is None:
                    state = (await call.state.threads.state_at(config)).values
                    change = read_edit(plain(state), call.form)
                    _check(call, change)
                    check_channels(change.written, graph)
                    values = updates(change.written, state, graph)
                else:
                    check_channels(values, graph)
                with refusing_values():
                    updated = await graph.aupdate_state(config, values, as_node=call.field("as_node"))
            made = str(updated["configurable"]["checkpoint_id"])
            given = {} if call.field("nonce") is None else {"form": nonce}
            channels = sorted(map(str, values))
            await call.record(thread_id, "edit", checkpoint_id=made, edited=at, channels=channels, **given)
            return made
    except LeaseHeldError:
        raise await busy(call, thread_id) from None


async def _edited(call: PageCall, thread: Thread, nonce: str) -> str | None:
    """Return the checkpoint that the same form created before; `None` for a new form."""
    event = None if call.field("nonce") is None else await last_action(call, thread.thread_id, ("edit",))
    return event.checkpoint_id if event is not None and event.payload.get("form") == nonce else None
