"""The operations of LangGraph's SDK: the name, method, path and handler of each operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import Any, Final

from langgraph_pgstate.server import assistants, bodies, commands, crons, feedback, meta, runs, store, streams, threads
from langgraph_pgstate.server.meta import DOCUMENT
from langgraph_pgstate.server.service import Call

Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the HTTP API, and how the application serves it.

    Attributes:
        name: Name in the SDK's clients, like `threads.create`.
        handler: Responds to a request; `None` if the operation is not implemented.
        body: The model of the request's body; `None` if the operation takes no body.
        is_read: Whether the operation changes nothing.
        is_open: Whether the operation needs no authentication.
        is_unlimited: Whether the rate limit ignores the operation.
    """

    name: str
    method: str
    path: str
    handler: Handler | None
    body: type[bodies.Body] | None = None
    is_read: bool = False
    is_open: bool = False
    is_unlimited: bool = False

    @property
    def part(self) -> str:
        """The part to which the operation belongs. The option `disabled` can leave out each part except `ok`."""
        if self.name in ("info", "openapi", "metrics", "analytics"):
            return "meta"
        # Commands start runs, so they belong to the part `runs`.
        is_of_runs = self.path.endswith("/commands") or "runs" in self.path.split("/")
        return "runs" if is_of_runs else self.name.partition(".")[0]

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (getdoc(self.handler) or "").partition("\n")[0]

    @property
    def description(self) -> str:
        """The handler's docstring without its first line and its sections; empty if nothing is left."""
        text = (getdoc(self.handler) or "").partition("\n")[2].partition("\nArgs:")[0].partition("\nRaises:")[0]
        return " ".join(text.split())


def _read(name: str, method: str, path: str, handler: Handler, body: type[bodies.Body] | None = None) -> Operation:
    return Operation(name, method, path, handler, body, is_read=True)


_THREAD: Final = "/threads/{thread_id}"
_RUN: Final = "/threads/{thread_id}/runs/{run_id}"
_ASSISTANT: Final = "/assistants/{assistant_id}"

