"""The pages of long-term memory: items, their versions and origins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import ConfigurationError, NotFoundError, SerializationError, StaleMemoryError
from langgraph_pgstate.inspector.changes import told_by
from langgraph_pgstate.inspector.differences import words_of
from langgraph_pgstate.inspector.formatting import namespace_text, view
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_memory, sees_memory
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.memory import AsyncPGMemoryStore, Caused, MemoryVersion, StoredItem
from langgraph_pgstate.memory.memories import CONTENT, NOTES
from langgraph_pgstate.memory.notes import LISTS, TEXTS, markdown_of
from langgraph_pgstate.server.errors import missing, refuse

KINDS: Final = ("fact", "preference", "interaction", "summary", NOTES)
_PAGE: Final = 50
_VERSIONS: Final = 20
_CAUSED: Final = 100
# Maximum number of characters of a value in a list, of a version, and of an editable value.
_LINE: Final = 240
_SHOWN: Final = 6000
_MOST_EDITED: Final = 60_000


async def memory(call: PageCall) -> Page:
    """Show namespaces, the memories of a user or namespace, or what a thread or run has stored."""
    if (thread_id := call.query("thread")) is not None:
        return await _of_thread(call, thread_id)
    await check_sees_memory(call, "search")
    user, text = call.query("user"), call.query("namespace")
    data: dict[str, Any] = {"kinds": KINDS, "items": None, "namespaces": (), "next": None}
    if user is None and text is None:
        start = call.number("cursor", 0)
        found = await store_of(call).alist_namespaces(limit=_PAGE + 1, offset=start)
        data["namespaces"] = [{"labels": [*one], "text": namespace_text(one)} for one in found[:_PAGE]]
        data["next"] = str(start + _PAGE) if len(found) > _PAGE else None
        data["lacks_place"] = any(call.query(name) for name in ("q", "kind", "agent", "tenant"))
    else:
        page = await store_of(call).browse(
            user_id=user,
            namespace=None if text is None else labels_in(text),
            kind=call.query("kind"),
            agent=call.query("agent"),
            tenant_id=call.query("tenant"),
            text=call.query("q"),
            limit=_PAGE,
            cursor=call.query("cursor"),
        )
        data |= {"items": [_line(one) for one in page.items], "next": page.next, "lacks_place": False}
    return Page("memory.html", "Memory", data)


async def _of_thread(call: PageCall, thread_id: str) -> Page:
    """Return the page of the memories and files that a thread or one of its runs has stored."""
    scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    thread = await call.visible(thread_id, scope)
    await check_sees_memory(call, "search")
    run_id, message_id = call.query("run"), call.query("message")
    caused = await store_of(call).caused_by(
        thread.thread_id,
        run_id=run_id,
        message_ids=None if message_id is None else [message_id],
        limit=_CAUSED,
    )
    changes: Any = None
    if message_id is None:
        changes = await call.state.files.changes(thread.thread_id, run_id=run_id, limit=_CAUSED)
    data = {
        "thread": thread,
        "run_id": run_id,
        "message_id": message_id,
        "memories": [_caused(one) for one in caused],
        "files": () if changes is None else changes.items,
        "is_cut": len(caused) == _CAUSED or (changes is not None and changes.next is not None),
    }
    return Page("memory_caused.html", "What was kept", data, place=call.link("memory"))


async def item(call: PageCall) -> Page:
    """Show an item, a memory or progress notes, with all versions."""
    await check_sees_memory(call, "get", namespace_in(call))
    return await _item(call)


async def _item(call: PageCall, problem: str = "", status: int = 200) -> Page:
    namespace, key = namespace_in(call), call.path("key")
    memory, before = store_of(call), call.number("cursor", 0) or None
    found = await memory.inspect(namespace, key)
    versions = await memory.history(namespace, key, limit=_VERSIONS + 1, before=before)
    if not versions and before is None:
        raise missing("memory", key)
    typed = {name: value for name, value in call.form.items() if name != "token"} if problem else {}
    data: dict[str, Any] = {
        "namespace": [*namespace],
        "namespace_text": namespace_text(namespace),
        "key": key,
        "item": None if found is None else _shown(found),
        "message": None if found is None else found.message,
        "versions": _versions(key, versions),
        "next": str(versions[_VERSIONS - 1].version) if len(versions) > _VERSIONS else None,
        "newest": None if before is not None or not versions else _facts(versions[0]),
        "compared": await _compared(call, namespace, key, versions),
        "form": None if found is None else _form(key, found, typed),
        "problem": problem,
        # The form sends this number. A change is refused if the item has another version.
        "expected": 0 if found is None else found.version,
    }
    title = _title(key, found.value, found.kind) if found is not None else key
    return Page("memory_item.html", title, data, status=status, place=call.link("memory"))


async def edit(call: PageCall) -> Any:
    """Store a new value of an item, unless the item has changed since the page was made."""
    namespace, key = namespace_in(call), call.path("key")
    await check_sees_memory(call, "put", namespace)
    found = await store_of(call).inspect(namespace, key)
    try:
        if found is None:
            raise StaleMemoryError(namespace, key, _expected(call), *await _deletion(call, namespace, key))
        await store_of(call).edit(namespace, key, _edited(call, found), expected_version=_expected(call), by=call.actor)
    except StaleMemoryError as error:
        return await _refused(call, stale(call, error), 409)
    except (ConfigurationError, SerializationError, ValueError) as error:
        return await _refused(call, f"Nothing was changed: {error}", 422)
    return Done(_link(call, namespace, key), {"key": key})


async def _refused(call: PageCall, problem: str, status: int) -> Page:
    """Return the page of an item after a refused change, with the typed values."""
    if wants_json(call.request):
        raise refuse(status, problem)
    try:
        return await _item(call, problem, status)
    except HTTPException:
        raise refuse(status, problem) from None


async def forget(call: PageCall) -> Done:
    """Delete an item, unless the item has changed since the page was made."""
    namespace, key = namespace_in(call), call.path("key")
    await check_sees_memory(call, "delete", namespace)
    purges = call.field("purge") is not None
    try:
        await store_of(call).remove(namespace, key, expected_version=_expected(call), purge=purges, by=call.actor)
    except StaleMemoryError as error:
        raise refuse(409, stale(call, error)) from None
    back = call.link("memory", namespace=namespace_text(namespace)) if purges else _link(call, namespace, key)
    return Done(back, {"key": key})


async def restore(call: PageCall) -> Done:
    """Store the value of an earlier version of an item again."""
    namespace, key = namespace_in(call), call.path("key")
    await check_sees_memory(call, "put", namespace)
    try:
        await store_of(call).restore(
            namespace, key, _number(call, "version"), expected_version=_expected(call, least=0), by=call.actor
        )
    except StaleMemoryError as error:
        raise refuse(409, stale(call, error)) from None
    except NotFoundError as error:
        raise refuse(404, str(error)) from None
    return Done(_link(call, namespace, key), {"key": key})


async def about(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to forget an item."""
    await check_sees_memory(call, "delete", namespace_in(call))
    found = await store_of(call).inspect(namespace_in(call), call.path("key"))
    if found is None:
        raise missing("memory", call.path("key"))
    return {"memory": _line(found)}


