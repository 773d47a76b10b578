"""The pages of retention policies: the threads that a policy selects, its effects, and its form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import ArchiveError, ConfigurationError, NotFoundError, StalePolicyError
from langgraph_pgstate.inspector.changes import is_by, last_action, told
from langgraph_pgstate.inspector.formatting import sentence
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.inspector.threads import STATUSES, metadata_of
from langgraph_pgstate.keep import Policy
from langgraph_pgstate.keep.retention import place_of, request_policy
from langgraph_pgstate.keep.types import TTL
from langgraph_pgstate.options import age
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.state import core_of

_TEXTS: Final = ("agent", "tenant_id", "user_id", "status", "archive_to")
_AGES: Final = ("content_after", "prune_after", "archive_after", "delete_after")
_FIELDS: Final = ("name", *_TEXTS, "metadata", *_AGES, "keep_last")
_SELECTORS: Final = ("agent", "tenant_id", "user_id", "status", "metadata")
# Time after which a dry run stops, and the page shows its counts so far.
_DRY_RUN: Final = timedelta(seconds=10)
_SINGULAR: Final = {"d": 86400, "h": 3600, "m": 60}


async def retention(call: PageCall) -> Page:
    """Show all policies of retention."""
    await check_sees_all(call)
    policies = [_shown(one) for one in await call.state.retention.policies()]
    return Page("retention.html", "Policies", {"policies": policies}, place=call.link("retention"))


async def policy(call: PageCall) -> Page:
    """Show a policy, and what it would do now. The dry run changes nothing."""
    await check_sees_all(call)
    name = call.path("name")
    found = await _policy(call, name)
    if found is None:
        event = await last_action(call, place_of(name), ("delete",))
        raise missing("policy", name) if event is None else refuse(404, f"policy {name!r} was {told(event)}")
    more: dict[str, Any] = {}
    if call.flag("dry_run"):
        more = await _dry_run(call, name)
    return _form(call, _typed(found), found, **more)


async def new(call: PageCall) -> Page:
    """Show an empty form for a policy."""
    await check_sees_all(call)
    return _form(call, {}, None)


async def store(call: PageCall) -> Page | Done:
    """Store a policy after showing its effects. Refuse if the policy has changed since the person saw it."""
    await check_sees_all(call)
    typed = {name: call.form.get(name, "") for name in _FIELDS}
    expected = _expected(call)
    name = typed["name"].strip()
    try:
        fields = _fields(typed)
        request_policy(name, fields)
    except ConfigurationError as error:
        return _form(call, typed, await _policy(call, name), expected=expected, problem=str(error), status=422)
    found = await _policy(call, name)
    if digests := _digests(call, found):
        why = f"only digests of {', '.join(digests)} in its metadata are stored"
        raise refuse(409, f"a form cannot change policy {name!r}, because {why}. Use `state.retention.put`")
    if call.field("step") == "form":
        return _form(call, typed, found, expected=expected)
    if call.field("sure") is None and not wants_json(call.request):
        if expected != (0 if found is None else found.version):
            return await _stale(call, typed, found)
        data = {"typed": typed, "expected": expected, "policy": _described(name, fields), "is_new": found is None}
        data["effects"] = await _effects(call, fields)
        return Page("policy_sure.html", "Store this policy?", data, place=call.link("retention"))
    try:
        await call.state.retention.put(name, by=call.actor, expected_version=expected, **fields)
    except StalePolicyError:
        return await _stale(call, typed, await _policy(call, name))
    return Done(call.link("policies", name), {"name": name})


async def about(call: PageCall) -> dict[str, Any]:
    """Return the values of the page that asks whether to delete a policy."""
    await check_sees_all(call)
    found = await _policy(call, call.path("name"))
    if found is None:
        return {}
    shown = _shown(found)
    return {"facts": [("Threads", shown["selects"]), *(("Then", one) for one in shown["does"])]}


async def delete(call: PageCall) -> Done:
    """Delete a policy, unless it has changed since the person saw it."""
    await check_sees_all(call)
    name = call.path("name")
    try:
        is_deleted = await call.state.retention.delete(name, by=call.actor, expected_version=_expected(call))
    except StalePolicyError as error:
        is_deleted = False
        if error.found:
            raise refuse(409, await _told(call, name)) from None
    event = await last_action(call, place_of(name), ("delete",))
    if not is_deleted and event is None:
        raise missing("policy", name)
    if event is not None and not is_deleted and not is_by(event, call.actor):
        raise refuse(409, f"policy {name!r} was {told(event)}")
    return Done(call.link("retention"), {"name": name})


def _digests(call: PageCall, found: Policy | None) -> list[str]:
    """Return the keys of a policy's metadata whose values are stored as digests. A form cannot show these values."""
    database: Any = core_of(call.state).database
    keys = database.keys
    return [] if keys is None or found is None else [one for one in found.metadata or {} if keys.is_searchable(one)]


async def _policy(call: PageCall, name: str) -> Policy | None:
    return next((one for one in await call.state.retention.policies() if one.name == name), None)


async def _dry_run(call: PageCall, name: str) -> dict[str, Any]:
    """Return what a policy would do now. Only persons who may act may ask, because a dry run takes locks."""
    if not call.may_act:
        raise refuse(403, "pages are read-only here")
    try:
        (report,) = await call.state.retention.apply(name, dry_run=True, within=_DRY_RUN)
    except (ConfigurationError, NotFoundError, ArchiveError) as error:
        return {"problem": str(error)}
    return {"dry_run": report}


