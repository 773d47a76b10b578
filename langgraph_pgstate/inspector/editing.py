"""A form for a state: its fields, a person's changes, and these changes applied to another state.

The name of a field has its kind and its place in the state as JSON: `text ["messages",0,"content"]`. `remove PLACE`
removes an entry of a list, and `add PLACE` appends a message. A place without a field stays unchanged. Hidden fields
carry a person's changes of places that the form does not show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from langchain_core.messages import BaseMessage, convert_to_messages, messages_from_dict
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.types import Overwrite

from langgraph_pgstate.inspector.fields import Field, FormError, field_of, from_json, indented, read
from langgraph_pgstate.inspector.messages import is_conversation
from langgraph_pgstate.langgraph_compat import is_schedule_channel
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.json import to_json

Path: TypeAlias = tuple[str | int, ...]

_ROOT: Final = "__root__"
_KINDS: Final = ("text", "number", "boolean", "json", "any")
# Stands for a value that does not exist.
_NOTHING: Final = object()
# Maximum number of characters and fields of a form, and of characters of a field. In HTML, one character may be written
# as five, like `&#34;`.
_MOST: Final = 36_000
_MOST_FIELDS: Final = 120
_MOST_FIELD: Final = 24_000
_DEEPEST: Final = 3
# Maximum number of hidden fields for single changes. If there are more changes, a field holds several of them.
_MOST_CARRIED: Final = 200
_ROLES: Final = ("human", "ai", "system")


@dataclass(frozen=True, slots=True)
class Edit:
    """A state with a person's changes, as JSON types.

    Attributes:
        before: The state.
        after: The state with the written values. Removed entries are still in it.
        removed: Places of the removed entries of lists.
        problems: Reasons why fields cannot be read, by the name of the field.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    removed: frozenset[Path] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def written(self) -> dict[str, Any]:
        """The state with all changes of the person."""
        found: dict[str, Any] = dict(self.after)
        if self.removed:
            found = deepcopy(found)
            for path in sorted(self.removed, key=lambda one: one[-1], reverse=True):
                del _at(found, path[:-1])[path[-1]]
        return found

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a form that makes the same changes as this edit."""
        found = {}
        places = [path for path, _, _ in _differences(self.before, self.after)]
        for depth in (3, 2, 1):
            if len(places) > _MOST_CARRIED:
                places = [*dict.fromkeys(path[:depth] for path in places)]
        for path in places:
            before, after = _at(self.before, path), _at(self.after, path)
            is_text = _is_text(before) and _is_text(after) and "\r" not in after
            found[_name("text" if is_text else "json", path)] = after if is_text else json.dumps(after)
        return found | {_name("remove", path): "1" for path in sorted(self.removed, key=repr)}

    @property
    def changes(self) -> list[Change]:
        """The differences between the two states."""
        # `_differences` does not find a channel that the second state lacks.
        gone = [Change((name,), one, _NOTHING) for name, one in self.before.items() if name not in self.after]
        before = {name: one for name, one in self.before.items() if name in self.after}
        found = gone + [Change(*one) for one in _differences(before, self.after)]
        return [one for one in found if one.path not in self.removed] + [
            Change(path, _at(self.after, path), _NOTHING) for path in sorted(self.removed, key=repr)
        ]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two states, as JSON types."""

    path: Path
    before: Any
    after: Any

    @property
    def is_added(self) -> bool:
        """Whether the value is new."""
        return self.before is _NOTHING

    @property
    def is_removed(self) -> bool:
        """Whether the value is removed."""
        return self.after is _NOTHING


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a state in a form: a field, or a group of fields.

    Attributes:
        path: Place of the part, as in the names of fields.
        name: Name of the field; empty for a group.
        title: Key of the part.
        kind: Kind of the field, `unset` for a channel without a value, `large` for a value that is too large to edit
            here, or `group`, `messages` or `message`.
        text: Text of the field; the role for a message.
        may_be_json: Whether a group may be edited as JSON instead.
        hidden: Number of messages before the shown messages.
        later: Number of messages after the shown messages.
        problem: Why the text cannot be read.
        about: Name of a message's author.
    """

    path: str
    name: str
    title: str
    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    may_be_json: bool = False
    is_json: bool = False
    is_changed: bool = False
    is_removed: bool = False
    hidden: int = 0
    later: int = 0
    problem: str = ""
    about: str = ""


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as JSON types. Messages lose their empty fields."""
    return {name: _plain(value) for name, value in values.items()}


