"""The content of statements: encrypted before a statement is sent, and decrypted in its results.

Lines below a statement's description declare its content. Each names a column of `columns.py`:

    -- seals: segments.data from new_data with segment_id = new_id
    -- seals: segments.data from new_data by new_starts, new_lengths with segment_id = new_ids
    -- seals: checkpoints.state from data in rows
    -- seals: spans.input from rows.input
    -- opens: writes.data from data with task_id = a, idx = n of kind 2
    -- opens: spans.input from content.input with run_id = key.0, span_id = key.1 of name spans
    -- opens: segments.data if intact
    -- matches: threads.metadata from metadata
    -- searches: messages.content from query
    -- leaves: checkpoints.state

- `seals` encrypts a parameter. `opens` decrypts a column of the result. With `leaves`, the statement neither writes nor
  returns the column's content.
- `matches` is a filter on objects, by keys that are readable or searchable.
- `searches` is a search. With encryption, it works only for words that are stored as digests.
- `from` names the parameter, or the column of the result; by default the content's column. A dotted path leads to a key
  in the objects of a JSON parameter.
- `by` names parameters with the starts and lengths of values that are passed as one byte string. `in` names a JSON
  parameter whose objects have `start` and `length`.
- `with` renames a part of the row's key. The part is looked up in the object, in the row, and among the parameters. If
  the parameter is a list, it has an item for each value. `key.1` is item 1 of `key`.
- `of kind 2` chooses rows by a column, here `kind`.
- With `if intact`, a value that does not decrypt does not fail the statement. Bytes raise an error when they are read.
  Text and JSON are returned as `None`.
- With `or error`, text or JSON that cannot be read is returned as the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import orjson

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.states import list_segments
from langgraph_pgstate.encryption.cipher import TEXT_MAGIC, from_text, is_sealed, key_id_at, key_id_of, to_text, where
from langgraph_pgstate.encryption.columns import CONTENTS, SEALED_KEY, Content
from langgraph_pgstate.errors import (
    ConfigurationError,
    DataKeyDestroyedError,
    DecryptionError,
    EncryptionError,
    MissingKeysError,
    PGStateError,
)

_LINE: Final = re.compile(
    r"(?P<does>seals|opens|matches|searches|leaves): (?P<column>\w+\.\w+)(?: from (?P<source>[\w.]+))?"
    r"(?: by (?P<starts>\w+), (?P<lengths>\w+))?(?: in (?P<rows>\w+))?"
    r"(?: with (?P<keys>\w+ = (?:'\w*'|-?[\w.]+)(?:, \w+ = (?:'\w*'|-?[\w.]+))*))?"
    r"(?: of (?P<of>\w+) (?P<values>\w+(?:, \w+)*))?(?P<lenient> if intact)?"
    r"(?P<told> or error)?"
)
_SEALED_TEXT: Final = f'"{TEXT_MAGIC}'
# Number of characters at the beginning of an encrypted text that name its data key.
_HEAD: Final = 17
# Parameters that are lists of ids. Encrypted content is bound to one row, so such a list must have one item.
_OF_SEVERAL: Final = ("thread_ids", "run_ids", "namespaces")
# orjson reads integers of so many digits as floats.
_LONG: Final = re.compile(rb"\d{19}")
_SIMPLE: Final = "pg_catalog.simple"
_WORD: Final = re.compile(r"\w+")
_TERM: Final = re.compile(r"((?<!\w)-|)(\w+)")
# Limits of a snippet: characters that are searched, found words, and characters around each word.
_MOST_SEARCHED: Final = 100_000
_MOST_HITS: Final = 5
_AROUND: Final = 60


class Cipher(Protocol):
    """The methods of `KeyRing`, the data keys of a database, that this module calls."""

    def seal(self, column: str, content: Content, parts: Sequence[Any], value: bytes) -> bytes:
        """Return a value encrypted under the current key of its row's scope."""
        ...

    def open(self, column: str, parts: Sequence[Any], value: bytes) -> bytes:
        """Return the content of an encrypted value."""
        ...

    def current_id(self, column: str, parts: Sequence[Any]) -> str:
        """Return the id of the data key that would encrypt a value now."""
        ...

    def admit_plain(self, place: str) -> None:
        """Raise an error unless unencrypted values are accepted."""
        ...

    def is_readable(self, column: str, key: str) -> bool:
        """Return whether the application has declared a key of an object as readable."""
        ...

    def is_searchable(self, key: str) -> bool:
        """Return whether equal values of a metadata key can be found by their digests."""
        ...

    def digest(self, column: str, key: str, value: Any) -> str:
        """Return the digest of a key's value. Equal values have equal digests."""
        ...

    @property
    def finds_words(self) -> bool:
        """Whether texts can be searched by digests of their words."""
        ...

    @property
    def admits_vectors(self) -> bool:
        """Whether embeddings may be stored."""
        ...

    def words(self, text: str) -> str:
        """Return the digests of a text's words. If words cannot be searched, return an empty string."""
        ...

    def mark(self, column: str, parts: Sequence[Any], digest: str) -> str:
        """Return a keyed digest in place of a plain one, which anyone could compute from the content."""
        ...


