"""Operations on items of LangGraph's store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from langgraph.store.base import NOT_PROVIDED, BaseStore, Item
from starlette.responses import Response

from langgraph_pgstate.memory.options import MemoryOptions
from langgraph_pgstate.memory.store import AsyncPGMemoryStore
from langgraph_pgstate.scopes import admits
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.state import AsyncPGState, core_of

# Prefixes of SQLSTATEs of errors in a caller's values: invalid data, an unknown operator, an exceeded limit.
_REFUSALS: Final = ("22", "42883", "54")

_OPERATORS: Final = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")


@asynccontextmanager
async def open_memory(
    state: AsyncPGState, options: MemoryOptions | None, *, writes: bool
) -> AsyncIterator[AsyncPGMemoryStore]:
    """Open the long-term memory of a state. If `writes`, create its indexes, and count reads."""
    core = core_of(state)
    database: Any = core.database
    given = core.memory if options is None else options
    store = AsyncPGMemoryStore.over(database, core.queries, given, core.run_of, counts_reads=writes)
    if writes:
        await store.setup_indexes()
    try:
        yield store
    finally:
        await store.close()


async def put_item(call: Call) -> Response:
    """Store an item."""
    body = call.body
    value: dict[str, Any] = {
        "namespace": _namespace(body.namespace),
        "key": body.key,
        "value": body.value,
        "index": body.index,
    }
    await _authorized(call, "put", value)
    options: Any = {"index": body.index, "ttl": NOT_PROVIDED if body.ttl is None else body.ttl}
    with _refusing():
        await _store(call).aput(_namespace(value["namespace"]), value["key"], value["value"], **options)
    return Response(status_code=204)


async def get_item(call: Call) -> Any:
    """Return an item, or `null` if there is none."""
    if call.query("key") is None:
        raise refuse(422, "key must not be empty")
    namespace = [part for part in (call.query("namespace") or "").split(".") if part]
    value: dict[str, Any] = {"namespace": _namespace(namespace), "key": call.query("key") or ""}
    await _authorized(call, "get", value)
    refreshes = _refreshes(call, None if call.query("refresh_ttl") is None else call.flag("refresh_ttl"))
    with _refusing():
        found = await _store(call).aget(_namespace(value["namespace"]), value["key"], refresh_ttl=refreshes)
    return None if found is None else item_of(found)


async def delete_item(call: Call) -> Response:
    """Delete an item."""
    value: dict[str, Any] = {"namespace": _namespace(call.body.namespace), "key": call.body.key}
    await _authorized(call, "delete", value)
    with _refusing():
        await _store(call).adelete(_namespace(value["namespace"]), value["key"])
    return Response(status_code=204)


async def search_items(call: Call) -> Any:
    """Return a page of items below a namespace."""
    body = call.body
    value: dict[str, Any] = {
        "namespace": _labels(body.namespace_prefix),
        "filter": body.filter,
        "limit": body.limit,
        "offset": body.offset,
        "query": body.query,
    }
    await _authorized(call, "search", value)
    _check_filter(value["filter"])
    options: Any = {name: value[name] for name in ("filter", "limit", "offset", "query")}
    options["refresh_ttl"] = _refreshes(call, body.refresh_ttl)
    with _refusing():
        below = _labels(value["namespace"])
        found = await _store(call).asearch(below, **options)
    items = [one for one in found if tuple(one.namespace[: len(below)]) == below]
    return {"items": [{**item_of(one), "score": one.score} for one in items]}


async def list_namespaces(call: Call) -> Any:
    """Return namespaces."""
    body = call.body
    value: dict[str, Any] = {
        "namespace": None if body.prefix is None else _labels(body.prefix),
        "suffix": None if body.suffix is None else _labels(body.suffix),
        "max_depth": body.max_depth,
        "limit": body.limit,
        "offset": body.offset,
    }
    await _authorized(call, "list_namespaces", value)
    with _refusing():
        found = await _store(call).alist_namespaces(
            prefix=value["namespace"],
            suffix=value["suffix"],
            max_depth=value["max_depth"],
            limit=value["limit"],
            offset=value["offset"],
        )
    return {"namespaces": [one for one in found if _begins(one, value["namespace"] or ())]}


def _refreshes(call: Call, asked: bool | None) -> bool | None:
    """Return whether a read extends the time to live of items; `None` for the store's default."""
    if not call.service.is_read_only:
        return asked
    if asked:
        raise refuse(403, "refresh_ttl must not be true, because the server is read-only")
    return False


def _begins(namespace: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether a namespace, possibly truncated, begins with some labels. A star stands for any label.

    Results of stores are checked again, because some stores compare prefixes of texts, and find "evelyn" for "eve".
    """
    return all(label in ("*", own) for label, own in zip(labels, namespace, strict=False))


def item_of(item: Item) -> dict[str, Any]:
    """Return an item in the form that clients expect."""
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


async def _authorized(call: Call, action: str, value: dict[str, Any]) -> None:
    """Refuse a caller who may not do something. The handler of `Auth` may change the namespace.

    Without a handler, a user may use namespaces that begin with the user's identity. A search without a namespace then
    searches these namespaces.
    """
    authority = call.service.authority
    if authority is not None and call.user is not None and not authority.decides("store", action):
        own = (call.user.identity,)
        value["namespace"] = value["namespace"] or own
        # An identity owns no namespace if it is a star, which stands for any label, or has a dot, which no label has.
        if tuple(value["namespace"][:1]) != own or own == ("*",) or "." in own[0]:
            raise refuse(403, "namespace must begin with the user's identity, because auth has no handler on the store")
    scope = await call.authorize("store", action, value)
    if not admits(scope, {**value, "namespace": list(value["namespace"] or ())}):
        raise refuse(403, "forbidden")


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors of the store about unsupported or invalid arguments into refusals with 422."""
    try:
        yield
    except (NotImplementedError, OverflowError, TypeError, ValueError) as error:
        raise refuse(422, f"the store refuses: {error}") from error
    except Exception as error:
        if not (getattr(error, "sqlstate", None) or "").startswith(_REFUSALS):
            raise
        raise refuse(422, f"the store refuses: {error}".partition("\n")[0]) from error


def _check_filter(filter: Any) -> None:
    """Refuse unknown operators, because a search with some of these would find nothing and raise no error."""
    for name, value in (filter or {}).items():
        operators = [name, *(value if isinstance(value, dict) else ())]
        unknown = [one for one in operators if one.startswith("$") and (one is name or one not in _OPERATORS)]
        if unknown:
            known = ", ".join(_OPERATORS)
            raise refuse(422, f"the store refuses {unknown[0]!r} in the filter: operators must be among {known}")


def _store(call: Call) -> BaseStore:
    if call.service.store is None:
        raise refuse(
            501, "store= of the server must be a function that opens a store, but the function has opened no store"
        )
    return call.service.store


def _namespace(labels: Sequence[str]) -> tuple[str, ...]:
    if not labels:
        raise refuse(422, "namespace must not be empty")
    return _labels(labels)


def _labels(labels: Sequence[str]) -> tuple[str, ...]:
    if any(not label or "." in label for label in labels):
        raise refuse(422, f"labels of a namespace must not be empty or have a dot, got {list(labels)}")
    return tuple(labels)
