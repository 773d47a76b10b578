"""The server as an ASGI application: its options, its lifespan, and its responses to requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final, TypedDict, Unpack

from langgraph.store.base import BaseStore
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, PGStateError, TenantError
from langgraph_pgstate.keep.receipts import signer_of
from langgraph_pgstate.memory.options import MemoryOptions
from langgraph_pgstate.memory.store import AsyncPGMemoryStore
from langgraph_pgstate.options import check_options
from langgraph_pgstate.record.projections import check_projectable_in
from langgraph_pgstate.runs.options import WorkerOptions
from langgraph_pgstate.server.auth import Authority
from langgraph_pgstate.server.custom import AuthPlace, around
from langgraph_pgstate.server.errors import HANDLERS, refuse
from langgraph_pgstate.server.graphs import ServedGraphs
from langgraph_pgstate.server.json import encode
from langgraph_pgstate.server.langgraph_platform import serving
from langgraph_pgstate.server.pacing import held
from langgraph_pgstate.server.rates import RateLimit
from langgraph_pgstate.server.reading import BodyLimit, BodyLimits, json_of
from langgraph_pgstate.server.routes import OPERATIONS, Operation
from langgraph_pgstate.server.service import Call, HeaderSelection, Service
from langgraph_pgstate.server.store import open_memory
from langgraph_pgstate.server.tenants import TenantParts, request_of
from langgraph_pgstate.state import AsyncPGState, core_of, tenant_state
from langgraph_pgstate.worker.graphs import graph_sources
from langgraph_pgstate.worker.worker import AsyncWorker

_log = logging.getLogger("langgraph_pgstate.server")

DISABLING: Final = ("assistants", "threads", "runs", "store", "meta")
"""Groups of operations that the option `disabled` can leave out."""
_SWEEP_SECONDS: Final = 60.0
# Response headers that pages of other origins may read.
_EXPOSED: Final = ("Content-Location", "Location", "Retry-After", "X-Pagination-Total", "X-Pagination-Next")


class ServerOptions(TypedDict, total=False):
    """Options of `create_app`.

    Attributes:
        auth: LangGraph's `Auth` object. Without it, every caller may do everything.
        prefix: Path below which the operations are, like `/agents`.
        worker: Whether the application runs a worker for its graphs (true by default), or the options of this worker.
        store: A LangGraph `BaseStore`, or a function that opens a store when the application starts; by default the
            state's long-term memory. Graphs without a store use it, and so do the operations on items.
        memory: Options of the long-term memory; by default those of the state.
        read_only: Whether operations that change something are refused. A read-only application runs no worker.
        cors: Options of Starlette's `CORSMiddleware`. By default, responses have no headers for other origins.
        max_body_size: Maximum number of bytes of a request's body; 16 MiB by default.
        max_body_values: Maximum number of lists, objects and items of a request's body; 100,000 by default.
        rate_limit: The maximum number of requests of each user; no limit by default.
        inspector: Whether the pages of the inspector are served below `/ui`; false by default.
        app: A Starlette or FastAPI application, to which `create_app` adds the server. The application's routes take
            precedence. Its middleware applies to all requests, and its lifespan is entered, too.
        app_auth: When `auth` authenticates requests to the routes of `app`: `none` (never, the default),
            `middleware_first` (after the middleware of `app`) or `auth_first` (before the middleware).
        receipt_key: The key that signs the receipts of erasures made on the inspector's pages: a secret of at least 16
            bytes, or a private key for Ed25519 as PEM. Without it, receipts are not signed.
        configurable_headers: Request headers that are passed to runs in `config["configurable"]`; none by default.
        disabled: Parts whose operations are left out: `assistants`, `threads`, `runs` (with crons, feedback and the
            commands of threads), `store`, `meta` (the operations about the server, except `/ok`).
    """

    auth: Auth | None
    prefix: str
    worker: bool | WorkerOptions
    store: BaseStore | Callable[[], AbstractAsyncContextManager[BaseStore | None]] | None
    memory: MemoryOptions | None
    read_only: bool
    cors: Mapping[str, Any] | None
    max_body_size: int
    max_body_values: int
    rate_limit: RateLimit | None
    inspector: bool
    receipt_key: bytes | str | None
    configurable_headers: HeaderSelection | None
    app: Starlette | None
    app_auth: AuthPlace
    disabled: Collection[str]


class AgentServer(Starlette):
    """LangGraph's protocol as an ASGI application; see `create_app`.

    Attributes:
        operations: The operations that the application serves.
        service: The state, graphs and settings that handlers use while the application runs; `None` before and after.
    """

    def __init__(self, opening: Callable[[], Any], graphs: Mapping[str, Any], options: ServerOptions) -> None:
        check_options(type(self), options, ServerOptions)
        # Graphs may be missing only if the server shows the inspector, whose pages need no graphs.
        self._opening, self._sources = opening, graph_sources(graphs) if graphs or not options.get("inspector") else {}
        self._store, self._is_read_only = options.get("store"), options.get("read_only", False)
        self._memory = options.get("memory")
        self._rate_limit, self._headers = options.get("rate_limit"), options.get("configurable_headers")
        if self._rate_limit is not None and not isinstance(self._rate_limit, RateLimit):
            raise ArgumentTypeError(f"rate_limit must be a RateLimit, not {type(self._rate_limit).__name__}")
        self._receipt_key = options.get("receipt_key")
        signer_of(self._receipt_key)
        self._limits = _limits_of(options)
        auth, prefix, cors = options.get("auth"), options.get("prefix", ""), options.get("cors")
        self._authority = None if auth is None else Authority(auth)
        worker = options.get("worker", True)
        self._worker_options: WorkerOptions | None = None
        if worker is not False and not self._is_read_only and self._sources:
            self._worker_options = {} if worker is True else worker
        self._worker: AsyncWorker | None = None
        self.service: Service | None = None
        disabled = options.get("disabled", ())
        if unknown := [part for part in disabled if part not in DISABLING]:
            raise ConfigurationError(f"disabled must name parts among {', '.join(DISABLING)}, not {unknown[0]!r}")
        self.operations = tuple(one for one in OPERATIONS if one.part not in disabled)
        routes: list[Any] = [_route(one) for one in self.operations]
        if options.get("inspector", False):
            routes.append(_pages())
        self._custom = options.get("app")
        self._outer: ASGIApp | None = None
        allowed = None if cors is None else {"expose_headers": _EXPOSED, **cors}
        if self._custom is not None:
            place = options.get("app_auth", "none")
            self._outer = around(
                self._custom, super().__call__, self.operations, self._authority, place, prefix, allowed, self._limits
            )
            prefix, allowed = "", None
        middleware = [] if allowed is None else [Middleware(CORSMiddleware, **allowed)]
        middleware.append(Middleware(BodyLimit, most=self._limits.size))
        super().__init__(
            routes=[Mount(prefix, routes=routes)] if prefix else routes,
            middleware=middleware,
            exception_handlers=dict(HANDLERS),
            lifespan=lambda _: self.lifespan(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        with request_of(scope):
            await (super().__call__ if self._outer is None else self._outer)(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Open the state and the store, and run the worker, until the end of the block.

        If the application is served alone, Starlette enters this lifespan. An application that mounts the server must
        use `server.lifespan` as its lifespan, or enter `server.lifespan()` within its own lifespan.
        """
        async with AsyncExitStack() as stack:
            opened = self._opening()
            state = opened if isinstance(opened, AsyncPGState) else await stack.enter_async_context(opened)
            check_projectable_in((one.graph for one in self._sources.values()), core_of(state).project)
            stack.enter_context(serving(state))
            store, sources = self._store, self._sources
            if store is not None and not isinstance(store, BaseStore):
                store = await stack.enter_async_context(store())
            if store is None:
                store = await stack.enter_async_context(open_memory(state, self._memory, writes=not self._is_read_only))
            is_walled = state.tenant is None and await state.keeps_tenants_apart()
            if is_walled:
                self._check_tenants()
            if store is not None:
                sources = {name: source.with_store(store) for name, source in sources.items()}
            served = ServedGraphs(sources, state.saver)
            service = Service(state, served, self._authority, store, self._is_read_only, self._rate_limit)
            service.headers, service.limits, service.receipt_key = self._headers, self._limits, self._receipt_key
            if is_walled:
                service.tenants = TenantParts(partial(self._open_tenant, service))
                stack.push_async_callback(service.tenants.close)
            if self._worker_options is not None:
                self._worker = AsyncWorker(state, sources, **self._worker_options)
                # `_worker` stays set until the worker has drained, so that `stop` can end the draining.
                stack.callback(setattr, self, "_worker", None)
                await stack.enter_async_context(self._worker)
                if not is_walled:
                    sweeping = asyncio.create_task(_sweep(state, store))
                    stack.push_async_callback(_stop, sweeping)
            self.service = service
            if self._custom is not None:
                await stack.enter_async_context(self._custom.router.lifespan_context(self._custom))
            try:
                yield
            finally:
                self.service = None
                service.stopping.set()

    def _check_tenants(self) -> None:
        """Refuse options that do not keep tenants apart."""
        if self._authority is None:
            raise TenantError(
                "auth must be given, and its users must have a tenant_id, because the tables keep tenants apart"
            )
        if self._store is not None:
            raise TenantError("store must not be given, because the tables keep tenants apart, but the store does not")

    def _open_tenant(self, service: Service, tenant: str, stack: AsyncExitStack) -> Service:
        """Return the service of one tenant. The stack closes the service's state and store."""
        # Make a new state for the stack to close. `for_tenant` would return a state that other code may share.
        state = tenant_state(service.state, tenant)
        stack.push_async_callback(state.close)
        core = core_of(state)
        database: Any = core.database
        given = core.memory if self._memory is None else self._memory
        store = AsyncPGMemoryStore.over(database, core.queries, given, core.run_of, counts_reads=not self._is_read_only)
        stack.push_async_callback(store.close)
        sources = {name: source.with_store(store) for name, source in self._sources.items()}
        graphs = ServedGraphs(sources, state.saver)
        return replace(service, state=state, graphs=graphs, store=store, tenants=None, metrics=None)

    def stop(self) -> None:
        """End open streams, and ask the worker to drain. A second call stops the worker at once.

        Does not wait. Safe in a signal handler.
        """
        if self.service is not None:
            self.service.stopping.set()
        if self._worker is not None:
            self._worker.stop()


