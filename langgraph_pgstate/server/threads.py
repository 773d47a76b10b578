"""Operations on threads and on their states."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, Final

import orjson
from langchain_core.utils.uuid import uuid7
from langgraph.types import StateSnapshot, StateUpdate
from starlette.responses import Response

from langgraph_pgstate.errors import PGStateError, ThreadExistsError
from langgraph_pgstate.scopes import Alternatives
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.bodies import STATE_FIELDS, Superstep, Update
from langgraph_pgstate.server.errors import error_of, refuse
from langgraph_pgstate.server.graphs import Graph, config_at
from langgraph_pgstate.server.json import encode, extracted, page_headers, selected
from langgraph_pgstate.server.pacing import answer_list
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.states import (
    ThreadState,
    are_projected,
    having_values,
    history,
    read_states,
    without_state,
)
from langgraph_pgstate.threads.types import Thread
from langgraph_pgstate.worker.inputs import with_messages

_WITH_STATE: Final = {"values", "interrupts"}
_WITHOUT_STATE: Final = ("error",)


async def create(call: Call) -> Any:
    """Create a thread. Supersteps in the body give it a state.

    The id need not be a UUID. `ttl` supports both strategies, `delete` and `keep_latest`.
    """
    body = call.body
    value: dict[str, Any] = {
        "thread_id": body.thread_id,
        "metadata": {**(body.metadata or {})},
        "if_exists": body.if_exists,
        "ttl": None if body.ttl is None else body.ttl.model_dump(),
    }
    scope = await call.authorize("threads", "create", value)
    metadata = value.get("metadata") or {}
    is_new = True
    try:
        thread = await call.state.threads.create(
            body.thread_id,
            metadata=metadata,
            user_id=call.owner_id,
            agent=call.service.graphs.named_in(metadata),
            **({} if body.ttl is None else {"ttl": body.ttl.time, "ttl_strategy": body.ttl.strategy}),
        )
    except ThreadExistsError:
        if body.if_exists == "raise":
            raise
        thread = await _existing(call, body.thread_id, scope, is_changed=bool(body.supersteps))
        is_new = False
    if body.supersteps:
        try:
            thread = await _with_supersteps(call, thread, body.supersteps)
        except Exception:
            if is_new:
                # Free the id, so that the client can send a corrected request with the same id.
                await call.state.saver.adelete_thread(thread.thread_id)
                await call.state.saver.arevive_thread(thread.thread_id)
            raise
    is_empty = thread.head_checkpoint_id is None and not body.supersteps
    return await describe(call, thread, _WITHOUT_STATE if is_empty else None)


async def _with_supersteps(call: Call, thread: Thread, supersteps: Sequence[Superstep]) -> Thread:
    """Give a thread the state that some supersteps make, and return the thread."""
    async with open_graph(call, graph_of(call, thread), thread, "threads.update") as graph:
        with refusing_values():
            updates = [
                [StateUpdate(await _values_of(graph, one), one.as_node) for one in step.updates] for step in supersteps
            ]
            await graph.abulk_update_state(config_at(thread.thread_id, checkpoint_ns=""), updates)
        return replace(thread, status=await _settle(call, graph, thread.thread_id))


async def _existing(call: Call, thread_id: str, scope: Alternatives | None, *, is_changed: bool) -> Thread:
    """Return an existing thread that the caller wanted to create.

    The caller must also be allowed to read the thread and, if `is_changed`, to change it.
    """
    scopes = [scope, await call.authorize("threads", "read", {"thread_id": thread_id})]
    if is_changed:
        scopes.append(await call.authorize("threads", "update", {"thread_id": thread_id, "metadata": {}}))
    found = [await call.state.threads.get(thread_id, scope=one) for one in scopes]
    thread = found[-1]
    if thread is None or None in found:
        raise ThreadExistsError(thread_id)
    if is_changed:
        _check_idle(thread)
    return thread


async def search(call: Call) -> Response:
    """Return a page of threads, sorted by `updated_at` by default.

    `values` compares the newest states. `select` and `extract` choose the fields that are returned.
    """
    body = call.body
    value = body.model_dump(include={"values", "status", "limit", "offset", "ids"})
    value["metadata"] = {**(body.metadata or {})}
    scope = await call.authorize_search(value)
    by: Any = body.sort_by if body.sort_by not in (None, "state_updated_at") else "updated_at"
    filters: Any = {
        "metadata": body.metadata,
        "ids": body.ids or None,
        "status": body.status,
        "scope": scope,
        "by": by,
        "ascending": body.sort_order == "asc",
    }
    found: Sequence[Thread]
    if body.values and not are_projected(call, body.values):
        found = (await having_values(call, body.values, body.offset + body.limit, **filters))[body.offset :]
    else:
        found = await call.state.threads.sorted(**filters, state=body.values, offset=body.offset, limit=body.limit)
    paths = [] if body.extract is None else [path.partition(".")[0].partition("[")[0] for path in body.extract.values()]
    wanted = None if body.select is None else [*body.select, *paths]

    async def shown(described: Mapping[str, Any]) -> dict[str, Any]:
        found = selected(described, body.select)
        if body.extract is None:
            return found
        # Convert to JSON first. Paths apply to JSON, in which messages are objects.
        plain = orjson.loads(await encode(described))
        return {**found, "extracted": {name: extracted(plain, path) for name, path in body.extract.items()}}

    async def described() -> AsyncGenerator[dict[str, Any], None]:
        if not _is_with_state(wanted):
            for one in found:
                yield await shown(await _described(call, ThreadState(one), wanted))
            return
        async with aclosing(read_states(call, found)) as states:
            async for state in states:
                yield await shown(await _described(call, state, wanted))
                # Release this thread before the next one is read.
                del state

    return await answer_list(described(), page_headers(body.offset, len(found), len(found) == body.limit))


async def count(call: Call) -> int:
    """Return the number of threads."""
    body = call.body
    value = {**body.model_dump(), "metadata": {**(body.metadata or {})}, "limit": 0, "offset": 0}
    filters: Any = {"metadata": body.metadata, "status": body.status, "scope": await call.authorize_search(value)}
    if body.values and not are_projected(call, body.values):
        return len(await having_values(call, body.values, **filters))
    return await call.state.threads.count(**filters, state=body.values)


async def get(call: Call) -> Any:
    """Return one thread. With `include=ttl`, its time to live is included."""
    thread = await call.thread("read")
    found = await describe(call, thread)
    if "ttl" in (call.names("include") or ()):
        at = thread.expires_at
        found["ttl"] = None if at is None else {"strategy": thread.ttl_strategy, "expires_at": at}
    return found


async def update(call: Call) -> Any:
    """Merge metadata into a thread's metadata, and set its time to live."""
    value: dict[str, Any] = {"metadata": {**(call.body.metadata or {})}}
    thread = await _changed(call, value)
    if call.body.ttl is not None:
        await call.state.threads.set_ttl(thread.thread_id, call.body.ttl.time, strategy=call.body.ttl.strategy)
    if call.request.headers.get("prefer") == "return=minimal":
        return Response(status_code=204)
    return await describe(call, thread)


