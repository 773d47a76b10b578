"""Fields of a form for values, and the values that a person has written in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_pgstate.server.json import to_json


class FormError(ValueError):
    """A form that cannot be used. The message says what is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value as a field of a form.

    Attributes:
        name: Name of the value; empty if it has none.
        kind: `text`, `number`, `boolean` or `json`.
        text: The value as the form shows it.
    """

    name: str
    kind: str
    text: str
    value: Any


def field_of(name: str, value: Any) -> Field:
    """Return a field for a value, by its type."""
    if isinstance(value, bool):
        return Field(name, "boolean", json.dumps(value), value)
    if isinstance(value, int | float):
        return Field(name, "number", to_json(value).decode(), value)
    if isinstance(value, str) and "\0" not in value and _is_encodable(value):
        return Field(name, "text", value, value)
    return Field(name, "json", indented(value), value)


def fields_of(arguments: Any) -> Iterable[Field]:
    """Return a field for each argument, or one field for all if the arguments have no names."""
    if not isinstance(arguments, Mapping) or not arguments:
        yield Field("", "json", indented({} if arguments is None else arguments), arguments)
        return
    for name, value in arguments.items():
        yield field_of(str(name), value)


def read(field: Field, text: str, what: str) -> Any:
    """Return the value that a person has written in a field. An unchanged field returns its original value."""
    if is_same(text, field.text):
        return field.value
    if field.kind == "text":
        return lines(text)
    value = from_json(text, what)
    if field.kind == "json":
        return value
    if field.kind == "boolean":
        if not isinstance(value, bool):
            raise FormError(f"{what} must be true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormError(f"{what} must be a number")
    return float(value) if isinstance(field.value, float) else value


def from_json(text: str, what: str) -> Any:
    """Return the value of JSON that a person has written. An error begins with `what`."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if "\n" in text else ""
        why = error.msg[:1].lower() + error.msg[1:]
        raise FormError(f"{what} must be JSON: {why} ({place}character {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise FormError(f"{what} must be JSON: {error}") from None


def is_same(text: str, shown: str) -> bool:
    """Return whether a text equals the shown text. Line ends are ignored, because browsers change them."""
    return lines(text) == lines(shown)


def lines(text: str) -> str:
    """Return a text with line feeds as line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def indented(value: Any) -> str:
    """Return a value as indented JSON that a form can hold."""
    plain = json.loads(to_json(value))
    text = json.dumps(plain, ensure_ascii=False, indent=2)
    return text if _is_encodable(text) else json.dumps(plain, indent=2)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
