"""A plugin of pytest that gives deepagents' own tests of `StoreBackend` a `PGFiles` instead."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from deepagents import backends
from deepagents.backends import store

from langgraph_pgstate import PGState
from langgraph_pgstate.files import PGFiles

_state = PGState.open(os.environ["PGSTATE_TEST_DSN"], schema=os.environ["PGSTATE_TEST_SCHEMA"])
_numbers = itertools.count(1)
_stores: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class Backend(PGFiles):
    """A backend whose files are those of a store."""

    def __init__(self, *, namespace: Callable[[Any], tuple[str, ...]], store: Any = None) -> None:
        label = _stores.setdefault(store or self, f"store {next(_numbers)}")
        super().__init__(_state, namespace=lambda runtime: (label, *namespace(runtime)))


store.StoreBackend = backends.StoreBackend = Backend


def pytest_unconfigure() -> None:
    """Disconnect."""
    _state.close()
