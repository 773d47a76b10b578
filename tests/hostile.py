"""What stored bytes may name in a module that was imported: nothing of it may run while they are read."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from enum import Enum
from typing import Any

RAN: list[str] = []


def run(*arguments: Any, **named: Any) -> Any:
    RAN.append("function")
    return "ran"


class Effect:
    """No data type, and does something when it is made."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        RAN.append("__init__")

    @classmethod
    def fromisoformat(cls, text: str) -> Any:
        RAN.append("method")

    @classmethod
    def model_construct(cls, **named: Any) -> Any:
        RAN.append("model_construct")

    construct = model_construct


class Meta(type):
    """Does something whenever it is asked anything."""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        RAN.append("__call__")
        return "ran"

    def __getattribute__(cls, name: str) -> Any:
        RAN.append(f"__getattribute__ {name}")
        return super().__getattribute__(name)

    def __getattr__(cls, name: str) -> Any:
        RAN.append(f"__getattr__ {name}")
        return {}

    def __instancecheck__(cls, instance: Any) -> bool:
        RAN.append("__instancecheck__")
        return True

    def __subclasscheck__(cls, subclass: Any) -> bool:
        RAN.append("__subclasscheck__")
        return True

    def __eq__(cls, other: object) -> bool:
        RAN.append("__eq__")
        return True

    def __hash__(cls) -> int:
        RAN.append("__hash__")
        return 1

    def __bool__(cls) -> bool:
        RAN.append("__bool__")
        return True


class Metaclassed(metaclass=Meta):
    """Says of itself that it is anything."""


class Descriptor:
    """Does something when it is read off a class or an object."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        RAN.append("__get__")
        return {"field": None}


class Described:
    """Its class attributes run."""

    Inner = Descriptor()
    __pydantic_fields__ = Descriptor()
    _fields = Descriptor()
    _asdict = Descriptor()


class Liar:
    """An object that says it is a class, and a dataclass."""

    @property
    def __class__(self) -> Any:
        RAN.append("__class__")
        return type

    def __getattr__(self, name: str) -> Any:
        RAN.append(f"object {name}")
        return {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        RAN.append("object called")
        return "ran"

    def __bool__(self) -> bool:
        RAN.append("object __bool__")
        return True


liar = Liar()


class LooksLikeATuple(tuple):  # type: ignore[type-arg]
    """Has what a named tuple has, made by hand."""

    _fields = ("a",)

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls)

    def _asdict(self) -> dict[str, Any]:
        return {"a": 1}


class LooksLikeAnEnum:
    """No enum, although it has what one has."""

    _value2member_map_ = {1: 1}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        RAN.append("__init__")

    @classmethod
    def _missing_(cls, value: Any) -> Any:
        RAN.append("_missing_")


class Kind(Enum):
    """A true enum: it takes one of its values, and makes no new enums."""

    ONE = 1


@dataclass
class Methodical:
    """A true dataclass, with methods under the names that are called of other types."""

    number: int

    @classmethod
    def fromisoformat(cls, text: str) -> Any:
        RAN.append("fromisoformat")

    @classmethod
    def model_construct(cls, **named: Any) -> Any:
        RAN.append("model_construct")

    construct = model_construct


make = collections.namedtuple


def __getattr__(name: str) -> Any:
    RAN.append(f"module {name}")
    return run