def read_edit(before: Mapping[str, Any], form: Mapping[str, str]) -> Edit:
    """Return the edit that the fields of a form make to a state."""
    after: Any = {**before}
    removed: list[Path] = []
    added: list[Path] = []
    problems: dict[str, str] = {}
    given = [(*_parsed(name), name, text) for name, text in form.items() if "[" in name]
    # Write outer values before inner values, because outer values decide the kinds of inner fields. At equal depth,
    # write JSON first.
    for kind, path, name, text in sorted(given, key=lambda one: (len(one[1]), one[0] != "json")):
        if kind == "remove":
            removed.append(path)
        elif kind == "add":
            added.append(path)
        elif kind in _KINDS:
            try:
                after = _written(after, path, kind, text)
            except FormError as error:
                problems[name] = str(error)
            except LookupError:
                raise refuse(422, f"the state has no place {json.dumps(path)}") from None
    for path in removed:
        if not (path and isinstance(path[-1], int) and isinstance(_at(after, path[:-1]), list)) or (
            _at(after, path) is _NOTHING
        ):
            raise refuse(422, f"the state has no list with an entry {json.dumps(path)}")
    for path in added:
        text, role = form[_name("add", path)], form.get(_name("role", path), _ROLES[0])
        if text.strip():
            messages = _at(after, path)
            if not isinstance(messages, list) or role not in _ROLES:
                what = f"{json.dumps(path)} must be a list of messages, and the role one of {', '.join(_ROLES)}"
                raise refuse(422, f"{what}, got {type(messages).__name__} and {role!r}")
            after = _set(after, (*path, len(messages)), {"type": role, "content": text})
    return Edit(before, after, frozenset(removed), problems)


def merged(edit: Edit, theirs: Mapping[str, Any]) -> Edit:
    """Return an edit that makes the same changes to another version of the state.

    Messages are matched by id. If both versions changed a value, the person's value is taken. Changes of messages that
    the other version lacks are left out.
    """
    # Drop entries that the person added and removed again, because neither version has them.
    own = Edit(edit.before, edit.after, frozenset(one for one in edit.removed if _at(edit.before, one) is _NOTHING))
    after = _merged(edit.before, own.written, theirs)
    removed = (_moved(edit.before, after, path) for path in edit.removed - own.removed)
    return Edit(theirs, after, frozenset(path for path in removed if path is not None))


def lost(edit: Edit, theirs: Mapping[str, Any]) -> list[Change]:
    """Return the changes that `merged` leaves out, because the other version lacks their messages."""
    return [
        one
        for one in edit.changes
        if len(one.path) > 1
        and is_conversation(_at(edit.before, one.path[:1]))
        and _at(edit.before, one.path[:2]) is not _NOTHING
        and _moved(edit.before, theirs, one.path[:2]) is None
    ]


def nodes(
    edit: Edit, form: Mapping[str, str], unset: Sequence[str], until: int | None
) -> tuple[list[Node], dict[str, str]]:
    """Return the form of a state: a node for each channel, and hidden fields for changes that the nodes do not show.

    Args:
        form: The fields that were sent. `as_json PLACE` shows a place as JSON.
        unset: Channels that have no value.
        until: Show only messages before this index.
    """
    maker = _Maker(edit, form, until)
    order = sorted(edit.after, key=lambda name: not is_conversation(edit.after[name]))
    found = [maker.node((name,), edit.after[name], name) for name in order]
    for name in unset:
        if name not in edit.after:
            field_name = _name("any", (name,))
            found.append(Node(_place((name,)), field_name, name, "unset", form.get(field_name, "")))
    hidden = {name: text for name, text in edit.fields.items() if not maker.shows(*_parsed(name))}
    return found, hidden


