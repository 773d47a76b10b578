"""The page of interrupts, where a named person answers them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from langgraph_pgstate.operations.threads.interrupts import question_of
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.pages.callers import scope_of
from langgraph_pgstate.server.pages.page import Done, Page, PageCall
from langgraph_pgstate.server.pages.values import view
from langgraph_pgstate.types import InterruptedThread, PendingInterrupt

_PAGE: Final = 30
# Interrupts that are read for a page, with those that have been answered.
_SCAN: Final = 600
# Characters of a value that are shown, and those of all values of a page, to each of which a form is added.
_SHOWN: Final = 3000
_MOST_SHOWN: Final = 40_000
_FORM: Final = 500


async def interrupts(call: PageCall) -> Page:
    """Show a page of the threads that wait for an answer, newest interrupt first."""
    found = await call.state.threads.interrupted(
        agent=call.query("agent"),
        user_id=call.query("user"),
        tenant_id=call.query("tenant"),
        scope=await scope_of(call, _PAGE),
        scan=_SCAN,
        limit=_PAGE,
        cursor=call.query("cursor"),
    )
    threads, left = [], _MOST_SHOWN
    for one in found.items:
        threads.append(_shown(one, left))
        left -= sum(len(part["value"].text) + _FORM for part in threads[-1]["interrupts"])
    data = {"threads": threads, "next": found.next, "scanned": _SCAN}
    return Page("interrupts.html", "Interrupts", data, is_live=call.query("cursor") is None)


async def answer(call: PageCall) -> Done:
    """Answer an interrupt: with the answer of a button, or with what was written."""
    thread = await call.thread("update")
    choice, text = call.field("choice"), call.form.get("answer", "")
    if choice is None and not text.strip():
        raise refuse(422, "the answer is empty")
    try:
        value = json.loads(choice) if choice is not None else parsed(text)
    except ValueError:
        raise refuse(422, "the answer of the button is no JSON") from None
    interrupt_id = call.path("interrupt_id")
    await call.state.threads.answer(thread.thread_id, value, by=call.actor, interrupt_id=interrupt_id)
    unused = await call.state.threads.answers(thread.thread_id)
    # A run of the queue goes on by itself.
    waits = any(one.interrupt_id == interrupt_id and one.run_id is None for one in unused)
    goes_on_at = thread.thread_id if waits else None
    return Done(call.link("interrupts"), {"thread_id": thread.thread_id}, thread_id=goes_on_at)


def parsed(text: str) -> Any:
    """Return what a person has written: JSON types if it is JSON, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def choices_of(interrupt: PendingInterrupt) -> list[tuple[str, str]]:
    """Return the answers that an interrupt offers, as titles and JSON.

    Those of LangChain's middleware for approvals, of LangGraph's agent inbox, of tools whose outcome is unknown, and of
    a schema that lists its answers.
    """
    value, schema = interrupt.value, interrupt.response_schema
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        configs = value.get("review_configs")
        allowed = [one.get("allowed_decisions") for one in configs] if isinstance(configs, list) else [None]
        offered = [
            name
            for name in ("approve", "reject")
            if all(not isinstance(names, list) or name in names for names in allowed)
        ]
        many = len(value["action_requests"])
        return [(name.capitalize(), json.dumps({"decisions": [{"type": name}] * many})) for name in offered]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping) and "action_request" in value[0]:
        config = value[0].get("config")
        known = (("accept", "allow_accept"), ("ignore", "allow_ignore"))
        offered = [name for name, key in known if not isinstance(config, Mapping) or config.get(key)]
        return [(name.capitalize(), json.dumps([{"type": name, "args": None}])) for name in offered]
    if key_of(value) is not None:
        titles = {"done": "It took effect", "retry": "It did not: run it", "fail": "Do not run it"}
        return [(titles[name], json.dumps(name)) for name in titles]
    if isinstance(schema, Mapping):
        if schema.get("type") == "boolean":
            return [("Yes", "true"), ("No", "false")]
        if isinstance(schema.get("enum"), list):
            return [(str(one), json.dumps(one)) for one in schema["enum"][:8] if one is not None]
    return []


def _shown(found: InterruptedThread, most: int) -> dict[str, Any]:
    """Return a thread with the values of its interrupts as pages show them, of at most so many characters."""
    fitting = found.interrupts[: max(1, most // _FORM)]
    size = max(200, min(_SHOWN, most // len(fitting) - _FORM))
    return {
        "hidden": len(found.interrupts) - len(fitting),
        "thread_id": found.thread_id,
        "checkpoint_id": found.checkpoint_id,
        "since": found.since,
        "user_id": found.user_id,
        "tenant_id": found.tenant_id,
        "agent": found.agent,
        "title": found.title,
        "answers": len(found.answers),
        "interrupts": [
            {
                "interrupt_id": one.interrupt_id,
                "asked_at": one.asked_at,
                "run_id": one.run_id,
                "error": one.error,
                "value": view(one.value, size),
                "text": one.value if isinstance(one.value, str) else None,
                "question": question_of(one.value),
                "choices": choices_of(one),
                "schema": None if one.response_schema is None else view(one.response_schema, size),
            }
            for one in fitting
        ],
    }


def key_of(value: Any) -> str | None:
    """Return the key of the action whose outcome a value asks for; `None` for another question."""
    if not isinstance(value, Mapping) or value.get("type") != "tool_outcome_unknown":
        return None
    return str(value.get("key") or "")