def create_app(
    state: AsyncPGState | Callable[[], AbstractAsyncContextManager[AsyncPGState]],
    graphs: Mapping[str, Any],
    **options: Unpack[ServerOptions],
) -> AgentServer:
    """Return an application that serves graphs over the protocol of LangGraph's clients.

    Args:
        state: The state, or a function that opens the state when the application starts, like `lambda:
            AsyncPGState.open("postgresql://localhost/app")`.
        graphs: Graphs by name, or factories that make a graph for each run. Compile them without a checkpointer, or
            with the state's saver.
        options: See `ServerOptions`.

    Raises:
        ConfigurationError: If a graph or an option is not usable.

    Example:
        >>> server = create_app(lambda: AsyncPGState.open(dsn), {"agent": graph}, auth=auth)
        >>> app = FastAPI(lifespan=server.lifespan)
        >>> app.mount("/agents", server)
    """
    if isinstance(state, AsyncPGState):
        return AgentServer(lambda: state, graphs, options)
    if not callable(state):
        raise ArgumentTypeError(
            f"state must be an AsyncPGState or a function that opens one, not {type(state).__name__}"
        )
    return AgentServer(state, graphs, options)


def _limits_of(options: ServerOptions) -> BodyLimits:
    found = {"size": options.get("max_body_size"), "values": options.get("max_body_values")}
    for name, most in found.items():
        if most is not None and (type(most) is not int or most < 1):
            raise ConfigurationError(f"max_body_{name} must be a number from 1, got {most!r}")
    return BodyLimits(**{name: most for name, most in found.items() if most is not None})


