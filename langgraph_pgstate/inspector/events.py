"""The events of a thread as texts: actions, questions and decisions, and who made them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.inspector.formatting import ValueView, cut, view
from langgraph_pgstate.inspector.forms import Form, Review, call_title, form_for, said, title_of
from langgraph_pgstate.interrupts.types import AnsweredInterrupt
from langgraph_pgstate.record.types import Event

_PAYLOAD: Final = 600
_LINE: Final = 200
_MOST_LINES: Final = 12
_DECIDED: Final = {
    "approve": "approved",
    "accept": "accepted",
    "edit": "edited",
    "respond": "responded to",
    "response": "responded to",
    "reject": "rejected",
    "ignore": "ignored",
}
_OUTCOMES: Final = {"done": "it took effect", "retry": "it did not: run it", "fail": "do not run it"}
_ACTIONS: Final = {
    "answer": "answered",
    "cancel": "cancelled",
    "discard": "discarded",
    "edit": "edited",
    "fork": "forked",
    "hold": "held",
    "label": "labelled",
    "release": "released",
    "restore": "restored from the archive",
    "retry": "retried",
    "run": "ran on",
    "settle": "settled",
    "trigger": "ran a schedule",
}
_KINDS: Final = {
    "answer": "answered",
    "budget": "over budget",
    "corrupt": "damaged",
    "fork": "branched off",
    "handoff": "handed over",
    "interrupt": "asked",
    "prune": "pruned",
    "refused": "refused a run",
    "resume": "went on",
}


@dataclass(frozen=True, slots=True)
class EventView:
    """An event of a thread as its page shows it.

    Attributes:
        by: The person who caused the event, if any.
        title: The event in one or two words.
        lines: Questions and decisions, one on each line.
        status: Status of a run that began or ended.
        thread_id: Another thread to link to.
        key: Key of a tool's action to link to.
        edited: The checkpoint that an edit changed.
        payload: The whole payload of the event.
    """

    event_id: str
    created_at: datetime
    kind: str
    run_id: str | None
    checkpoint_id: str | None
    checkpoint_ns: str | None
    agent: str | None
    by: str | None
    title: str
    lines: tuple[str, ...]
    status: str | None
    thread_id: str | None
    key: str | None
    edited: str | None
    payload: ValueView


def views_of(events: Sequence[Event], decisions: Collection[AnsweredInterrupt]) -> list[EventView]:
    """Return events of one thread as texts.

    Args:
        decisions: The answers that were given at the checkpoints of the `answer` events.
    """
    # Match events and answers by time, because one statement stores an answer and its event with the same time.
    decided = {(one.answer.interrupt_id, one.answer.answered_at): one for one in decisions}
    asked = {one.get("id"): one.get("value") for event in events for one in _interrupts(event)}
    # Show the values of interrupts, which keep the graph's order of keys. Stored events have sorted keys.
    as_asked = {one.interrupt.interrupt_id: one.interrupt.value for one in decisions if one.interrupt is not None}
    answered = {_payload(event).get("interrupt_id") for event in events if event.kind == "answer"}
    forks = {(event.created_at, event.checkpoint_id) for event in events if _action(event) == "fork"}
    shown = []
    for event in events:
        # A person's fork stores two events in one transaction. Show only the action, which names the person.
        if event.kind == "fork" and (event.created_at, event.checkpoint_id) in forks:
            continue
        payload = _payload(event)
        lines: Iterable[str] = ()
        if event.kind == "answer":
            id = payload.get("interrupt_id")
            one = decided.get((id, event.created_at)) if isinstance(id, str) else None
            if one is not None:
                question = asked.get(id) if one.interrupt is None else one.interrupt.value
                lines = decisions_of(question, one.answer.value)
        elif event.kind == "interrupt":
            lines = [line for one in _interrupts(event) for line in _asked(_in_order(one, as_asked))]
        elif event.kind == "resume":
            lines = _resumed(payload.get("resume"), asked, answered)
        else:
            lines = _facts(event, payload)
        shown.append(_view(event, payload, [cut(line, _LINE) for line in lines if line]))
    return shown


def _view(event: Event, payload: Mapping[str, Any], lines: Sequence[str]) -> EventView:
    action, by = _action(event), payload.get("by")
    known: Any = payload.get("forked_from") or payload.get("forked_to")
    other = known.get("thread_id") if isinstance(known, Mapping) else None
    if action == "fork":
        ends = [payload.get("source"), payload.get("target")]
        other = next((one for one in ends if one != event.thread_id), None)
    status = payload.get("status") if event.kind == "status" else None
    more = len(lines) - _MOST_LINES
    return EventView(
        event.event_id,
        event.created_at,
        event.kind,
        event.run_id,
        event.checkpoint_id,
        event.checkpoint_ns,
        event.agent,
        str(by) if by else None,
        _title(event, payload, other),
        (*lines[:_MOST_LINES], *([f"and {more} more"] if more > 0 else [])),
        status if isinstance(status, str) else None,
        other if isinstance(other, str) else None,
        payload["key"] if action == "settle" and isinstance(payload.get("key"), str) else None,
        payload["edited"] if action == "edit" and isinstance(payload.get("edited"), str) else None,
        view(event.payload, _PAYLOAD),
    )


def _title(event: Event, payload: Mapping[str, Any], other: Any) -> str:
    action = _action(event)
    if action == "label" and payload.get("label") is None:
        return "removed the label"
    if other and (action == "fork" or event.kind == "fork"):
        is_from = "forked_from" in payload or payload.get("target") == event.thread_id
        return "forked from" if is_from else "forked to"
    if event.kind == "status":
        return "run began" if payload.get("status") == "running" else "run ended"
    if event.kind == "answer" and payload.get("is_default"):
        return "answered by default"
    return _ACTIONS.get(action, action) if action else _KINDS.get(event.kind, event.kind)


def _payload(event: Event) -> Mapping[str, Any]:
    return event.payload if isinstance(event.payload, Mapping) else {}


def _action(event: Event) -> str:
    """Return a person's action; empty for another kind of event."""
    return str(_payload(event).get("action") or "") if event.kind == "action" else ""


