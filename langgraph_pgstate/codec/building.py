"""The rule by which stored types are built.

Stored bytes contain the module and the name of a value's type. Anyone who can write to the database can write any name.
A type is built if it is one of LangGraph's own types, or if the program allows it. Unless the program is strict, data
types of imported modules are built, too. A data type is a dataclass, pydantic model, enum, named tuple or attrs class,
or a subclass of a value class of the standard library, such as `Decimal`. A data type is built by a call, which runs
its `__post_init__` and validators.

Reading a value imports nothing. Types are looked up directly in namespaces: no attribute hook, descriptor or metaclass
runs.
"""

from __future__ import annotations

import collections
import importlib
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, EnumMeta
from functools import cache
from importlib.machinery import ModuleSpec
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, Final
from uuid import UUID

from langgraph.store.base import Item
from pydantic import BaseModel, SecretBytes, SecretStr

from langgraph_pgstate.langgraph_compat import SAFE_TYPES, TUPLE, DeltaSnapshot, is_strict, send_class

Key = tuple[str, str]
"""Module and name of a type, as stored."""

REFUSED: Final = object()
"""Result of a lookup: the type may not be built."""
PLAIN: Final = object()
"""Result of a lookup: the type no longer exists. Its values are read as plain data, as LangGraph does."""
NUMPY: Final = ("numpy", "ndarray")

_NOT_IMPORTED: Final = "its module is not imported here"
_NO_DATA: Final = "it is no data type"
_STRICT: Final = "in strict mode only LangGraph's own types are built"
_MAX_NAMES: Final = 1000

# These functions read namespaces directly, so that no code of a module or class runs.
_module_namespace: Final[Callable[[Any], dict[str, Any]]] = vars(ModuleType)["__dict__"].__get__
_namespace: Final[Callable[[Any], Mapping[str, Any]]] = vars(type)["__dict__"].__get__
_lineage: Final[Callable[[Any], tuple[type, ...]]] = vars(type)["__mro__"].__get__
_bases: Final[Callable[[Any], tuple[type, ...]]] = vars(type)["__bases__"].__get__
_qualified_name: Final[Callable[[Any], str]] = vars(type)["__qualname__"].__get__
_from_isoformat: Final[Callable[[None, Any], Any]] = vars(datetime)["fromisoformat"].__get__

_logger = logging.getLogger("langgraph_pgstate")
_warned: set[tuple[str, ...]] = set()


class Types:
    """The types that may be built.

    Args:
        allowed: Types beyond LangGraph's own, as classes or as `(module, name)`. Their modules are imported now.
        strict: Whether data types that are not in `allowed` are refused; `LANGGRAPH_STRICT_MSGPACK` also turns this on.
    """

    __slots__ = ("_is_data", "_nested", "allowed", "noted", "strict")

    def __init__(self, allowed: Iterable[type | tuple[str, ...]] = (), *, strict: bool = False) -> None:
        _import_value_classes()
        self.strict = strict or is_strict()
        self.allowed = dict(map(_entry, allowed))
        # Ids of the classes that `note_stored` has checked. A new class that gets the id of a deleted class is not
        # checked.
        self.noted: set[int] = set()
        self._is_data: dict[Key, tuple[Any, bool]] = {}
        self._nested: dict[Key, tuple[int, str | None]] = {}

    def allowing(self, more: Iterable[type | tuple[str, ...]]) -> Types:
        """Return `Types` that also allow the types in `more`; this object if nothing changes."""
        entries = dict(map(_entry, more))
        if entries.keys() <= self.allowed.keys():
            return self
        wider = Types(strict=self.strict)
        wider.allowed = {**self.allowed, **entries}
        return wider

    def find(self, module: str, name: str) -> Any:
        """Return the class or function that builds a type.

        Return `REFUSED` if the type may not be built, and `PLAIN` if the type's module no longer has the type.
        """
        key = (module, name)
        if key == TUPLE:
            return tuple
        is_allowed = key in SAFE_TYPES or key in self.allowed
        if self.strict and not is_allowed:
            return REFUSED
        namespace = _imported(module)
        # Compare with `None`, because an object or a metaclass may define `__bool__`.
        found = namespace.get(name) if namespace is not None else None
        if found is None and namespace is not None:
            found = self._find_nested(namespace, key)
        if is_allowed:
            found = self.allowed.get(key) if found is None else found
            return PLAIN if found is None else found
        if found is None:
            # A module that is still being imported may define the name later.
            return REFUSED if namespace is None or _is_initializing(namespace) else PLAIN
        known, is_data = self._is_data.get(key, (None, False))
        if known is not found:
            is_data = _is_data_type(found)
            self._is_data[key] = (found, is_data)
        return found if is_data else REFUSED

    def find_method(self, module: str, name: str, method: str) -> Any:
        """Return the method that builds a value, or else `REFUSED` or `PLAIN`. Supports `datetime.fromisoformat`."""
        found = self.find(module, name) if method == "fromisoformat" else REFUSED
        if found is REFUSED or found is PLAIN:
            return found
        if found is datetime:
            return datetime.fromisoformat
        return _from_isoformat(None, found) if _is_class(found) and _descends(found, datetime) else REFUSED

    def why_refused(self, module: str, name: str) -> str:
        """Return the reason why `find` refuses a type."""
        if self.strict and (module, name) != NUMPY:
            return _STRICT
        namespace = _imported(module)
        return _NOT_IMPORTED if namespace is None or _is_initializing(namespace) else _NO_DATA

    def note_stored(self, value: Any) -> None:
        """Warn, once for each type, if another process could not read a value that is about to be stored."""
        kind = type(value)
        if len(self.noted) >= _MAX_NAMES:
            self.noted.clear()
        self.noted.add(id(kind))
        key = (kind.__module__, kind.__qualname__)
        if key not in _warned and len(_warned) < _MAX_NAMES:
            _warned.add(key)
            if why := self._why_unreadable(kind):
                _logger.warning(
                    "%s.%s is stored, and a new process could not read it back: %s. Define the type at the top of a "
                    "module as a dataclass, pydantic model, enum or named tuple, or name the type in allowed_types",
                    *key,
                    why,
                )

    def _why_unreadable(self, kind: type) -> str | None:
        key = (kind.__module__, kind.__name__)
        if key in SAFE_TYPES or key in self.allowed or issubclass(kind, BaseException | re.Pattern | DeltaSnapshot):
            return None
        if (numpy := _imported(NUMPY[0])) and issubclass(kind, numpy[NUMPY[1]]):
            return None
        if key[0] == "__main__":
            return "it is defined in the program itself, not in a module"
        found = self.find(*key)
        if found is not kind and found is not REFUSED:
            return f"module {key[0]} has no {key[1]} of this kind"
        return self.why_refused(*key) if found is REFUSED else None

    def _find_nested(self, namespace: Mapping[str, Any], key: Key) -> Any:
        """Return the nested class of a name, if the module has exactly one."""
        size, path = self._nested.get(key, (-1, None))
        if size != len(namespace):
            paths = [path for path, name in _nested_names(namespace, key[0]) if name == key[1]]
            path = paths[0] if len(paths) == 1 else None
            if len(self._nested) < _MAX_NAMES:
                self._nested[key] = (len(namespace), path)
        found: Any = None
        for part in path.split(".") if path else ():
            found = (_namespace(found) if found is not None else namespace).get(part)
            if not _is_class(found):
                return None
        return found


