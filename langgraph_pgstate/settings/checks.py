"""Checks of arguments that several settings share: names, times, unknown options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

DEFAULT_SCHEMA = "pgstate"
# A b-tree entry may not exceed a third of a page, 2,704 bytes; what is left is for the tuple itself.
MAX_KEY_BYTES = 2600
TtlStrategy = Literal["delete", "keep_latest"]
"""What happens to an expired thread: it is deleted, or all but its newest checkpoints are pruned."""
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
# Names of settings classes end so; found in the annotation of an option.
_SETTINGS = re.compile(r"(?:Settings|Policy|Keys)\b")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def check_options(owner: type, options: Mapping[str, Any], known: type) -> None:
    """Refuse unknown options, and values of another type for options that take settings.

    Args:
        owner: The class that takes the options, for the error.
        options: The options.
        known: A typed dictionary of those that exist.

    Raises:
        ArgumentTypeError: If there is one, with its name.
    """
    for name, value in options.items():
        if name not in known.__annotations__:
            raise ArgumentTypeError(
                f"{owner.__name__} has no option {name!r}; it has {', '.join(sorted(known.__annotations__))}"
            )
        # As text, because most settings are imported only by those who use them.
        expected = getattr(known.__annotations__[name], "__forward_arg__", "")
        kinds = {"None"} if value is None else {kind.__name__ for kind in type(value).__mro__}
        if _SETTINGS.search(expected) and kinds.isdisjoint(expected.split(" | ")):
            raise ArgumentTypeError(f"{name} must be {expected.replace(' | ', ' or ')}, not {type(value).__name__}")


def age(text: str) -> timedelta:
    """Read an age like `30d`, `12h`, `90m` or `2w`.

    Raises:
        ConfigurationError: If it is not one.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{text!r} is no age: write a number and s, m, h, d or w, like 30d or 12h")
    try:
        return timedelta(seconds=float(match.group(1)) * _UNITS[match.group(2)])
    except OverflowError:
        raise ConfigurationError(f"{text!r} is longer than any calendar") from None


def check_ttl(name: str, ttl: Any) -> timedelta:
    """Return a time to live that is usable.

    Raises:
        ConfigurationError: If it is no timedelta, not positive, or longer than PostgreSQL's clock goes.
    """
    if not isinstance(ttl, timedelta) or not timedelta(0) < ttl <= timedelta(days=366_000):
        raise ConfigurationError(f"{name} must be a timedelta of more than 0 and less than 1,000 years, not {ttl!r}")
    return ttl


def check_ttl_strategy(name: str, strategy: Any) -> TtlStrategy:
    """Return what happens to an expired thread.

    Raises:
        ConfigurationError: If it is neither `delete` nor `keep_latest`.
    """
    if strategy not in ("delete", "keep_latest"):
        raise ConfigurationError(f"{name} must be 'delete' or 'keep_latest', not {strategy!r}")
    return "delete" if strategy == "delete" else "keep_latest"


def check_schema_name(schema: str) -> str:
    """Return `schema` if it can be written into SQL without quoting surprises.

    Raises:
        ConfigurationError: If it is not a lower-case identifier of at most 63 characters, or it is PostgreSQL's own.
    """
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigurationError(
            f"schema {schema!r} must be a lower-case PostgreSQL identifier: a letter or underscore, "
            "then letters, digits, _ or $, 63 at most"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigurationError(f"schema {schema!r} is PostgreSQL's own: name another, such as 'pgstate'")
    return schema
