"""Forms for answers to interrupts: the question, the offered answers, and the answer that a form gives.

The module knows the requests of LangChain's approval middleware (one interrupt for all calls, or one for each) and of
agent-inbox, the questions of the tool ledger, and schemas that list answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langgraph_pgstate.inspector.fields import Field, FormError, fields_of, from_json, is_same, read
from langgraph_pgstate.interrupts.types import PendingInterrupt, split_question
from langgraph_pgstate.server.json import to_json

OUTCOME_UNKNOWN: Final = "tool_outcome_unknown"

_MIDDLEWARE: Final = ("approve", "edit", "respond", "reject")
_INBOX: Final = {"accept": "allow_accept", "edit": "allow_edit", "response": "allow_respond", "ignore": "allow_ignore"}
VERBS: Final = {
    "approve": "Approve",
    "accept": "Accept",
    "edit": "Send as edited",
    "respond": "Respond",
    "response": "Respond",
    "reject": "Reject",
    "ignore": "Ignore",
}
"""Decisions about a call, and the titles of their buttons."""

OUTCOMES: Final = {"done": "It took effect", "retry": "It did not: run it", "fail": "Do not run it"}
"""Decisions about an action whose outcome is unknown, and the titles of their buttons."""

_TITLES: Final = {
    "answer": "Answer",
    "choice": "Answer",
    "decision": "Decision",
    "respond": "Result of the call",
    "reject": "Reason",
    "reason": "Reason",
    "argument": "Argument",
    "more": "More arguments",
    "result": "Result",
    "label": "Label",
}
_TITLE: Final = 160
_MOST_CHOICES: Final = 100
_SAID: Final = 200


@dataclass(frozen=True, slots=True)
class Review:
    """A call of a tool that waits for a decision.

    Attributes:
        title: The tool with its arguments, on one line.
        description: Markdown that explains the call; may be empty.
        decisions: The allowed decisions, as the answer names them.
        fields: The arguments, if they may be edited.
    """

    name: str
    title: str
    arguments: Any
    description: str
    decisions: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """The question of an interrupt, and the answers that it offers.

    Attributes:
        kind: Kind of the question: `batch` or `call` for LangChain's middleware, `inbox`, `outcome` for the ledger, or
            `free`.
        reviews: The calls that wait for a decision. All are decided at once.
        question: Markdown of the question; may be empty.
        choices: The offered answers, each with its title and its JSON.
        rest: The rest of the interrupt's value; `None` if there is none.
        key: Key of the ledger's action whose outcome is asked for; `None` for other kinds.
        id: Id that the ledger expects in the answer.
    """

    kind: str
    reviews: tuple[Review, ...] = ()
    question: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    rest: Any = None
    key: str | None = None
    id: str | None = None


def form_of(interrupt: PendingInterrupt) -> Form:
    """Return the form for answering an interrupt."""
    return form_for(interrupt.value, interrupt.response_schema)


def form_for(value: Any, response_schema: Any = None) -> Form:
    """Return the form for answering the value of an interrupt."""
    if isinstance(value, Mapping):
        requests = value.get("action_requests")
        if isinstance(requests, list) and requests and all(isinstance(one, Mapping) for one in requests):
            return Form("batch", tuple(_batched(requests, value.get("review_configs"))))
        if value.get("type") == "tool_approval" and isinstance(value.get("name"), str):
            return Form("call", (_review(value, _decisions_in(response_schema)),))
        if (key := key_of(value)) is not None:
            return _outcome(value, key)
    requests = value if isinstance(value, list) else [value]
    if requests and all(
        isinstance(one, Mapping) and isinstance(one.get("action_request"), Mapping) for one in requests
    ):
        return Form("inbox", tuple(map(_inbox, requests)))
    question, rest = split(value)
    return Form("free", (), question, tuple(_choices_in(response_schema)), rest)


def answer_of(form: Form, given: Mapping[str, str]) -> Any:
    """Return the answer that the fields of a sent form give.

    `answer` is an answer as JSON or text. `choice` is an offered answer, as JSON. Otherwise `decision-N` is the
    decision about call N. A decision may need further fields: `argument-N-M` (argument M, edited), `more-N` (added
    arguments, as JSON), `respond-N` (the result of the call) and `reject-N` (why it is rejected).
    """
    if given.get("choice", "").strip():
        return from_json(given["choice"], "the answer of the button")
    if "answer" in given:
        if not given["answer"].strip():
            raise FormError("the answer must not be empty")
        return parsed(given["answer"])
    if form.kind == "outcome":
        return _outcome_in(form, given)
    if not form.reviews:
        raise FormError("the answer must not be empty")
    decisions = [_decision(form.kind, one, number, given) for number, one in enumerate(form.reviews)]
    if form.kind == "batch":
        return {"decisions": decisions}
    return decisions[0] if form.kind == "call" else decisions


def parsed(text: str) -> Any:
    """Return a person's text: parsed if it is JSON, otherwise unchanged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def said(answer: Any) -> str:
    """Return an answer in a few words: its decisions, or else its JSON."""
    found = answer.get("decisions") if isinstance(answer, Mapping) else answer
    decisions = found if isinstance(found, list) and found else [found]
    if all(isinstance(one, Mapping) and isinstance(one.get("type"), str) for one in decisions):
        text = ", ".join(map(_told, decisions))
    elif isinstance(answer, str):
        text = answer
    else:
        if isinstance(answer, Mapping) and len(answer) == 1:
            (only,) = answer.values()
            answer = only if isinstance(only, str) and only in OUTCOMES else answer
        text = answer if isinstance(answer, str) else to_json(answer)[: 4 * _SAID].decode("utf-8", "ignore")
    return text if len(text) <= _SAID else f"{text[: _SAID - 1]}…"


