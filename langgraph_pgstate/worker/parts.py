"""The parts of a worker: for each tenant, a state, graphs, and a saver that writes under the leases of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph_pgstate.errors import ConfigurationError, TenantError
from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore
from langgraph_pgstate.state import core_of, tenant_state
from langgraph_pgstate.worker.executing import GraphExecutor
from langgraph_pgstate.worker.graphs import GraphSource
from langgraph_pgstate.worker.inputs import Repair
from langgraph_pgstate.worker.settings import WorkerSettings
from langgraph_pgstate.worker.streaming import StreamWriter

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from langgraph_pgstate.state import AsyncPGState, PGState

_state: ContextVar[Any] = ContextVar("pgstate_state_of_run", default=None)


def run_state() -> Any:
    """Return the state with which a worker executes the current run. The state has the run's tenant.

    Call this in nodes and in factories of graphs. Do not close the state. The worker closes the state.

    Raises:
        ConfigurationError: If the caller is not part of a run that a worker executes.
    """
    found = _state.get()
    if found is None:
        raise ConfigurationError("run_state() must be called in a run that a worker executes")
    return found


class Part(NamedTuple):
    """The objects with which a worker executes the runs of one tenant.

    Attributes:
        state: The state.
        saver: The saver, which writes under the leases of the runs.
        executor: Executes runs.
        writer: Stores events.
        stores: Memory stores that the part has opened for its tenant.
    """

    state: Any
    saver: Any
    executor: GraphExecutor
    writer: StreamWriter
    stores: tuple[Any, ...] = ()

    def close(self) -> None:
        """Close the objects that belong to a tenant."""
        self.writer.close()
        self.saver.lease_manager.close()
        for store in self.stores:
            store.close()
        self.state.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self.writer.close()
        await self.saver.lease_manager.close()
        for store in self.stores:
            await store.close()
        await self.state.close()


class Parts:
    """The parts of a worker.

    Args:
        state: The worker's state.
        sources: The graphs by name.
        settings: The worker's settings.
        repair: Changes the input of a new run, if given.
        writer: Stores events.

    Raises:
        ConfigurationError: If a graph was compiled with another checkpointer.
    """

    def __init__(
        self,
        state: PGState | AsyncPGState,
        sources: Mapping[str, GraphSource],
        settings: WorkerSettings,
        repair: Repair | None,
        writer: StreamWriter,
    ) -> None:
        self._state, self._sources, self._settings, self._repair = state, sources, settings, repair
        self._writer = writer
        self.own = self._make(state, sources, writer)

    def check_tenants(self) -> None:
        """Raise `TenantError` if tenants would share the store of a graph: any store except the state's memory."""
        for name, source in self._sources.items():
            if any(not self._is_own(store) for store in source.stores):
                raise TenantError(
                    f"graph {name!r} must be compiled without a store or with the state's memory, because its store "
                    "does not keep tenants apart"
                )

    def open(self, tenant: str) -> Part:
        """Return a new part for the runs of a tenant."""
        given: Any = self._state
        state = tenant_state(given, tenant)
        core = core_of(state)
        stores: dict[int, Any] = {}

        def store_of(given: Any) -> BaseStore:
            _check_store(given)
            if id(given) not in stores:
                stores[id(given)] = given.of_database(core.database, core.run_of)
            found: BaseStore = stores[id(given)]
            return found

        sources = {name: source.with_stores(store_of, _check_store) for name, source in self._sources.items()}
        part = self._make(state, sources, self._writer.for_tenant(tenant))
        return part._replace(stores=tuple(stores.values()))

    def _is_own(self, store: Any) -> bool:
        if not isinstance(store, AsyncPGMemoryStore | PGMemoryStore):
            return False
        runner: Any = store.runner
        found: bool = runner.database.whole is core_of(self._state).database
        return found

    def _make(self, state: Any, sources: Mapping[str, GraphSource], writer: StreamWriter) -> Part:
        saver = state.saver.leased(self._settings.lease_ttl, writer)
        codec = core_of(state).codec
        executor = GraphExecutor(
            saver, self._state.saver, sources, state.record, codec, self._repair, writer, lambda: _state.set(state)
        )
        return Part(state, saver, executor, writer)


def _check_store(given: BaseStore) -> None:
    """Raise `TenantError` if a store is no memory. Row-level security keeps the memories of tenants apart."""
    if not isinstance(given, AsyncPGMemoryStore | PGMemoryStore):
        raise TenantError(f"a graph's store must be the memory of the state, not {type(given).__name__}")
