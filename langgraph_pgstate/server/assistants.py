"""Operations on assistants, and drawings and JSON schemas of their graphs.

Each graph has an assistant of its own, which is not stored. This assistant has two ids: the graph's name, and a UUID
made from the name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from langgraph_pgstate.assistants.types import Assistant
from langgraph_pgstate.errors import AssistantExistsError, ThreadHeldError
from langgraph_pgstate.schedules.types import ScheduleAccess
from langgraph_pgstate.scopes import admits
from langgraph_pgstate.server.bodies import AssistantChange, AssistantCount, without_reserved
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import Graph
from langgraph_pgstate.server.json import answer, page_headers, selected
from langgraph_pgstate.server.service import Access, Call
from langgraph_pgstate.threads.types import Thread
from langgraph_pgstate.worker.graphs import Access as GraphAccess

_SORT_KEYS: Final = {"graph_id": "graph"}
# Keys of a config that identify the assistant, graph, thread, run or checkpoint.
_PLACES: Final = frozenset(
    {"assistant_id", "graph_id", "thread_id", "run_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"}
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The assistant of a request, a graph's own or a stored one, with config, context and metadata of its runs."""

    graph: str
    assistant_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The metadata that name the assistant in runs and threads."""
        return {"graph_id": self.graph, "assistant_id": self.assistant_id}

    def config_of(self, given: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """Return the config of a run. Values of the run override those of the assistant.

        `configurable` also gets the values of the assistant's and the run's context.
        """
        merged = {**self.config, **given}
        for name, first, last in (("configurable", self.context, context), ("metadata", None, None)):
            found = {
                **(self.config.get(name) or {}),
                **_settings(first),
                **(given.get(name) or {}),
                **_settings(last),
            }
            if found:
                merged[name] = found
        return merged

    def context_of(self, given: Any, configurable: Mapping[str, Any]) -> Any:
        """Return the context of a run. `configurable` overrides `given`, which overrides the assistant's context."""
        if given is not None and not isinstance(given, Mapping):
            return given
        if given is None and self.context is not None and not isinstance(self.context, Mapping):
            return self.context
        explicit = {**(self.context if isinstance(self.context, Mapping) else {}), **(given or {})}
        return {**explicit, **_settings(configurable)}


def _settings(context: Any) -> dict[str, Any]:
    """Return a context or `configurable` without the keys in `_PLACES`."""
    found = context if isinstance(context, Mapping) else {}
    return {name: value for name, value in found.items() if name not in _PLACES}


async def search(call: Call) -> Response:
    """Return a page of assistants, the newest first by default.

    Each graph is also an assistant, with the same UUID as on LangGraph's own server.
    """
    wanted = call.body
    filters = await _filters(call, wanted, wanted.limit, wanted.offset)
    by: Any = _SORT_KEYS.get(wanted.sort_by, wanted.sort_by or "created_at")
    ascending = wanted.sort_order == "asc"
    place = {"offset": wanted.offset, "limit": wanted.limit}
    found = await call.state.assistants.sorted(**filters, **place, by=by, ascending=ascending)
    page = [selected(describe(one), wanted.select) for one in found]
    return answer(page, headers=page_headers(wanted.offset, len(page), len(page) == wanted.limit))


async def count(call: Call) -> int:
    """Return the number of assistants."""
    return await call.state.assistants.count(**await _filters(call, call.body, 0, 0))


async def get(call: Call) -> dict[str, Any]:
    """Return one assistant, by its id or the name of its graph."""
    return describe(await _visible(call, call.path("assistant_id")))


