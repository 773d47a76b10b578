"""Differences between two states, shown as one text with marked words or as two texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from langchain_core.messages import BaseMessage

from langgraph_pgstate.checkpoints.types import Difference
from langgraph_pgstate.inspector.formatting import cut, view
from langgraph_pgstate.inspector.forms import call_title
from langgraph_pgstate.inspector.messages import called, text_of

_TOKEN: Final = re.compile(r"\d+(?:[.,]\d+)*|\w+|\s+|.", re.DOTALL)
# Maximum numbers of characters and of words of texts that are compared word by word.
_MOST_COMPARED: Final = 5000
_MOST_WORDS: Final = 400
# Maximum number of characters that a page shows of one text, and of all texts.
_MOST_SHOWN: Final = 1200
_MOST_OF_ALL: Final = 24_000
# A piece without differences that is longer than `_MOST_SAME` is shortened. `_AROUND` characters stay next to each
# difference.
_AROUND: Final = 80
_MOST_SAME: Final = 240
# Two texts count as versions of one text if at least this share of the longer text is equal.
_ALIKE: Final = 0.3
_SHORT: Final = 40
_FACT: Final = 120


@dataclass(frozen=True, slots=True)
class Part:
    """The differences in a value, or in one field of a message.

    Attributes:
        name: Name of the field; empty for a value and for the content of a message.
        before: The old text or its beginning; `None` if there was none.
        after: The new text or its beginning; `None` if there is none.
        words: Pieces, each `same`, `removed` or `added`; `None` if the texts are not versions of one text.
        is_text: Whether the value is a text, not JSON.
        is_whole: Whether all differences are shown.
    """

    name: str
    before: str | None
    after: str | None
    words: tuple[tuple[str, str], ...] | None
    is_text: bool
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two states.

    Attributes:
        place: Place in the channel's value; empty for the whole value.
        change: `added`, `removed`, `changed` or `edited`.
        role: Role of a message; empty for other values.
        parts: The differences; one for each field of a message.
        facts: Other fields of an added or removed message, with the beginnings of their values.
    """

    channel: str
    place: str
    change: str
    role: str | None
    parts: tuple[Part, ...]
    facts: tuple[tuple[str, str], ...] = ()


def changes_of(difference: Difference, most: int) -> tuple[list[Change], int]:
    """Return up to `most` differences, and the number of differences that are left out."""
    found: list[Change] = []
    total, left = 0, _MOST_OF_ALL
    for channel in difference.channels:
        for message in channel.messages:
            total += 1
            if total <= most:
                found.append(_message(channel.channel, message.position, message.before, message.after, left))
                left -= _size(found[-1])
        for one in channel.values:
            total += 1
            if total <= most:
                before = () if one.change == "added" else (one.before,)
                after = () if one.change == "removed" else (one.after,)
                place = "".join(f".{key}" if isinstance(key, str) else f"[{key!r}]" for key in one.path).lstrip(".")
                part = _part("", before, after, left)
                found.append(Change(channel.channel, place[:200], one.change, None, (part,)))
                left -= _size(found[-1])
    return found, total - len(found)


def _message(channel: str, position: int, before: Any, after: Any, left: int) -> Change:
    first, second = _fields(before), _fields(after)
    role = str((second or first).get("role") or (second or first).get("type") or "")
    place = f"[{position}]"
    if first and second:
        names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        parts = tuple(_field(name, first, second, left) for name in names)
        return Change(channel, place, "edited", role, parts)
    only = first or second
    parts = tuple(_field(name, first, second, left) for name in ("content", "tool_calls") if only.get(name))
    facts = [(name, one) for name, one in only.items() if name not in ("content", "tool_calls", "type", "role")]
    shown = tuple((name, cut(view(one, _FACT).text, _FACT)) for name, one in facts)
    return Change(channel, place, "added" if second else "removed", role, parts, shown)


def _fields(message: Any) -> Mapping[str, Any]:
    """Return the fields of a message that are not empty."""
    given = message.model_dump() if isinstance(message, BaseMessage) else message
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {"content": given}
    return {str(name): field for name, field in given.items() if field not in (None, "", [], {})}


def _field(name: str, first: Mapping[str, Any], second: Mapping[str, Any], left: int) -> Part:
    """Compare a field of a message: content by its text, tool calls by their tools and arguments."""
    before, after = ([fields[name]] if name in fields else [] for fields in (first, second))
    if name == "content":
        texts = [[text_of(one) for one in side] for side in (before, after)]
        if texts[0] != texts[1] and all(text for side in texts for text in side):
            return _part("", texts[0], texts[1], left)
    if name == "tool_calls":
        calls = [[_calls(one) for one in side] for side in (before, after)]
        if calls[0] != calls[1]:
            return _part(name, calls[0], calls[1], left)
    return _part("" if name == "content" else name, before, after, left)


