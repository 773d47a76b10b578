"""Assistants: each graph is one, under its name and under a UUID made of it; others are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from langgraph_pgstate.operations.runs.webhooks import assistant_id_of
from langgraph_pgstate.runs.graphs import GraphSource
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.server.bodies import without_reserved
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.json import answer, selected
from langgraph_pgstate.types import Assistant, Thread

if TYPE_CHECKING:
    from langgraph_pgstate.server.bodies import AssistantChange, AssistantCount
    from langgraph_pgstate.server.service import Call

Graph = Pregel[Any, Any, Any, Any]

_OF_THE_SYSTEM: Final = {"created_by": "system"}
_SORT_KEYS: Final = {"graph_id": "graph"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """An assistant that runs a graph.

    Attributes:
        graph: Name of the graph.
        assistant_id: Its id.
        config: Config of its runs.
        context: Context of its runs; `None` for none.
        metadata: Metadata of its runs.
    """

    graph: str
    assistant_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The metadata by which runs and threads know it."""
        return {"graph_id": self.graph, "assistant_id": self.assistant_id}

    def config_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a run: what it gives goes before what the assistant has."""
        merged = {**self.config, **given}
        context = self.context if isinstance(self.context, Mapping) else {}
        for name, more in (("configurable", context), ("metadata", {})):
            found = {**(self.config.get(name) or {}), **more, **(given.get(name) or {})}
            if found:
                merged[name] = found
        return merged

    def context_of(self, given: Any) -> Any:
        """Return the context of a run, in the same way."""
        if isinstance(self.context, Mapping) and isinstance(given, Mapping):
            return {**self.context, **given}
        return self.context if given is None else given


class Assistants:
    """The graphs that are served.

    Args:
        sources: The graphs by name.
        saver: Reads and writes their states.
    """

    def __init__(self, sources: Mapping[str, GraphSource], saver: AsyncPGStateSaver) -> None:
        self._sources, self._saver = sources, saver
        self._ids = {assistant_id_of(name): name for name in sources}
        self._created_at = datetime.now(UTC).isoformat()

    def graph_named(self, assistant_id: str) -> str | None:
        """Return the graph whose name or own id this is, if there is one."""
        name = self._ids.get(assistant_id, assistant_id)
        return name if name in self._sources else None

    def id_of(self, name: str) -> str:
        """Return the id of a graph's assistant."""
        return assistant_id_of(name)

    def check(self, graph: str) -> None:
        """Raise a refusal if no graph of a name is served.

        Raises:
            HTTPException: 404.
        """
        if graph not in self._sources:
            raise missing("graph", graph)

    @property
    def of_graphs(self) -> list[dict[str, Any]]:
        """The assistants of the graphs, which are not stored."""
        return [
            {
                "assistant_id": id,
                "graph": name,
                "name": name,
                "description": None,
                "metadata": _OF_THE_SYSTEM,
                "created_at": self._created_at,
            }
            for id, name in self._ids.items()
        ]

    def named(self, metadata: Mapping[str, Any]) -> str | None:
        """Return the name of the graph that a thread's metadata name, if it is one of these."""
        name = metadata.get("graph_id")
        return name if isinstance(name, str) and name in self._sources else None

    @property
    def graphs(self) -> list[str]:
        """Names of these graphs."""
        return sorted(self._sources)

    def graph_of(self, thread: Thread) -> str | None:
        """Return the name of the graph that runs on a thread, if it is one of these."""
        return self.named(thread.metadata) or self.named({"graph_id": thread.agent})

    @asynccontextmanager
    async def open(
        self, name: str, config: Mapping[str, Any] | None = None, saver: BaseCheckpointSaver[str] | None = None
    ) -> AsyncIterator[Graph]:
        """Provide a graph with the saver, or with another. A function that makes graphs gets the config."""
        configurable = {**((config or {}).get("configurable") or {}), "graph_id": name}
        async with self._sources[name].aopen({"configurable": configurable}) as graph:
            yield graph.copy({"checkpointer": saver or self._saver})


async def search(call: Call) -> Response:
    """Answer a page of assistants."""
    wanted = call.body
    filters = await _filters(call, wanted, wanted.limit, wanted.offset)
    by: Any = _SORT_KEYS.get(wanted.sort_by, wanted.sort_by or "name")
    ascending = wanted.sort_order != "desc"
    place = {"offset": wanted.offset, "limit": wanted.limit}
    found = await call.state.assistants.sorted(**filters, **place, by=by, ascending=ascending)
    page = [selected(describe(one), wanted.select) for one in found]
    return answer(page, headers=page_headers(wanted.offset, len(page), len(page) == wanted.limit))


