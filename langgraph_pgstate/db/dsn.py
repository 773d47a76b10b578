"""Checks of connection strings. Errors never quote a part of a connection string, because it may be a password."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

# pragma: allowlist nextline secret
_FORM: Final = 'a URI like "postgresql://user:password@host:5432/database", or "host=... dbname=..."'
_ENCODED: Final = 'special characters of a user or password must be percent-encoded in a URI: "@" as %40, "/" as %2F'
_SCHEMES: Final = ("postgresql://", "postgres://")


def read_dsn(dsn: str, name: str = "dsn") -> dict[str, Any]:
    """Return the options of a connection string.

    Raises:
        ArgumentTypeError: If the DSN is not a string.
        ConfigurationError: If the DSN is empty or cannot be read.
    """
    if not isinstance(dsn, str):
        raise ArgumentTypeError(f"{name} must be a connection string, {_FORM}, not {type(dsn).__name__}")
    if not dsn.strip():
        raise ConfigurationError(f"{name} is empty: it must be {_FORM}")
    given, reason = _parse(dsn)
    reason = reason or _doubt(dsn, given)
    if reason is not None:
        # Raise the error outside `except`, because error reports also show the handled error.
        raise ConfigurationError(f"{name} is not a usable connection string: {reason}")
    return given


def _parse(dsn: str) -> tuple[dict[str, Any], str | None]:
    if "\0" in dsn:
        return {}, "it contains a NUL character"
    try:
        return dict(conninfo_to_dict(dsn)), None
    except psycopg.ProgrammingError as error:
        return {}, _reason(str(error).strip())
    except UnicodeEncodeError:
        return {}, "it contains a lone surrogate"


def _reason(message: str) -> str:
    """Return the reason in a message of libpq, without quoted parts of the connection string."""
    if message.startswith('missing "="'):
        return f"it must be {_FORM}"
    if message.startswith("invalid percent-encoded token"):
        return f'a "%" is not followed by two hexadecimal digits; {_ENCODED}, "%" as %25'
    if message.startswith(("invalid connection option", "invalid URI query parameter")):
        found = message.partition('"')[2].rpartition('"')[0]
        known = [option.keyword.decode() for option in Conninfo.get_defaults()]
        near = difflib.get_close_matches(found, known, 1, 0.8)
        return "it has an option that libpq does not know" + (f"; did you mean {near[0]}?" if near else "")
    if message.startswith("unexpected spaces"):
        return "it has spaces; in a URI they are written %20"
    if "IPv6" in message:
        return 'a host in "[" and "]" must be an IPv6 address'
    return message.partition('"')[0].rstrip(" :,(") or f"it must be {_FORM}"


def _doubt(dsn: str, given: Mapping[str, Any]) -> str | None:
    """Return why a readable connection string is probably wrong; `None` if it seems right."""
    for host in str(given.get("host", "")).split(","):
        # The directory of a Unix socket, or an abstract socket, may have any name.
        if not host.startswith("/") and re.search(r"[@;=\s\"'/]", host[1:]):
            return f"its host is not the name of a host; {_ENCODED}"
    for port in str(given.get("port", "")).split(","):
        if port.strip() and not (port.strip().isdecimal() and 0 < int(port) < 65536):
            return f"its port is not a number from 1 to 65535; {_ENCODED}"
    if dsn.startswith(_SCHEMES):
        path = dsn.partition("://")[2].partition("?")[0].partition("/")[2]
        if "@" in path:
            return f'an "@" follows the "/" after its host; {_ENCODED}'
    return None
