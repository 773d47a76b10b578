"""Base classes of the parts of `Threads` and `AsyncThreads`."""

from __future__ import annotations

from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner
from langgraph_pgstate.schema.queries import Queries


class ThreadsBase:
    """Base class with the database, its queries, and the codec of states."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = BlockingRunner(database)
        self._queries = queries
        self._codec = codec or ValueCodec()


class AsyncThreadsBase:
    """Async twin of `ThreadsBase`."""

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = database
        self._queries = queries
        self._codec = codec or ValueCodec()
