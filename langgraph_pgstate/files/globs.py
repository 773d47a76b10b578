"""Glob patterns as regular expressions of PostgreSQL.

The syntax of patterns is that of deepagents' backends. A pattern without `/` matches the name of a file at any depth. A
pattern with `/`, even as its first character, matches the path below the directory of the search. A wildcard does not
match a dot that begins a name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from langgraph_pgstate.errors import ConfigurationError

MOST_ALTERNATIVES: Final = 1000
"""Maximum number of patterns to which braces may expand."""

_NAME: Final = "[^./][^/]*"
_PLAIN_SET: Final = re.compile(r"\[(!?)((?:[0-9]-[0-9]|[a-z]-[a-z]|[A-Z]-[A-Z]|[A-Za-z0-9_.](?!-))+)\]")
_RANGE: Final = re.compile("(.)-(.)")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_SPECIAL: Final = re.compile(r"[^\w/ ]", re.ASCII)


class Glob(NamedTuple):
    """A compiled pattern.

    Attributes:
        expression: Regular expression that the whole path of a file must match.
        prefix: Beginning of all matching paths.
        suffix: Pattern of LIKE for the end of all matching paths, such as `%.py`.
    """

    expression: str
    prefix: str
    suffix: str


def compile_glob(pattern: str, directory: str) -> Glob:
    """Return a pattern, compiled for a directory, which must end with `/`.

    Raises:
        ConfigurationError: If the pattern has a `..`, expands to too many patterns, or has an unsupported part.
    """
    found = compile_if_plain(pattern, directory)
    if found is None:
        raise ConfigurationError(
            f"glob {pattern!r} must consist of names, `/`, `*`, `**` as a whole name, `?`, sets like [abc], [a-z] or "
            "[!abc], and braces like {a,b}"
        )
    return found


def compile_if_plain(pattern: str, directory: str) -> Glob | None:
    """Return a pattern as `compile_glob` does, or `None` if it has an unsupported part.

    Raises:
        ConfigurationError: If the pattern has a `..` or expands to too many patterns.
    """
    if ".." in pattern.replace("\\", "/").split("/"):
        raise ConfigurationError(f"glob must not contain `..`, got {pattern!r}: only files in {directory!r} can match")
    alternatives = _expanded(pattern)
    if alternatives is None:
        return None
    if "/" not in pattern:
        compiled = [_name(one) for one in alternatives]
        start, prefix = "/", directory
    else:
        compiled = [_path(one.lstrip("/")) for one in alternatives]
        start, prefix = f"^{quote(directory)}", directory
        if len(alternatives) == 1:
            prefix += _literal_directories(alternatives[0].lstrip("/"))
    if None in compiled:
        return None
    expression = "|".join(one for one in compiled if one is not None)
    suffix = _literal_end(alternatives[0].lstrip("/")) if len(alternatives) == 1 else ""
    return Glob(f"{start}(?:{expression})$", prefix, "%" + like(suffix))


def quote(text: str) -> str:
    """Return a text as a regular expression of PostgreSQL."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def like(text: str) -> str:
    """Return a text as a pattern of LIKE."""
    return re.sub(r"[\\%_]", r"\\\g<0>", text)


def _expanded(pattern: str) -> list[str] | None:
    """Return the patterns to which braces expand; `None` if the pattern has an unsupported part."""
    if "\\" in pattern or "$" in pattern:
        return None
    found, done = [pattern], []
    while found:
        one = found.pop()
        if (braces := _BRACES.search(one)) is None:
            if "{" in one or "}" in one:
                return None
            done.append(one)
        elif "," not in braces[1]:
            return None
        else:
            found += [one[: braces.start()] + part + one[braces.end() :] for part in braces[1].split(",")]
        if len(found) + len(done) > MOST_ALTERNATIVES:
            raise ConfigurationError(f"glob must expand to {MOST_ALTERNATIVES:,} patterns at most, got {pattern!r}")
    return done


def _path(pattern: str) -> str | None:
    """Return the regular expression of a path below the directory of the search."""
    names = pattern.split("/")
    parts: list[str] = []
    for number, name in enumerate(names, 1):
        is_last = number == len(names)
        if name == "**":
            if not is_last and names[number] == "**":
                continue
            parts.append(f"{_NAME}(?:/{_NAME})*" if is_last else f"(?:{_NAME}/)*")
            continue
        if (compiled := _name(name)) is None:
            return None
        parts.append(compiled if is_last else f"{compiled}/")
    return "".join(parts)


def _name(pattern: str) -> str | None:
    """Return the regular expression of one name; `None` if the pattern is no name or has an unsupported part."""
    if pattern in ("", ".", "..") or "***" in pattern or "/" in pattern:
        return None
    if not pattern.strip("*"):
        return _NAME
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        character, is_first = pattern[position], position == 0
        position += 1
        if character == "*":
            if parts[-1:] != ["[^/]*"]:
                parts += ["(?![.])", "[^/]*"] if is_first else ["[^/]*"]
        elif character == "?":
            parts.append("[^./]" if is_first else "[^/]")
        elif character == "[":
            if (found := _PLAIN_SET.match(pattern, position - 1)) is None:
                return None
            if any(first > last for first, last in _RANGE.findall(found[2])):
                return None
            position = found.end()
            parts += ["(?![.])"] if is_first else []
            parts.append(f"[^{found[2]}/]" if found[1] else f"[{found[2]}]")
        else:
            parts.append(quote(character))
    return "".join(parts)


def _literal_directories(pattern: str) -> str:
    """Return the directories that precede a pattern's first wildcard, such as `src/lib/` of `src/lib/a*.py`."""
    literal = re.match(r"[^*?\[]*", pattern)
    assert literal is not None
    return literal[0][: literal[0].rfind("/") + 1]


def _literal_end(pattern: str) -> str:
    """Return the text after a pattern's last wildcard, such as `.py` of `a*.py` and `/a.py` of `**/a.py`."""
    literal = re.search(r"[^*?\[\]]*$", pattern)
    assert literal is not None
    return literal[0]