def place_of(change: Change, state: Mapping[str, Any]) -> str:
    """Return the place of a change within its channel: `message 3 (ai) content`."""
    if len(change.path) < 2:
        return ""
    channel, number, *rest = change.path
    values = _at(state, (channel,))
    if isinstance(number, int) and is_conversation(values) and number < len(values):
        one = values[number]
        if rest[:1] == ["tool_calls"] and len(rest) > 1:
            call = _at(one, tuple(rest[:2]))
            rest = [str(call.get("name")) if isinstance(call, dict) else "call", *rest[3:]]
        words = " ".join(["", *map(str, rest)]).removesuffix(" content")
        return f"message {number + 1} ({one.get('type') or one.get('role')}){words}"
    return "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in change.path[1:]).lstrip(".")


def texts_of(change: Change) -> tuple[str | None, str | None]:
    """Return the values before and after a change as texts; `None` for a missing value."""
    return _shown(change.before), _shown(change.after)


def updates(written: Mapping[str, Any], values: Mapping[str, Any], graph: Any) -> dict[str, Any]:
    """Return the updates that turn the state `values` into the state `written`.

    Channels that `written` lacks are not changed.
    """
    found: dict[str, Any] = {}
    for name, value in written.items():
        if name in values and _is_equal(value, _plain(values[name])):
            continue
        before = values.get(name)
        holds_messages = is_conversation(before) and all(isinstance(one, BaseMessage) for one in before or ())
        new = _messages(name, value, before) if holds_messages else _kept(value, before)
        # Use `Overwrite`, because a reducer would add the written value to the old value.
        found[name] = (
            Overwrite(new) if isinstance(graph.channels.get(name), BinaryOperatorAggregate | DeltaChannel) else new
        )
    return found


def channels_of(graph: Any) -> list[str]:
    """Return the channels of a graph that a person may write."""
    return [name for name in graph.channels if not is_schedule_channel(name) and name != "__start__"]


def check_channels(written: Mapping[str, Any], graph: Any) -> None:
    """Refuse channels that a graph does not have."""
    known = channels_of(graph)
    unknown = [name for name in written if name not in known]
    if unknown and _ROOT not in known:
        there_are = ", ".join(map(repr, sorted(known)[:50]))
        raise refuse(422, f"the graph has no channel {', '.join(map(repr, unknown[:10]))}; it has {there_are}")


