"""Operations on runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import urlsplit

from langchain_core.utils.uuid import uuid7
from langgraph_sdk.schema import RunSelectField
from starlette.responses import Response

from langgraph_pgstate.errors import NotFoundError, RunCancelledError, RunFailedError, UnavailableError
from langgraph_pgstate.heavy import compute
from langgraph_pgstate.record.types import Run
from langgraph_pgstate.runs.handles import AsyncRunHandle
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.runs.webhook_rows import describe_run, webhook_of
from langgraph_pgstate.runs.webhooks import may_connect, refusal_of
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.server import streams
from langgraph_pgstate.server.assistants import Chosen, choose
from langgraph_pgstate.server.bodies import RunCreate, without_reserved
from langgraph_pgstate.server.errors import ServerStoppingError, error_of, missing, refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.json import encode, selected, to_json
from langgraph_pgstate.server.pacing import ClosingResponse, batches_of, clean_up, pieces
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.streams import Reader, kept_modes, location, with_client
from langgraph_pgstate.threads.types import Thread

# Time after which the thread of a stateless run is deleted if no response has deleted the thread.
_STATELESS_TTL: Final = timedelta(hours=1)
_NONE_TO_CANCEL: Final = "no run to cancel was found"
_UNFINISHED: Final = ("pending", "running")
# The columns of a run that clients see.
_DESCRIBED: Final = (
    "run_id",
    "thread_id",
    "agent",
    "status",
    "metadata",
    "multitask_strategy",
    "enqueued_at",
    "started_at",
    "ended_at",
)


async def create(call: Call) -> Response:
    """Create a run on a thread or without a thread, and return it.

    `after_seconds`, `webhook`, and all four strategies for busy threads are supported.
    """
    call.body.stream_mode = call.body.stream_mode or ["values"]
    handle = await enqueue(call, call.body, call.request.path_params.get("thread_id"))
    run = await found_run(call, handle.thread_id, handle.run_id)
    return _json(run_of(run), headers={"Content-Location": location(handle)})


async def create_batch(call: Call) -> Response:
    """Create several runs: all of them or none."""
    handles = await _enqueue(call, [await _plan(call, body, body.thread_id) for body in call.body.runs])
    return _json([run_of(await found_run(call, one.thread_id, one.run_id)) for one in handles])


async def wait(call: Call) -> Response:
    """Create a run, wait for its end, and return its final values."""
    handle = await enqueue(call, call.body, call.request.path_params.get("thread_id"))
    cancels, reader = call.body.on_disconnect == "cancel", _reader_of_new(call, handle)
    return _waiting(call, handle, reader, cancels=cancels, deletes=_is_temporary(call))


async def stream(call: Call) -> Response:
    """Create a run and stream its events.

    The modes are `values`, `updates`, `messages`, `messages-tuple`, `custom`, `tasks`, `checkpoints`, `debug`, `tools`
    and `events`.
    """
    body = call.body
    body.stream_mode = body.stream_mode or ["values"]
    handle = await enqueue(call, body, call.request.path_params.get("thread_id"))
    cancels = body.on_disconnect == "cancel"
    reader, deletes = _reader_of_new(call, handle), _is_temporary(call)
    return streams.stream(call, handle, body.stream_mode, reader=reader, cancels=cancels, deletes=deletes)


async def join_stream(call: Call) -> Response:
    """Stream the past and live events of a run, from the first event or after `Last-Event-ID`.

    `stream_mode` chooses among the stored events.
    """
    run, reader, cancels = await _joined(call)
    handle, modes = call.state.runs.handle(run.thread_id, run.run_id), call.names("stream_mode") or ()
    last_event_id = call.request.headers.get("last-event-id") or None
    return streams.stream(call, handle, modes, last_event_id=last_event_id, reader=reader, cancels=cancels)


async def join(call: Call) -> Response:
    """Wait for a run's end, and return its final values."""
    run, reader, cancels = await _joined(call)
    return _waiting(call, call.state.runs.handle(run.thread_id, run.run_id), reader, cancels=cancels)


