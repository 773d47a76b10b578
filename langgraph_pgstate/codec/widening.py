"""A strict serializer whose allowlist grows in place, for a host that keeps one saver for many graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Literal

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_widening = threading.Lock()


class WideningSerializer(JsonPlusSerializer):
    """LangGraph's serializer, refusing what is not allowed; allowing more changes this very object.

    The Agent Server wraps the saver in a class of its own, whose clones do not reach the saver (and, as of 0.16.7,
    cannot be made). With this serializer no clone is needed: what one graph's schema names, all graphs of the process
    may build.

    Args:
        allowed: Types that may be built, as `(module, name)`; `True` for all.
    """

    def __init__(self, allowed: Iterable[tuple[str, ...]] | Literal[True] = ()) -> None:
        super().__init__(allowed_msgpack_modules=True if allowed is True else None)
        if allowed is not True:
            self.with_msgpack_allowlist(allowed)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> WideningSerializer:
        """Allow more types, from now on and for whoever holds this serializer; safe to call from many threads."""
        with _widening:
            wider = super().with_msgpack_allowlist(extra_allowlist)
            if wider is not self:
                self._allowed_msgpack_modules = wider._allowed_msgpack_modules
                self._unpack_ext_hook = wider._unpack_ext_hook
        return self
