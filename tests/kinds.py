"""Types of a user's own, one of each kind that LangGraph's serializer takes apart."""

from __future__ import annotations

import sys
from collections import deque, namedtuple
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import PosixPath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from langchain_core.messages import HumanMessage
from pydantic import BaseModel, RootModel

T = TypeVar("T")


@dataclass
class Order:
    number: int
    lines: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    inner: Any


class Special(Order):
    """A dataclass by descent."""


class Person(BaseModel):
    name: str
    inner: Any = None


class Box(BaseModel, Generic[T]):
    content: T


IntBox = Box[int]


class Names(RootModel[list[str]]):
    """Its data are no dict."""


if sys.version_info < (3, 14):
    # Later ones have no models of pydantic's first version.
    from pydantic import v1

    class Old(v1.BaseModel):
        name: str

else:
    Old = Person


class Color(Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Mood(StrEnum):
    CALM = "calm"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Place(NamedTuple):
    x: Any
    y: Any = 0


Pair = namedtuple("Pair", "a b")


class Money(Decimal):
    """A number of the user's own."""


class Key(UUID):
    """An id of the user's own."""


class Tags(set):  # type: ignore[type-arg]
    """A set of the user's own."""


class Queue(deque):  # type: ignore[type-arg]
    """A deque of the user's own."""


class Folder(PosixPath):
    """A path of the user's own."""


class Loud(HumanMessage):
    """A message of the user's own."""

    volume: int = 11


class Outer:
    @dataclass
    class Inner:
        value: Any


class Moment(datetime):
    """A time of the user's own."""
