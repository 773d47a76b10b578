"""LangGraph's serializer, with this package's rule for the types that are built."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Self

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import emit_serde_event
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    LC_REVIVER,
)

from langgraph_pgstate.codec.building import NUMPY, PLAIN, REFUSED, Types, is_enum, is_imported, is_model, warn_plain
from langgraph_pgstate.codec.messages import UNPACK_OPTIONS
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.langgraph_compat import DeltaSnapshot, SerializerBase, send_class, strict_hook
from langgraph_pgstate.options import AllowedTypes, check_allowed_types

_allowlist_lock = threading.Lock()
# Functions that call a type with a payload, by extension code.
_CALLS: Final[Mapping[int, Callable[[Any, Any], Any]]] = {
    EXT_CONSTRUCTOR_SINGLE_ARG: lambda build, payload: build(payload),
    EXT_CONSTRUCTOR_POS_ARGS: lambda build, payload: build(*payload),
    EXT_CONSTRUCTOR_KW_ARGS: lambda build, payload: build(**payload),
    EXT_METHOD_SINGLE_ARG: lambda build, payload: build(payload),
    EXT_PYDANTIC_V1: lambda build, payload: _build_model(build, payload, "construct"),
    EXT_PYDANTIC_V2: lambda build, payload: _build_model(build, payload, "model_construct"),
}


class StateSerializer(SerializerBase):
    """LangGraph's serializer, but it builds only types that `Types` allows. The written bytes are the same.

    A value of a refused type is read as plain data, and reported to LangGraph's serde event listeners. `ValueCodec`
    listens, and raises an error.

    Args:
        allowed: Types that may be built beyond the rule; `True` allows all types, and then reading imports any named
            module.
        strict: Whether data types of imported modules are refused, too.
        is_lenient: Whether a codec reads a refused type as plain data instead of raising.
    """

    def __init__(
        self,
        allowed: Iterable[type | tuple[str, ...]] | Literal[True] = (),
        *,
        strict: bool = False,
        is_lenient: bool = False,
    ) -> None:
        super().__init__(allowed_msgpack_modules=True if allowed is True else None)
        self.is_lenient = is_lenient
        self.builds_all = allowed is True
        self._use(Types(() if allowed is True else allowed, strict=strict))

    def _use(self, types: Types) -> None:
        self.types = types
        self.note_objects(types.note_stored, types.noted)
        if not self.builds_all:
            self.use_extension_hook(_extension_hook(types))

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Self:
        """Return a serializer that may also build the given types."""
        types = self.types.allowing(extra_allowlist)
        if self.builds_all or types is self.types:
            return self
        clone = copy.copy(self)
        clone._use(types)
        return clone

    def revive(self, value: dict[str, Any]) -> Any:
        """Build an object from JSON if `Types` allows its type.

        The JSON names the type as LangChain does (`lc` 1) or by its module (`lc` 2).
        """
        id = value.get("id")
        if self.builds_all or value.get("type") != "constructor" or value.get("lc") not in (1, 2):
            return super().revive(value)
        if not isinstance(id, list) or len(id) < 2 or not all(isinstance(part, str) for part in id):
            return value
        if value["lc"] == 1:
            path = LC_REVIVER.import_mappings.get(tuple(id), tuple(id))
            found = _find_builder(self.types, ".".join(path[:-1]), path[-1])
            build = partial(LC_REVIVER, value)
        else:
            path = tuple(id)
            found = _find_builder(self.types, ".".join(path[:-1]), path[-1])
            arguments, named = value.get("args") or (), value.get("kwargs") or {}
            if is_enum(found) and (named or len(arguments) != 1):
                return value
            build = partial(_call, found, arguments, named)
        if found is None:
            return value
        try:
            return build()
        except Exception as error:
            warn_plain(".".join(path[:-1]), path[-1], type(error).__name__)
            return value


class WideningSerializer(StateSerializer):
    """A serializer that allows more types by changing itself instead of returning a copy.

    To allow more types for a graph, LangGraph copies the graph's saver. On the Agent Server, this saver is a wrapper,
    and a copy of the wrapper does not change the wrapped saver. With this serializer, a type that one graph's schema
    names is allowed for all graphs of the process.
    """

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Self:
        """Allow more types for all users of this serializer from now on. Thread-safe."""
        with _allowlist_lock:
            types = self.types.allowing(extra_allowlist)
            if types is not self.types:
                self._use(types)
        return self


def state_serializer(
    serde: SerializerProtocol | None, allowed_types: AllowedTypes = (), strict: bool = False
) -> SerializerProtocol:
    """Return the serializer for a saver's options: the caller's own, or LangGraph's with the rule of `Types`.

    Raises:
        ConfigurationError: If an option is not usable, or if types are given for the caller's own serializer.
    """
    allowed = check_allowed_types(allowed_types)
    if serde is None:
        return StateSerializer(allowed, strict=strict)
    if strict or allowed:
        raise ConfigurationError(
            "allowed_types and strict must not be given together with serde=, because they apply only to LangGraph's "
            "own serializer: configure the serializer that you pass"
        )
    return serde


def plain_serializer() -> StateSerializer:
    """Return a serializer that builds LangGraph's own types and reads all others as plain data."""
    return StateSerializer(strict=True, is_lenient=True)