async def create(call: Call) -> dict[str, Any]:
    """Create an assistant: a graph with a config and a context.

    The id need not be a UUID.
    """
    body = call.body
    call.service.graphs.check(body.graph_id)
    fields = _fields(body)
    value: dict[str, Any] = {**body.model_dump(exclude_unset=True), "metadata": {**(body.metadata or {})}}
    scope = await call.authorize("assistants", "create", value)
    fields["metadata"] = value.get("metadata") or {}
    if body.assistant_id is not None and call.service.graphs.find(body.assistant_id) is not None:
        raise refuse(409, f"assistant_id must not be {body.assistant_id!r}, the id of a graph's own assistant")
    try:
        return describe(await call.state.assistants.create(body.assistant_id, owner_id=call.owner_id, **fields))
    except AssistantExistsError:
        if body.if_exists == "raise":
            raise
        # Return the existing assistant only if the caller may also read it.
        access = await _reading(call, body.assistant_id)
        found = await call.state.assistants.sorted(assistant_id=body.assistant_id, **access._asdict())
        if not found or not admits(scope, found[0].metadata):
            raise
        return describe(found[0])


async def update(call: Call) -> dict[str, Any]:
    """Store a new version of an assistant, and make it the current version.

    A graph's own assistant cannot be changed.
    """
    body, assistant_id = call.body, _own(call)
    if body.graph_id is not None:
        call.service.graphs.check(body.graph_id)
    fields = _fields(body)
    value: dict[str, Any] = {
        **body.model_dump(exclude_unset=True),
        "assistant_id": assistant_id,
        "metadata": {**(body.metadata or {})},
    }
    access = await call.access("assistants", "update", value)
    if value.get("metadata"):
        fields["metadata"] = value["metadata"]
    return describe(await call.state.assistants.update(assistant_id, **access._asdict(), **fields))


async def delete(call: Call) -> Response:
    """Delete an assistant with its crons. With `delete_threads`, delete its threads, too.

    Fails with 409 if the assistant has crons that the user may not delete. Threads under a hold are kept. The response
    then is 409 and names a kept thread, although everything else is deleted.
    """
    assistant_id = _own(call)
    access = await call.access("assistants", "delete", {"assistant_id": assistant_id})
    threads = None
    if call.flag("delete_threads"):
        threads = await call.authorize("threads", "delete", {"metadata": {"assistant_id": assistant_id}})
    crons = await _crons(call, assistant_id)
    if not await call.state.assistants.delete(assistant_id, **access._asdict(), schedules=crons):
        raise missing("assistant", assistant_id)
    if call.flag("delete_threads"):
        filters: Any = {"metadata": {"assistant_id": assistant_id}, "scope": threads, "limit": 100}
        held: dict[str, ThreadHeldError] = {}
        while found := await call.state.threads.sorted(**filters, offset=len(held)):
            for thread in found:
                try:
                    await call.state.saver.adelete_thread(thread.thread_id)
                except ThreadHeldError as error:
                    held[thread.thread_id] = error
        for refusal in held.values():
            raise refusal
    return Response(status_code=204)


async def _crons(call: Call, assistant_id: str) -> ScheduleAccess | None:
    """Return which crons the caller may delete with an assistant; `None` for all."""
    if call.user is None:
        return None
    try:
        access = await call.access("crons", "delete", {"assistant_id": assistant_id, "cron_id": None})
        threads = await call.authorize("threads", "update", {"thread_id": None, "metadata": {}})
    except (HTTPException, AuthError):
        # The caller may not delete crons. No cron has this filter, so an assistant with crons cannot be deleted.
        return {"scope": {"assistant_id": None}}
    return {"scope": access.scope, "owner_id": access.owner_id, "thread_scope": threads}


async def get_versions(call: Call) -> list[dict[str, Any]]:
    """Return versions of an assistant, newest first."""
    body = call.body
    found = await _visible(call, call.path("assistant_id"))
    filters: Any = {"metadata": body.metadata, "limit": body.limit, "offset": body.offset}
    versions = await call.state.assistants.versions(found.assistant_id, **filters)
    if not versions and body.offset == 0 and call.service.graphs.find(found.assistant_id) is not None:
        versions = (found,)
    return [{name: value for name, value in describe(one).items() if name != "updated_at"} for one in versions]


