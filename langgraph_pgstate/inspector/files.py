"""The pages of agents' files: directories, and one file with its versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from langgraph_pgstate.errors import FileChangedError, NotFoundError
from langgraph_pgstate.files.types import File, FileVersion
from langgraph_pgstate.inspector.changes import told_by
from langgraph_pgstate.inspector.formatting import namespace_text
from langgraph_pgstate.inspector.memory import labels_in, namespace_in
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_memory
from langgraph_pgstate.server.errors import missing, refuse

_PAGE: Final = 50
_ENTRIES: Final = 300
_VERSIONS: Final = 20
# Maximum number of characters of a file, and of lines of a diff, that a page shows.
_SHOWN: Final = 40_000
_LINES: Final = 400
_DONE: Final = {"write": "written", "edit": "edited", "delete": "deleted", "restore": "restored"}


async def files(call: PageCall) -> Page:
    """Show the namespaces that have files, or a directory of one of them."""
    text = call.query("namespace")
    if text is None:
        await check_sees_memory(call, "search")
        page = await call.state.files.namespaces(limit=_PAGE, cursor=call.query("cursor"))
        data: dict[str, Any] = {
            "namespaces": [{"labels": [*one], "text": namespace_text(one)} for one in page.items],
            "next": page.next,
            "entries": None,
        }
        return Page("files.html", "Files", data, place=call.link("memory"))
    namespace, directory = labels_in(text), call.query("directory") or "/"
    await check_sees_memory(call, "search", namespace)
    found = await call.state.files.ls(namespace, directory)
    data = {
        "namespaces": (),
        "next": None,
        "entries": found[:_ENTRIES],
        "left_out": max(0, len(found) - _ENTRIES),
        "namespace": [*namespace],
        "namespace_text": text,
        "directory": directory,
        "above": _above(directory),
    }
    return Page("files.html", "Files", data, place=call.link("memory"))


def _above(directory: str) -> list[tuple[str, str]]:
    names = [name for name in directory.split("/") if name]
    return [(name, f"/{'/'.join(names[: place + 1])}") for place, name in enumerate(names)]


async def file(call: PageCall) -> Page:
    """Show a version of a file, by default the newest, or a diff of two versions. List all versions."""
    namespace, path = namespace_in(call), call.path("path")
    await check_sees_memory(call, "get", namespace)
    page = await call.state.files.history(namespace, path, limit=_VERSIONS, cursor=call.query("cursor"))
    if not page.items:
        raise missing("file", path)
    newest = page.items[0]
    number = call.number("version", 0) or newest.version
    found, lines = None, None
    if call.query("a") is not None:
        lines = await _diff(call, namespace, path)
    else:
        found = await call.state.files.read(namespace, path, version=number)
        if found is None and all(one.version != number for one in page.items):
            raise missing("version", str(number))
    data = {
        "namespace": [*namespace],
        "namespace_text": namespace_text(namespace),
        "path": path,
        "directories": _above(path)[:-1],
        "version": number,
        # The form sends this number, and `restore` refuses the form if the file has a newer version.
        "newest": newest.version if call.query("cursor") is None else None,
        "is_deleted": newest.operation == "delete" and call.query("cursor") is None,
        "content": None if found is None else _content(found),
        "diff": lines,
        "a": call.number("a", 0),
        "b": call.number("b", 0),
        "versions": page.items,
        "next": page.next,
        "done": _DONE,
    }
    return Page("file.html", path, data, place=call.link("memory"))


async def _diff(call: PageCall, namespace: tuple[str, ...], path: str) -> dict[str, Any]:
    try:
        text = await call.state.files.diff(namespace, path, call.number("a", 0), call.number("b", 0) or None)
    except NotFoundError as error:
        raise refuse(404, str(error)) from None
    found = text.splitlines()[2:]
    kinds: Mapping[str, str] = {"+": "added", "-": "removed", "@": "place"}
    lines = [(kinds.get(line[:1], "same"), line[:2000]) for line in found[:_LINES]]
    return {"lines": lines, "left_out": max(0, len(found) - _LINES)}


def _content(found: File) -> dict[str, Any]:
    facts = {one.name: getattr(found, one.name) for one in fields(found) if one.name != "content"}
    text = found.content if isinstance(found.content, str) else None
    return {
        **facts,
        "text": None if text is None else text[:_SHOWN],
        "is_whole": text is not None and len(text) <= _SHOWN,
        "is_markdown": text is not None and found.path.endswith((".md", ".markdown")),
    }


async def restore(call: PageCall) -> Done:
    """Store a version of a file again, as the newest, unless the file has changed since the page was made."""
    namespace, path = namespace_in(call), call.path("path")
    await check_sees_memory(call, "put", namespace)
    numbers = []
    for name in ("version", "expected"):
        text = call.field(name) or ""
        if not text.isdecimal() or not 0 < len(text) < 10 or not int(text):
            raise refuse(422, f"{name} must be the number of a version, got {text!r}")
        numbers.append(int(text))
    try:
        await call.state.files.restore(namespace, path, numbers[0], expected_version=numbers[1], by=call.actor)
    except FileChangedError:
        newest = (await call.state.files.history(namespace, path, limit=1)).items
        raise refuse(409, f"the file was {told(newest[0])}. Look at it again, then decide") from None
    except NotFoundError as error:
        raise refuse(404, str(error)) from None
    return Done(call.link("files", namespace_text(namespace), path), {"path": path})


def told(version: FileVersion) -> str:
    """Return the last change of a file, with time and person."""
    return told_by(_DONE[version.operation], version.created_at, version.changed_by)
