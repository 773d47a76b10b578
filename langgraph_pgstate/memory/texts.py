"""The texts of a value, for embeddings and searches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from langgraph.store.base import get_text_at_path, tokenize_path

from langgraph_pgstate.arguments import has_nul, identifier
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, SerializationError
from langgraph_pgstate.heavy import has_many_values

WHOLE: Final = "$"
"""The path of the whole value."""

# `tsvector` holds at most 1 MB of words, so only the beginning of a long text is found by words.
_MAX_WORDS_BYTES: Final = 200_000
_dumps: Final = partial(json.dumps, allow_nan=False, ensure_ascii=False)
# Maximum number of items of a list or mapping that one call of the encoder gets.
_PART: Final = 500
# Lists and mappings that are nested more deeply are encoded in one call.
_MAX_PARTED: Final = 100


class Text(NamedTuple):
    """One text of a value. `field` is its path, with a number if the path has several texts."""

    field: str
    text: str


def fields_of(fields: Any, *, name: str) -> tuple[str, ...]:
    """Return validated paths of fields."""
    found = (fields,) if isinstance(fields, str) else fields
    if not isinstance(found, Sequence) or not all(isinstance(one, str) and one for one in found):
        raise ArgumentTypeError(f'{name} must be a list of paths such as "text" or "parts[*].text", not {fields!r}')
    for one in found:
        identifier(name, one)
    return tuple(dict.fromkeys(found))


def texts_of(value: Mapping[str, Any], fields: Sequence[str]) -> list[Text]:
    """Return the texts of some fields of a value. Missing fields have no texts."""
    return [*_texts(value, fields)]


def _texts(value: Mapping[str, Any], fields: Sequence[str]) -> Iterator[Text]:
    for field in fields:
        found = get_text_at_path(value, WHOLE if field == WHOLE else tokenize_path(field))
        for number, text in enumerate(found):
            yield Text(field if len(found) == 1 else f"{field}.{number}", text)


def words_of(texts: Sequence[Text]) -> str:
    """Return the text that is searched by words; empty if there is none."""
    return "\n".join(one.text for one in texts)[:_MAX_WORDS_BYTES]


def _json(value: Any, depth: int = 0) -> str:
    """Return a value as JSON. Many values are encoded by several calls, so that no call holds the GIL for long."""
    kind = type(value)
    if kind not in (dict, list, tuple) or depth > _MAX_PARTED or not has_many_values(value):
        return _dumps(value)
    rest, parts = iter(value.items() if kind is dict else value), []
    while some := [*islice(rest, _PART)]:
        if not has_many_values(some):
            parts.append(_dumps(dict(some) if kind is dict else some)[1:-1])
        elif kind is dict:
            # To encode the key with its colon, encode a mapping of the key to 0, and cut off the braces and the 0.
            parts += [_dumps({key: 0})[1:-2] + _json(item, depth + 1) for key, item in some]
        else:
            parts += [_json(item, depth + 1) for item in some]
    return ("{%s}" if kind is dict else "[%s]") % ", ".join(parts)


def json_value(value: Any) -> str:
    """Return the value of an item as JSON."""
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"value must be a mapping, not {type(value).__name__}")
    try:
        text = _json(value if type(value) is dict else {**value})
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError("value", value, error) from None
    if "\\u0000" in text and has_nul(value):
        raise SerializationError("value", value, ConfigurationError("the value must not contain NUL"))
    return text