class _Maker:
    """A maker of the nodes of a form. If the form becomes too large, it leaves out earlier messages."""

    def __init__(self, edit: Edit, form: Mapping[str, str], until: int | None) -> None:
        self._edit, self._form, self._until = edit, form, until
        self._characters, self._fields = _MOST, _MOST_FIELDS
        self._changed = [path for path, _, _ in _differences(edit.before, edit.after)]
        self._shown: dict[Path, str] = {}
        self._removable: set[Path] = set()

    def shows(self, kind: str, path: Path) -> bool:
        """Return whether the form has a field that makes a change at a place."""
        if kind == "remove":
            return path in self._removable
        # If the kind of the value has changed, the shown field cannot make the whole change.
        before = _at(self._edit.before, path)
        is_alike = before is not _NOTHING and self._shown.get(path) == field_of("", before).kind
        return is_alike or any(self._shown.get(path[:length]) == "json" for length in range(len(path) + 1))

    def node(self, path: Path, value: Any, title: str, depth: int = 0) -> Node:
        if _name("as_json", path) in self._form:
            return replace(self._field(path, Field(title, "json", indented(value), value)), is_json=True)
        if is_conversation(value) and depth == 0:
            return self._messages(path, value, title)
        if isinstance(value, dict) and value and depth < _DEEPEST:
            parts = tuple(self.node((*path, key), one, key, depth + 1) for key, one in value.items())
            if any(one.kind != "large" for one in parts):
                return self._group(path, title, "group", parts, value)
        return self._field(path, field_of(title, value))

    def _field(self, path: Path, one: Field) -> Node:
        name = _name(one.kind, path)
        text = self._form[name] if name in self._edit.problems else one.text
        if len(text) > min(self._characters, _MOST_FIELD) or not self._fields:
            return Node(_place(path), "", one.name, "large", str(len(text)))
        self._characters -= len(text)
        self._fields -= 1
        self._shown[path] = one.kind
        problem = self._edit.problems.get(name, "")
        return Node(_place(path), name, one.name, one.kind, text, is_changed=self._is_changed(path), problem=problem)

    def _group(self, path: Path, title: str, kind: str, parts: tuple[Node, ...], value: Any, **more: Any) -> Node:
        may_be_json = len(json.dumps(value, ensure_ascii=False, indent=2)) <= _MOST_FIELD
        is_changed = self._is_changed(path)
        return Node(_place(path), "", title, kind, parts=parts, may_be_json=may_be_json, is_changed=is_changed, **more)

    def _messages(self, path: Path, messages: Sequence[Any], title: str) -> Node:
        until = len(messages) if self._until is None else max(0, min(self._until, len(messages)))
        parts: list[Node] = []
        for number in reversed(range(until)):
            if parts and (self._characters < len(str(messages[number].get("content"))) or self._fields < 4):
                break
            parts.append(self._message((*path, number), messages[number]))
        more = {"hidden": until - len(parts), "later": len(messages) - until}
        return self._group(path, title, "messages", tuple(reversed(parts)), messages, **more)

    def _message(self, path: Path, message: Mapping[str, Any]) -> Node:
        is_json = _name("as_json", path) in self._form
        if is_json:
            parts: tuple[Node, ...] = (self._field(path, Field("JSON", "json", indented(message), message)),)
        else:
            parts = tuple(self._fields_of(path, message))
        self._removable.add(path)
        self._fields -= 1
        role = str(message.get("type") or message.get("role"))
        about = str(message.get("name") or "")
        more = {"is_removed": path in self._edit.removed, "about": about, "text": role, "is_json": is_json}
        return self._group(path, str(path[-1]), "message", parts, message, **more)

    def _fields_of(self, path: Path, message: Mapping[str, Any]) -> Iterator[Node]:
        """Return the fields of a message: its text, and the arguments of its tool calls."""
        content, calls = message["content"], message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        if isinstance(content, list):
            known = {one.get("id") for one in calls if isinstance(one, Mapping)}
            for number, part in enumerate(content):
                here = (*path, "content", number)
                if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                    yield self._field((*here, "text"), field_of(str(part.get("type") or "text"), part["text"]))
                elif not (isinstance(part, Mapping) and part.get("type") == "tool_use" and part.get("id") in known):
                    title = str(part.get("type") or "part") if isinstance(part, Mapping) else "text"
                    yield self._field(here, field_of(title, part))
        elif content or not calls:
            yield self._field((*path, "content"), field_of("content", content))
        for number, call in enumerate(calls):
            if not isinstance(call, Mapping) or not isinstance(call.get("args"), Mapping):
                continue
            here = (*path, "tool_calls", number, "args")
            parts = tuple(self._field((*here, key), field_of(key, one)) for key, one in call["args"].items())
            yield Node(_place(here), "", str(call.get("name") or "call"), "call", parts=parts)

    def _is_changed(self, path: Path) -> bool:
        return any(one[: len(path)] == path or path[: len(one)] == one for one in self._changed)


