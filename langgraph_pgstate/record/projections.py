"""Projections: chosen channels of the root namespace as JSON, one row per thread, written with the checkpoint.

If JSON cannot represent a value, a reference to the value is stored. So no value makes a put fail.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import orjson
from langgraph.channels.delta import DeltaChannel
from pydantic import BaseModel

from langgraph_pgstate.arguments import several
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.schema.queries import Queries, Statement

_REFERENCE: Final = "$ref"
# Maximum size of a value. A larger value is stored as a reference.
_MAX_BYTES: Final = 1024 * 1024
_MAX_DEPTH: Final = 100
_REMEMBERED: Final = 50_000
_PLAIN: Final = (str, int, float, bool, type(None))
_AS_TEXT: Final = (datetime, date, time, timedelta, UUID, Decimal)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)


class ProjectionHook:
    """A hook of the saver that stores projections of the channels `names`. Safe to share between threads.

    Raises:
        ConfigurationError: If the names are not strings.
    """

    def __init__(self, queries: Queries, names: Sequence[str]) -> None:
        if not all(isinstance(name, str) and name for name in several("project", names)):
            raise ArgumentTypeError(f"project= must be names of channels, not {names!r}")
        self._queries = queries
        self._names = tuple(dict.fromkeys(names))
        # For each thread, the last checkpoint that this process has put, and the channel versions of its projection.
        self._last: dict[str, tuple[str | None, list[Any]]] = {}

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return the statement for a root checkpoint; none if no chosen value has changed since the last put."""
        request = plan.request
        address = request.address
        if address.checkpoint_ns or not self._names:
            return ()
        parent_id = request.parent.checkpoint_id if request.parent else None
        # The last checkpoint must be the parent, because another branch may have other values under the same versions.
        if parent_id and self._last.get(address.thread_id) == (parent_id, self._versions(plan)):
            return ()
        values = request.checkpoint["channel_values"]
        chosen = {name: values[name] for name in self._names if name in values}
        parameters = {
            "thread_id": address.thread_id,
            "checkpoint_id": address.checkpoint_id,
            "revision": plan.manifest.revision,
            "projected": projected(chosen, str(address.checkpoint_id)),
        }
        return [(self._queries.put_projection, parameters)]

    def after_put(self, plan: PutPlan) -> None:
        """Remember the versions of the stored projection."""
        address = plan.request.address
        if address.checkpoint_ns:
            return
        if len(self._last) >= _REMEMBERED:
            self._last = {}
        self._last[address.thread_id] = (address.checkpoint_id, self._versions(plan))

    def forget_thread(self, thread_id: str) -> None:
        """Forget the last put on a thread, so that the next put writes the projection."""
        self._last.pop(thread_id, None)

    def _versions(self, plan: PutPlan) -> list[Any]:
        return [plan.request.checkpoint["channel_versions"].get(name) for name in self._names]


def projected(values: Mapping[str, Any], checkpoint_id: str) -> str:
    """Return some channels' values as JSON text, with references for values that JSON cannot represent."""
    state = {name: _projected(value, name, checkpoint_id) for name, value in values.items()}
    return orjson.dumps(to_json(state)[0]).decode()


def check_projectable(graph: Any, names: Sequence[str]) -> None:
    """Raise a `ConfigurationError` if a graph lacks a channel, or declares a type that JSON cannot represent."""
    channels = getattr(graph, "channels", {})
    declared = _declared_types(getattr(graph, "builder", None))
    reasons = []
    for name in names:
        if name not in channels:
            known = ", ".join(sorted(other for other in channels if not other.startswith(("__", "branch:"))))
            reasons.append(f"{name!r} is not a channel of the graph (it has {known or 'none'})")
        elif isinstance(channels[name], DeltaChannel):
            reasons.append(f"{name!r} is a DeltaChannel, of which checkpoints hold differences only")
        elif name in declared and (culprit := _unfit(declared[name], frozenset())) is not None:
            reasons.append(f"{name!r} is declared with {culprit}, which JSON cannot represent")
    if reasons:
        raise ConfigurationError(f"project= is not possible: {'; '.join(reasons)}")


def check_projectable_in(graphs: Iterable[Any], names: Sequence[str]) -> None:
    """Raise a `ConfigurationError` if a channel is in no graph, or has a type that JSON cannot represent.

    Args:
        graphs: Compiled graphs; `None` for a graph that is made for each run.
        names: The channels.
    """
    known = [*graphs]
    for graph in known:
        if graph is not None:
            check_projectable(graph, [name for name in names if name in graph.channels])
    missing = [name for name in names if not any(graph is None or name in graph.channels for graph in known)]
    if known and missing:
        raise ConfigurationError(f"project= must name channels: {missing[0]!r} is not a channel of any graph")


def _declared_types(builder: Any) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    for schema in getattr(builder, "schemas", {}):
        try:
            declared.update(typing.get_type_hints(schema))
        except Exception:  # nosec B112
            # Ignore annotations that cannot be resolved.
            continue
    return declared


def _unfit(kind: Any, seen: Collection[Any]) -> str | None:
    """Return the part of a declared type whose values JSON can never represent, or `None`."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _unfit(typing.get_args(kind)[0], seen)
    if origin in (typing.Union, types.UnionType):
        # One suitable alternative is enough. Values of other alternatives become references.
        culprits = [_unfit(part, seen) for part in typing.get_args(kind) if part is not type(None)]
        return None if None in culprits else next(iter(culprits), None)
    if origin is not None and isinstance(origin, type) and issubclass(origin, _CONTAINERS):
        return _first_unfit([part for part in typing.get_args(kind) if part is not Ellipsis], seen)
    if not isinstance(kind, type) or origin is not None or kind in seen:
        return None
    if kind is Any or kind is object or issubclass(kind, (*_PLAIN, *_AS_TEXT, *_CONTAINERS, Enum, BaseModel)):
        return None
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        try:
            hints = typing.get_type_hints(kind)
        except Exception:
            return None
        return _first_unfit(hints.values(), {*seen, kind})
    if getattr(kind, "__abstractmethods__", None) or getattr(kind, "_is_protocol", False):
        # Values of abstract types like Mapping and Sequence may be suitable.
        return None
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _first_unfit(kinds: Iterable[Any], seen: Collection[Any]) -> str | None:
    return next((culprit for kind in kinds if (culprit := _unfit(kind, seen)) is not None), None)


class _UnfitError(Exception):
    """A value has a type that JSON cannot represent."""


def _projected(value: Any, channel: str, checkpoint_id: str) -> Any:
    """Return a channel's value as JSON, or a reference to the value."""
    try:
        plain = _plain(value, 0)
        if len(orjson.dumps(to_json(plain)[0])) <= _MAX_BYTES:
            return plain
    except Exception:  # nosec B110
        # The put must not fail. The conversion can run code of the application, which may raise any exception.
        pass
    kind = type(value)
    return {
        _REFERENCE: {
            "channel": channel,
            "checkpoint_id": checkpoint_id,
            "type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        }
    }


def _plain(value: Any, depth: int) -> Any:
    """Return a value converted to JSON types. Raise `_UnfitError` if JSON has no such type."""
    if depth > _MAX_DEPTH:
        raise _UnfitError
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _AS_TEXT):
        return value.isoformat() if isinstance(value, date | time) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key, depth + 1)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"), depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _plain(found, depth + 1)
    raise _UnfitError
