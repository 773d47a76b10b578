"""Types of files, their versions, and found lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Namespace = tuple[str, ...]
"""Labels of a group of files, such as those of a user. Namespaces are compared as a whole."""

Operation = Literal["write", "edit", "delete", "restore"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or a directory in a list.

    Attributes:
        path: Path of the file or directory. The path of a directory ends with `/`.
        is_dir: Whether this is a directory. A directory exists while it has a file.
        size: Bytes of the file; 0 for a directory.
        line_count: Number of lines of the file; 0 for a directory or a binary file.
        version: Number of the file's newest version; `None` for a directory.
        modified_at: Time of the file's newest version; `None` for a directory.
    """

    path: str
    is_dir: bool
    size: int
    line_count: int
    version: int | None
    modified_at: datetime | None


@dataclass(frozen=True, slots=True)
class File:
    """A version of a file with its content.

    Attributes:
        path: Its path.
        version: Number of the version.
        content: The text, or the bytes of a binary file.
        size: Bytes.
        line_count: Number of lines; 0 if it is binary.
        created_at: Time of the file's first version.
        modified_at: Time of this version.
    """

    path: str
    version: int
    content: str | bytes
    size: int
    line_count: int
    created_at: datetime
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A version of a file without its content: its operation, time and author.

    Attributes:
        namespace: Namespace of the file.
        path: Path of the file.
        version: Number of the version, from 1.
        operation: `write`, `edit`, `delete` or `restore`.
        created_at: Time at which the version was written.
        size: Bytes.
        line_count: Number of lines; 0 if the file is binary.
        is_text: Whether the content is text.
        restored_version: Number of the version that a restore copied; `None` for other operations.
        changed_by: Name of the person who wrote the version, if given.
        thread_id: Thread of the run that wrote the version; `None` outside of a run.
        checkpoint_ns: Namespace of the graph that wrote the version; `None` outside of a run.
        checkpoint_id: Checkpoint, in that namespace, from which the superstep started.
        run_id: Run that wrote the version.
    """

    namespace: Namespace
    path: str
    version: int
    operation: Operation
    created_at: datetime
    size: int
    line_count: int
    is_text: bool
    restored_version: int | None = None
    changed_by: str | None = None
    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that a search has found.

    Attributes:
        path: The file.
        number: Number of the line, from 1.
        text: The line, without its newline.
    """

    path: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class FoundLines:
    """Result of a search.

    Attributes:
        lines: The lines, by path and number.
        is_truncated: Whether there are more lines than the limit.
    """

    lines: tuple[FoundLine, ...]
    is_truncated: bool