def _parsed(name: str) -> tuple[str, Path]:
    """Return the kind and the place in the name of a field."""
    kind, _, text = name.partition(" ")
    try:
        path = json.loads(text)
    except (ValueError, RecursionError):
        path = None
    if not isinstance(path, list) or not all(isinstance(one, str | int) and one is not True for one in path):
        raise refuse(422, f"{name[:200]!r} must name a place of the state")
    return kind, tuple(path)


def _name(kind: str, path: Path) -> str:
    return f"{kind} {_place(path)}"


def _place(path: Path) -> str:
    return json.dumps(path, ensure_ascii=not _is_writable(path), separators=(",", ":"))


def _is_writable(path: Path) -> bool:
    return all(_is_text(one) for one in path if isinstance(one, str))


def _written(state: Any, path: Path, kind: str, text: str) -> Any:
    """Write the text of a field into a state, and return the state."""
    old = _at(state, path)
    if not path:
        value = from_json(text, "the state")
        if not isinstance(value, dict):
            raise FormError("the state must be a JSON object with a field for each channel")
        return {**state, **value}
    if kind == "any":
        # A channel without a value takes JSON. Text that is not JSON is the value itself.
        if not text.strip():
            return state
        try:
            return _set(state, path, json.loads(text))
        except (ValueError, RecursionError):
            return _set(state, path, text)
    if kind == "json":
        shown = Field("", "json", "" if old is _NOTHING else indented(old), old)
    elif old is _NOTHING:
        raise LookupError(path)
    else:
        shown = field_of("", old)
        if shown.kind != kind:
            raise FormError(f"the value is no longer a {kind}")
    value = read(shown, text, str(path[-1]))
    return state if value is old else _set(state, path, value)


def _at(state: Any, path: Path) -> Any:
    """Return the value at a place of a state; `_NOTHING` if there is none."""
    for key in path:
        has_key = isinstance(state, dict) and isinstance(key, str) and key in state
        if not has_key and not (isinstance(state, list) and isinstance(key, int) and 0 <= key < len(state)):
            return _NOTHING
        state = state[key]
    return state


def _set(state: Any, path: Path, value: Any) -> Any:
    """Return a state with a new value at a place. An index one past the end appends."""
    if not path:
        return value
    key, *rest = path
    if isinstance(state, dict) and isinstance(key, str) and (key in state or not rest):
        return {**state, key: _set(state.get(key), tuple(rest), value)}
    if isinstance(state, list) and isinstance(key, int) and 0 <= key <= len(state) - bool(rest):
        inner = _set(state[key] if rest else None, tuple(rest), value)
        return [*state[:key], inner, *state[key + 1 :]]
    raise LookupError(key)


