"""A serializer whose allowlist grows in place, for a host that keeps one saver for many graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Self

from langgraph_pgstate.codec.serializer import StateSerializer

_widening = threading.Lock()


class WideningSerializer(StateSerializer):
    """The serializer of the savers; allowing more types changes this very object.

    The Agent Server wraps the saver in a class of its own, whose clones do not reach the saver (and, as of 0.16.7,
    cannot be made). With this serializer no clone is needed: what one graph's schema names, all graphs of the process
    may build.
    """

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Self:
        """Allow more types, from now on and for whoever holds this serializer; safe to call from many threads."""
        with _widening:
            types = self.types.allowing(extra_allowlist)
            if types is not self.types:
                self._use(types)
        return self