async def delete(call: Call) -> Response:
    """Delete a thread with its crons."""
    thread = await call.thread("delete")
    await call.state.saver.adelete_thread(thread.thread_id)
    return Response(status_code=204)


async def copy(call: Call) -> Any:
    """Copy a thread under a new id."""
    source = await call.thread("read")
    target_id = str(uuid7())
    value: dict[str, Any] = {"thread_id": target_id, "metadata": dict(source.metadata)}
    await call.authorize("threads", "create", value)
    await call.state.saver.acopy_thread(source.thread_id, target_id, owner=call.owner_of(value))
    return await describe(call, await call.visible(target_id, None))


async def prune(call: Call) -> Any:
    """Delete threads, or delete all their checkpoints but the newest ones."""
    body = call.body
    action = "delete" if body.strategy == "delete" else "update"
    scope = await call.authorize("threads", action, {"thread_ids": body.thread_ids})
    ids = [*dict.fromkeys(body.thread_ids)]
    found = await call.state.threads.sorted(ids=ids, scope=scope, limit=max(1, len(ids)))
    known = [thread.thread_id for thread in found]
    if not known:
        return {"pruned_count": 0}
    result = await call.state.saver.aprune(known, strategy=body.strategy)
    return {"pruned_count": len(known) - len(result.damaged) - len(result.held) - len(result.archived)}


async def get_state(call: Call) -> Any:
    """Return the newest state of a thread, or the state at the checkpoint that the path names."""
    thread = await call.thread("read")
    checkpoint_id = call.request.path_params.get("checkpoint_id")
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return await _state(call, thread, named, call.flag("subgraphs"), call.names("select", STATE_FIELDS))


async def get_state_at(call: Call) -> Any:
    """Return the state of a graph or subgraph at a checkpoint."""
    thread = await call.thread("read")
    body = call.body
    return await _state(call, thread, body.checkpoint.configurable(), body.subgraphs, body.select)


