"""The page of interrupts, where a named person answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from langgraph_pgstate.errors import (
    AlreadyAnsweredError,
    ConfigurationError,
    NotFoundError,
    SerializationError,
    ThreadBusyError,
)
from langgraph_pgstate.inspector.changes import since, told_by
from langgraph_pgstate.inspector.fields import FormError
from langgraph_pgstate.inspector.formatting import ValueView, view
from langgraph_pgstate.inspector.forms import (
    Form,
    answer_of,
    asked_of,
    form_for,
    form_of,
    key_of,
    said,
    split,
    title_of,
    tools_of,
    unsent,
)
from langgraph_pgstate.inspector.page import Done, Page, PageCall, own_path, scope_of
from langgraph_pgstate.inspector.rendering import wants_json
from langgraph_pgstate.interrupts.types import Answer, AnsweredInterrupt, InterruptedThread, PendingInterrupt
from langgraph_pgstate.server.errors import missing, refuse
from langgraph_pgstate.threads.types import Thread

_PAGE: Final = 30
# Maximum number of interrupts that are read for a page, including answered interrupts.
_SCAN: Final = 600
# Maximum number of characters of a list's page, an interrupt's page, and a value. HTML may need six for one.
_MOST_SHOWN: Final = 20_000
_MOST_ALONE: Final = 36_000
_SHOWN: Final = 3000
# Estimated numbers of characters of the HTML of a form, and of a field.
_FORM: Final = 250
_FIELD: Final = 60
# Maximum number of characters of a question and of the rest of an interrupt's value, on the pages of threads and runs.
_MOST_QUESTION: Final = 2000
_MOST_REST: Final = 600
_MOST_EDITED: Final = 12_000


@dataclass(frozen=True, slots=True)
class ReviewView:
    """A call that waits for a decision, as a page shows it.

    Attributes:
        title: The tool with its arguments, on one line.
        description: Markdown that explains the call.
        decisions: The offered decisions.
        fields: The arguments as fields, if they may be edited here.
        is_too_long: Whether the arguments are too long to be edited here.
    """

    title: str
    name: str
    description: str
    arguments: ValueView | None
    decisions: tuple[str, ...]
    fields: tuple[Any, ...]
    is_too_long: bool


async def interrupts(call: PageCall) -> Page:
    """Show the threads that wait for an answer, newest interrupt first, or the interrupts of one thread."""
    answered = await _just_answered(call)
    if (thread_id := call.query("thread")) is not None:
        scope = await call.authorize("threads", "read", {"thread_id": thread_id})
        found = await call.visible(thread_id, scope)
        return await _alone(call, found, call.query("id"), answered)
    if call.query("id") is not None:
        raise refuse(422, "id must be given with a thread: ?thread=THREAD&id=INTERRUPT")
    shows_answered = call.query("show") == "answered"
    pending = await call.state.interrupts.threads(
        answered=shows_answered,
        agent=call.query("agent"),
        user_id=call.query("user"),
        tenant_id=call.query("tenant"),
        scope=await scope_of(call, _PAGE),
        scan=_SCAN,
        limit=_PAGE,
        cursor=call.query("cursor"),
    )
    threads, left = [], _MOST_SHOWN
    for one in pending.items:
        threads.append(_unused(one) if shows_answered else _shown(one, left))
        left -= threads[-1].pop("cost")
    for here, shown in enumerate(threads):
        # After an answer, the page opens at this thread if another interrupt waits, otherwise at the next thread.
        waits = len(shown["interrupts"]) + shown["hidden"] > 1
        near = shown if waits else threads[here + 1 if here + 1 < len(threads) else here - 1]
        shown["place"] = f"thread-{near['thread_id']}"
    data = {**_DATA, "threads": threads, "next": pending.next, "scanned": _SCAN, "just_answered": answered}
    return Page("interrupts.html", "Interrupts", data, is_live=call.query("cursor") is None)


async def answer(call: PageCall) -> Any:
    """Answer an interrupt with the decisions, the choice or the text of a form."""
    thread, interrupt_id = await call.thread("update"), call.path("interrupt_id")
    pending = await call.state.interrupts.list(thread.thread_id)
    interrupt = next((one for one in pending if one.interrupt_id == interrupt_id and one.error is None), None)
    if interrupt is None:
        return await _too_late(call, thread, interrupt_id)
    if call.field("asked") not in (None, asked_of(interrupt.value)):
        problem = "The interrupt asks something else now. Your answer was not sent."
        return await _again(call, thread, 409, problem, unsent=unsent(None, call.form))
    try:
        value = answer_of(form_of(interrupt), call.form)
        await call.state.interrupts.answer(thread.thread_id, value, by=call.actor, interrupt_id=interrupt_id)
    except (AlreadyAnsweredError, NotFoundError):
        return await _too_late(call, thread, interrupt_id)
    except ThreadBusyError:
        told = await since(call, thread.thread_id)
        problem = f"The thread is busy{told}. Its run may answer the interrupt first. Your answer was not sent."
        return await _again(call, thread, 409, problem, typed=call.form)
    except (FormError, ConfigurationError, SerializationError) as error:
        return await _again(call, thread, 422, f"Nothing was sent: {error}.", typed=call.form)
    back = own_path(call, call.field("back")) or call.link("interrupts")
    return Done(
        back,
        {"thread_id": thread.thread_id, "answer": value},
        thread_id=thread.thread_id,
        query={"answered": interrupt_id},
        place=call.field("place") or "",
    )


async def _too_late(call: PageCall, thread: Thread, interrupt_id: str) -> Any:
    """Respond to a form for an interrupt that is not pending. The page says who answered it, and how."""
    found = await call.state.interrupts.answered(thread.thread_id, interrupt_id)
    if found is None:
        if wants_json(call.request):
            raise missing("pending interrupt", interrupt_id)
        told = await since(call, thread.thread_id)
        problem = f"The interrupt does not wait any more{told}. Your answer was not sent."
        return await _again(call, thread, 404, problem, unsent=unsent(None, call.form))
    form = None if found.interrupt is None else form_of(found.interrupt)
    problem = f"{_told(found)}. Your answer was not sent."
    return await _again(call, thread, 409, problem, unsent=unsent(form, call.form))


async def _again(
    call: PageCall,
    thread: Thread,
    status: int,
    problem: str,
    *,
    typed: Mapping[str, str] | None = None,
    unsent: Sequence[tuple[str, str]] = (),
) -> Page:
    """Return the page of an interrupt after a refused form, with the typed values.

    Args:
        typed: The fields that were sent, if the form is shown again.
        unsent: The typed values by title, if the form is not shown again.
    """
    if wants_json(call.request):
        raise refuse(status, problem)
    page = await _alone(call, thread, call.path("interrupt_id"), None)
    back = own_path(call, call.field("back"))
    data = {**page.data, "problem": problem, "back": back, "typed": typed or {}, "unsent": unsent}
    return Page(page.template, page.title, data, status=status)


async def _alone(call: PageCall, thread: Thread, interrupt_id: str | None, answered: dict[str, Any] | None) -> Page:
    """Return the page of one thread's interrupts, or of one interrupt, even if it is answered."""
    pending = await call.state.interrupts.list(thread.thread_id)
    chosen = [one for one in pending if interrupt_id in (None, one.interrupt_id)]
    data: dict[str, Any] = {**_DATA, "threads": [], "next": None, "scanned": _SCAN, "just_answered": answered}
    data |= {"thread": thread, "interrupt_id": interrupt_id, "others": len(pending) - len(chosen)}
    if chosen:
        since = min(one.asked_at for one in chosen)
        owner = thread.user_id, thread.tenant_id, thread.agent, thread.title
        head = thread.head_checkpoint_id or ""
        waiting = InterruptedThread(thread.thread_id, head, since, tuple(chosen), (), *owner)
        data["threads"] = [_shown(waiting, _MOST_ALONE, _MOST_ALONE)]
        data["threads"][0]["place"] = ""
        data["threads"][0].pop("cost")
    elif interrupt_id is not None and answered is not None and call.query("answered") == interrupt_id:
        data["answered"] = answered
    elif interrupt_id is not None:
        found = await call.state.interrupts.answered(thread.thread_id, interrupt_id)
        data["answered"] = None if found is None else _answer_shown(thread, found)
    data["told"] = None if data["answered"] is None else data["answered"]["told"]
    title = "Interrupts" if interrupt_id is None else "Interrupt"
    return Page("interrupts.html", title, data, is_live=call.request.method == "GET")