def _differences(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Return the deepest places at which two states of the same structure differ."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() <= after.keys():
        for key, one in after.items():
            yield from _differences(before.get(key, _NOTHING), one, (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for place, one in enumerate(after):
            yield from _differences(before[place] if place < len(before) else _NOTHING, one, (*path, place))
    elif not _is_equal(before, after):
        yield path, before, after


def _is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are the same JSON; `true` is not 1."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_is_equal(one, second[key]) for key, one in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    return type(first) is type(second) and bool(first == second)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and field_of("", value).kind == "text"


def _merged(before: Any, mine: Any, theirs: Any) -> Any:
    """Return a value with the changes of both versions. In a conflict, the person's change is taken."""
    if _is_equal(before, mine):
        return theirs
    if _is_equal(before, theirs) or len({type(before), type(mine), type(theirs)}) > 1:
        return mine
    if isinstance(before, dict):
        names = [*theirs, *(name for name in mine if name not in theirs)]
        found = {
            name: _merged(before.get(name, _NOTHING), mine.get(name, _NOTHING), theirs.get(name, _NOTHING))
            for name in names
        }
        return {name: one for name, one in found.items() if one is not _NOTHING}
    if isinstance(before, list):
        own, old, new = _by_id(mine), _by_id(before), _by_id(theirs)
        if own is not None and old is not None and new is not None:
            # Messages without an id are matched by place. Different messages at one place are both kept.
            both = {id for id, one in own.items() if id in new and _is_same_message(id, old, one, new[id])}
            kept = [
                _merged(old.get(id, _NOTHING), own[id], one) if id in both else one
                for id, one in new.items()
                if id in own or id not in old
            ]
            return kept + [one for id, one in own.items() if id not in both and id not in old]
    return mine


def _is_same_message(key: Any, old: Mapping[Any, Any], mine: Any, theirs: Any) -> bool:
    """Return whether two messages with the same key of `_by_id` are versions of one message."""
    return key in old or isinstance(key, str) or _is_equal(mine, theirs)


def _by_id(messages: Sequence[Any]) -> dict[Any, Any] | None:
    """Return messages by id, or else by place; `None` if an entry is no message or an id occurs twice."""
    found: dict[Any, Any] = {}
    for place, one in enumerate(messages):
        if not isinstance(one, dict) or "content" not in one:
            return None
        id = one.get("id")
        key = ("added", place) if id is None else id
        if key in found:
            return None
        found[key] = one
    return found


def _moved(before: Any, theirs: Any, path: Path) -> Path | None:
    """Return the place of an entry in another state; `None` unless that state has the entry exactly once."""
    one = _at(before, path)
    others = _at(theirs, path[:-1])
    if one is _NOTHING or not isinstance(others, list):
        return None
    id = one.get("id") if isinstance(one, dict) else None
    same = [place for place, other in enumerate(others) if _is_equal(other, one)]
    if id is not None:
        same = [place for place, other in enumerate(others) if isinstance(other, dict) and other.get("id") == id]
    return (*path[:-1], same[0]) if len(same) == 1 else None


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    if isinstance(value, dict) and is_conversation([value]) and isinstance(value["content"], str):
        value = value if value.get("tool_calls") else value["content"]
    return value if _is_text(value) else indented(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(one, BaseMessage) for one in value):
        return [_plain(one) for one in value]
    if isinstance(value, BaseMessage):
        fields = value.model_dump().items()
        value = {name: one for name, one in fields if name == "content" or one not in (None, "", [], {}, False)}
    return json.loads(to_json(value))


def _kept(written: Any, before: Any) -> Any:
    """Return a written value in which unchanged parts are the original objects."""
    if _is_equal(written, _plain(before)):
        return before
    if isinstance(written, dict) and isinstance(before, dict):
        return {name: _kept(one, before[name]) if name in before else one for name, one in written.items()}
    if isinstance(written, list) and isinstance(before, list | tuple):
        kept = [_kept(one, before[place]) if place < len(before) else one for place, one in enumerate(written)]
        return kept if isinstance(before, list) else tuple(kept)
    return written


def _messages(name: str, written: Any, before: Any) -> list[BaseMessage]:
    """Return messages that were written as JSON. Unchanged messages are the original objects."""
    if not isinstance(written, list):
        raise refuse(422, f"{name} must be a list of messages, got {type(written).__name__}")
    known = [(_plain(one), one) for one in before]
    found = []
    for place, one in enumerate(written):
        same = next((message for plain, message in known if plain == one), None)
        try:
            found.append(_message(one) if same is None else same)
        except (ValueError, TypeError, KeyError, NotImplementedError) as error:
            why = str(error).partition("\nFor troubleshooting")[0]
            raise refuse(422, f"{name}[{place}] must be a message: {why}") from None
    return found


def _message(one: Any) -> BaseMessage:
    if not isinstance(one, Mapping):
        raise TypeError(f"it must be an object with a type and a content, got {type(one).__name__}")
    if "content" not in one and "tool_calls" not in one:
        raise ValueError("it must have a content")
    if "role" in one or "type" not in one:
        return convert_to_messages([dict(one)])[0]
    return messages_from_dict([{"type": one["type"], "data": {"content": "", **one}}])[0]