async def update_state(call: Call) -> Any:
    """Update a thread's state, as if a node had returned the values.

    Fails with 409 while a run is on the thread. Afterwards the thread is `interrupted` if nodes are next, else `idle`.
    """
    body = call.body
    thread = await call.thread("update")
    _check_idle(thread)
    named = {} if body.checkpoint is None else body.checkpoint.configurable()
    if body.checkpoint_id is not None:
        named["checkpoint_id"] = body.checkpoint_id
    config = config_at(thread.thread_id, **{"checkpoint_ns": "", **named})
    async with open_graph(call, graph_of(call, thread), thread, "threads.update") as graph:
        with refusing_values():
            updated = await graph.aupdate_state(config, await _values_of(graph, body), as_node=body.as_node)
        if not named.get("checkpoint_ns"):
            await _settle(call, graph, thread.thread_id)
    checkpoint = checkpoint_of(updated)
    return {"checkpoint": checkpoint, "configurable": checkpoint, "checkpoint_id": (checkpoint or {})["checkpoint_id"]}


@contextmanager
def refusing_values() -> Iterator[None]:
    """Refuse a client's values with 422 if the graph's own code, like a reducer or an edge, fails with them."""
    try:
        yield
    except PGStateError:
        raise
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        why = str(error).partition("\nFor troubleshooting")[0][:1000]
        raise refuse(422, f"the graph refuses the values: {type(error).__name__}: {why}") from None


async def _values_of(graph: Graph, update: Update) -> Any:
    return await with_messages(graph, update.values if update.command is None else update.command.command())


async def _settle(call: Call, graph: Graph, thread_id: str) -> str:
    """Set and return the status of an updated thread: `interrupted` if nodes are next, else `idle`."""
    left = await graph.aget_state(config_at(thread_id))
    status = "interrupted" if left.next else "idle"
    await call.state.threads.set_status(thread_id, status)
    return status


async def get_history(call: Call) -> Any:
    """Return states of a thread, newest first.

    If `metadata` has lists or objects, the metadata of a state or of its run must contain them.
    """
    thread = await call.thread("read")
    body = call.body
    if body is None:
        before, limit, metadata, names = call.query("before"), call.number("limit", 10, 1000), None, None
        named: dict[str, Any] = {}
    else:
        before, limit, metadata, names = body.before, body.limit, body.metadata, body.select
        named = {} if body.checkpoint is None else body.checkpoint.configurable()
    name = call.service.graphs.of_thread(thread)
    if name is None or limit == 0:
        return []
    config = config_at(thread.thread_id, **{"checkpoint_ns": "", **named})
    nested = {key: value for key, value in (metadata or {}).items() if isinstance(value, dict | list)}
    flat = {key: value for key, value in (metadata or {}).items() if key not in nested}
    options: Any = {
        "filter": flat,
        "before": {"configurable": {"checkpoint_id": before}} if before else None,
        "limit": None if nested else limit,
    }
    of_runs: dict[Any, Mapping[str, Any]] = {}

    async def is_wanted(state: StateSnapshot) -> bool:
        """Return whether a state or its run has the nested metadata.

        LangGraph copies only flat metadata from a run to its states, so nested metadata are read from the run.
        """
        found: Mapping[str, Any] = state.metadata or {}
        run_id = found.get("run_id")
        if nested and run_id and run_id not in of_runs:
            run = await call.state.runs.get(thread.thread_id, run_id)
            of_runs[run_id] = (None if run is None else run.metadata) or {}
        found = {**of_runs.get(run_id, {}), **found}
        return all(found.get(key) == value for key, value in nested.items())

    async def states() -> AsyncGenerator[dict[str, Any], None]:
        left = limit
        async with aclosing(history(call, name, thread, config, **options)) as found:
            async for state in found:
                if await is_wanted(state):
                    yield _chosen(state_of(state), names)
                    left -= 1
                    if left == 0:
                        return
                # Release this state before the next one is read.
                del state

    return await answer_list(states())