async def list_runs(call: Call) -> Any:
    """Return a page of a thread's runs, newest first."""
    thread_id = call.path("thread_id")
    value: dict[str, Any] = {"thread_id": thread_id, "status": call.query("status"), "metadata": {}}
    await call.visible(thread_id, await call.authorize_search(value))
    limit, offset = call.number("limit", 10, 1000), call.number("offset", 0)
    names = call.names("select", get_args(RunSelectField))
    if limit == 0:
        return []
    page = await call.state.runs.list(thread_id=thread_id, status=call.query("status"), limit=limit, offset=offset)
    return [selected(run_of(run), names) for run in page.items]


async def get(call: Call) -> Any:
    """Return one run."""
    return run_of(await _run(call))


async def cancel(call: Call) -> Response:
    """Cancel a run. With `wait`, respond when the run has ended.

    A run that has ended is not changed.
    """
    action = call.query("action") or "interrupt"
    run = await _run(call, "update", {"action": action})
    await _cancel(call, run.thread_id, run.run_id, action)
    if not call.flag("wait"):
        return Response(status_code=202)
    with suppress(RunFailedError, RunCancelledError, NotFoundError):
        await call.state.runs.wait(run.thread_id, run.run_id)
    return Response(status_code=204)


async def cancel_many(call: Call) -> Response:
    """Cancel some runs of a thread, or all pending or running runs that the caller may see.

    Fails with 404 if there is no such run.
    """
    body, action = call.body, call.query("action") or "interrupt"
    value = {"thread_id": body.thread_id, "action": action, "metadata": {"run_ids": body.run_ids}}
    scope = await call.authorize("threads", "update", value)
    if (body.status is None) == (body.run_ids is None):
        raise refuse(422, "run_ids with thread_id, or status, must be given, but not both")
    if body.run_ids is not None:
        if body.thread_id is None:
            raise refuse(422, "thread_id must be given with run_ids")
        await call.visible(body.thread_id, scope)
        if not body.run_ids:
            raise refuse(404, _NONE_TO_CANCEL)
        for run_id in body.run_ids:
            await _cancel(call, body.thread_id, run_id, action)
        return Response(status_code=204)
    status = None if body.status == "all" else body.status
    cursor: str | None = None
    is_any = False
    while True:
        page = await call.state.runs.queued(thread_id=body.thread_id, status=status, limit=1000, cursor=cursor)
        ids = [*{run.thread_id for run in page.items}]
        seen = await call.state.threads.sorted(ids=ids, scope=scope, limit=1000) if ids else ()
        visible = {thread.thread_id for thread in seen}
        for run in page.items:
            if run.thread_id in visible:
                is_any = True
                # The run may have ended meanwhile.
                with suppress(NotFoundError):
                    await call.state.runs.cancel(run.thread_id, run.run_id, action)
        if page.next is None:
            if not is_any:
                raise refuse(404, _NONE_TO_CANCEL)
            return Response(status_code=204)
        cursor = page.next


async def delete(call: Call) -> Response:
    """Delete a run with its checkpoints, in its thread.

    Copies and forks of the thread keep their checkpoints.
    """
    run = await _run(call, "delete")
    await call.state.saver.adelete_for_runs([run.run_id], thread_id=run.thread_id)
    return Response(status_code=204)


def run_of(run: Run) -> dict[str, Any]:
    """Return a run in the form that clients expect."""
    return describe_run({name: getattr(run, name) for name in _DESCRIBED})


def check_webhook(call: Call, url: str | None) -> None:
    """Refuse a webhook that the settings do not allow, or whose URL has an IP address that is not public.

    The addresses of a host name are checked when the webhook is sent.
    """
    if url is None:
        return
    parts, settings = urlsplit(webhook_of(url) or ""), call.state.webhooks.settings
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if reason := refusal_of(parts.scheme, host, port, settings):
        raise refuse(422, f"webhook: {reason}")
    try:
        is_allowed = may_connect("127.0.0.1" if host == "localhost" else host, settings.networks)
    except ValueError:
        return
    if not is_allowed:
        raise refuse(422, f"webhook: {host} is not a public address")


