"""The page of erasures: what an erasure would do, and the receipts of earlier erasures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from langgraph_pgstate.errors import (
    ConfigurationError,
    NotFoundError,
    ThreadArchivedError,
    ThreadHeldError,
    ThreadInUseError,
)
from langgraph_pgstate.inspector.changes import MOMENT, last_action, told
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all
from langgraph_pgstate.keep import Erasure, StoredErasure
from langgraph_pgstate.keep.erasing import place_of
from langgraph_pgstate.server.errors import missing, refuse

_PAGE: Final = 20
_FIELDS: Final = {"user": "user_id", "thread": "thread_id", "message": "message_id"}


async def privacy(call: PageCall) -> Page:
    """Show receipts, and what an erasure would do. The dry run writes nothing."""
    await check_sees_all(call)
    what = {name: call.query(name) or None for name in _FIELDS}
    found: Erasure | None = None
    problem = None
    if any(what.values()):
        if not call.may_act:
            raise refuse(403, "pages are read-only here")
        try:
            found = await call.state.privacy.erase(**_arguments(what), dry_run=True)
        except (ConfigurationError, NotFoundError, ThreadArchivedError, ThreadHeldError, ThreadInUseError) as error:
            problem = str(error)
    page = await call.state.privacy.receipts(limit=_PAGE, cursor=call.query("cursor"))
    data: dict[str, Any] = {
        "what": what,
        "dry_run": found,
        "problem": problem,
        "receipts": page.items,
        "signs": call.service.receipt_key is not None,
        "next": page.next,
    }
    return Page("privacy.html", "Erasures", data, place=call.link("retention"))


async def erase(call: PageCall) -> Done:
    """Erase the subject that the form names, if the number of rows has not changed since the person saw it."""
    await check_sees_all(call)
    what = {name: call.field(name) for name in _FIELDS}
    nonce = call.nonce
    if (known := await call.state.privacy.receipt(nonce)) is not None:
        return _done(call, what, nonce, is_complete=known.ended_at is not None)
    try:
        before = await call.state.privacy.erase(**_arguments(what), dry_run=True)
        if str(before.rows) != call.field("rows"):
            raise refuse(
                409, f"rows were added or erased since you looked{await _since(call)}. Look at the numbers again"
            )
        done = await call.state.privacy.erase(
            **_arguments(what), key=call.service.receipt_key, by=call.actor, erasure_id=nonce
        )
    except ConfigurationError as error:
        raise refuse(422, str(error)) from None
    except NotFoundError as error:
        raise refuse(404, f"{error}{await _since(call)}") from None
    except (ThreadArchivedError, ThreadHeldError, ThreadInUseError) as error:
        raise refuse(409, str(error)) from None
    return _done(call, what, str(done.erasure_id), is_complete=done.is_complete)


def _done(call: PageCall, what: dict[str, str | None], erasure_id: str, *, is_complete: bool) -> Done:
    """Return the end of an erasure: a link to its receipt or, if data is left, to the page that names this data."""
    location = call.link("privacy", "receipts", erasure_id) if is_complete else call.link("privacy", **what)
    return Done(location, {"erasure_id": erasure_id, "is_complete": is_complete})


async def _since(call: PageCall) -> str:
    """Return who erased data since the page was made, as the end of a sentence; empty if nobody did."""
    for newest in (await call.state.privacy.receipts(limit=1)).items:
        if call.seen_at is not None and newest.started_at >= call.seen_at - MOMENT:
            event = await last_action(call, place_of(newest.erasure_id), ("erase",))
            return "" if event is None else f": a {newest.kind} was {told(event)}"
    return ""


async def receipt(call: PageCall) -> Page:
    """Show an erasure, and whether its receipt is unchanged and about the subject that the address names."""
    await check_sees_all(call)
    found = await _erasure(call)
    what = {name: call.query(name) or None for name in _FIELDS}
    verdict = problem = None
    key = call.service.receipt_key
    if found.receipt is not None and key is not None:
        try:
            verdict = call.state.privacy.verify(found.receipt, key, **_arguments(what))
        except ConfigurationError as error:
            problem = str(error)
            verdict = call.state.privacy.verify(found.receipt, key)
    # Show the counts of the receipt, which is signed. The columns of the row are not signed.
    said: Mapping[str, Any] = found.receipt or {"counts": found.counts}
    is_own = found.receipt is None or found.receipt.get("receipt_id") == found.erasure_id
    event = await last_action(call, place_of(found.erasure_id), ("erase",))
    data = {
        "erasure": found,
        "by": None if event is None else event.payload.get("by"),
        "said": said,
        "is_own": is_own,
        "what": what,
        "verdict": verdict,
        "problem": problem,
        "has_key": key is not None,
    }
    return Page("receipt.html", f"Erasure of a {found.kind}", data, place=call.link("retention"))


async def download(call: PageCall) -> Response:
    """Return a receipt as a file that `pgstate privacy verify` reads."""
    await check_sees_all(call)
    found = await _erasure(call)
    if found.receipt is None:
        raise missing("receipt", found.erasure_id)
    headers = {"Content-Disposition": 'attachment; filename="receipt.json"'}
    return Response(json.dumps(dict(found.receipt), indent=2) + "\n", 200, headers, "application/json")


async def _erasure(call: PageCall) -> StoredErasure:
    found = await call.state.privacy.receipt(call.path("erasure_id"))
    if found is None:
        raise missing("receipt", call.path("erasure_id"))
    return found


def _arguments(what: dict[str, str | None]) -> dict[str, Any]:
    return {_FIELDS[name]: value for name, value in what.items()}
