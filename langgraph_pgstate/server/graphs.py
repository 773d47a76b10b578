"""The graphs that are served, and the reading and writing of their states."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from langgraph_pgstate.runs.webhook_rows import assistant_id_of
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.server.errors import missing
from langgraph_pgstate.threads.types import Thread
from langgraph_pgstate.worker.graphs import Access, GraphSource, with_user

Graph = Pregel[Any, Any, Any, Any]

_OF_THE_SYSTEM: Final = {"created_by": "system"}


class ServedGraphs:
    """The graphs that are served, by name. Each graph is also an assistant."""

    def __init__(self, sources: Mapping[str, GraphSource], saver: AsyncPGStateSaver) -> None:
        self._sources, self._saver = sources, saver
        self._ids = {assistant_id_of(name): name for name in sources}
        self._created_at = datetime.now(UTC).isoformat()

    def find(self, assistant_id: str) -> str | None:
        """Return the name of the graph for an assistant's id or name; `None` if there is no such graph."""
        name = self._ids.get(assistant_id, assistant_id)
        return name if name in self._sources else None

    def id_of(self, name: str) -> str:
        """Return the id of a graph's assistant."""
        return assistant_id_of(name)

    def check(self, graph: str) -> None:
        """Refuse the name of a graph that is not served."""
        if graph not in self._sources:
            raise missing("graph", graph)

    @property
    def as_assistants(self) -> list[dict[str, Any]]:
        """The graphs as assistants. They are not stored."""
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

    def named_in(self, metadata: Mapping[str, Any]) -> str | None:
        """Return the name of the graph in a thread's metadata; `None` if this graph is not served."""
        name = metadata.get("graph_id")
        return name if isinstance(name, str) and name in self._sources else None

    @property
    def names(self) -> list[str]:
        """The names of the graphs."""
        return sorted(self._sources)

    def of_thread(self, thread: Thread) -> str | None:
        """Return the name of the graph that runs on a thread; `None` if this graph is not served."""
        return self.named_in(thread.metadata) or self.named_in({"graph_id": thread.agent})

    def is_made(self, name: str) -> bool:
        """Return whether a graph is made for each call by a function that takes a config."""
        return self._sources[name].is_factory

    @asynccontextmanager
    async def open(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        access: Access = "threads.read",
        saver: BaseCheckpointSaver[str] | None = None,
    ) -> AsyncIterator[Graph]:
        """Provide a graph that uses `saver` or the server's saver. A function that makes the graph gets `config`."""
        given = (config or {}).get("configurable") or {}
        configurable = with_user({"assistant_id": self.id_of(name), **given, "graph_id": name})
        async with self._sources[name].aopen({**(config or {}), "configurable": configurable}, access) as graph:
            yield graph.copy({"checkpointer": saver or self._saver})


def config_at(thread_id: str, **configurable: Any) -> RunnableConfig:
    """Return the config of a thread or of one of its checkpoints."""
    return {"configurable": {**configurable, "thread_id": thread_id}}
