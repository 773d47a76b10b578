"""What happened, written down outside of the database: a file for each process, a line for each thing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

Line = dict[str, Any]


class Journal:
    """The file of one process. A line is one `write`; only the last of a process that is killed may be cut off.

    Args:
        directory: Where all processes' files are.
        name: Of this process; two never have the same.
        die: Names of the points at which this process kills itself, with the number of the visit.
    """

    def __init__(self, directory: Path, name: str, die: Mapping[str, int] | None = None) -> None:
        self.name = name
        self._die = dict(die or {})
        self._file = os.open(directory / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **more: Any) -> None:
        """Append a line."""
        line = {"what": what, "at": time.monotonic(), "by": self.name, **more}
        os.write(self._file, orjson.dumps(line, default=repr) + b"\n")

    def point(self, name: str) -> None:
        """Kill this process if it is to die here."""
        if name in self._die:
            self._die[name] -= 1
            if self._die[name] == 0:
                self.note("fault", kind=f"kill {name}")
                os.kill(os.getpid(), signal.SIGKILL)


def read(directory: Path) -> list[Line]:
    """All lines of all processes, oldest first; they share the machine's monotonic clock."""
    lines: list[Line] = []
    for file in directory.glob("*.jsonl"):
        # A process that was killed may have written a part of its last line.
        lines += [orjson.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    return sorted(lines, key=lambda line: float(line["at"]))


def digest(value: Any) -> str:
    """Twelve characters that are the same for equal values, whichever process holds them."""
    text = json.dumps(_plain(value), sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    """The value as JSON has it, with the types of its parts."""
    if isinstance(value, ToolMessage):
        # LangGraph gives it an id in place, before or after it is stored.
        return ["ToolMessage", _plain(value.model_dump(exclude={"id"}))]
    if isinstance(value, BaseMessage | BaseModel):
        return [type(value).__name__, _plain(value.model_dump())]
    if isinstance(value, Mapping):
        # A snapshot stands for an unchanged DeltaChannel in any checkpoint after it; what it means is in the state.
        return {str(key): _plain(item) for key, item in value.items() if not isinstance(item, _DeltaSnapshot)}
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(_plain(getattr(value, field.name)) for field in fields(value))]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
