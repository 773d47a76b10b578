"""The page of archived threads, and the restoration of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langgraph_pgstate.errors import (
    AlreadyDoneError,
    ArchiveError,
    ArchiveUnavailableError,
    NotFoundError,
    SchemaOutdatedError,
)
from langgraph_pgstate.inspector.changes import done, is_by, last_action, told
from langgraph_pgstate.inspector.page import Done, Page, PageCall, check_sees_all
from langgraph_pgstate.keep import ArchivedThread, RestoreReport
from langgraph_pgstate.server.errors import refuse

_PAGE: Final = 50


async def archive(call: PageCall) -> Page:
    """Show archived threads. Verify one thread, or all shown threads, if the address asks for it."""
    await check_sees_all(call)
    found = await call.state.archive.list(
        user_id=call.query("user"),
        agent=call.query("agent"),
        archive_id=call.query("archive"),
        limit=_PAGE,
        cursor=call.query("cursor"),
    )
    one = call.query("check")
    ids = [one] if one is not None else [each.thread_id for each in found.items] if call.flag("check_all") else []
    data = {"threads": found.items, "next": found.next, **await verified(call, ids)}
    return Page("archive.html", "Archive", data, place=call.link("retention"))


async def verified(call: PageCall, thread_ids: Sequence[str]) -> dict[str, Any]:
    """Verify archived threads. Return a report, or a problem."""
    report: RestoreReport | None = None
    problem = None
    if thread_ids:
        if not call.may_act:
            raise refuse(403, "pages are read-only here")
        try:
            report = await call.state.archive.check(thread_ids)
        except (ArchiveError, NotFoundError, SchemaOutdatedError) as error:
            problem = str(error)
    return {"verified": report, "problem": problem}


async def archived(call: PageCall, thread_id: str) -> ArchivedThread | None:
    """Return the archive of a thread; `None` if the thread is in no archive."""
    page = await call.state.archive.list(thread_ids=[thread_id], limit=1)
    return next(iter(page.items), None)


async def restore(call: PageCall) -> Done:
    """Restore an archived thread. Each row is compared with the digest in its archive."""
    await check_sees_all(call)
    found = await call.thread_or_stub("update")
    location = call.link("threads", found.thread_id)
    if found.archived_at is not None:
        try:
            report = await call.state.archive.restore([found.thread_id], by=call.actor)
        except AlreadyDoneError as error:
            raise done("the thread", error) from None
        except NotFoundError:
            # The thread was restored or deleted meanwhile.
            await call.visible(found.thread_id, None)
            report = RestoreReport()
        except ArchiveUnavailableError as error:
            raise refuse(503, str(error)) from None
        except ArchiveError as error:
            raise refuse(500, str(error)) from None
        except SchemaOutdatedError as error:
            raise refuse(409, str(error)) from None
        if report.threads:
            return Done(location, {"thread_id": found.thread_id, "rows": report.rows})
    event = await last_action(call, found.thread_id, ("restore",))
    if event is not None and is_by(event, call.actor):
        return Done(location, {"thread_id": found.thread_id})
    raise refuse(409, f"thread {found.thread_id!r} {'is not archived' if event is None else f'was {told(event)}'}")