async def _just_answered(call: PageCall) -> dict[str, Any] | None:
    """Return the answer that the caller has just sent, for the notice that confirms it."""
    thread_id, interrupt_id = call.query("of"), call.query("answered")
    if thread_id is None or interrupt_id is None or call.query("notice") != "interrupt.answer":
        return None
    scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    thread = await call.state.threads.get(thread_id, scope=scope)
    found = None if thread is None else await call.state.interrupts.answered(thread_id, interrupt_id)
    return None if thread is None or found is None else _answer_shown(thread, found)


_DATA: Final[Mapping[str, Any]] = {
    "thread": None,
    "interrupt_id": None,
    "others": 0,
    "answered": None,
    "problem": None,
    "back": None,
    "typed": {},
    "unsent": (),
}


def asked_shown(id: object, value: Any) -> dict[str, Any]:
    """Return the question of an interrupt, as the pages of its thread and its run show it."""
    key = key_of(value)
    question, rest = split(value)
    return {
        "id": id,
        "question": question[:_MOST_QUESTION],
        "calls": [] if key is not None else [one.title for one in form_for(value).reviews],
        "value": None if rest is None else view(rest, _MOST_REST),
        "key": key,
    }


def _told(found: AnsweredInterrupt) -> str:
    """Return who answered an interrupt, and how: `Answered 4 s ago by Eve: approve`."""
    return _told_of(found.answer)


