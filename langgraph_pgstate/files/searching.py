"""Lists of files, searches for lines, and the optional index of the texts, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.codec.values import ValueCodec, encodes_as_utf8
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, TenantError
from langgraph_pgstate.files.contents import decode_content, line_pattern, required_literal
from langgraph_pgstate.files.globs import compile_glob, compile_if_plain
from langgraph_pgstate.files.paths import Place, narrowed, only, place_of
from langgraph_pgstate.files.types import FileEntry, FoundLine, FoundLines, Namespace
from langgraph_pgstate.schema.queries import NamedQuery, Queries
from langgraph_pgstate.schema.tenancy import has_walls

_ANY: Final = "%"
# Number of files in a page of encoded contents.
_PAGE: Final = 100

Matcher = Callable[[str], bool]
"""A function that returns whether a path matches a pattern. The path is relative to the directory of the search."""


class Pattern(NamedTuple):
    """A glob pattern. If SQL cannot match it, `matches` does; without `matches`, the pattern is then refused."""

    text: str
    matches: Matcher | None = None


class Search(NamedTuple):
    """A search for lines with a text or a regular expression. `most` is the maximum number of lines; `None` for all."""

    pattern: str
    is_regex: bool
    most: int | None


def request_search(pattern: str, is_regex: bool, most: int | None) -> Search:
    """Validate a search."""
    if not isinstance(pattern, str):
        raise ArgumentTypeError(f"pattern must be a string, not {type(pattern).__name__}")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 0 <= most < 2**31):
        raise ConfigurationError(f"limit must be 0 or more, or None for all, got {most!r}")
    if is_regex:
        line_pattern(identifier("pattern", pattern))
    return Search(pattern, bool(is_regex), most)


async def list_directory(db: Connection, queries: Queries, namespace: Namespace, place: Place) -> tuple[FileEntry, ...]:
    """Return the files and directories of a directory, by path. One round trip."""
    key = {"namespace": [*namespace], "first": place.first, "after": place.after}
    rows = await db.fetch(queries.list_directory, key)
    return tuple(FileEntry(row[0], row[3] is None, *row[1:]) for row in sorted(rows, key=itemgetter(0)))


async def list_matching(
    db: Connection, queries: Queries, namespace: Namespace, directory: str, glob: Pattern
) -> tuple[FileEntry, ...]:
    """Return the files that match a pattern, newest first. Two round trips, or one in the directory `/`."""
    place = await _place(db, queries, namespace, directory)
    parameters, matches = _selection(namespace, place, glob)
    rows = await db.fetch(queries.list_files, parameters)
    start = len(place.directory)
    return tuple(FileEntry(row[0], False, *row[1:]) for row in rows if matches is None or matches(row[0][start:]))


async def search(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    namespace: Namespace,
    directory: str,
    glob: Pattern | None,
    wanted: Search,
) -> FoundLines:
    """Return the lines of text files that contain a text, by path and number.

    Like ripgrep, leave out files whose text contains a NUL. At most three round trips, and one more for each 100 files
    if they are encrypted, or encoded by the caller's own serializer.

    Raises:
        ConfigurationError: If the pattern is a regular expression, but SQL cannot search encrypted or encoded files.
    """
    if not wanted.is_regex and ({"\n", "\0"} & {*wanted.pattern} or not encodes_as_utf8(wanted.pattern)):
        # No searched line contains a newline, NUL or lone surrogate, so no line can match.
        return FoundLines((), False)
    place = await _place(db, queries, namespace, directory)
    parameters, matches = _selection(namespace, place, glob)
    paths: list[str] | None = None
    if matches is not None:
        found = await list_matching(
            db, queries, namespace, directory, Pattern("**" if glob is None else glob.text, matches)
        )
        paths = [entry.path for entry in found]
    parameters = {**parameters, "paths": paths}
    if not codec.is_native or db.keys is not None:
        return await _search_encoded(db, queries, codec, parameters, wanted)
    parameters["most"] = None if wanted.most is None else wanted.most + 1
    if wanted.is_regex:
        literal = required_literal(wanted.pattern)
        key = {"pattern": line_pattern(wanted.pattern), "literal": literal, "containing": _containing(literal)}
        rows = await db.fetch(queries.search_files_by_regex, {**parameters, **key})
    else:
        key = {"pattern": wanted.pattern, "containing": _containing(wanted.pattern)}
        rows = await db.fetch(queries.search_files, {**parameters, **key})
    return _found([FoundLine(*row) for row in rows], wanted.most)


def _containing(text: str) -> str:
    """Return the pattern of LIKE that matches strings containing a text."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