async def set_latest(call: Call) -> dict[str, Any]:
    """Make another version of an assistant the current one."""
    assistant_id, version = _own(call), call.body.version
    value = {"assistant_id": assistant_id, "version": version, "metadata": {}}
    access = await call.access("assistants", "update", value)
    return describe(await call.state.assistants.set_version(assistant_id, version, **access._asdict()))


async def choose(call: Call, assistant_id: str) -> Chosen:
    """Return the assistant of a new run: a graph's own assistant, or an assistant that the caller may see."""
    known = call.service.graphs
    name = known.find(assistant_id)
    if name is not None:
        return Chosen(name, known.id_of(name))
    found = await _visible(call, assistant_id)
    known.check(found.graph)
    return Chosen(found.graph, found.assistant_id, found.config, found.context, found.metadata)


def describe(assistant: Assistant) -> dict[str, Any]:
    """Return an assistant in the form that clients expect.

    `configurable` also gets the keys of the context. Without a context, `configurable` is returned as the context, too.
    """
    config, context = dict(assistant.config), assistant.context
    if context is None:
        context = config.get("configurable") or {}
    elif isinstance(context, Mapping) and context:
        config["configurable"] = {**(config.get("configurable") or {}), **context}
    return {
        "assistant_id": assistant.assistant_id,
        "graph_id": assistant.graph,
        "name": assistant.name,
        "description": assistant.description,
        "config": config,
        "context": context,
        "metadata": assistant.metadata,
        "version": assistant.version,
        "created_at": assistant.created_at,
        "updated_at": assistant.updated_at,
    }


async def _visible(call: Call, assistant_id: str) -> Assistant:
    """Return an assistant that the caller may see."""
    known = call.service.graphs
    name = known.find(assistant_id)
    id = assistant_id if name is None else known.id_of(name)
    access = await _reading(call, id)
    filters: Any = {"assistant_id": id, "others": known.as_assistants if name is not None else ()}
    found = await call.state.assistants.sorted(**filters, **access._asdict())
    if not found:
        raise missing("assistant", assistant_id)
    return found[0]


async def _reading(call: Call, assistant_id: str) -> Access:
    return await call.access("assistants", "read", {"assistant_id": assistant_id, "metadata": {}})


async def choose_by_path(call: Call) -> Chosen:
    """Return the assistant that the path names, if the caller may see it and its graph is served."""
    found = await _visible(call, call.path("assistant_id"))
    call.service.graphs.check(found.graph)
    return Chosen(found.graph, found.assistant_id, found.config, found.context)


@asynccontextmanager
async def open_graph(
    call: Call,
    name: str,
    thread: Thread,
    access: GraphAccess = "threads.read",
    saver: BaseCheckpointSaver[str] | None = None,
) -> AsyncIterator[Graph]:
    """Provide the graph of a thread. A function that makes the graph gets the config of the thread's assistant."""
    async with call.graph(name, await _thread_config(call, name, thread), access, saver) as graph:
        yield graph


async def _thread_config(call: Call, name: str, thread: Thread) -> Mapping[str, Any]:
    assistant_id = thread.metadata.get("assistant_id")
    known = call.service.graphs
    if not known.is_made(name) or not isinstance(assistant_id, str):
        return {}
    configurable: dict[str, Any] = {}
    if known.find(assistant_id) is None:
        # Check that the caller may read the assistant, because a client can put any id into metadata.
        with suppress(HTTPException, AuthError):
            found = await _visible(call, assistant_id)
            chosen = Chosen(found.graph, found.assistant_id, found.config, found.context)
            if found.graph == name:
                configurable = {**chosen.config_of({}).get("configurable", {}), "assistant_id": assistant_id}
    return {"configurable": configurable}


def _own(call: Call) -> str:
    """Return the id of the assistant that the path names, unless it is a graph's own assistant."""
    assistant_id = call.path("assistant_id")
    if call.service.graphs.find(assistant_id) is not None:
        raise refuse(403, "a graph's own assistant cannot be changed or deleted: create another assistant instead")
    return assistant_id