def _extension_hook(types: Types) -> Callable[[int, bytes], Any]:
    """Return an extension hook that builds the types that `types` allows, as LangGraph's own hook does."""
    unpack = ormsgpack.unpackb

    def hook(code: int, data: bytes) -> Any:
        if code == EXT_DELTA_SNAPSHOT:
            return DeltaSnapshot(unpack(data, ext_hook=hook, option=UNPACK_OPTIONS))
        if code == EXT_NUMPY_ARRAY and not is_imported(NUMPY[0]):
            _report_refused(*NUMPY)
            return unpack(data, ext_hook=hook, option=UNPACK_OPTIONS)
        call = _CALLS.get(code)
        if call is None:
            return strict_hook(code, data)
        module, name, payload, *rest = unpack(data, ext_hook=hook, option=UNPACK_OPTIONS)
        method = rest[0] if code == EXT_METHOD_SINGLE_ARG else ""
        found = _find_builder(types, module, name, code, method)
        if found is None:
            return payload
        try:
            return call(found, payload)
        except Exception as error:
            warn_plain(module, name, type(error).__name__)
            return payload

    return hook


def _find_builder(types: Types, module: str, name: str, code: int | None = None, method: str = "") -> Any:
    """Return the callable that builds a type. If the type is refused or missing, report this and return `None`."""
    if not type(module) is type(name) is type(method) is str:
        raise TypeError("the module and name of a type must be strings")
    if code == EXT_METHOD_SINGLE_ARG:
        found = types.find_method(module, name, method)
    else:
        found = types.find(module, name)
        if found is send_class() and code == EXT_CONSTRUCTOR_POS_ARGS:
            return _send
        if code and is_enum(found):
            found = REFUSED
    if found is REFUSED:
        _report_refused(module, name)
        return None
    if found is PLAIN:
        warn_plain(module, name, "its module does not have it")
        return None
    return found


def _report_refused(module: str, name: str) -> None:
    emit_serde_event({"kind": "msgpack_blocked", "module": module, "name": name})


def _build_model(build: Any, payload: Any, construct: str) -> Any:
    try:
        return build(**payload)
    except Exception:
        if not is_model(build):
            raise
        # Build without validation, as LangGraph does.
        return getattr(build, construct)(**payload)


def _call(build: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return build(*arguments, **named)


def _send(*arguments: Any) -> Any:
    send = send_class()
    return send(*arguments) if len(arguments) == 2 else send(arguments[0], arguments[1], timeout=arguments[2])