def _interrupts(event: Event) -> list[Mapping[str, Any]]:
    found = _payload(event).get("interrupts") if event.kind == "interrupt" else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _asked(value: Any) -> list[str]:
    form = form_for(value)
    if form.kind == "outcome":
        return [f"did {title_of(form)} take effect?"]
    return [one.title for one in form.reviews] or [form.question or view(value, _LINE).text]


def _in_order(one: Mapping[str, Any], as_asked: Mapping[str, Any]) -> Any:
    value, found = one.get("value"), as_asked.get(str(one.get("id")))
    return found if found == value else value


def _resumed(given: Any, asked: Mapping[Any, Any], answered: Collection[Any]) -> Iterable[str]:
    """Return the decisions in answers that a program gave. A person's answer has its own event."""
    if isinstance(given, Mapping) and given and all(id in asked or id in answered for id in given):
        for id, value in given.items():
            if id not in answered:
                yield from decisions_of(asked.get(id), value)
    elif given is not None and not answered:
        only = next(iter(asked.values())) if len(asked) == 1 else None
        yield from decisions_of(only, given)


def decisions_of(question: Any, answer: Any) -> list[str]:
    """Return the decisions of an answer, one call on each line: `rejected pay(amount=5): “too much”`."""
    form = Form("free") if question is None else form_for(question)
    if form.kind == "outcome":
        told = said(answer)
        return [f"{title_of(form)}: {_OUTCOMES.get(told, told)}"]
    found = answer.get("decisions") if isinstance(answer, Mapping) and "decisions" in answer else answer
    decisions = found if isinstance(found, list) and found else [found]
    if not all(isinstance(one, Mapping) and one.get("type") in _DECIDED for one in decisions):
        return [said(answer)]
    reviews = [*form.reviews, *([None] * len(decisions))]
    return [_decision(one, review) for one, review in zip(decisions, reviews, strict=False)]


def _decision(decision: Mapping[str, Any], review: Review | None) -> str:
    verb = _DECIDED[decision["type"]]
    if decision["type"] == "edit":
        return f"{verb} {_edit(decision, review)}"
    written = decision.get("message", decision.get("args"))
    reason = f": “{cut(written, _LINE)}”" if isinstance(written, str) and written else ""
    return f"{verb} {cut(review.title, _LINE // 2)}{reason}" if review else f"{verb}{reason}"


def _edit(decision: Mapping[str, Any], review: Review | None) -> str:
    """Return the arguments that a person has changed: `pay: amount 5 → 4`."""
    edited: Any = decision.get("edited_action", decision.get("args"))
    if not isinstance(edited, Mapping):
        return "" if review is None else review.name
    name, arguments = str(edited.get("name", edited.get("action")) or "?"), edited.get("args")
    before = None if review is None else review.arguments
    if review is None or name != review.name or not isinstance(before, Mapping) or not isinstance(arguments, Mapping):
        return call_title(name, arguments)
    changed = [
        f"{key} {_short(before[key]) if key in before else ''} → {_short(arguments[key]) if key in arguments else ''}"
        for key in {**before, **arguments}
        if key not in before or key not in arguments or before[key] != arguments[key]
    ]
    return f"{name}: {', '.join(changed) or 'nothing'}"


def _short(value: Any) -> str:
    return cut(value if isinstance(value, str) else view(value, _LINE).text, 60)


def _facts(event: Event, payload: Mapping[str, Any]) -> list[str]:
    action = _action(event)
    if action == "edit" and isinstance(payload.get("channels"), list):
        return [", ".join(map(str, payload["channels"]))]
    if action == "label":
        return [f"“{payload['label']}”"] if payload.get("label") else []
    if action in ("hold", "release"):
        return [str(payload.get("reason") or "")]
    if action == "settle":
        return [f"{payload.get('tool')}: {payload.get('status')}"]
    if action in ("cancel", "trigger"):
        fact = payload.get("how") if action == "cancel" else payload.get("schedule")
        return [str(fact)] if fact not in (None, "cancel") else []
    if event.kind == "status":
        return [str(payload["error_type"])] if payload.get("error_type") else []
    if event.kind == "fork":
        return [f"by {payload['source']}"] if payload.get("source") else []
    if event.kind == "handoff":
        tool = f" by {payload['tool']}" if payload.get("tool") else ""
        return [f"{payload.get('from')} → {payload.get('to')}{tool}"]
    if event.kind == "prune":
        return [f"{payload.get('checkpoints')} checkpoints, {payload.get('writes')} writes"]
    if event.kind == "budget":
        scope = f"{payload.get('scope')} {payload.get('name')}"
        return [f"the budget of {scope}: {payload.get('spent')} of {payload.get('amount')} is spent"]
    if event.kind == "refused":
        return [str(payload.get("reason") or payload.get("error_type") or "")]
    if event.kind == "corrupt":
        return [f"{payload.get('why')}; used instead: {payload.get('used')}"]
    rest = {name: value for name, value in payload.items() if name not in ("action", "by", "form")}
    if action in _ACTIONS or not rest:
        return []
    return [f"{name}: {_short(value)}" for name, value in rest.items()]