def _pages() -> Mount:
    # Import by name, because the inspector is a higher layer, which modules of the server must not import.
    try:
        inspector = import_module("langgraph_pgstate.inspector.app")
    except ImportError as error:
        raise ConfigurationError(
            f"the inspector requires the extra `server`: pip install 'langgraph-pgstate[server]' ({error})"
        ) from error
    mounted: Mount = inspector.mount()
    return mounted


def _route(operation: Operation) -> Route:
    async def endpoint(request: Request) -> Response:
        return await _answer(operation, request)

    name = f"{operation.name}:{operation.method}:{operation.path}"
    return Route(operation.path, endpoint, methods=[operation.method], name=name)


async def _answer(operation: Operation, request: Request) -> Response:
    service: Service | None = request.app.service
    if service is None:
        raise refuse(
            503,
            "the server is not running: the application that mounts the server must use server.lifespan as its "
            "lifespan, or enter server.lifespan() within its own lifespan",
            {"Retry-After": "1"},
        )
    authority = None if operation.is_open else service.authority
    # Authenticate the client before the body is read, so that unknown clients cost little.
    most = service.limits.values
    body = await json_of(request, most) if authority is not None and authority.needs_body else None
    user = None if authority is None else await authority.authenticate(request, body)
    if service.rate_limit is not None and not operation.is_unlimited:
        service.rate_limit.check(request, user)
    if operation.handler is None:
        raise refuse(501, f"{operation.name} is not implemented")
    if service.is_read_only and not operation.is_read:
        raise refuse(403, "the server is read-only")
    if authority is None or not authority.needs_body:
        body = await json_of(request, most)
    model = None if operation.body is None else operation.body.of(body)
    if not operation.is_open:
        service = service.of(user, request)
    found = await operation.handler(Call(service, request, model, user))
    if not isinstance(found, Response):
        found = Response(await encode(found), media_type="application/json")
    return held(found, operation.is_read)


async def _sweep(state: AsyncPGState, store: BaseStore | None) -> None:
    """Delete or prune expired threads, and embed memories that lack embeddings, every minute."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            await state.threads.sweep(limit=1000)
        except PGStateError as error:
            _log.warning("expired threads could not be swept: %s", error)
        if isinstance(store, AsyncPGMemoryStore):
            try:
                await store.reindex()
            except Exception as error:
                # An error of the embedding model must not end the sweeps.
                _log.warning("memories could not be embedded: %s", error)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