async def count(call: Call) -> int:
    """Answer the number of assistants."""
    return await call.state.assistants.count(**await _filters(call, call.body, 0, 0))


async def get(call: Call) -> dict[str, Any]:
    """Answer one assistant."""
    return describe(await _visible(call, call.path("assistant_id")))


async def create(call: Call) -> dict[str, Any]:
    """Create an assistant: a graph with a config and a context."""
    body = call.body
    call.service.assistants.check(body.graph_id)
    fields = _fields(body)
    value: dict[str, Any] = {**body.model_dump(exclude_unset=True), "metadata": {**(body.metadata or {})}}
    scope = await call.authorize("assistants", "create", value)
    fields["metadata"] = value.get("metadata") or {}
    if body.assistant_id is not None and call.service.assistants.graph_named(body.assistant_id) is not None:
        raise refuse(409, f"assistant {body.assistant_id!r} is that of a graph")
    made = await call.state.assistants.create(body.assistant_id, if_exists=body.if_exists, scope=scope, **fields)
    return describe(made)


async def update(call: Call) -> dict[str, Any]:
    """Make a new version of an assistant the current one."""
    body, assistant_id = call.body, _own(call)
    if body.graph_id is not None:
        call.service.assistants.check(body.graph_id)
    fields = _fields(body)
    value: dict[str, Any] = {
        **body.model_dump(exclude_unset=True),
        "assistant_id": assistant_id,
        "metadata": {**(body.metadata or {})},
    }
    scope = await call.authorize("assistants", "update", value)
    if value.get("metadata"):
        fields["metadata"] = value["metadata"]
    return describe(await call.state.assistants.update(assistant_id, scope=scope, **fields))


async def delete(call: Call) -> Response:
    """Delete an assistant with its crons, and its threads if that is asked for."""
    assistant_id = _own(call)
    scope = await call.authorize("assistants", "delete", {"assistant_id": assistant_id})
    threads = None
    if call.flag("delete_threads"):
        threads = await call.authorize("threads", "delete", {"metadata": {"assistant_id": assistant_id}})
    if not await call.state.assistants.delete(assistant_id, scope=scope, schedules=await _crons(call, assistant_id)):
        raise missing("assistant", assistant_id)
    if call.flag("delete_threads"):
        filters: Any = {"metadata": {"assistant_id": assistant_id}, "scope": threads, "limit": 100}
        while found := await call.state.threads.sorted(**filters):
            for thread in found:
                await call.state.saver.adelete_thread(thread.thread_id)
    return Response(status_code=204)


async def _crons(call: Call, assistant_id: str) -> Mapping[str, Any] | None:
    """Return the metadata of the crons that the caller may delete with an assistant; `None` for all."""
    try:
        return await call.authorize("crons", "delete", {"assistant_id": assistant_id, "cron_id": None})
    except (HTTPException, AuthError):
        # None of its crons has them: it is deleted if it has none.
        return {"assistant_id": None}


async def get_versions(call: Call) -> list[dict[str, Any]]:
    """Answer versions of an assistant, newest first."""
    body = call.body
    found = await _visible(call, call.path("assistant_id"))
    filters: Any = {"metadata": body.metadata, "limit": body.limit, "offset": body.offset}
    versions = await call.state.assistants.versions(found.assistant_id, **filters)
    if not versions and body.offset == 0 and call.service.assistants.graph_named(found.assistant_id) is not None:
        versions = (found,)
    return [{name: value for name, value in describe(one).items() if name != "updated_at"} for one in versions]


async def set_latest(call: Call) -> dict[str, Any]:
    """Make another version of an assistant the current one."""
    assistant_id, version = _own(call), call.body.version
    value = {"assistant_id": assistant_id, "version": version, "metadata": {}}
    scope = await call.authorize("assistants", "update", value)
    return describe(await call.state.assistants.set_version(assistant_id, version, scope=scope))


async def choose(call: Call, assistant_id: str) -> Chosen:
    """Return the assistant that a run is to have: one of a graph, or one that the caller may see.

    Raises:
        HTTPException: 404 if there is none.
    """
    known = call.service.assistants
    name = known.graph_named(assistant_id)
    if name is not None:
        return Chosen(name, known.id_of(name))
    found = await _visible(call, assistant_id)
    known.check(found.graph)
    return Chosen(found.graph, found.assistant_id, found.config, found.context, found.metadata)


def describe(assistant: Assistant) -> dict[str, Any]:
    """Return an assistant as the clients know it: what is configurable is its context, too."""
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


