"""The arguments of handlers: the `Service` that all handlers share, and the `Call`, a request with its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from starlette.requests import Request

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.metrics import Metrics
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.scopes import Alternatives, both
from langgraph_pgstate.server.auth import Authority, User
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.server.graphs import Graph, ServedGraphs
from langgraph_pgstate.server.rates import RateLimit
from langgraph_pgstate.server.reading import DEFAULT_LIMITS, BodyLimits
from langgraph_pgstate.server.tenants import TenantParts
from langgraph_pgstate.state import AsyncPGState, core_of
from langgraph_pgstate.threads.types import Thread, ThreadOwner
from langgraph_pgstate.worker.graphs import Access as GraphAccess

# Metadata with which the recorder identifies a run.
_OF_RUNS: Final = frozenset({"thread_id", "run_id", "run_attempt", "run_key", "release", "lc_agent_name"})
# Headers with credentials of LangGraph Platform. A pattern with a star does not select these headers.
_SECRETS: Final = ("x-api-key", "x-tenant-id", "x-service-key")


class HeaderSelection:
    """A selection of headers by patterns. In a pattern, a star stands for any text. Case does not matter.

    Args:
        includes: Patterns of the headers that are chosen.
        excludes: Patterns of headers that are left out, even if `includes` matches them.
    """

    def __init__(self, includes: Sequence[str], excludes: Sequence[str] = ()) -> None:
        self._includes = [one.lower() for one in includes]
        self._excludes = [one.lower() for one in excludes]

    def of(self, headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
        """Return the chosen headers by their names in lower case."""
        return {name.lower(): value for name, value in headers if self._takes(name.lower()) and "\0" not in value}

    def _takes(self, name: str) -> bool:
        if any(fnmatchcase(name, one) for one in self._excludes):
            return False
        return name in self._includes or (
            name not in _SECRETS and any(fnmatchcase(name, one) for one in self._includes)
        )


class Access(NamedTuple):
    """Conditions on the assistants or crons that a caller may see or change.

    Attributes:
        scope: Metadata that the assistants or crons must contain; `None` for no condition.
        owner_id: The user who must own the assistants or crons, if no handler of `Auth` decides; else `None`.
    """

    scope: Alternatives | None = None
    owner_id: str | None = None


@dataclass(slots=True)
class Service:
    """The state, graphs and settings of a running application. Handlers find it in `Call.service`.

    Attributes:
        authority: Authenticates and authorizes callers; `None` if every caller may see all.
        headers: The request headers that are passed to runs in their config.
        stopping: Set when open streams must end because the process stops.
        metrics: The metrics, made at the first request for metrics.
        receipt_key: The key that signs receipts of erasures made on pages; `None` for receipts without a signature.
        tenants: A service for each tenant; `None` if the database does not keep tenants apart, or if the state belongs
            to one tenant.
    """

    state: AsyncPGState
    graphs: ServedGraphs
    authority: Authority | None = None
    store: BaseStore | None = None
    is_read_only: bool = False
    rate_limit: RateLimit | None = None
    headers: HeaderSelection | None = None
    limits: BodyLimits = DEFAULT_LIMITS
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: Metrics | None = None
    receipt_key: bytes | str | None = field(default=None, repr=False)
    tenants: TenantParts[Service] | None = None

    def of(self, user: User | None, request: Request) -> Service:
        """Return the service of the caller's tenant, or this service if tenants are not kept apart.

        A tenant's service reaches only the tenant's rows, and stays open until the request ends.
        """
        if self.tenants is None:
            return self
        tenant = None if user is None else tenant_of(user, core_of(self.state).keys)
        if tenant is None:
            raise refuse(403, "the user has no tenant")
        try:
            return self.tenants.take(tenant, request.scope)
        except ConfigurationError as error:
            raise refuse(403, "the user's tenant is not usable") from error


def tenant_of(user: User, keys: ThreadKeys) -> str | None:
    """Return the tenant of a user: the first text in the fields that `keys.tenant` names; `None` if there is none."""
    fields = (user[name] for name in keys.tenant if name in user)
    return next((one for one in fields if isinstance(one, str) and one), None)


@dataclass(slots=True)
class Call:
    """One request with its caller. Each handler takes it as its only argument.

    Attributes:
        service: The state, graphs and settings of the application, or of the caller's tenant.
        body: The validated body, if the operation has one.
        user: The authenticated caller; `None` without `auth`.
        scope: Metadata that a thread must contain for the caller to reach the thread, as a handler of `Auth` has
            decided last; `None` for all threads.
    """

    service: Service
    request: Request
    body: Any = None
    user: User | None = None
    scope: Alternatives | None = field(default=None, kw_only=True)

    @property
    def state(self) -> AsyncPGState:
        """The state."""
        return self.service.state

    def metadata(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a copy of a client's metadata without the keys that identify a run.

        With `auth`, also leave out the keys of the owner and the agent, which only handlers of `Auth` may set.
        """
        names = _OF_RUNS if self.user is None else _OF_RUNS | self.owner_keys | {*self.thread_keys.agent}
        return {name: value for name, value in (given or {}).items() if name not in names}

    @property
    def thread_keys(self) -> ThreadKeys:
        """The keys of configs and metadata that name the owner of a thread."""
        return core_of(self.state).keys

    @property
    def owner_keys(self) -> frozenset[str]:
        """The keys that name the user and the tenant."""
        return frozenset({*self.thread_keys.user, *self.thread_keys.tenant})

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that are passed to runs in their config."""
        chosen = self.service.headers
        return {} if chosen is None else chosen.of(self.request.headers.items())

    def path(self, name: str) -> str:
        """Return a part of the request's path."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        """Return a parameter of the query; `None` if it is missing or empty."""
        found = self.request.query_params.get(name, "")
        if "\0" in found:
            raise refuse(422, f"{name} must not hold NUL, which PostgreSQL cannot store")
        return found or None

    def flag(self, name: str) -> bool:
        """Return whether a parameter of the query is true."""
        return (self.query(name) or "").lower() in ("true", "1", "yes")

    def names(self, name: str, known: Collection[str] | None = None) -> list[str] | None:
        """Return the names in a query parameter, which may be repeated or have commas; `None` if it is missing."""
        given = [part for value in self.request.query_params.getlist(name) for part in value.split(",") if part]
        for one in given:
            # `values.NAME` names a channel.
            is_channel = known is not None and "values" in known and one.startswith("values.")
            if known is not None and one not in known and not is_channel:
                raise refuse(422, f"{name} must have names among {', '.join(known)}, not {one!r}")
        return given or None

    def number(self, name: str, default: int, most: int = 2**31 - 1) -> int:
        """Return a number of the query, or the default if the parameter is missing."""
        text = self.query(name)
        if text is None:
            return default
        # Python refuses to parse very long integers.
        if not text.isdecimal() or len(text) > 100 or int(text) > most:
            raise refuse(422, f"{name} must be a number from 0 to {most}, not {text!r}")
        return int(text)

    def graph(
        self,
        name: str,
        config: Mapping[str, Any],
        access: GraphAccess = "threads.read",
        saver: BaseCheckpointSaver[str] | None = None,
    ) -> AbstractAsyncContextManager[Graph]:
        """Provide a graph. A function that makes the graph gets the config, with the caller as the user."""
        user = {} if self.user is None else {**self.user.configurable, "user_id": self.user.identity}
        configurable = {**(config.get("configurable") or {}), **user}
        return self.service.graphs.open(name, {**config, "configurable": configurable}, access, saver)

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Alternatives | None:
        """Return the metadata that objects must contain for the caller to reach them; `None` for all objects.

        The handler of `Auth` may refuse the operation, or change `value`.
        """
        if self.service.authority is None or self.user is None:
            return None
        scope = await self.service.authority.authorize(self.user, resource, action, value)
        if resource == "threads":
            self.scope = scope
        return scope

    async def access(self, resource: str, action: str, value: dict[str, Any]) -> Access:
        """Return the conditions on assistants or crons for an operation. The handler of `Auth` may change `value`.

        If no handler decides, the operation reaches only assistants and crons that the caller owns.
        """
        if self.service.authority is None or self.user is None:
            return Access()
        if action == "search":
            scope = await self.authorize_search(value, resource)
        else:
            scope = await self.authorize(resource, action, value)
        return Access(scope, None if self.service.authority.decides(resource, action) else self.user.identity)

    @property
    def owner_id(self) -> str | None:
        """The user who will own what the request creates."""
        return None if self.user is None else self.user.identity

    def owner_of(self, value: Mapping[str, Any]) -> ThreadOwner | None:
        """Return the owner and the metadata of a copy that the caller makes of a thread; `None` without a user.

        The copy belongs to the caller and the caller's tenant. Its metadata are those in `value`.
        """
        if self.user is None:
            return None
        tenant = tenant_of(self.user, self.thread_keys)
        return {"metadata": value.get("metadata") or {}, "user_id": self.user.identity, "tenant_id": tenant}

    async def authorize_search(self, value: dict[str, Any], resource: str = "threads") -> Alternatives | None:
        """Return the metadata of the threads, assistants or crons that the caller may see; `None` for all.

        A handler may return these metadata, or put them into the metadata of `value`.
        """
        # Keep a deep copy to compare, because a handler may change nested values.
        asked = deepcopy(value.setdefault("metadata", {}))
        scope = await self.authorize(resource, "search", value)
        found: dict[str, Any] = value.get("metadata") or {}
        demanded = {name: found[name] for name in found if name not in asked or asked[name] != found[name]}
        if not demanded:
            return scope
        return both(({**demanded},), ({},) if scope is None else scope)

    async def thread(self, action: str, value: dict[str, Any] | None = None) -> Thread:
        """Return the thread that the path names, if the caller may do the action on the thread.

        The handler of `Auth` may change `value`.
        """
        thread_id = self.path("thread_id")
        value = {} if value is None else value
        value["thread_id"] = thread_id
        scope = await self.authorize("threads", action, value)
        return await self.visible(thread_id, scope)

    async def visible(self, thread_id: str, scope: Alternatives | None) -> Thread:
        """Return a thread that the caller may see."""
        found = await self.state.threads.get(thread_id, scope=scope)
        if found is None:
            raise missing("thread", thread_id)
        return found
