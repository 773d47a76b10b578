"""Validation of namespaces and paths of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langgraph_pgstate.arguments import identifier, several
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.files.types import Namespace
from langgraph_pgstate.options import MAX_KEY_BYTES

# Bytes of an array in an index entry, and bytes of each element in addition to the element's text.
_ARRAY_BYTES, _LABEL_BYTES = 24, 8


class Place(NamedTuple):
    """A range of paths: from `first` to before `after`. Patterns start from `directory`, which ends with `/`."""

    directory: str
    first: str
    after: str


def namespace_of(namespace: Sequence[str], *, may_be_empty: bool = False) -> Namespace:
    """Return a validated namespace."""
    labels = tuple(identifier("namespace", label) for label in several("namespace", namespace))
    if not may_be_empty and not labels:
        raise ConfigurationError('namespace must have a label, such as ("ada",)')
    if "" in labels:
        raise ConfigurationError(f"namespace must have no empty label, got {labels!r}")
    return labels


def path_of(namespace: Namespace, path: str) -> str:
    """Return the validated path of a file."""
    identifier("path", path)
    names = path.split("/")
    if names[0] or len(names) < 2 or not {"", ".", ".."}.isdisjoint(names[1:]):
        raise ConfigurationError(
            f"path must have the form /directory/name, without empty names, `.` and `..`; got {path!r}"
        )
    size = _ARRAY_BYTES + sum(_LABEL_BYTES + len(label.encode()) for label in namespace) + len(path.encode())
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"namespace and path together must have at most {MAX_KEY_BYTES} bytes, to fit into an index, got {size}"
        )
    return path


def directory_of(path: str) -> str:
    """Return the directory of a file's path, with its `/`."""
    return path[: path.rindex("/") + 1]


def place_of(directory: str) -> Place:
    """Return the range of paths in a directory, which may end with `/`."""
    identifier("directory", directory)
    trimmed = directory.removesuffix("/")
    names = trimmed.split("/")
    if names[0] or not directory or not {"", ".", ".."}.isdisjoint(names[1:]):
        raise ConfigurationError(
            f"directory must be / or have the form /directory, without empty names, `.` and `..`; got {directory!r}"
        )
    return Place(f"{trimmed}/", f"{trimmed}/", f"{trimmed}0")


def only(path: str) -> Place:
    """Return the range that holds only one file."""
    return Place(directory_of(path), path, f"{path}\x01")


def narrowed(place: Place, prefix: str) -> Place:
    """Return the part of a range that begins with a prefix, which must end with `/`."""
    return Place(place.directory, max(place.first, prefix), min(place.after, f"{prefix[:-1]}0"))
