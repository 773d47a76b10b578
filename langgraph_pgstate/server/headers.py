"""Headers of requests that nodes read in `config["configurable"]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

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