def _fields(body: AssistantChange) -> Any:
    """Return the fields that a body gives."""
    fields: dict[str, Any] = {
        name: value
        for name, value in (
            ("graph", body.graph_id),
            ("name", body.name),
            ("description", body.description),
            ("config", None if body.config is None else body.config.model_dump(exclude_none=True)),
            ("context", body.context),
        )
        if value is not None
    }
    if (fields.get("config") or {}).get("configurable") and fields.get("context"):
        raise refuse(400, "the body must have context or config.configurable, but not both")
    if "config" in fields:
        fields["config"] = without_reserved(fields["config"])
        # A new `configurable` replaces the context, and a new context replaces `configurable`.
        fields.setdefault("context", None)
    elif "context" in fields:
        fields["config"] = {}
    return fields


async def _filters(call: Call, wanted: AssistantCount, limit: int, offset: int) -> Any:
    value = {"graph_id": wanted.graph_id, "metadata": {**(wanted.metadata or {})}, "limit": limit, "offset": offset}
    access = await call.access("assistants", "search", value)
    return {
        "graph": wanted.graph_id,
        "name": wanted.name,
        "metadata": wanted.metadata,
        **access._asdict(),
        "others": call.service.graphs.as_assistants,
    }


async def get_graph(call: Call) -> dict[str, Any]:
    """Return the drawing of a graph.

    `xray` is `true`, `false` or a number of levels.
    """
    xray = (call.query("xray") or "false").lower()
    depth: int | bool = call.number("xray", 0) or False if xray.isdecimal() else xray == "true"
    if depth is False and xray != "false":
        raise refuse(422, f"xray must be true, false or a number of levels from 1, not {xray!r}")
    wanted = await choose_by_path(call)
    async with _opened(call, wanted) as graph:
        return (await graph.aget_graph(xray=depth)).to_json()


async def get_schemas(call: Call) -> dict[str, Any]:
    """Return the JSON schemas of a graph.

    Types that have no JSON schema are left out.
    """
    wanted = await choose_by_path(call)
    async with _opened(call, wanted) as graph:
        return {"graph_id": wanted.graph, **_schemas(graph)}


async def get_subgraphs(call: Call) -> dict[str, Any]:
    """Return the JSON schemas of a graph's subgraphs, by namespace."""
    wanted = await choose_by_path(call)
    name = wanted.graph
    namespace = call.request.path_params.get("namespace")
    async with _opened(call, wanted) as graph:
        found = graph.aget_subgraphs(namespace=namespace, recurse=call.flag("recurse"))
        return {ns: {"graph_id": name, **_schemas(one)} async for ns, one in found if isinstance(one, Pregel)}


def _opened(call: Call, wanted: Chosen) -> AbstractAsyncContextManager[Graph]:
    config = wanted.config_of({})
    configurable = {**config.get("configurable", {}), "assistant_id": wanted.assistant_id}
    return call.graph(wanted.graph, {**config, "configurable": configurable}, "assistants.read")


def _schemas(graph: Graph) -> dict[str, Any]:
    context = _schema(graph.get_context_jsonschema)
    return {
        "input_schema": _schema(graph.get_input_jsonschema),
        "output_schema": _schema(graph.get_output_jsonschema),
        "state_schema": _schema(lambda: _state_schema(graph)),
        # Older clients read the context's schema under this name.
        "config_schema": context or {},
        "context_schema": context,
    }


def _schema(make: Any) -> Any:
    """Return a JSON schema; `None` if the types have no schema."""
    try:
        return make()
    except Exception:
        # pydantic raises various errors for types that it does not know.
        return None


def _state_schema(graph: Graph) -> Any:
    if isinstance(graph, CompiledStateGraph):
        return TypeAdapter(graph.builder.state_schema).json_schema()
    return graph.copy({"output_channels": graph.stream_channels_list}).get_output_jsonschema()