def _is_data_type(found: Any) -> bool:
    """Return whether an object is a class whose instances are data, without running any of its code."""
    if not _is_class(found) or _descends(found, type):
        return False
    return any(map(_is_data_base, _lineage(found))) or _is_old_model(found)


def _is_class(found: Any) -> bool:
    """Return whether an object is a class, regardless of its `__class__` attribute."""
    return issubclass(type(found), type)


def is_model(found: Any) -> bool:
    """Return whether an object is a pydantic model class of version 1 or 2."""
    return _is_class(found) and (_descends(found, BaseModel) or _is_old_model(found))


def is_imported(module: str) -> bool:
    """Return whether a module was imported, without running its code, even if it is loaded lazily."""
    return _imported(module) is not None


def is_enum(found: Any) -> bool:
    """Return whether an object is an enum class. A call of such a class with several arguments makes a new class."""
    return issubclass(type(found), EnumMeta)


def warn_plain(module: str, name: str, why: str) -> None:
    """Warn, once for each type, that its values are read as plain data."""
    key = ("plain", module, name)
    if key not in _warned and len(_warned) < _MAX_NAMES:
        _warned.add(key)
        _logger.warning("%s.%s cannot be built (%s): its values are read as plain data", module, name, why)


@cache
def _import_value_classes() -> frozenset[int]:
    """Import the types that LangGraph allows. Return the ids of the value classes that LangGraph's serializer supports.

    Called before the first read, because importing `langgraph.types` is slow.
    """
    for module in {module for module, _ in SAFE_TYPES}:
        with suppress(ImportError):
            importlib.import_module(module)
    # Compare classes by identity, because a metaclass may define `__eq__` and `__hash__`.
    return frozenset(
        map(
            id,
            (
                *(BaseModel, SecretStr, SecretBytes, Enum, send_class(), Item),
                *(set, frozenset, deque, date, time, timedelta, tzinfo, Decimal, UUID, PurePath),
                *(IPv4Address, IPv4Network, IPv6Address, IPv6Network),
            ),
        )
    )


def _entry(allowed: type | tuple[str, ...]) -> tuple[Key, type | None]:
    if isinstance(allowed, type):
        return (allowed.__module__, allowed.__name__), allowed
    module, name = allowed
    if _imported(module) is None:
        try:
            importlib.import_module(module)
        except Exception as error:
            warn_plain(module, name, f"its module cannot be imported: {error}")
    return (module, name), None


def _imported(module: str) -> dict[str, Any] | None:
    """Return the namespace of an imported module; `None` if it is not imported."""
    found = sys.modules.get(module)
    return _module_namespace(found) if issubclass(type(found), ModuleType) else None


def _is_initializing(namespace: Mapping[str, Any]) -> bool:
    spec = namespace.get("__spec__")
    return type(spec) is ModuleSpec and bool(getattr(spec, "_initializing", False))


def _descends(found: Any, base: Any) -> bool:
    return any(one is base for one in _lineage(found))


def _is_data_base(base: type) -> bool:
    if id(base) in _import_value_classes():
        return True
    namespace = _namespace(base)
    if "__dataclass_fields__" in namespace or "__attrs_attrs__" in namespace:
        return True
    # The methods of a class that `namedtuple` made have the globals of the module `collections`.
    method = namespace.get("_asdict")
    return (
        "_fields" in namespace
        and any(one is tuple for one in _bases(base))
        and type(method) is FunctionType
        and method.__globals__ is vars(collections)
    )


def _is_old_model(found: Any) -> bool:
    namespace = _imported("pydantic.v1.main")
    base = namespace.get("BaseModel") if namespace else None
    return _is_class(base) and _descends(found, base)


def _nested_names(namespace: Mapping[str, Any], module: str, start: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and name of every class nested in a module's classes."""
    for name, found in [*namespace.items()]:
        if not _is_class(found) or f"{start}{name}" != _qualified_name(found):
            continue
        inner = _namespace(found)
        if inner.get("__module__") == module:
            if start:
                yield f"{start}{name}", name
            yield from _nested_names(inner, module, f"{start}{name}.")