async def _search_encoded(
    db: Connection, queries: Queries, codec: ValueCodec, parameters: dict[str, Any], wanted: Search
) -> FoundLines:
    if wanted.is_regex:
        raise ConfigurationError(
            "regex must be False if files are encrypted or encoded by a serializer of your own, because PostgreSQL "
            "cannot search such files"
        )
    lines: list[FoundLine] = []
    after, more = parameters["first"], {"encrypted": db.keys is not None}
    while True:
        rows = await db.fetch(queries.list_encoded_files, {**parameters, **more, "first": after, "most": _PAGE})
        for path, _, value_type, data in rows:
            text = decode_content(codec, value_type, data, True, f"file {path!r}")
            assert isinstance(text, str)
            numbered = enumerate(text.split("\n"), 1) if "\0" not in text else ()
            lines += [FoundLine(path, number, line) for number, line in numbered if wanted.pattern in line]
        if len(rows) < _PAGE or (wanted.most is not None and len(lines) > wanted.most):
            return _found(lines, wanted.most)
        # The next page begins at the smallest path after the last path of this page.
        after = f"{rows[-1][0]}\x01"


def _found(lines: Sequence[FoundLine], most: int | None) -> FoundLines:
    return FoundLines(tuple(lines[:most]), most is not None and len(lines) > most)


async def _place(db: Connection, queries: Queries, namespace: Namespace, directory: str) -> Place:
    """Return the range of a search: the file at this path if there is one, else the directory."""
    place = place_of(directory)
    path = directory.removesuffix("/")
    if path and await db.fetch(queries.find_file, {"namespace": [*namespace], "path": path}):
        return only(path)
    return place


def _selection(namespace: Namespace, place: Place, glob: Pattern | None) -> tuple[dict[str, Any], Matcher | None]:
    """Return the query parameters of files that match a pattern, and the matcher if SQL cannot match the pattern."""
    suffix, expression = _ANY, None
    matches = None
    if glob is not None:
        find = compile_glob if glob.matches is None else compile_if_plain
        if (compiled := find(identifier("glob", glob.text), place.directory)) is None:
            matches = glob.matches
        else:
            suffix, expression = compiled.suffix, compiled.expression
            place = narrowed(place, compiled.prefix)
    key = {"namespace": [*namespace], "first": place.first, "after": place.after}
    return {**key, "suffix": suffix, "expression": expression}, matches


@cache
def _statements(schema: str) -> Queries:
    return Queries(schema, "files/trigrams")


async def make_file_index(db: Connection, queries: Queries) -> None:
    """Make the index of trigrams, unless it exists. One transaction. Writes of files wait until the index is built.

    Raises:
        ConfigurationError: If the server has no pg_trgm.
        TenantError: If the tables have row-level security for tenants, because PostgreSQL then cannot use the index.
    """
    statements = _statements(queries.schema)
    if await has_walls(db, queries):
        raise TenantError(
            f"file_index must be left out, because the tables in schema {queries.schema!r} keep tenants apart, and "
            "PostgreSQL then cannot use an index of files"
        )
    if not await db.fetch(statements.has_trigrams, {}):
        raise ConfigurationError("file_index requires the extension pg_trgm, which the PostgreSQL server does not have")
    async with db.transaction():
        await db.execute(statements.create_trigram_extension, {})
        ((extension,),) = await db.fetch(statements.find_trigrams, {})
        await db.execute(file_index(queries.schema, extension), {})


def file_index(schema: str, extension: str) -> NamedQuery:
    """Return the statement that makes the index. `extension` is the schema in which pg_trgm is installed."""
    query = _statements(schema).create_file_index
    return query._replace(text=query.text.replace(b"/*trigrams*/", f'"{extension}".'.encode()))