async def labelled(call: Call, thread: Thread, graph: Mapping[str, Any]) -> Thread:
    """Add the graph and the assistant to a thread's metadata, unless they are there, and return the thread."""
    if {**thread.metadata, **graph} == thread.metadata:
        return thread
    return await call.state.threads.update_metadata(thread.thread_id, graph)


def arguments_of(call: Call, assistant: Chosen, given: Mapping[str, Any], context: Any) -> tuple[dict[str, Any], Any]:
    """Return the config and the context of a run. The client's values take precedence over the assistant's.

    The config and the context contain each other's values, as on LangGraph's own server, so that nodes may read either.
    """
    config = assistant.config_of(given, context)
    made = assistant.context_of(context, _clients(call, config)["configurable"])
    return config_of(call, config, assistant), made


def config_of(call: Call, given: Mapping[str, Any], assistant: Chosen | None = None) -> dict[str, Any]:
    """Return the client's config without keys that a client may not set, and with the user and the assistant."""
    config = _clients(call, given)
    if "metadata" in config:
        config["metadata"] = call.metadata(config["metadata"])
    configurable = config["configurable"]
    if assistant is not None:
        configurable |= assistant.labels
    if call.user is not None:
        configurable |= {name: call.user[name] for name in call.owner_keys if name in call.user}
        configurable |= {**call.user.configurable, "user_id": call.user.identity}
    return config