# Paths with a fixed part must come before paths with a parameter at the same position, because the first match counts.
OPERATIONS: Final = (
    Operation("ok", "GET", "/ok", meta.ok, is_read=True, is_open=True, is_unlimited=True),
    Operation("info", "GET", "/info", meta.info, is_read=True, is_open=True, is_unlimited=True),
    Operation("openapi", "GET", DOCUMENT, meta.openapi, is_read=True, is_open=True, is_unlimited=True),
    Operation("metrics", "GET", "/metrics", feedback.metrics, is_read=True, is_unlimited=True),
    _read("analytics", "GET", "/analytics", feedback.analytics),
    _read("assistants.search", "POST", "/assistants/search", assistants.search, bodies.AssistantSearch),
    _read("assistants.count", "POST", "/assistants/count", assistants.count, bodies.AssistantCount),
    Operation("assistants.create", "POST", "/assistants", assistants.create, bodies.AssistantCreate),
    _read("assistants.get", "GET", _ASSISTANT, assistants.get),
    Operation("assistants.update", "PATCH", _ASSISTANT, assistants.update, bodies.AssistantChange),
    Operation("assistants.delete", "DELETE", _ASSISTANT, assistants.delete),
    _read("assistants.get_graph", "GET", f"{_ASSISTANT}/graph", assistants.get_graph),
    _read("assistants.get_schemas", "GET", f"{_ASSISTANT}/schemas", assistants.get_schemas),
    _read("assistants.get_subgraphs", "GET", f"{_ASSISTANT}/subgraphs", assistants.get_subgraphs),
    _read("assistants.get_subgraphs", "GET", f"{_ASSISTANT}/subgraphs/{{namespace}}", assistants.get_subgraphs),
    _read(
        "assistants.get_versions", "POST", f"{_ASSISTANT}/versions", assistants.get_versions, bodies.AssistantVersions
    ),
    Operation("assistants.set_latest", "POST", f"{_ASSISTANT}/latest", assistants.set_latest, bodies.AssistantLatest),
    Operation("threads.create", "POST", "/threads", threads.create, bodies.ThreadCreate),
    _read("threads.search", "POST", "/threads/search", threads.search, bodies.ThreadSearch),
    _read("threads.count", "POST", "/threads/count", threads.count, bodies.ThreadCount),
    Operation("threads.prune", "POST", "/threads/prune", threads.prune, bodies.ThreadPrune),
    _read("threads.get", "GET", _THREAD, threads.get),
    Operation("threads.update", "PATCH", _THREAD, threads.update, bodies.ThreadUpdate),
    Operation("threads.delete", "DELETE", _THREAD, threads.delete),
    Operation("threads.copy", "POST", f"{_THREAD}/copy", threads.copy),
    _read("threads.get_state", "GET", f"{_THREAD}/state", threads.get_state),
    Operation("threads.update_state", "POST", f"{_THREAD}/state", threads.update_state, bodies.StateUpdate),
    _read("threads.get_state", "POST", f"{_THREAD}/state/checkpoint", threads.get_state_at, bodies.StateAt),
    _read("threads.get_state", "GET", f"{_THREAD}/state/{{checkpoint_id}}", threads.get_state),
    _read("threads.get_history", "GET", f"{_THREAD}/history", threads.get_history),
    _read("threads.get_history", "POST", f"{_THREAD}/history", threads.get_history, bodies.History),
    _read("threads.join_stream", "GET", f"{_THREAD}/stream", streams.join_stream),
    Operation("threads.stream", "POST", f"{_THREAD}/commands", commands.command, bodies.ThreadCommand),
    _read("threads.stream", "POST", f"{_THREAD}/stream/events", streams.stream_events, bodies.EventStream),
    Operation("crons.create", "POST", "/runs/crons", crons.create, bodies.CronCreate),
    _read("crons.search", "POST", "/runs/crons/search", crons.search, bodies.CronSearch),
    _read("crons.count", "POST", "/runs/crons/count", crons.count, bodies.CronCount),
    Operation("crons.create_for_thread", "POST", f"{_THREAD}/runs/crons", crons.create, bodies.CronCreate),
    Operation("crons.update", "PATCH", "/runs/crons/{cron_id}", crons.update, bodies.CronChange),
    Operation("crons.delete", "DELETE", "/runs/crons/{cron_id}", crons.delete),
    Operation("runs.create", "POST", "/runs", runs.create, bodies.RunCreate),
    Operation("runs.create", "POST", f"{_THREAD}/runs", runs.create, bodies.RunCreate),
    Operation("runs.create_batch", "POST", "/runs/batch", runs.create_batch, bodies.RunBatch),
    Operation("runs.wait", "POST", "/runs/wait", runs.wait, bodies.RunCreate),
    Operation("runs.wait", "POST", f"{_THREAD}/runs/wait", runs.wait, bodies.RunCreate),
    Operation("runs.stream", "POST", "/runs/stream", runs.stream, bodies.RunCreate),
    Operation("runs.stream", "POST", f"{_THREAD}/runs/stream", runs.stream, bodies.RunCreate),
    Operation("runs.cancel_many", "POST", "/runs/cancel", runs.cancel_many, bodies.RunsCancel),
    _read("runs.list", "GET", f"{_THREAD}/runs", runs.list_runs),
    _read("runs.get", "GET", _RUN, runs.get),
    Operation("runs.delete", "DELETE", _RUN, runs.delete),
    _read("runs.join", "GET", f"{_RUN}/join", runs.join),
    _read("runs.join_stream", "GET", f"{_RUN}/stream", runs.join_stream),
    Operation("runs.cancel", "POST", f"{_RUN}/cancel", runs.cancel),
    Operation("feedback.create", "POST", f"{_RUN}/feedback", feedback.create, bodies.FeedbackCreate),
    _read("feedback.list", "GET", f"{_RUN}/feedback", feedback.list_feedback),
    Operation("feedback.delete", "DELETE", f"{_RUN}/feedback/{{feedback_id}}", feedback.delete),
    Operation("store.put_item", "PUT", "/store/items", store.put_item, bodies.ItemPut),
    _read("store.get_item", "GET", "/store/items", store.get_item),
    Operation("store.delete_item", "DELETE", "/store/items", store.delete_item, bodies.ItemDelete),
    _read("store.search_items", "POST", "/store/items/search", store.search_items, bodies.ItemSearch),
    _read("store.list_namespaces", "POST", "/store/namespaces", store.list_namespaces, bodies.NamespaceSearch),
)
"""All operations: the operations of the SDK, and operations for the server itself, feedback and analytics."""