class _Part(NamedTuple):
    """A line that declares what a statement does with the content of a column."""

    column: str
    content: Content
    path: tuple[str, ...]
    starts: str | None
    lengths: str | None
    rows: str | None
    keys: tuple[str, ...]
    of: str | None
    values: frozenset[str]
    is_lenient: bool
    is_told: bool = False


class Contents:
    """The columns with content that a statement writes or reads, as its `-- seals:` and similar lines declare them.

    Args:
        lines: These lines.
        has_vectors: Whether the statement stores embeddings, which encryption refuses unless they are allowed.

    Attributes:
        columns: Tables and columns of the content.
        keys_query: The statement that returns data keys by their ids; `None` before `of_schema` sets it.
        places: Positions of the result's columns by name; `None` until the first result.
    """

    __slots__ = (
        *("_has_vectors", "_matches", "_opens", "_seals", "_searches", "_texts"),
        *("columns", "keys_query", "places"),
    )

    def __init__(self, lines: Sequence[str], *, has_vectors: bool = False) -> None:
        found: dict[str, list[_Part]] = {does: [] for does in ("seals", "opens", "matches", "searches", "leaves")}
        for line in lines:
            match = _LINE.fullmatch(line)
            if match is None or match["column"] not in CONTENTS:
                raise ValueError(f"a line about content must have the form of `_LINE` and a known column, got {line!r}")
            found[match["does"]].append(_part(match))
        self.columns = frozenset(part.column for parts in found.values() for part in parts)
        self._seals, self._opens = _by_source(found["seals"]), found["opens"]
        self._matches, self._searches = found["matches"], found["searches"]
        # A program without keys refuses these texts if they are encrypted. Decoding refuses encrypted bytes.
        self._texts = [part for part in self._opens if part.content.kind != "bytes"]
        self.places: dict[str, int] | None = None if self._opens else {}
        self.keys_query: Any = None
        self._has_vectors = has_vectors

    def seal(self, cipher: Cipher, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a statement's parameters with encrypted content.

        Raises:
            MissingKeysError: If data keys have to be loaded first.
            ConfigurationError: If the statement searches encrypted content, or stores embeddings that are not allowed.
        """
        if self._has_vectors and not cipher.admits_vectors:
            raise ConfigurationError(
                "embeddings are not encrypted, and reveal the topics of texts: an index of memories needs "
                "Encryption(plain_vectors=True)"
            )
        changed: dict[str, Any] = {}
        for part in self._searches:
            changed |= _searched(cipher, part, parameters)
        for name, parts in self._seals.items():
            value = changed.get(name, parameters.get(name))
            if value is None:
                continue
            part = parts[0]
            if part.starts is not None and part.lengths is not None:
                changed |= _seal_concatenated(cipher, part, parameters)
            elif part.rows is not None:
                changed |= _seal_laid_out(cipher, part, part.rows, {**parameters, **changed})
            elif len(part.path) > 1:
                changed[name] = _seal_json(cipher, parts, value, parameters)
            elif type(value) is list:
                changed[name] = _seal_each(cipher, part, value, parameters)
            else:
                changed[name] = _seal_parameter(cipher, part, value, _alone(parameters))
            if part.content.kind == "words" and cipher.finds_words:
                # Digests must not be stemmed. The dictionary `simple` leaves words as they are.
                changed["language"] = _SIMPLE
        for part in self._matches:
            name = part.path[0]
            value = parameters.get(name)
            if part.content.is_value:
                changed[name] = _conditions(cipher, part, parameters)
            elif type(value) is list:
                changed[name] = [_matched(cipher, part, one) for one in value]
            elif value is not None:
                changed[name] = _matched(cipher, part, value)
        return {**parameters, **changed} if changed else parameters

    def open(self, cipher: Cipher, rows: Sequence[Any], parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return a statement's rows with decrypted content.

        Raises:
            MissingKeysError: If data keys have to be loaded first.
            EncryptionError: If a value cannot be decrypted, or is not encrypted.
        """
        places = self.places
        assert places is not None
        missing: set[tuple[str, str]] = set()
        opened = []
        for row in rows:
            changed: list[Any] | None = None
            for part in self._opens:
                if part.of is not None and str(row[places[part.of]]) not in part.values:
                    continue
                at = places[part.path[0]]
                if row[at] is None:
                    continue

                def find(name: str, row: Any = row) -> Any:
                    place = places.get(name)
                    # A part of a row's key is a column of the result, or a parameter for all rows.
                    return parameters[name] if place is None else row[place]

                try:
                    value = _open_value(cipher, part, row[at], find)
                except MissingKeysError as error:
                    missing |= error.wanted
                    continue
                changed = [*row] if changed is None else changed
                changed[at] = value
                if part.content.has_words and (headline := places.get("ts_headline")) is not None:
                    changed[headline] = _snippet(cipher, value or "", parameters["query"])
            opened.append(row if changed is None else tuple(changed))
        if missing:
            raise MissingKeysError(missing)
        return opened

    def of_schema(self, keys_query: Any) -> Contents:
        """Return a copy with `keys_query`."""
        found = copy(self)
        found.keys_query = keys_query
        return found

    def key_ids(self, rows: Sequence[Any]) -> dict[str, str]:
        """Return the ids of the data keys that are named in texts, each with the column of the text.

        For programs without keys. If the database does not have the data key, the text only looks encrypted.
        """
        places = self.places
        assert places is not None
        found: dict[str, str] = {}
        for part in self._texts:
            at, path = places[part.path[0]], part.path[1:]
            for row in rows:
                values = [row[at]] if not path else [o.get(path[-1]) for o, _ in _walk(row[at], path, places.get)]
                found.update((id, part.column) for id in map(_key_id_in, values) if id)
        return found


def _part(match: re.Match[str]) -> _Part:
    column = match["column"]
    content = CONTENTS[column]
    given = dict(pair.split(" = ") for pair in (match["keys"] or "").split(", ") if pair)
    return _Part(
        column,
        content,
        tuple((match["source"] or column.partition(".")[2]).split(".")),
        match["starts"],
        match["lengths"],
        match["rows"],
        tuple(given.get(name, name) for name in content.key),
        match["of"],
        frozenset((match["values"] or "").split(", ")),
        bool(match["lenient"]),
        bool(match["told"]),
    )


def _keys(part: _Part, find: Callable[[str], Any]) -> list[Any]:
    """Return the key of a value's row. Quoted texts and numbers in `part.keys` are literals."""
    keys = [find(name) if name.isidentifier() else _key_in(name, find) for name in part.keys]
    if part.content.key[0] == "namespace" and isinstance(keys[0], str):
        keys[0] = labels_in(keys[0])
    return keys


def _key_in(name: str, find: Callable[[str], Any]) -> Any:
    name, _, place = name.partition(".")
    if not place:
        return name.strip("'")
    found = find(name)
    return (orjson.loads(found) if isinstance(found, str) else found)[int(place)]


def _by_source(parts: Sequence[_Part]) -> dict[str, list[_Part]]:
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(part.path[0], []).append(part)
    return found


def _at(parameters: Mapping[str, Any], number: int) -> Callable[[str], Any]:
    """Return a function that looks up a parameter by its name. Of a list, the function returns item `number`."""

    def find(name: str) -> Any:
        value = parameters[name]
        return value[number] if type(value) is list else value

    return find


def _alone(parameters: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a function that looks up a parameter by its name. Of `_OF_SEVERAL`, it returns the only item."""

    def find(name: str) -> Any:
        value = parameters[name]
        if type(value) is list and name in _OF_SEVERAL:
            (value,) = value
        return value

    return find


def labels_in(literal: str) -> list[str]:
    """Return the labels of an array literal."""
    # PostgreSQL quotes and escapes labels as JSON does, except for control characters.
    found: list[str] = json.loads(f"[{literal[1:-1]}]", strict=False)
    return found


def _term_of(cipher: Cipher, minus: str, word: str) -> str:
    """Return the digest of a word of a query. `or` and a minus stay operators."""
    return word if word.lower() == "or" else minus + cipher.words(word)


def _snippet(cipher: Cipher, text: str, query: str) -> str:
    """Return the parts of a text around words of a query. The words are marked as PostgreSQL marks words."""
    wanted = {*query.split(), *(word.lstrip("-") for word in query.split())}
    hits = [match for match in _WORD.finditer(text[:_MOST_SEARCHED]) if cipher.words(match[0]) in wanted]
    parts, end = list[str](), 0
    for match in hits[:_MOST_HITS]:
        start = max(end, match.start() - _AROUND)
        parts += ["" if start == end else " … ", text[start : match.start()], f"«{match[0]}»"]
        end = match.end()
    return "".join([*parts, text[end : end + _AROUND]])


def _seal_each(cipher: Cipher, part: _Part, values: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
    """Return encrypted values. A `MissingKeysError` names all keys that are known to be missing."""
    missing: set[tuple[str, str]] = set()
    sealed = []
    for number, one in enumerate(values):
        try:
            sealed.append(None if one is None else _seal_parameter(cipher, part, one, _at(parameters, number)))
        except MissingKeysError as error:
            missing |= error.wanted
    if missing:
        raise MissingKeysError(missing)
    return sealed


def _searched(cipher: Cipher, part: _Part, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed parameters of a search. Raise if the encrypted content cannot be searched."""
    name = part.path[0]
    query = parameters.get(name)
    if query in (None, ""):
        return {}
    if part.content.has_words and cipher.finds_words:
        return {name: " ".join(_term_of(cipher, *match.groups()) for match in _TERM.finditer(query))}
    if part.content.kind != "words" and not part.content.has_words:
        raise ConfigurationError(f"{part.column} cannot be searched, because it is encrypted")
    if parameters.get("uses_words") is False:
        return {name: ""}
    if not cipher.finds_words:
        raise ConfigurationError(
            f"{part.column} cannot be searched, because it is encrypted: use Encryption(search='words'), which "
            "stores digests of words for searches"
        )
    return {name: cipher.words(query), "language": _SIMPLE}


def _seal_parameter(cipher: Cipher, part: _Part, value: Any, find: Callable[[str], Any]) -> Any:
    content = part.content
    if content.kind == "words":
        return cipher.words(value)
    keys = _keys(part, find)
    if content.kind == "digest":
        return cipher.mark(part.column, keys, value)
    if content.kind == "bytes":
        if content.lists_segments:
            value = list_segments(value, find("segment_ids"))
        if isinstance(value, str):
            # In a list, bytes are hexadecimal text.
            return f"\\x{cipher.seal(part.column, content, keys, bytes.fromhex(value[2:])).hex()}"
        return cipher.seal(part.column, content, keys, value)
    if content.kind == "text":
        return _seal_text(cipher, part, keys, value.encode("utf-8", "surrogatepass"))
    # The parameter is JSON text.
    if content.kind == "json":
        return f'"{_seal_text(cipher, part, keys, value.encode())}"'
    given = _loads(value.encode())
    sealed = _seal_object(cipher, part, keys, given)
    return value if sealed is given else _dumps(part, sealed).decode()


def _seal_concatenated(cipher: Cipher, part: _Part, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encrypt values that are passed as one byte string, and return the changed parameters."""
    assert part.starts is not None
    assert part.lengths is not None
    data, values = parameters[part.path[0]], []
    for number, (start, length) in enumerate(zip(parameters[part.starts], parameters[part.lengths], strict=True)):
        values.append(_seal_parameter(cipher, part, data[start - 1 : start - 1 + length], _at(parameters, number)))
    sizes = [*map(len, values)]
    starts = [1 + before for before in accumulate(sizes[:-1], initial=0)] if sizes else []
    return {part.path[0]: b"".join(values), part.starts: starts, part.lengths: sizes}


def _seal_laid_out(cipher: Cipher, part: _Part, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encrypt values in one byte string, whose starts are in JSON objects, and return the changed parameters."""
    rows, data, values, at = orjson.loads(parameters[name]), parameters[part.path[0]], [], 1
    for row in rows:
        value = data[row["start"] - 1 : row["start"] - 1 + row["length"]]
        sealed = _seal_parameter(cipher, part, value, _among(row, parameters))
        values.append(sealed)
        row["start"], row["length"] = at, len(sealed)
        at += len(sealed)
    return {part.path[0]: b"".join(values), name: orjson.dumps(rows).decode()}


def _among(row: Mapping[str, Any], parameters: Mapping[str, Any]) -> Callable[[str], Any]:
    return lambda name: row[name] if name in row else parameters[name]


def _seal_json(cipher: Cipher, parts: Sequence[_Part], value: Any, parameters: Mapping[str, Any]) -> str:
    document = orjson.loads(value)
    for part in parts:
        for owner, find in _walk(document, part.path[1:], parameters.__getitem__):
            inner = owner.get(part.path[-1])
            if inner is not None:
                owner[part.path[-1]] = _seal_inner(cipher, part, _keys(part, find), inner)
    return orjson.dumps(document).decode()


def _walk(
    value: Any, path: Sequence[str], find: Callable[[str], Any]
) -> Iterator[tuple[dict[str, Any], Callable[[str], Any]]]:
    """Yield the JSON objects that may have the last key of a path, each with a function that looks up a name.

    The function looks in the object, and then in the objects around the object.
    """
    if isinstance(value, list):
        for one in value:
            yield from _walk(one, path, find)
    elif isinstance(value, dict):

        def found(name: str) -> Any:
            return value[name] if name in value else find(name)

        if len(path) == 1:
            yield value, found
        else:
            yield from _walk(value.get(path[0]), path[1:], found)


def _seal_inner(cipher: Cipher, part: _Part, keys: Sequence[Any], value: Any) -> Any:
    """Return the encrypted form of a value within JSON."""
    if part.content.kind == "object":
        return _seal_object(cipher, part, keys, value)
    if part.content.kind == "text":
        return _seal_text(cipher, part, keys, value.encode("utf-8", "surrogatepass"))
    return _seal_text(cipher, part, keys, _dumps(part, value))


def _dumps(part: _Part, value: Any) -> bytes:
    # SQL compares encrypted values of stable content, so equal objects must give equal bytes.
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if part.content.is_stable else orjson.dumps(value)
    except TypeError:
        # orjson refuses integers of more than 64 bits.
        return json.dumps(value, sort_keys=part.content.is_stable, ensure_ascii=False).encode()


def _loads(text: bytes) -> Any:
    return json.loads(text) if _LONG.search(text) else orjson.loads(text)


def _seal_text(cipher: Cipher, part: _Part, keys: Sequence[Any], content: bytes) -> str:
    # Stable content is not compressed, because another version of zstd may produce other bytes.
    frame = frames.pack_raw(content) if part.content.is_stable else frames.pack(content)
    sealed = to_text(cipher.seal(part.column, part.content, keys, frame))
    if part.content.has_words and (words := cipher.words(content.decode("utf-8", "replace"))):
        # The column's full-text index finds the text by these digests of words.
        return f"{sealed} {words}"
    return sealed


def _seal_object(cipher: Cipher, part: _Part, keys: Sequence[Any], value: Any) -> Any:
    """Return an object with encrypted values, except for readable keys; the same object if all keys are readable."""
    if not isinstance(value, dict):
        return value
    hidden = {key: one for key, one in value.items() if not _is_readable(cipher, part, key)}
    if not hidden and not part.content.is_value:
        return value
    shown = {key: one for key, one in value.items() if key not in hidden}
    shown |= {
        key: cipher.digest(part.column, key, one)
        for key, one in hidden.items()
        if cipher.is_searchable(key) and not (one is None and part.content.is_value)
    }
    return {**shown, SEALED_KEY: _seal_text(cipher, part, keys, _dumps(part, hidden))}


def _is_readable(cipher: Cipher, part: _Part, key: str) -> bool:
    return key != SEALED_KEY and (key in part.content.readable or cipher.is_readable(part.column, key))


def _matched(cipher: Cipher, part: _Part, value: str) -> str:
    """Return a filter on objects as JSON text, with digests of searchable keys."""
    wanted = {}
    for key, one in orjson.loads(value).items():
        if _is_readable(cipher, part, key):
            wanted[key] = one
        elif cipher.is_searchable(key):
            wanted[key] = cipher.digest(part.column, key, one)
        else:
            raise ConfigurationError(
                f"{part.column} cannot be searched for the encrypted key {key!r}: name the key in "
                "Encryption(readable=...), or, for searches of equal values only, in Encryption(searchable=...)"
            )
    return orjson.dumps(wanted).decode()


def _conditions(cipher: Cipher, part: _Part, parameters: Mapping[str, Any]) -> list[str]:
    """Return the operands of a filter on values of the store. Searchable keys have digests, for `$eq` and `$ne`."""
    found = []
    operands = parameters[part.path[0]]
    for path, operator, operand in zip(parameters["paths"], parameters["operators"], operands, strict=True):
        key, *rest = labels_in(path)
        if _is_readable(cipher, part, key):
            found.append(operand)
        elif cipher.is_searchable(key) and not rest and operator in ("$eq", "$ne"):
            is_null = operand == "null"
            found.append(operand if is_null else json.dumps(cipher.digest(part.column, key, _loads(operand.encode()))))
        else:
            raise ConfigurationError(
                f"{part.column} cannot be filtered by the encrypted key {'.'.join([key, *rest])!r} with {operator}: "
                "name the key in Encryption(readable=...), or, for $eq and $ne only, in Encryption(searchable=...)"
            )
    return found


def _open_value(cipher: Cipher, part: _Part, value: Any, find: Callable[[str], Any]) -> Any:
    """Return a decrypted value of a result. What cannot be read is returned as `if intact` and `or error` say."""
    if len(part.path) > 1:
        for owner, inner_find in _walk(value, part.path[1:], find):
            inner = owner.get(part.path[-1])
            if inner is not None:
                owner[part.path[-1]] = _open_value(cipher, part._replace(path=part.path[-1:]), inner, inner_find)
        return value
    keys = _keys(part, find)
    if part.content.kind != "bytes":
        try:
            return _open_text(cipher, part, keys, value)
        except DataKeyDestroyedError:
            # Erased content is read as missing.
            return None
        except MissingKeysError:
            raise
        except (PGStateError, ValueError) as error:
            if part.is_told:
                return error
            if part.is_lenient and isinstance(error, EncryptionError):
                return None
            raise
    try:
        return _opened(cipher, part, keys, value)
    except MissingKeysError:
        raise
    except EncryptionError as error:
        if not part.is_lenient:
            raise
        return frames.Unopened.of(value if is_sealed(value) else b"\x03", error)


def _opened(cipher: Cipher, part: _Part, keys: Sequence[Any], value: bytes) -> bytes:
    if is_sealed(value):
        return cipher.open(part.column, keys, value)
    cipher.admit_plain(where(part.column, keys))
    return value


def _open_text(cipher: Cipher, part: _Part, keys: Sequence[Any], value: Any) -> Any:
    """Return decrypted text or JSON. JSON text stays text."""
    place = where(part.column, keys)
    if part.content.kind == "object":
        is_text = isinstance(value, str)
        try:
            given = _loads(value.encode()) if is_text else value
        except ValueError as error:
            raise DecryptionError(place) from error
        found = _open_object(cipher, part, keys, given, place)
        return _dumps(part, found).decode() if is_text and found is not given else found if not is_text else value
    if isinstance(value, str) and value.startswith(TEXT_MAGIC):
        sealed = _without_words(value) if part.content.has_words else value
        text = frames.unpack(cipher.open(part.column, keys, from_text(sealed, place)), place)
        return text.decode("utf-8", "surrogatepass") if part.content.kind == "text" else orjson.loads(text)
    if part.content.kind == "json" and isinstance(value, str) and value.startswith(_SEALED_TEXT):
        return frames.unpack(cipher.open(part.column, keys, from_text(value[1:-1], place)), place).decode()
    if not may_be_plain(part.content, value):
        cipher.admit_plain(place)
    return value


def may_be_plain(content: Content, value: Any) -> bool:
    """Return whether an unencrypted value is one of the texts that SQL statements write (`Content.plain`)."""
    if not content.plain:
        return False
    return re.fullmatch(content.plain, value if isinstance(value, str) else orjson.dumps(value).decode()) is not None


def _open_object(cipher: Cipher, part: _Part, keys: Sequence[Any], value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        return value
    sealed = value.get(SEALED_KEY)
    if sealed is None:
        if part.content.is_value or any(not _is_readable(cipher, part, key) for key in value):
            cipher.admit_plain(place)
        return value
    if not isinstance(sealed, str) or not sealed.startswith(TEXT_MAGIC):
        raise DecryptionError(place)
    shown = {key: one for key, one in value.items() if key != SEALED_KEY}
    try:
        hidden = _loads(frames.unpack(cipher.open(part.column, keys, from_text(sealed, place)), place))
    except DataKeyDestroyedError:
        return {key: one for key, one in shown.items() if _is_readable(cipher, part, key)}
    if any(key not in hidden and not _is_readable(cipher, part, key) for key in shown):
        # Another program has stored such a key in plain text. This package would have encrypted the key's value.
        cipher.admit_plain(place)
    return {**shown, **hidden}


def reseal(cipher: Cipher, column: str, keys: Sequence[Any], others: Sequence[Sequence[Any]], value: Any) -> Any:
    """Return a stored value encrypted again, bound to its row, under the current data key.

    Return `None` if the value is already encrypted like this. `keys` is the key of the value's row. `others` are keys
    of rows from which the value may have been copied.

    Raises:
        DecryptionError: If the value is bound to none of these rows.
        NotEncryptedError: If the value is not encrypted, and such values are not accepted.
    """
    content = CONTENTS[column]
    part = _Part(column, content, (column,), None, None, None, (), None, frozenset(), False)
    if content.kind == "digest":
        if is_sealed(value):
            return None
        cipher.admit_plain(where(column, keys))
        return cipher.mark(column, keys, value)
    sealed = _sealed_in(content, value, where(column, keys))
    if sealed is not None:
        found, is_own = _open_from(cipher, column, [keys, *others], sealed)
        if is_own and key_id_of(sealed) == cipher.current_id(column, keys):
            return None
        again = cipher.seal(column, content, keys, found)
        if content.kind == "bytes":
            return again
        if content.kind == "object":
            return {**value, SEALED_KEY: to_text(again)}
        return to_text(again) + (value[len(_without_words(value)) :] if content.has_words else "")
    if content.kind == "object":
        given = _seal_object(cipher, part, keys, value)
        if given is value:
            return None
        cipher.admit_plain(where(column, keys))
        return given
    cipher.admit_plain(where(column, keys))
    if content.kind == "bytes":
        return cipher.seal(column, content, keys, value)
    return _seal_inner(cipher, part, keys, value)


def _sealed_in(content: Content, value: Any, place: str) -> bytes | None:
    """Return the encrypted bytes of a stored value; `None` if it is not encrypted."""
    if content.kind == "bytes":
        return value if is_sealed(value) else None
    text = value.get(SEALED_KEY) if content.kind == "object" and isinstance(value, dict) else value
    if content.has_words and isinstance(text, str):
        text = _without_words(text)
    return from_text(text, place) if isinstance(text, str) and text.startswith(TEXT_MAGIC) else None


def _key_id_in(value: Any) -> str | None:
    """Return the id of the data key that a text, JSON or an object names; `None` if it names none."""
    if isinstance(value, str):
        if value.startswith((TEXT_MAGIC, _SEALED_TEXT)):
            return key_id_at(value.removeprefix('"')[:_HEAD], is_bytes=False)
        if SEALED_KEY not in value:
            return None
        try:
            value = orjson.loads(value)
        except ValueError:
            return None
    sealed = value.get(SEALED_KEY) if isinstance(value, dict) else None
    return key_id_at(sealed[:_HEAD], is_bytes=False) if isinstance(sealed, str) else None


def _without_words(value: str) -> str:
    return value.partition(" ")[0] if value.startswith(TEXT_MAGIC) else value


def _open_from(cipher: Cipher, column: str, places: Sequence[Sequence[Any]], sealed: bytes) -> tuple[bytes, bool]:
    """Return the content of a value, and whether the value is bound to the first of some rows."""
    for number, keys in enumerate(places):
        try:
            return cipher.open(column, keys, sealed), number == 0
        except DecryptionError:
            if number == len(places) - 1:
                raise
    raise AssertionError