async def get_graph(call: Call) -> dict[str, Any]:
    """Answer the drawing of a graph."""
    xray = call.query("xray") or "false"
    depth: int | bool = call.number("xray", 0) if xray.isdecimal() else call.flag("xray")
    chosen = await _chosen(call)
    async with call.service.assistants.open(chosen.graph, chosen.config) as graph:
        return (await graph.aget_graph(xray=depth)).to_json()


async def get_schemas(call: Call) -> dict[str, Any]:
    """Answer the JSON schemas of a graph."""
    chosen = await _chosen(call)
    async with call.service.assistants.open(chosen.graph, chosen.config) as graph:
        return {"graph_id": chosen.graph, **_schemas(graph)}


async def get_subgraphs(call: Call) -> dict[str, Any]:
    """Answer the JSON schemas of a graph's subgraphs, by namespace."""
    chosen = await _chosen(call)
    name = chosen.graph
    namespace = call.request.path_params.get("namespace")
    async with call.service.assistants.open(name, chosen.config) as graph:
        found = graph.aget_subgraphs(namespace=namespace, recurse=call.flag("recurse"))
        return {ns: {"graph_id": name, **_schemas(one)} async for ns, one in found if isinstance(one, Pregel)}


def page_headers(offset: int, count: int, has_more: bool) -> dict[str, str]:
    """Return the headers of a page: where the next one begins, and how many items are known of."""
    following = offset + count
    if not has_more:
        return {"X-Pagination-Total": str(following)}
    return {"X-Pagination-Next": str(following), "X-Pagination-Total": str(following + 1)}


async def _visible(call: Call, assistant_id: str) -> Assistant:
    """Return an assistant that the caller may see.

    Raises:
        HTTPException: 403 or 404 otherwise.
    """
    known = call.service.assistants
    name = known.graph_named(assistant_id)
    id = assistant_id if name is None else known.id_of(name)
    scope = await call.authorize("assistants", "read", {"assistant_id": id, "metadata": {}})
    filters: Any = {"assistant_id": id, "scope": scope, "others": known.of_graphs if name is not None else ()}
    found = await call.state.assistants.sorted(**filters)
    if not found:
        raise missing("assistant", assistant_id)
    return found[0]


async def _chosen(call: Call) -> Chosen:
    """Return the assistant that the path names, if the caller may see it and its graph is served."""
    found = await _visible(call, call.path("assistant_id"))
    call.service.assistants.check(found.graph)
    return Chosen(found.graph, found.assistant_id, found.config, found.context)


def _own(call: Call) -> str:
    """Return the id that the path names.

    Raises:
        HTTPException: 403 if it is that of a graph.
    """
    assistant_id = call.path("assistant_id")
    if call.service.assistants.graph_named(assistant_id) is not None:
        raise refuse(403, "the assistant of a graph is not changed: create one of your own")
    return assistant_id


def _fields(body: AssistantChange) -> Any:
    """Return the fields that a body gives.

    Raises:
        HTTPException: 400 if it gives what is configurable twice.
    """
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
        raise refuse(400, "give the context or config.configurable, not both")
    if "config" in fields:
        fields["config"] = without_reserved(fields["config"])
        # The one replaces the other.
        fields.setdefault("context", None)
    elif "context" in fields:
        fields["config"] = {}
    return fields


async def _filters(call: Call, wanted: AssistantCount, limit: int, offset: int) -> Any:
    value = {"graph_id": wanted.graph_id, "metadata": {**(wanted.metadata or {})}, "limit": limit, "offset": offset}
    scope = await call.authorize("assistants", "search", value)
    return {
        "graph": wanted.graph_id,
        "name": wanted.name,
        "metadata": wanted.metadata,
        "scope": scope,
        "others": call.service.assistants.of_graphs,
    }


def _schemas(graph: Graph) -> dict[str, Any]:
    context = _schema(graph.get_context_jsonschema)
    return {
        "input_schema": _schema(graph.get_input_jsonschema),
        "output_schema": _schema(graph.get_output_jsonschema),
        "state_schema": _schema(lambda: _state_schema(graph)),
        # Older clients know the context by this name.
        "config_schema": context or {},
        "context_schema": context,
    }


def _schema(make: Any) -> Any:
    """Return a JSON schema; `None` if the types have none."""
    try:
        return make()
    except Exception:
        # pydantic raises errors of many types for types that it does not know.
        return None


def _state_schema(graph: Graph) -> Any:
    if isinstance(graph, CompiledStateGraph):
        return TypeAdapter(graph.builder.state_schema).json_schema()
    return graph.copy({"output_channels": graph.stream_channels_list}).get_output_jsonschema()


def config_at(thread_id: str, **configurable: Any) -> RunnableConfig:
    """Return the config of a thread, or of one of its checkpoints."""
    return {"configurable": {**configurable, "thread_id": thread_id}}