async def kept(call: PageCall, thread_id: str, message_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the memories that messages caused, by message. A caller who may not see memories gets none."""
    if not message_ids or not await sees_memory(call, "search"):
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for one in await store_of(call).caused_by(thread_id, message_ids=message_ids, limit=_CAUSED):
        if one.message_id is not None:
            found.setdefault(one.message_id, []).append(_caused(one))
    return found


def store_of(call: PageCall) -> AsyncPGMemoryStore:
    """Return the server's store, which may have indexes. If it is of another package, return `state.memory`."""
    store = call.service.store
    return store if isinstance(store, AsyncPGMemoryStore) else call.state.memory


def labels_in(text: str) -> tuple[str, ...]:
    """Return the labels of a namespace in the form of `namespace_text`."""
    labels = tuple(label.replace("~1", "/").replace("~0", "~") for label in text.strip("/").split("/"))
    if "" in labels:
        raise refuse(422, f"namespace must be labels with slashes between them, like memories/user/eve, not {text!r}")
    return labels


def namespace_in(call: PageCall) -> tuple[str, ...]:
    """Return the namespace in the path of a page."""
    return labels_in(call.path("namespace"))


def _link(call: PageCall, namespace: Sequence[str], key: str) -> str:
    return call.link("memory", namespace_text(namespace), key)


def _number(call: PageCall, name: str, least: int = 1) -> int:
    text = call.field(name) or ""
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise refuse(422, f"{name} must be the number of a version, {least} or more, got {text!r}")
    return int(text)


def _expected(call: PageCall, least: int = 1) -> int:
    return _number(call, "expected", least)


async def _deletion(call: PageCall, namespace: Sequence[str], key: str) -> tuple[int, str | None, Any]:
    newest = await store_of(call).history(namespace, key, limit=1)
    return (0, newest[0].deleted_by, newest[0].valid_to) if newest else (0, None, None)


def stale(call: PageCall, error: StaleMemoryError) -> str:
    """Return the message of a refusal: who changed or deleted the item, and when."""
    what = "changed" if error.found else "forgotten"
    if error.changed_at is None:
        return "It is gone: it was deleted or has expired. Nothing was changed by you."
    return f"It was {told_by(what, error.changed_at, error.changed_by)}. Nothing was changed by you."


def _edited(call: PageCall, found: StoredItem) -> dict[str, Any]:
    if found.kind == NOTES:
        texts = {name: call.form.get(name, "").strip() for name in TEXTS}
        lists = {name: [line.strip() for line in call.form.get(name, "").split("\n") if line.strip()] for name in LISTS}
        return {**found.value, **texts, **lists}
    if found.kind is not None and "value" not in call.form:
        if not (content := call.field(CONTENT)):
            raise ValueError("a memory must have a text")
        return {**found.value, CONTENT: content}
    try:
        value = json.loads(call.form.get("value", ""))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the value must be a JSON object")
    return value


def _form(key: str, found: StoredItem, typed: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the form fields of an item; `None` if the item is too long to be edited."""
    value = found.value
    names: tuple[str, ...]
    if found.kind == NOTES:
        given = {name: str(value.get(name) or "") for name in TEXTS}
        given |= {name: "\n".join(map(str, value.get(name) or ())) for name in LISTS}
        names = ("goal", "completed", "blockers", "next_action", "context")
    elif found.kind is not None and isinstance(value.get(CONTENT), str):
        given, names = {CONTENT: value[CONTENT]}, (CONTENT,)
    else:
        given, names = {"value": json.dumps(value, ensure_ascii=False, indent=2)}, ("value",)
    if sum(map(len, given.values())) > _MOST_EDITED:
        return None
    titles = {"completed": "Completed, a step on each line", "blockers": "Blockers, one on each line"}
    return {
        "fields": [
            {
                "name": name,
                "title": titles.get(name, name.replace("_", " ").capitalize()),
                "text": typed.get(name, given[name]),
                "is_long": name != "next_action",
            }
            for name in names
        ]
    }


def _title(key: str, value: Mapping[str, Any], kind: str | None) -> str:
    if kind == NOTES:
        return f"Notes: {key}"
    content = value.get(CONTENT)
    return content[:_LINE] if kind is not None and isinstance(content, str) else key


def _words(key: str, value: Mapping[str, Any], kind: str | None) -> str:
    """Return a value as text: the content of a memory, Markdown for notes, JSON for other items."""
    if kind == NOTES:
        return markdown_of(key, value)
    content = value.get(CONTENT)
    if kind is not None and isinstance(content, str):
        metadata = value.get("metadata")
        return content if not metadata else f"{content}\n{json.dumps(metadata, ensure_ascii=False, indent=2)}"
    return json.dumps(value, ensure_ascii=False, indent=2)


def _line(found: StoredItem) -> dict[str, Any]:
    return {
        **_without(found, "value", "message"),
        "namespace": [*found.namespace],
        "namespace_text": namespace_text(found.namespace),
        "text": _gist(found.key, found.value, found.kind),
    }


def _gist(key: str, value: Mapping[str, Any], kind: str | None) -> str:
    if kind == NOTES:
        return str(value.get("next_action") or value.get("goal") or key)[:_LINE]
    content = value.get(CONTENT)
    if kind is not None and isinstance(content, str):
        return content[:_LINE]
    return view(value, _LINE).text


def _shown(found: StoredItem) -> dict[str, Any]:
    text = _words(found.key, found.value, found.kind)
    rest = found.value.get("metadata") if found.kind not in (None, NOTES) else None
    return {
        **_without(found, "value", "message"),
        "text": (markdown_of(found.key, found.value) if found.kind == NOTES else text)[:_SHOWN],
        "is_whole": len(text) <= _SHOWN,
        "value": view(found.value) if found.kind is None else None,
        "content": str(found.value.get(CONTENT) or "")[:_SHOWN] if found.kind not in (None, NOTES) else None,
        "metadata": view(rest) if rest else None,
    }


def _without(found: Any, *names: str) -> dict[str, Any]:
    return {one.name: getattr(found, one.name) for one in fields(found) if one.name not in names}


def _facts(version: MemoryVersion) -> dict[str, Any]:
    return _without(version, "value")


def _versions(key: str, found: Sequence[MemoryVersion]) -> list[dict[str, Any]]:
    """Return versions, each with its differences from the version before it."""
    shown = []
    for place, one in enumerate(found[:_VERSIONS]):
        text = _words(key, one.value, one.kind)
        older = found[place + 1] if place + 1 < len(found) else None
        before = None if older is None else _words(key, older.value, older.kind)
        shown.append({**_facts(one), **_difference(before, text)})
    return shown


def _difference(before: str | None, after: str) -> dict[str, Any]:
    words = None if before is None or before == after else words_of(before[:_SHOWN], after[:_SHOWN])
    return {
        "words": words,
        "text": after[:_SHOWN],
        "before": None if before is None else before[:_SHOWN],
        "is_same": before == after,
        "is_whole": max(len(before or ""), len(after)) <= _SHOWN,
    }


async def _compared(
    call: PageCall, namespace: tuple[str, ...], key: str, found: Sequence[MemoryVersion]
) -> dict[str, Any] | None:
    """Return the differences between the two versions that the address names, if any."""
    if call.query("a") is None or call.query("b") is None:
        return None
    texts = []
    for name in ("a", "b"):
        number = call.number(name, 0)
        one = next((one for one in found if one.version == number), None)
        if one is None:
            others = await store_of(call).history(namespace, key, limit=1, before=number + 1)
            one = others[0] if others and others[0].version == number else None
        if one is None:
            raise missing("version", str(number))
        texts.append(_words(key, one.value, one.kind))
    return {"a": call.number("a", 0), "b": call.number("b", 0), **_difference(*texts)}


def _caused(one: Caused) -> dict[str, Any]:
    return {
        **_without(one, "value"),
        "namespace": [*one.namespace],
        "namespace_text": namespace_text(one.namespace),
        "text": _gist(one.key, one.value, one.kind),
    }