async def _stale(call: PageCall, typed: Mapping[str, str], found: Policy | None) -> Page:
    """Return the form with the person's texts and the stored policy."""
    return _form(call, typed, found, problem=await _told(call, typed["name"].strip()), status=409)


async def _told(call: PageCall, name: str) -> str:
    event = await last_action(call, place_of(name), ("policy", "delete"))
    if event is None and _expected(call) == 0:
        return f"there is a policy {name!r} already"
    return f"policy {name!r} was {'changed since you looked' if event is None else told(event)}"


def _form(
    call: PageCall,
    typed: Mapping[str, str],
    found: Policy | None,
    *,
    expected: int | None = None,
    problem: str = "",
    status: int = 200,
    **more: Any,
) -> Page:
    stored = 0 if found is None else found.version
    data = {
        "typed": {name: typed.get(name, "") for name in _FIELDS},
        "policy": None if found is None else _shown(found),
        "expected": stored if expected is None else expected,
        "digests": _digests(call, found),
        "statuses": STATUSES,
        "problem": sentence(problem) if problem else "",
        "dry_run": None,
        **more,
    }
    title = "New policy" if found is None else f"Policy {found.name}"
    return Page("policy.html", title, data, status=status, place=call.link("retention"))


def _expected(call: PageCall) -> int:
    text = call.field("expected") or ""
    if not text.isdecimal() or len(text) > 9:
        raise refuse(422, f"expected must be the version of the policy that the form changes, got {text!r}")
    return int(text)


def _fields(typed: Mapping[str, str]) -> Any:
    """Return the fields of a policy from the texts of a form."""
    given = {name: text.strip() for name, text in typed.items() if text.strip()}
    fields: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    for name in _AGES:
        if name in given:
            try:
                fields[name] = age(given[name])
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from None
    if "metadata" in given:
        try:
            fields["metadata"] = metadata_of(given["metadata"])
        except HTTPException as error:
            raise ConfigurationError(error.detail) from None
    if "keep_last" in given:
        if not given["keep_last"].isdecimal() or len(given["keep_last"]) > 9:
            raise ConfigurationError(f"keep_last must be at least 1 checkpoint, got {given['keep_last']!r}")
        fields["keep_last"] = int(given["keep_last"])
    return fields


def _typed(found: Policy) -> dict[str, str]:
    """Return a policy as the texts of its form."""
    values = asdict(found)
    typed = {name: values[name] or "" for name in ("name", *_TEXTS)}
    typed |= {name: "" if values[name] is None else _age(values[name]) for name in _AGES}
    metadata = json.dumps(found.metadata, ensure_ascii=False) if found.metadata else ""
    return {**typed, "metadata": metadata, "keep_last": str(found.keep_last)}


def _age(time: timedelta) -> str:
    """Return an age as `age` reads it."""
    seconds = time.total_seconds()
    unit = next((unit for unit, size in _SINGULAR.items() if seconds % size == 0), None)
    return f"{seconds:g}s" if unit is None else f"{int(seconds // _SINGULAR[unit])}{unit}"


def _shown(found: Policy) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(found).items() if value is not None}
    return {**asdict(found), **_described(found.name, fields)}


def _described(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return descriptions of the selected threads, and of the actions on them."""
    if name == TTL:
        return {"name": name, "selects": "threads with a time to live", "does": ["deleted, or pruned, when it is over"]}
    titles = {"agent": "agent", "tenant_id": "tenant", "user_id": "user", "status": "status"}
    parts = [f"{title} {fields[key]}" for key, title in titles.items() if fields.get(key) is not None]
    if fields.get("metadata"):
        parts.append(f"metadata {json.dumps(fields['metadata'], ensure_ascii=False)}")
    does = []
    if (after := fields.get("content_after")) is not None:
        does.append(f"contents of spans, messages and runs are removed at {_in_words(after)}")
    if (after := fields.get("prune_after")) is not None:
        last = fields.get("keep_last", 1)
        does.append(f"checkpoints are pruned at {_in_words(after)}, but the newest {last if last > 1 else 'one'}")
    if (after := fields.get("archive_after")) is not None:
        does.append(f"archived to {fields['archive_to']} after {_in_words(after)} without activity")
    if (after := fields.get("delete_after")) is not None:
        does.append(f"deleted after {_in_words(after)} without activity, also from archives")
    return {"name": name, "selects": ", ".join(parts) or "all threads", "does": does}


def _in_words(time: timedelta) -> str:
    seconds = time.total_seconds()
    for word, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            return f"{int(seconds // size):,} {word}{'' if seconds == size else 's'}"
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


async def _effects(call: PageCall, fields: Mapping[str, Any]) -> dict[str, int]:
    """Return how many threads a policy selects now, and for how many of them each action is due."""
    selected: Any = {name: fields[name] for name in _SELECTORS if name in fields}
    now = datetime.now(UTC)
    found = {"selected": await call.state.threads.count(**selected)}
    for name in _AGES:
        if name in fields:
            before = "created_before" if name in ("content_after", "prune_after") else "updated_before"
            due: Any = {**selected, before: now - fields[name]}
            if name != "delete_after":
                due["archived"] = False
            found[name] = await call.state.threads.count(**due)
    return found