def _calls(value: Any) -> str:
    return "\n".join(f"→ {call_title(*called(one)[:2])}" for one in (value if isinstance(value, list) else [value]))


def _part(name: str, before: Sequence[Any], after: Sequence[Any], left: int) -> Part:
    """Compare two values. An empty list stands for no value."""
    most = max(_FACT, min(_MOST_SHOWN, left))
    is_text = all(isinstance(one, str) and not _is_json(one) for one in (*before, *after))
    texts = [(side[0], True) if is_text else _json_of(side[0]) for side in (before, after) if side]
    is_whole = all(whole and len(text) <= most for text, whole in texts)
    words: tuple[tuple[str, str], ...] | None = None
    if len(texts) == 2:
        (first, is_first), (second, is_second) = texts
        if not is_text and _is_short(first, second):
            words = (("removed", first), ("added", second))
        elif (found := words_of(first, second)) is not None:
            words = tuple(_cut(found, most))
            is_whole = words == found and is_first and is_second
    shown = [text[:most] for text, _ in texts]
    return Part(name, shown[0] if before else None, shown[-1] if after else None, words, is_text, is_whole)


def _json_of(value: Any) -> tuple[str, bool]:
    """Return a value's JSON or its beginning, and whether it is complete. Short JSON is on one line."""
    found = view(value, _MOST_SHOWN)
    line = " ".join(one.strip() for one in found.text.splitlines())
    return line if len(line) <= _FACT else found.text, found.is_whole


def _is_short(*texts: str) -> bool:
    return all(len(text) <= _SHORT and "\n" not in text for text in texts)


def _is_json(text: str) -> bool:
    """Return whether a string needs quotes, because it looks like a number or another JSON value."""
    try:
        json.loads(text[:_SHORT])
    except ValueError:
        return False
    return len(text) <= _SHORT


def words_of(before: str, after: str) -> tuple[tuple[str, str], ...] | None:
    """Return the pieces of two versions of one text; `None` if the texts are not alike. Shorten long equal pieces."""
    most = min(len(before), len(after))
    start = _count_alike(before, after)
    end = min(_count_alike(before[::-1], after[::-1]), most - start)
    middle = before[start : len(before) - end], after[start : len(after) - end]
    pieces = [("same", before[:start]), *_compared(*middle), ("same", before[len(before) - end :])]
    same = sum(len(text) for kind, text in pieces if kind == "same")
    if not _is_short(before, after) and same < _ALIKE * max(len(before), len(after)):
        return None
    return tuple(_near([one for one in pieces if one[1]]))


def _count_alike(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts, up to the end of a word."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    # Mark a word that differs as a whole.
    while low and first[low - 1].isalnum() and (first[low : low + 1] + second[low : low + 1]).isalnum():
        low -= 1
    return low


def _compared(before: str, after: str) -> Iterable[tuple[str, str]]:
    first, second = _TOKEN.findall(before[:_MOST_COMPARED]), _TOKEN.findall(after[:_MOST_COMPARED])
    if max(len(first), len(second)) > _MOST_WORDS or max(len(before), len(after)) > _MOST_COMPARED:
        yield from (("removed", before), ("added", after))
        return
    removed = added = ""
    for kind, a, b, c, d in SequenceMatcher(None, first, second, False).get_opcodes():
        same = "".join(first[a:b]) if kind == "equal" else ""
        # A space between two differing words belongs to the difference.
        if same and (same.strip() or not (removed or added)):
            yield from _pair(removed, added)
            yield "same", same
            removed = added = ""
        else:
            removed += "".join(first[a:b])
            added += "".join(second[c:d])
    yield from _pair(removed, added)


def _pair(removed: str, added: str) -> Iterable[tuple[str, str]]:
    # A space at the end of both texts belongs to neither difference.
    space = removed[len(removed.rstrip()) :] if removed and added else ""
    space = space if added.endswith(space) else ""
    yield from (("removed", removed.removesuffix(space)), ("added", added.removesuffix(space)), ("same", space))


def _near(pieces: Sequence[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Return pieces without the middle of long equal pieces."""
    last = len(pieces) - 1
    for place, (kind, text) in enumerate(pieces):
        if kind == "same" and len(text) > _MOST_SAME:
            begin = "" if place == 0 else text[:_AROUND]
            text = f"{begin}…{'' if place == last else text[-_AROUND:]}"
        if text:
            yield kind, text


def _cut(pieces: Iterable[tuple[str, str]], most: int) -> Iterable[tuple[str, str]]:
    for kind, text in pieces:
        if most <= 0:
            return
        yield kind, text if len(text) <= most else f"{text[: most - 1]}…"
        most -= len(text)


def _size(change: Change) -> int:
    """Return the number of characters that a page shows of a difference."""
    facts = sum(len(name) + len(text) for name, text in change.facts)
    return facts + sum(
        sum(len(text) for _, text in one.words)
        if one.words is not None
        else len(one.before or "") + len(one.after or "")
        for one in change.parts
    )