async def describe(call: Call, thread: Thread, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a thread in the form that clients expect, with its values and interrupts if `names` asks for them."""
    if thread.archived_at is not None or not _is_with_state(names):
        return await _described(call, without_state(thread), names)
    return await _described(call, ThreadState(thread, await _snapshot(call, thread)), names)


def _is_with_state(names: Sequence[str] | None) -> bool:
    return names is None or bool(_WITH_STATE & {*names})


async def _described(call: Call, state: ThreadState, names: Sequence[str] | None) -> dict[str, Any]:
    thread, snapshot, unreadable = state
    error = None
    if snapshot is None and unreadable is not None:
        kind = type(unreadable).__name__
        # Messages of other errors may contain text that clients must not see.
        reason = str(unreadable) if isinstance(unreadable, PGStateError) else kind
        error = {"error": kind, "message": f"the values cannot be read: {reason}"}
    elif thread.status == "error" and (names is None or "error" in names):
        newest = (await call.state.runs.list(thread_id=thread.thread_id, limit=1)).items
        error = error_of(newest[0]) if newest else None
    has_state = snapshot is not None and snapshot.created_at is not None
    return {
        "thread_id": thread.thread_id,
        "created_at": thread.created_at,
        "updated_at": thread.updated_at,
        "state_updated_at": thread.updated_at,
        "metadata": thread.metadata,
        "status": thread.status,
        "config": {},
        "error": error,
        "values": snapshot.values if snapshot is not None and has_state else None,
        "interrupts": {
            task.id: task.interrupts for task in (snapshot.tasks if snapshot is not None else ()) if task.interrupts
        },
    }


def _check_idle(thread: Thread) -> None:
    if thread.status == "busy":
        raise refuse(409, f"thread {thread.thread_id!r} is busy: its run must end first")


def state_of(snapshot: StateSnapshot) -> dict[str, Any]:
    """Return a state in the form that clients expect."""
    tasks = []
    for task in snapshot.tasks:
        place = None if isinstance(task.state, StateSnapshot) else checkpoint_of(task.state)
        if place is not None and place["checkpoint_id"] is None:
            del place["checkpoint_id"]
        tasks.append(
            {
                "id": task.id,
                "name": task.name,
                "path": task.path,
                "error": None if task.error is None else str(task.error),
                "interrupts": task.interrupts,
                "checkpoint": place,
                "state": state_of(task.state) if isinstance(task.state, StateSnapshot) else None,
                "result": task.result,
            }
        )
    checkpoint, parent = checkpoint_of(snapshot.config), checkpoint_of(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "tasks": tasks,
        "metadata": snapshot.metadata,
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": snapshot.interrupts,
        "checkpoint_id": None if checkpoint is None else checkpoint["checkpoint_id"],
        "parent_checkpoint_id": None if parent is None else parent["checkpoint_id"],
    }


def checkpoint_of(config: Any) -> dict[str, Any] | None:
    """Return the checkpoint that a config names; `None` if the config names no thread."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(configurable, Mapping) or "thread_id" not in configurable:
        return None
    found = {
        "thread_id": configurable["thread_id"],
        "checkpoint_ns": configurable.get("checkpoint_ns", ""),
        "checkpoint_id": configurable.get("checkpoint_id"),
    }
    if configurable.get("checkpoint_map"):
        found["checkpoint_map"] = configurable["checkpoint_map"]
    return found


async def _changed(call: Call, value: dict[str, Any]) -> Thread:
    thread = await call.thread("update", value)
    metadata = value.get("metadata")
    return thread if not metadata else await call.state.threads.update_metadata(thread.thread_id, metadata)


async def _snapshot(call: Call, thread: Thread) -> StateSnapshot | None:
    """Return the newest state of a thread; `None` if its graph is not served here."""
    name = call.service.graphs.of_thread(thread)
    if name is None:
        return None
    async with open_graph(call, name, thread) as graph:
        return await graph.aget_state(config_at(thread.thread_id))


async def _state(
    call: Call, thread: Thread, named: Mapping[str, Any], subgraphs: bool, names: Sequence[str] | None
) -> dict[str, Any]:
    config = config_at(thread.thread_id, **named)
    name = call.service.graphs.of_thread(thread)
    if name is None:
        snapshot = StateSnapshot({}, (), config, None, None, None, (), ())
    else:
        async with open_graph(call, name, thread) as graph:
            snapshot = await graph.aget_state(config, subgraphs=subgraphs)
    return _chosen(state_of(snapshot), names)


def _chosen(state: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Return some fields of a state. `values.NAME` is one channel of the values."""
    if names is None:
        return state
    found = selected(state, names)
    channels = [name.removeprefix("values.") for name in names if name.startswith("values.")]
    if channels and "values" not in found:
        found["values"] = selected(state["values"], channels) if isinstance(state["values"], Mapping) else {}
    return found


def graph_of(call: Call, thread: Thread) -> str:
    """Return the name of a thread's graph."""
    name = call.service.graphs.of_thread(thread)
    if name is None:
        raise refuse(
            400,
            f"thread {thread.thread_id!r} has no graph: run a graph on the thread, or set graph_id in its metadata",
        )
    return name
