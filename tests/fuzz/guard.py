"""What reading bytes may not do: an audit hook, for imports, code, processes, files and sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FORBIDDEN = {
    *("import", "exec", "compile", "pickle.find_class", "marshal.loads", "code.__new__", "ctypes.dlopen"),
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.kill"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request"),
}
# How `inspect` reads the signature of a function that is written in C.
_SIGNATURE = "b'def foo("
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# The hook cannot be taken away again, and reports only while something is read.
_state: dict[str, Any] = {"seen": None}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    seen = _state["seen"]
    if seen is None:
        return
    if event == "open":
        flags = arguments[2] if len(arguments) > 2 else 0
        if not (isinstance(flags, int) and flags & _WRITES):
            return
    elif event not in _FORBIDDEN or (event == "compile" and str(arguments[0]).startswith(_SIGNATURE)):
        return
    seen.append(f"{event} {arguments[:1]!r}"[:200])


def install() -> None:
    """Install the hook in this process, for good."""
    sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Return what is done meanwhile that reading may not do."""
    seen: list[str] = []
    _state["seen"] = seen
    try:
        yield seen
    finally:
        _state["seen"] = None
