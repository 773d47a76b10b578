"""Operations on crons. A cron is a schedule under a random name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from langchain_core.utils.uuid import uuid7
from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.heavy import compute
from langgraph_pgstate.schedules.types import Schedule
from langgraph_pgstate.scopes import contains
from langgraph_pgstate.server.assistants import Chosen, choose
from langgraph_pgstate.server.bodies import CronChange, CronCount, RunConfig, without_reserved
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.json import answer, page_headers, selected
from langgraph_pgstate.server.runs import arguments_of, check_webhook, config_of, labelled
from langgraph_pgstate.server.service import Access, Call
from langgraph_pgstate.server.streams import kept_modes

# Time for which threads of failed runs are kept if a cron deletes the threads of its runs.
_THREAD_TTL: Final = timedelta(hours=1)
_COLUMNS: Final = {"cron_id": "name", "assistant_id": "graph", "next_run_date": "next_at", "end_time": "end_at"}
# Metadata that name the assistant in runs and threads.
_LABELS: Final = ("assistant_id", "graph_id")
_PAYLOAD: Final = (
    "input",
    "command",
    "config",
    "context",
    "metadata",
    "interrupt_before",
    "interrupt_after",
    "durability",
    "stream_mode",
    "stream_subgraphs",
)


async def create(call: Call) -> Any:
    """Create a cron. Its runs share a thread, or each run gets a new thread.

    A cron is a schedule under a random name. A run is enqueued within a second of its scheduled time.
    """
    body, cron_id = call.body, str(uuid7())
    thread_id = call.request.path_params.get("thread_id")
    assistant = await choose(call, body.assistant_id)
    labels = assistant.labels
    run: dict[str, Any] = {
        "assistant_id": labels["assistant_id"],
        "thread_id": thread_id,
        "metadata": call.metadata(body.metadata),
    }
    # Check the right to create runs. Otherwise a caller could create runs through a cron.
    threads = await call.authorize("threads", "create_run", run)
    thread = None if thread_id is None else await call.visible(thread_id, threads)
    value: dict[str, Any] = {
        "payload": await compute(body.input, partial(body.model_dump, exclude_unset=True)),
        "schedule": body.schedule,
        "cron_id": cron_id,
        "thread_id": thread_id,
        "user_id": None if call.user is None else call.user.identity,
        "end_time": body.end_time,
        "metadata": run.get("metadata") or {},
    }
    scope = await call.authorize("crons", "create", value)
    if thread is not None:
        thread = await labelled(call, thread, labels)
    known = {**assistant.metadata, **({} if thread is None else thread.metadata)}
    metadata = {**call.metadata(known), **(value.get("metadata") or {}), **labels}
    completion: Any = None if thread_id is not None else body.on_run_completed or "delete"
    body.config = body.config or RunConfig()
    options = {
        **_options(call, body, cron_id, assistant),
        "metadata": metadata,
        "scope": scope,
        "owner_id": call.owner_id,
    }
    made = await call.state.schedules.put(
        cron_id,
        assistant.graph,
        options.pop("input", None),
        **options,
        **_on_completion(completion),
        thread_id=thread_id,
        multitask_strategy=body.multitask_strategy,
    )
    try:
        # The thread or the assistant may have been deleted with its crons before this cron was stored.
        if thread_id is not None:
            await call.visible(thread_id, threads)
        await choose(call, body.assistant_id)
    except (HTTPException, AuthError):
        await call.state.schedules.delete(cron_id)
        raise
    return await _answer(call, made.name)


async def update(call: Call) -> Any:
    """Change a cron. Later runs of the cron belong to the caller.

    Metadata are merged.
    """
    body, cron_id = call.body, call.path("cron_id")
    if not body.model_fields_set:
        raise refuse(400, "the body must name at least one field to change")
    metadata = call.metadata(body.metadata)
    value: dict[str, Any] = {
        "cron_id": cron_id,
        "payload": await compute(body.input, partial(body.model_dump, exclude_unset=True)),
        "schedule": body.schedule,
        "metadata": {name: metadata[name] for name in metadata if name not in _LABELS},
    }
    access = await call.access("crons", "update", value)
    schedule = await _found(call, cron_id, access)
    assistant_id = schedule.metadata.get("assistant_id")
    run = {"assistant_id": assistant_id, "metadata": value.get("metadata") or {}}
    # The cron's later runs belong to the caller, so the caller must be allowed to create such runs.
    await _check_thread(call, schedule, "create_run", run)
    assistant = None
    if assistant_id is not None and (body.config is not None or body.context is not None):
        # Values of the cron take precedence over values of its assistant.
        assistant = await choose(call, assistant_id)
    options = _options(call, body, cron_id, assistant, schedule.arguments or {})
    if schedule.thread_id is None:
        options |= _on_completion(body.on_run_completed)
    if run.get("metadata"):
        options["metadata"] = run["metadata"]
    if call.user is not None:
        options["owner_id"] = call.owner_id
        if "config" not in options and not _is_callers(call, schedule):
            given = (schedule.arguments or {}).get("config") or {}
            options["config"] = _with_id(config_of(call, given), cron_id)
    try:
        await call.state.schedules.update(cron_id, scope=access.scope, **options)
    except NotFoundError:
        raise missing("cron", cron_id) from None
    return await _answer(call, cron_id)


async def delete(call: Call) -> Response:
    """Delete a cron. Its runs stay."""
    cron_id = call.path("cron_id")
    access = await call.access("crons", "delete", {"cron_id": cron_id})
    schedule = await _found(call, cron_id, access)
    if schedule.thread_id is not None:
        await _check_thread(call, schedule, "update", {"metadata": {}})
    if not await call.state.schedules.delete(cron_id, scope=access.scope):
        raise missing("cron", cron_id)
    return Response(status_code=204)


async def search(call: Call) -> Response:
    """Return a page of crons, including schedules that were created in Python.

    With `auth`, a cron on a thread is returned only if the user may see the thread. Each cron must also pass the filter
    of a handler on `crons`. Without such a handler, a cron without a thread must belong to the user.
    """
    body = call.body
    filters = await _filters(call, body, body.limit, body.offset)
    by: Any = _COLUMNS.get(body.sort_by or "created_at", body.sort_by or "created_at")
    found = await call.state.schedules.sorted(
        **filters,
        paused=None if body.enabled is None else not body.enabled,
        by=by,
        ascending=body.sort_order == "asc",
        offset=body.offset,
        limit=body.limit,
    )
    page = [selected(cron_of(call, one), body.select) for one in found]
    return answer(page, headers=page_headers(body.offset, len(page), len(page) == body.limit))


async def count(call: Call) -> int:
    """Return the number of crons."""
    return await call.state.schedules.count(**await _filters(call, call.body, 0, 0))


def cron_of(call: Call, schedule: Schedule) -> dict[str, Any]:
    """Return a schedule in the form that clients expect."""
    arguments = dict(schedule.arguments or {})
    metadata = {name: value for name, value in schedule.metadata.items() if name not in _LABELS}
    assistant_id = schedule.metadata.get("assistant_id") or call.service.graphs.id_of(schedule.graph)
    payload = {name: arguments[name] for name in _PAYLOAD if arguments.get(name, False) is not False}
    if "config" in payload:
        config = without_reserved(payload["config"])
        config["configurable"] = {name: one for name, one in config["configurable"].items() if name not in _LABELS}
        payload["config"] = config
    if schedule.arguments is not None:
        payload["metadata"] = {
            name: value for name, value in (arguments.get("metadata") or {}).items() if name not in _LABELS
        }
    return {
        "cron_id": schedule.name,
        "assistant_id": assistant_id,
        "thread_id": schedule.thread_id,
        "user_id": schedule.user_id,
        "end_time": schedule.end_at,
        "schedule": schedule.cron,
        "timezone": schedule.timezone,
        "payload": {"schedule": schedule.cron, "assistant_id": assistant_id, **payload},
        "next_run_date": schedule.next_at,
        "metadata": metadata,
        "on_run_completed": arguments.get("on_completion") if schedule.thread_id is None else None,
        "enabled": not schedule.is_paused,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
    }


async def _found(call: Call, cron_id: str, access: Access) -> Schedule:
    """Return a cron that the caller may reach. The caller's permission for the cron's thread is not checked."""
    found = await call.state.schedules.sorted(name=cron_id, **access._asdict())
    if not found:
        raise missing("cron", cron_id)
    return found[0]


async def _check_thread(call: Call, schedule: Schedule, action: str, value: dict[str, Any]) -> None:
    """Refuse a caller who may not do something with a cron's thread. The handler of `Auth` may change `value`.

    If the cron has a thread, respond as if there were no such cron.
    """
    thread_id = schedule.thread_id
    value["thread_id"] = thread_id
    try:
        scope = await call.authorize("threads", action, value)
    except (HTTPException, AuthError) as refused:
        if thread_id is None or refused.status_code >= 500:
            raise
        raise missing("cron", schedule.name) from None
    if scope is not None and thread_id is not None and await call.state.threads.get(thread_id, scope=scope) is None:
        raise missing("cron", schedule.name)


def _is_callers(call: Call, schedule: Schedule) -> bool:
    """Return whether the runs of a cron have the caller as their user."""
    assert call.user is not None
    config = (schedule.arguments or {}).get("config") or {}
    return contains(config.get("configurable"), call.user.configurable)


async def _answer(call: Call, cron_id: str) -> dict[str, Any]:
    found = await call.state.schedules.sorted(name=cron_id)
    if not found:
        raise missing("cron", cron_id)
    return cron_of(call, found[0])


async def _filters(call: Call, body: CronCount, limit: int, offset: int) -> Any:
    value = {"assistant_id": body.assistant_id, "thread_id": body.thread_id, "limit": limit, "offset": offset}
    access = await call.access("crons", "search", value)
    # Find only crons on threads that the caller may see, because a cron reveals contents of its thread.
    threads = await call.authorize_search({"metadata": {}, "limit": limit, "offset": offset})
    metadata = {**(body.metadata or {})}
    if body.assistant_id is not None:
        known = call.service.graphs
        name = known.find(body.assistant_id)
        metadata["assistant_id"] = body.assistant_id if name is None else known.id_of(name)
    return {"thread_id": body.thread_id, "metadata": metadata, **access._asdict(), "thread_scope": threads}


def _options(
    call: Call, body: CronChange, cron_id: str, assistant: Chosen | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the changes that a body makes to a schedule and to its runs."""
    names = ("input", "context", "interrupt_before", "interrupt_after", "stream_subgraphs", "durability")
    given = {name: getattr(body, name) for name in names if name in body.model_fields_set}
    found = {name: value for name, value in given.items() if value is not None}
    if body.schedule is not None:
        found["cron"] = body.schedule
    if body.timezone is not None:
        found["timezone"] = body.timezone
    if "end_time" in body.model_fields_set:
        found["end_at"] = body.end_time
    if body.enabled is not None:
        found["paused"] = not body.enabled
    config = None if body.config is None else body.config.model_dump(exclude_none=True)
    if assistant is not None:
        given_config, context = _merged(config, body.context, before or {})
        made, found["context"] = arguments_of(call, assistant, given_config, context)
        found["config"] = _with_id(made, cron_id)
    elif config is not None:
        found["config"] = _with_id(config_of(call, config), cron_id)
    if body.webhook is not None:
        check_webhook(call, body.webhook)
        found["webhook"] = body.webhook
    if body.stream_mode:
        found["stream_mode"] = kept_modes(body.stream_mode)
    return found


def _merged(config: dict[str, Any] | None, context: Any, before: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the config and the context after a change.

    A new context replaces `configurable`, and a new `configurable` replaces the context.
    """
    known = before.get("config") or {}
    if config is None:
        return {name: known[name] for name in known if name != "configurable"}, context
    if context is None and "configurable" not in config and before:
        configurable = {name: value for name, value in (known.get("configurable") or {}).items() if name != "cron_id"}
        return {**config, "configurable": configurable}, before.get("context")
    return config, context


def _with_id(config: dict[str, Any], cron_id: str) -> dict[str, Any]:
    config["configurable"]["cron_id"] = cron_id
    return config


def _on_completion(completion: str | None) -> Any:
    if completion is None:
        return {}
    return {"on_completion": completion, "thread_ttl": _THREAD_TTL if completion == "delete" else None}
