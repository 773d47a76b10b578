"""Headers of requests that nodes read in `config["configurable"]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

# Keys of the platform's own clients, which are taken only by their whole names.
_SECRETS: Final = ("x-api-key", "x-tenant-id", "x-service-key")


class HeaderSelection:
    """Names of headers, some of which are chosen. In a pattern a star stands for any text; case does not matter.

    Args:
        includes: Patterns of those that are chosen.
        excludes: Patterns of those that are not, although one of the others fits.
    """

    def __init__(self, includes: Sequence[str], excludes: Sequence[str] = ()) -> None:
        self._includes = [one.lower() for one in includes]
        self._excludes = [one.lower() for one in excludes]

    def of(self, headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
        """Return those that are chosen, by their names in lower case."""
        return {name.lower(): value for name, value in headers if self._takes(name.lower()) and "\0" not in value}

    def _takes(self, name: str) -> bool:
        if any(fnmatchcase(name, one) for one in self._excludes):
            return False
        return name in self._includes or (
            name not in _SECRETS and any(fnmatchcase(name, one) for one in self._includes)
        )
