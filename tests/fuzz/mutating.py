"""Damaged and forged values: bytes, texts, and trees of JSON or MessagePack."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import ormsgpack

_LENGTHS: Final = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(b"\xc9\xff\xff\xff\xff\x05", b"\xdc\xff\xff", b"\x91" * 2000, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\0" * 8),
)
_TOKENS: Final = (
    *(b"\xc0", b"\xc1", b"\xc2", b"\x90", b"\x80", b"\xa0", b"\xc4\x00", b"\xcb" + struct.pack(">d", float("nan"))),
    *(b"builtins", b"os", b"system", b"eval", b"__reduce__", b"subprocess", b"Popen", b"antigravity", b"null"),
    *(b"1e999", b"[" * 3000, b"{}", b"[]", b'"', b"-", b":", b".", b"\x00", b"\xed\xa0\x80", b"9" * 5000),
)
TEXTS: Final = (
    *("", " ", "\0", "a\0b", "\ud800", "e\u0301", "日本🙂", "%", "_", "\\", "'", '"', "-1", "0", "1", "\n", "\r\n"),
    *("x" * 5000, "1e400", "9" * 5000, "²", "/", "..", "a.b", "a|b", "a:b", "__x", "[0]", "nan", "*", "{}", "[]"),
    *("null", '"x"', "[" * 3000, '{"a":' * 3000, "<script>", "//host/", "\x7f", "\u2028", "\ufeff", "\U0010ffff"),
    *("0001-01-01", "2026-01-01", "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00+14:00", "infinity"),
    *(str(2**31), str(2**63), str(-(2**63)), "pgs1:", "pgs1:AAAA", "pgstate_encrypted", "$eq", "__proto__", "true"),
)
"""Texts that are refused, escaped or misread somewhere."""
NUMBERS: Final = (
    *(-1, 0, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
    *(10**30, -0.0, 0.5, 1e-320, 1e16, 1e308, float("nan"), float("inf"), float("-inf")),
)
"""Numbers at the ends of types, and beyond."""


class Raw(str):
    """JSON as it is written."""


def scalar(dice: random.Random) -> Any:
    """Return a hostile value."""
    match dice.randrange(8):
        case 0:
            return None
        case 1:
            return dice.random() < 0.5
        case 2 | 3:
            return dice.choice(NUMBERS)
        case 4:
            return "".join(map(chr, dice.choices(range(1, 0x2FFF), k=dice.randrange(8))))
        case 5:
            return dice.choice(([], {}, [[]], [None], {"a": 1}, {"": {}}, [1, "2", None, []]))
        case _:
            return dice.choice(TEXTS)


def nested(dice: random.Random, levels: int) -> Raw:
    """Return JSON of many levels."""
    half = levels // 2
    return Raw(dice.choice(('{"a":' * half + "[" * half + "]" * half + "}" * half, "[" * levels + "]" * levels)))


def changed(dice: random.Random, tree: Any, other: Callable[[random.Random], Any] = scalar) -> Any:
    """Return a tree with one part replaced, removed, doubled, renamed, or put elsewhere."""
    places: list[tuple[Any, ...]] = []

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        places.append(path)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            walk(item, (*path, key))

    walk(tree, ())
    path = dice.choice(places)
    new = _at(tree, dice.choice(places)) if dice.random() < 0.3 else other(dice)
    return _set(tree, path, new, dice.randrange(8))


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _set(tree: Any, path: Sequence[Any], new: Any, how: int) -> Any:
    if not path:
        return {0: [tree], 1: {"a": tree}}.get(how, new)
    key, *rest = path
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if rest or how > 3:
        copy[key] = _set(copy[key], rest, new, how)
    elif how == 0:
        del copy[key]
    elif how == 1 and isinstance(copy, list):
        copy.insert(key, copy[key])
    elif how == 2 and isinstance(copy, dict):
        copy[new if isinstance(new, str) else str(new)] = copy.pop(key)
    else:
        copy[key] = [copy[key]]
    return copy


def written(value: Any) -> str:
    """Return JSON, also of parts that Python's own does not write."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(name))}:{written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def unpacked(data: bytes) -> Any:
    """Return the tree of MessagePack, with extension types as they are."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


def packed(tree: Any) -> bytes:
    """Return a tree as MessagePack."""
    return ormsgpack.packb(tree, option=ormsgpack.OPT_NON_STR_KEYS)


def packable(dice: random.Random) -> Any:
    """Return a hostile value of MessagePack."""
    found = scalar(dice)
    if dice.random() < 0.2:
        return dice.choice((b"", b"\xc0", b"\x80", b"\xff" * 9, bytes(3), "pickle", "msgpack", "json", "null"))
    try:
        packed(found)
    except (TypeError, ValueError):
        return None
    return found


def damaged(dice: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return bytes like some others: flipped, cut, joined, with lengths that are not so; or any bytes."""
    if dice.random() < 0.03:
        return dice.randbytes(dice.randrange(200))
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(9):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 2 if at < len(data):
                data[at] = dice.randrange(256)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + dice.randrange(1, 9)]
            case 5:
                other = dice.choice(seeds)
                start = dice.randrange(len(other) + 1)
                data[at : at + dice.randrange(20)] = other[start : start + dice.randrange(1, 60)]
            case 6:
                length = dice.choice(_LENGTHS)
                data[at : at + dice.choice((0, len(length)))] = length
            case 7:
                token = dice.choice(_TOKENS)
                data[at : at + dice.choice((0, len(token)))] = token
            case 8:
                data[at:at] = data[at : at + dice.randrange(1, 40)]
    return bytes(data)