def _clients(call: Call, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without the keys of `configurable` that a client may not set."""
    config = without_reserved(config)
    names = {"thread_id"}
    if call.user is not None:
        names |= {*call.owner_keys, *call.thread_keys.agent, "lc_agent_name"}
    config["configurable"] = {name: value for name, value in config["configurable"].items() if name not in names}
    return config


Put = Callable[[RunRequest], Awaitable[EnqueuedRun]]
"""A function that enqueues one run."""


async def enqueue(
    call: Call, body: RunCreate, thread_id: str | None, run_id: str | None = None, put: Put | None = None
) -> AsyncRunHandle:
    """Enqueue a run for the caller, by `put` if given. With a `run_id`, a repeated call enqueues no second run."""
    return (await _enqueue(call, [await _plan(call, body, thread_id, run_id)], put))[0]


class _Plan(NamedTuple):
    """A run to enqueue.

    Attributes:
        options: The arguments of `runs.enqueue`.
        make: Labels the run's thread, or creates a missing thread.
        is_new: Whether the thread is missing.
        is_stateless: Whether the client has named no thread.
    """

    options: dict[str, Any]
    make: Callable[[], Awaitable[Thread]]
    is_new: bool
    is_stateless: bool


async def _enqueue(call: Call, plans: Sequence[_Plan], put: Put | None = None) -> list[AsyncRunHandle]:
    """Enqueue runs: all or none. Missing threads are created after the runs are validated."""
    runs, given = call.state.runs, [plan.options for plan in plans]
    requests = await compute(given, runs.encoder.many, given)
    for plan, request in zip(plans, requests, strict=True):
        if plan.is_new and request.start is not None:
            raise missing("checkpoint", request.start[1])
    async with _making(call) as made:
        for plan in plans:
            thread = await plan.make()
            if plan.is_stateless:
                made.append(thread.thread_id)
        if put is None:
            return await runs.enqueue_batch(requests)
        found = [await put(request) for request in requests]
        return [AsyncRunHandle(runs, one.thread_id, one.run_id, one.is_new) for one in found]


@asynccontextmanager
async def _making(call: Call) -> AsyncIterator[list[str]]:
    """Delete the threads that the block made for stateless runs, if the block fails.

    The block adds the ids of these threads to the list that it receives.
    """
    made: list[str] = []
    try:
        yield made
    except Exception as error:
        # Keep the threads if the connection was lost, because the runs may have been enqueued.
        if not getattr(error, "retryable", False):
            for thread_id in made:
                await clean_up(partial(call.state.saver.adelete_thread, thread_id))
        raise


async def _plan(call: Call, body: RunCreate, thread_id: str | None, run_id: str | None = None) -> _Plan:
    """Return the run that a body describes. Nothing is written."""
    check_webhook(call, body.webhook)
    modes = kept_modes(body.stream_mode)
    assistant = await choose(call, body.assistant_id)
    name, graph = assistant.graph, assistant.labels
    value: dict[str, Any] = {
        "assistant_id": graph["assistant_id"],
        "thread_id": thread_id,
        "run_id": run_id or str(uuid7()),
        "status": "pending",
        "metadata": call.metadata(body.metadata),
        "multitask_strategy": body.multitask_strategy,
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "if_not_exists": body.if_not_exists,
        "after_seconds": body.after_seconds or 0,
    }
    if call.user is not None:
        # The handler gets a copy, because it may change the value.
        kwargs = partial(body.model_dump, include={"input", "command", "config", "context"})
        value["kwargs"] = await compute((body.input, body.command), kwargs)
    scope = await call.authorize("threads", "create_run", value)
    metadata = value.get("metadata") or {}
    checkpoint = {} if body.checkpoint is None else body.checkpoint.configurable()
    checkpoint_id = body.checkpoint_id or checkpoint.get("checkpoint_id")
    thread = await _thread(call, body, thread_id, checkpoint_id, scope)
    id = thread_id or str(uuid7())
    make: Callable[[], Awaitable[Thread]]
    if thread is None:
        ttl = _STATELESS_TTL if thread_id is None and body.on_completion != "keep" else None
        make = partial(_create, call, id, {**metadata, **graph}, scope, ttl)
    else:
        make = partial(labelled, call, thread, graph)
    of_thread = {**metadata, **graph} if thread is None else {**thread.metadata, **graph}
    given = {} if body.config is None else body.config.model_dump(exclude_none=True)
    if headers := call.headers:
        given = {**given, "configurable": {**given.get("configurable", {}), **headers}}
    config, context = arguments_of(call, assistant, given, body.context)
    config["configurable"] |= await _place(call, id, checkpoint, checkpoint_id)
    options = {
        "graph": name,
        "input": body.input if body.command is None else None,
        "command": None if body.command is None else body.command.command(),
        "thread_id": id,
        "run_id": value["run_id"],
        "checkpoint_id": checkpoint_id,
        "config": config,
        "context": context,
        "metadata": {**call.metadata({**assistant.metadata, **of_thread}), **metadata, **graph},
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "multitask_strategy": body.multitask_strategy,
        "run_after": timedelta(seconds=body.after_seconds) if body.after_seconds else None,
        "webhook": body.webhook,
        "stream_mode": modes,
        "stream_subgraphs": body.stream_subgraphs,
        "traceparent": call.request.headers.get("traceparent"),
        "durability": body.durability or {None: None, True: "async", False: "exit"}[body.checkpoint_during],
    }
    return _Plan(options, make, thread is None, thread_id is None)


async def _place(
    call: Call, thread_id: str, checkpoint: Mapping[str, Any], checkpoint_id: str | None
) -> dict[str, Any]:
    """Return the keys of a config that name the subgraph in which a run starts, and the outer graphs' checkpoints."""
    map, ns = checkpoint.get("checkpoint_map"), checkpoint.get("checkpoint_ns")
    if not ns or checkpoint_id is None:
        return {"checkpoint_map": map} if map else {}
    if not map:
        found = await call.state.saver.aget_tuple(config_at(thread_id, checkpoint_ns=ns, checkpoint_id=checkpoint_id))
        if found is None:
            raise missing("checkpoint", checkpoint_id)
        map = {**found.metadata.get("parents", {}), ns: checkpoint_id}
    return {"checkpoint_ns": ns, "checkpoint_map": map}


async def _thread(
    call: Call, body: RunCreate, thread_id: str | None, checkpoint_id: str | None, scope: Scope | None
) -> Thread | None:
    """Return the thread of a run; `None` if the thread must be created."""
    if thread_id is not None:
        thread = await call.state.threads.get(thread_id, scope=scope)
        if thread is not None:
            return thread
        if body.if_not_exists == "reject":
            raise missing("thread", thread_id)
    if checkpoint_id is not None:
        raise missing("checkpoint", checkpoint_id)
    return None


async def _create(
    call: Call, thread_id: str, metadata: Mapping[str, Any], scope: Scope | None, ttl: timedelta | None
) -> Thread:
    """Create the thread of a run, unless it was created meanwhile, and return it."""
    return await call.state.threads.create(
        thread_id,
        metadata=metadata,
        user_id=None if call.user is None else call.user.identity,
        agent=metadata["graph_id"],
        ttl=ttl,
        if_exists="do_nothing",
        scope=scope,
    )


def _is_temporary(call: Call) -> bool:
    """Return whether the thread of a new run is deleted with the response."""
    return "thread_id" not in call.request.path_params and call.body.on_completion != "keep"


async def _run(call: Call, action: str = "read", value: Mapping[str, Any] | None = None) -> Run:
    """Return the run that the path names, if the caller may do the action on its thread."""
    run_id = call.path("run_id")
    thread = await call.thread(action, {**(value or {}), "run_id": run_id})
    return await found_run(call, thread.thread_id, run_id)


def _reader_of_new(call: Call, handle: AsyncRunHandle) -> Reader:
    """Return the `Reader` of a new run. If the thread was made for the run, the `Reader` checks nothing."""
    return Reader(call, call.scope if "thread_id" in call.request.path_params else None, handle.thread_id)


async def _joined(call: Call) -> tuple[Run, Reader, bool]:
    """Return the run that a client joins, its `Reader`, and whether a disconnect cancels the run."""
    run, cancels = await _run(call), call.flag("cancel_on_disconnect")
    reader = Reader(call, call.scope, run.thread_id)
    if cancels:
        if call.service.is_read_only:
            raise refuse(403, "cancel_on_disconnect must not be true, because the server is read-only")
        await _run(call, "update", {"action": "interrupt"})
    return run, reader, cancels


async def found_run(call: Call, thread_id: str, run_id: str) -> Run:
    """Return a run. Refuse a request for a missing run with 404."""
    run = await call.state.runs.get(thread_id, run_id)
    if run is None:
        raise missing("run", run_id)
    return run


async def _cancel(call: Call, thread_id: str, run_id: str, action: str) -> None:
    if action not in ("interrupt", "rollback"):
        raise refuse(422, f"action must be 'interrupt' or 'rollback', not {action!r}")
    await call.state.runs.cancel(thread_id, run_id, action)


def _waiting(call: Call, handle: AsyncRunHandle, reader: Reader, *, cancels: bool, deletes: bool = False) -> Response:
    """Respond with a run's final values at its end. Until then, send line feeds to keep the connection open."""
    headers = {"Content-Location": location(handle), "Location": f"{location(handle)}/join"}
    return ClosingResponse(_values(call, handle, reader, cancels, deletes), 200, headers, "application/json")


async def _values(
    call: Call, handle: AsyncRunHandle, reader: Reader, cancels: bool, deletes: bool
) -> AsyncIterator[bytes]:
    async with (
        with_client(call, handle, reader, cancels=cancels, deletes=deletes) as ended,
        aclosing(batches_of(call, _outcome(handle), _as_bytes)) as batches,
    ):
        async for batch in batches:
            if await reader.is_gone():
                # The client may no longer read the thread, so respond as if the run had been deleted.
                yield to_json(None)
                return
            if not batch:
                yield b"\n"
                continue
            for piece in pieces(batch):
                yield piece
            ended.set()


async def _as_bytes(values: Any) -> tuple[None, bytes]:
    return None, await encode(values)


async def _outcome(handle: AsyncRunHandle) -> AsyncIterator[Any]:
    try:
        yield await handle.wait()
    except RunFailedError as error:
        yield {"__error__": error_of(error)}
    except (RunCancelledError, NotFoundError):
        yield None
    except UnavailableError:
        raise ServerStoppingError("this server cannot reach the database: try another server") from None


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(value), 200, headers, "application/json")