def unsent(form: Form | None, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the titles and texts that a person entered in a refused form.

    Without the form, arguments that were not edited are returned, too.
    """
    found = []
    # List the decision first. A browser sends the field of the pressed button last.
    for name, text in sorted(given.items(), key=lambda one: not one[0].startswith("decision-")):
        title = _title_of_field(form, name, text)
        if title is None or not text.strip():
            continue
        if name == "choice":
            chosen = parsed(text)
            text = chosen if isinstance(chosen, str) else text
        found.append((title, VERBS.get(text, text) if name.startswith("decision-") else text))
    return found


def _title_of_field(form: Form | None, name: str, text: str) -> str | None:
    """Return the title of a field that a person fills in; `None` for other fields."""
    kind, *numbers = name.split("-")
    if kind not in _TITLES or not all(one.isdecimal() and len(one) < 5 for one in numbers):
        return None
    number, place = [*map(int, numbers), 0, 0][:2]
    reviews = () if form is None else form.reviews
    review = reviews[number] if number < len(reviews) else None
    title = _TITLES[kind]
    if kind == "argument":
        fields = () if review is None else review.fields
        field = fields[place] if place < len(fields) else None
        if field is not None and is_same(text, field.text):
            return None
        title = f"{title} {place + 1}" if field is None else field.name or "Arguments"
    if len(reviews) > 1 and review is not None:
        return f"{title} ({review.name}, {number + 1} of {len(reviews)})"
    return title


def asked_of(value: Any) -> str:
    """Return a fingerprint of an interrupt's question. A form carries it, so that a changed question is noticed."""
    return hashlib.sha256(to_json(value)).hexdigest()[:16]


def title_of(form: Form) -> str:
    """Return a short title for a question; may be empty."""
    return _with_more([one.title for one in form.reviews])


def tools_of(form: Form) -> str:
    """Return a short text for the tools of a question; empty if there are none."""
    return _with_more([one.name for one in form.reviews])


def _with_more(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)


def key_of(value: Any) -> str | None:
    """Return the key of the action whose outcome is asked for; `None` for other questions."""
    if not isinstance(value, Mapping) or value.get("type") != OUTCOME_UNKNOWN:
        return None
    return str(value.get("key") or "")


def split(value: Any) -> tuple[str, Any]:
    """Return the question in a value, and the rest of the value or `None`."""
    if isinstance(value, str):
        return value, None
    question, rest = split_question(value)
    return question, rest or None if question else rest


def _batched(requests: Sequence[Mapping[str, Any]], configs: Any) -> Iterable[Review]:
    """Return the calls of one interrupt, with the decisions that `configs` allows for each call.

    If there are as many configs as calls, configs are matched by position, otherwise by the name of the tool.
    """
    known = [one for one in configs if isinstance(one, Mapping)] if isinstance(configs, list) else []
    for place, request in enumerate(requests):
        same = [one for one in known if one.get("action_name") in (None, request.get("name"))]
        config = known[place] if len(known) == len(requests) else next(iter(same), None)
        allowed = None if config is None else config.get("allowed_decisions")
        offered = allowed if isinstance(allowed, list) else ["approve", "reject"]
        yield _review(request, tuple(name for name in _MIDDLEWARE if name in offered))


def _review(request: Mapping[str, Any], decisions: tuple[str, ...]) -> Review:
    name, arguments = str(request.get("name") or "?"), request.get("args", request.get("arguments"))
    described = request.get("description")
    # Cut off the end of the middleware's description, because the page shows the call separately.
    text = described.partition(f"\n\nTool: {name}\nArgs: ")[0] if isinstance(described, str) else ""
    return _made(name, arguments, text, decisions)


def _inbox(request: Mapping[str, Any]) -> Review:
    action, config, described = request["action_request"], request.get("config"), request.get("description")
    offered = [name for name, key in _INBOX.items() if not isinstance(config, Mapping) or config.get(key)]
    text = described if isinstance(described, str) else ""
    return _made(str(action.get("action") or "?"), action.get("args"), text, tuple(offered))


def _outcome(value: Mapping[str, Any], key: str) -> Form:
    question, rest = split({name: item for name, item in value.items() if name not in ("tool", "arguments", "type")})
    review = _made(str(value.get("tool") or "?"), value.get("arguments"), "", ())
    id = value.get("id")
    return Form("outcome", (review,), question, (), rest, key, id if isinstance(id, str) else None)


def _made(name: str, arguments: Any, description: str, decisions: tuple[str, ...]) -> Review:
    fields = tuple(fields_of(arguments)) if "edit" in decisions else ()
    return Review(name, call_title(name, arguments), arguments, description, decisions, fields)


def call_title(name: str, arguments: Any) -> str:
    """Return a call on one line: `send_email(to="eve")`."""
    if not isinstance(arguments, Mapping):
        return name if arguments in (None, "") else f"{name}({_short(arguments)})"
    return f"{name}({', '.join(f'{key}={_short(item)}' for key, item in arguments.items())})"[: 2 * _TITLE]


def _short(value: Any) -> str:
    text = json.dumps(value[:_TITLE], ensure_ascii=False) if isinstance(value, str) else _text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _text(value: Any) -> str:
    return to_json(value).decode("utf-8", "replace")


def _decision(kind: str, review: Review, number: int, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the decision about a call, in the format of the library that asks."""
    decision = given.get(f"decision-{number}", "")
    if decision not in review.decisions:
        allowed = ", ".join(review.decisions)
        raise FormError(f"choose one of {allowed} for {review.name}")
    if decision != "edit" and _is_edited(review, number, given):
        raise FormError(f"the arguments of {review.name} were edited: choose edit, or undo the changes")
    if kind == "inbox":
        if decision == "edit":
            args = {"action": review.name, "args": _arguments(review, number, given)}
            return {"type": decision, "args": args}
        return {"type": decision, "args": _written(review, number, given) if decision == "response" else None}
    if decision == "edit":
        edited = {"name": review.name, "args": _arguments(review, number, given)}
        return {"type": decision, "edited_action": edited}
    if decision == "respond":
        return {"type": decision, "message": _written(review, number, given)}
    reason = given.get(f"reject-{number}", "").strip()
    return {"type": decision, "message": reason} if decision == "reject" and reason else {"type": decision}


def _written(review: Review, number: int, given: Mapping[str, str]) -> str:
    text = given.get(f"respond-{number}", "").strip()
    if not text:
        raise FormError(f"enter the result of the call of {review.name}")
    return text


def _is_edited(review: Review, number: int, given: Mapping[str, str]) -> bool:
    texts = (given.get(f"argument-{number}-{place}", one.text) for place, one in enumerate(review.fields))
    changed = (not is_same(text, one.text) for text, one in zip(texts, review.fields, strict=True))
    return any(changed) or bool(given.get(f"more-{number}", "").strip())


def _arguments(review: Review, number: int, given: Mapping[str, str]) -> Any:
    """Return the arguments after a person's edits. Unchanged arguments keep their values."""
    found = {}
    for place, field in enumerate(review.fields):
        text = given.get(f"argument-{number}-{place}")
        what = f"argument {field.name!r}" if field.name else "arguments"
        value = field.value if text is None else read(field, text, what)
        if not field.name:
            if not isinstance(value, Mapping | None):
                raise FormError(f"the arguments of {review.name} must be a JSON object")
            return value or {}
        found[field.name] = value
    more = given.get(f"more-{number}", "")
    if more.strip():
        added = from_json(more, "more arguments")
        if not isinstance(added, dict):
            raise FormError("more arguments must be a JSON object")
        found |= added
    return found


def _outcome_in(form: Form, given: Mapping[str, str]) -> Any:
    """Return the decision about an action, as the ledger expects it."""
    decision, result = given.get("decision-0", ""), given.get("result", "")
    if decision not in OUTCOMES:
        raise FormError(f"choose one of {', '.join(OUTCOMES)}")
    has_result = decision == "done" and result.strip()
    answer: Any = {"decision": decision, "result": parsed(result)} if has_result else decision
    return answer if form.id is None else {form.id: answer}


def _decisions_in(schema: Any) -> tuple[str, ...]:
    if not isinstance(schema, Mapping):
        return ("approve", "reject")
    names = [_decision_in(one) for one in _branches(schema)]
    return tuple(name for name in _MIDDLEWARE if name in names)


def _decision_in(schema: Mapping[str, Any]) -> Any:
    properties = schema.get("properties")
    kind = properties.get("type") if isinstance(properties, Mapping) else None
    return kind.get("const") if isinstance(kind, Mapping) else None


def _branches(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = schema.get("oneOf") or schema.get("anyOf")
    definitions = schema.get("$defs")
    for one in found if isinstance(found, list) else [schema]:
        reference = one.get("$ref") if isinstance(one, Mapping) else None
        if isinstance(reference, str) and isinstance(definitions, Mapping):
            one = definitions.get(reference.rpartition("/")[2])
        if isinstance(one, Mapping):
            yield one


def _choices_in(schema: Any) -> Iterable[tuple[str, str]]:
    """Return the answers that a JSON Schema lists, without `None`, which cannot be an answer."""
    if not isinstance(schema, Mapping):
        return []
    if schema.get("type") == "boolean":
        return [("Yes", "true"), ("No", "false")]
    if isinstance(schema.get("enum"), list):
        found = [(one, one) for one in schema["enum"]]
    else:
        found = [(one.get("title", one["const"]), one["const"]) for one in _branches(schema) if "const" in one]
    return [
        (title if isinstance(title, str) else _text(title), json.dumps(one))
        for title, one in found[:_MOST_CHOICES]
        if one is not None
    ]


def _told(decision: Mapping[str, Any]) -> str:
    written = decision.get("message", decision.get("args"))
    return f"{decision['type']} “{written}”" if isinstance(written, str) and written else str(decision["type"])