def _told_of(given: Answer) -> str:
    by = "default" if given.is_default else given.answered_by
    return f"{told_by('Answered', given.answered_at, by)}: {said(given.value)}"


def _answer_shown(thread: Thread, found: AnsweredInterrupt) -> dict[str, Any]:
    title = "" if found.interrupt is None else tools_of(form_of(found.interrupt))
    # Show a button to resume the thread only if the answer has no run that resumes the thread.
    waits = found.answer.run_id is None and thread.head_checkpoint_id == found.answer.checkpoint_id
    return {
        "head": thread.head_checkpoint_id if waits and thread.status != "busy" else None,
        "thread_id": thread.thread_id,
        "title": title or thread.title or thread.thread_id,
        "thread_title": thread.title or thread.thread_id,
        "told": _told(found),
        "answer": view(found.answer.value),
        "asked": None if found.interrupt is None else _interrupt_shown(found.interrupt, _MOST_ALONE),
        "run_id": found.answer.run_id,
    }


def _shown(found: InterruptedThread, most: int, most_each: int = _SHOWN) -> dict[str, Any]:
    """Return a thread with its interrupts, limited to a number of characters."""
    shown: list[dict[str, Any]] = []
    cost = 0
    for one in found.interrupts:
        if shown and cost >= most:
            break
        part = _interrupt_shown(one, min(most_each, most - cost))
        cost += part.pop("cost")
        shown.append(part)
    return {
        "hidden": len(found.interrupts) - len(shown),
        "cost": cost,
        "thread_id": found.thread_id,
        "checkpoint_id": found.checkpoint_id,
        "since": found.since,
        "user_id": found.user_id,
        "tenant_id": found.tenant_id,
        "agent": found.agent,
        "title": found.title,
        "answers": len(found.answers),
        "interrupts": shown,
        "unused": [],
    }


def _unused(found: InterruptedThread) -> dict[str, Any]:
    """Return a thread with the answers that no run has used yet."""
    told = [{"told": _told_of(one), "run_id": one.run_id} for one in found.answers]
    return {**_shown(replace(found, interrupts=()), 0), "unused": told, "waits": len(found.interrupts), "hidden": 0}


def _interrupt_shown(interrupt: PendingInterrupt, most: int) -> dict[str, Any]:
    """Return an interrupt with the form of its answer, if the form is not too long."""
    form = form_of(interrupt)
    reviews, cost = _reviews_shown(form, most)
    size = max(200, most - cost)
    question, rest = form.question[:size], None if form.rest is None else view(form.rest, size)
    schema = None if interrupt.response_schema is None or form.kind == "call" else view(interrupt.response_schema, size)
    cost += len(question) + sum(len(one.text) for one in (rest, schema) if one is not None) + _FORM
    cost += sum(len(title) + len(value) + _FIELD for title, value in form.choices)
    return {
        "interrupt_id": interrupt.interrupt_id,
        "asked_at": interrupt.asked_at,
        "run_id": interrupt.run_id,
        "error": interrupt.error,
        "asked": asked_of(interrupt.value),
        "kind": form.kind,
        # If little space is left on the page, the interrupt is shown without its form.
        "is_brief": len(reviews) < len(form.reviews) or most < _FORM,
        "reviews": reviews,
        "count": len(form.reviews),
        "title": title_of(form),
        "question": question,
        "is_cut": len(question) < len(form.question),
        "rest": rest,
        "choices": form.choices,
        "schema": schema,
        "key": form.key,
        "cost": cost,
    }


def _reviews_shown(form: Form, most: int) -> tuple[Sequence[ReviewView], int]:
    """Return as many calls as fit, and their approximate number of characters."""
    shown: list[ReviewView] = []
    cost = 0
    for place, one in enumerate(form.reviews):
        left = most - cost
        if place and left < _FORM:
            break
        size = max(200, left // (len(form.reviews) - place) - _FORM)
        arguments = None if one.arguments is None else view(one.arguments, size)
        fields = one.fields
        edited = sum(len(field.text) + len(field.name) + _FIELD for field in fields)
        is_too_long = bool(fields) and edited > min(size, _MOST_EDITED)
        description = one.description[:size]
        cost += len(description) + (0 if arguments is None else len(arguments.text)) + len(one.title) + _FORM
        cost += 0 if is_too_long else edited
        decisions = tuple(name for name in one.decisions if name != "edit" or not is_too_long)
        shown.append(
            ReviewView(
                one.title, one.name, description, arguments, decisions, () if is_too_long else fields, is_too_long
            )
        )
    return shown, cost
