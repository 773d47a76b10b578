"""Rows of the table `webhooks`, and the URLs and bodies of webhooks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.protocol import Connection, Read
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.paging import LAST, Page, decode_cursor, read_page
from langgraph_pgstate.runs.types import Delivery, Webhook
from langgraph_pgstate.schema.queries import Queries

MAX_ATTEMPTS: Final = 12
KEPT_FOR: Final = timedelta(days=30)
_KIND: Final = "webhooks"
_MAX_URL: Final = 2048
_FIRST_DELAY: Final = 5.0
_LONGEST_DELAY: Final = 3600.0
# LangGraph's own namespace, so that a graph's assistant has the same id on all servers.
_NAMESPACE: Final = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def webhook_of(url: Any) -> str | None:
    """Return a validated URL, or `None`."""
    if url is None:
        return None
    if not isinstance(url, str):
        raise ArgumentTypeError(f"webhook must be a URL, not {type(url).__name__}")
    try:
        parts = urlsplit(identifier("webhook", url))
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        is_usable = False
    if not is_usable or len(url) > _MAX_URL or not url.isascii() or any(one.isspace() for one in url):
        raise ConfigurationError(
            f"webhook must be a URL like 'https://example.com/done', in ASCII, with at most {_MAX_URL} characters, and "
            f"without the name of a user, not {url[:100]!r}"
        )
    return url


def assistant_id_of(graph: str) -> str:
    """Return the id of a graph's assistant."""
    return str(uuid5(_NAMESPACE, graph))


def describe_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run in the form of LangGraph's protocol, from columns of its row."""
    metadata = dict(run["metadata"] or {})
    created_at = run["enqueued_at"] or run["started_at"]
    return {
        "run_id": run["run_id"],
        "thread_id": run["thread_id"],
        "assistant_id": metadata.get("assistant_id") or assistant_id_of(run["agent"] or ""),
        "created_at": created_at,
        "updated_at": max(created_at, run["ended_at"] or run["started_at"]),
        # The protocol has no other status for a run that was stopped.
        "status": "interrupted" if run["status"] == "cancelled" else run["status"],
        "metadata": metadata,
        "multitask_strategy": run["multitask_strategy"] or "enqueue",
    }


def body_of(delivery: Delivery) -> bytes:
    """Return the body of a webhook as JSON: the run with its times, and the error of a failed run.

    Raises:
        PGStateError: If the run's metadata or its error cannot be decrypted.
    """
    for value in delivery.run.values():
        if isinstance(value, Exception):
            raise value
    times = ("enqueued_at", "started_at", "ended_at")
    run = {**delivery.run, **{name: datetime.fromisoformat(delivery.run[name]) for name in times if delivery.run[name]}}
    told = {
        **describe_run(run),
        "run_started_at": run["started_at"],
        "run_ended_at": run["ended_at"],
        "webhook_sent_at": delivery.sent_at,
    }
    if run["status"] in ("error", "timeout"):
        kind, message = run["error_type"] or run["status"], run["error_message"]
        told["error"] = {"error": kind.rpartition(".")[2], "message": message or f"the run ended as {run['status']}"}
    return json.dumps(told, default=datetime.isoformat).encode()


def delay_after(attempts: int) -> float | None:
    """Return the seconds until the next attempt; `None` after the last attempt, 2.4 hours after the first."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return float(min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (attempts - 1)))


def host_of(url: str) -> str:
    """Return the host and port of a URL, as `claim` takes them in `busy`; the URL itself if parsing fails."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return url


async def claim(
    db: Connection, queries: Queries, limit: int, seconds: float, busy: Sequence[str] = ()
) -> list[Delivery]:
    """Claim due webhooks for some seconds, except webhooks of `busy` hosts. One transaction."""
    parameters = {"limit": limit, "seconds": repr(seconds), "busy": [*busy]}
    if db.keys is None:
        rows = await db.fetch(queries.claim_webhooks, parameters)
    else:
        # If data keys are missing, the transaction is undone, and repeated after the keys are loaded.
        async with db.transaction():
            rows = await db.fetch(queries.claim_webhooks, parameters)
    return [Delivery(*row) for row in rows]


async def end(
    db: Connection, queries: Queries, delivery: Delivery, error: str | None = None, *, is_final: bool = False
) -> None:
    """Delete a delivered webhook, or store the `error` of an attempt. One statement; safe to repeat.

    If another process has claimed the webhook meanwhile, nothing is changed. With `is_final`, no attempt follows.
    """
    key = {
        "thread_id": delivery.thread_id,
        "run_id": delivery.run_id,
        "ended_at": delivery.ended_at,
        "attempts": delivery.attempts,
    }
    if error is None:
        await db.execute(queries.delete_webhook, key)
    else:
        delay = None if is_final else delay_after(delivery.attempts)
        await db.execute(
            queries.postpone_webhook, {**key, "error": error, "delay": None if delay is None else repr(delay)}
        )


async def retry(db: Connection, queries: Queries, webhook: Webhook) -> bool:
    """Make a failed webhook due again, and return whether the webhook exists. One statement; safe to repeat."""
    return await db.execute(queries.retry_webhook, _key(webhook)) > 0


async def discard(db: Connection, queries: Queries, webhook: Webhook) -> bool:
    """Delete a webhook, and return whether the webhook existed. One statement; safe to repeat."""
    return await db.execute(queries.delete_webhook, {**_key(webhook), "attempts": None}) > 0


async def sweep(db: Connection, queries: Queries) -> int:
    """Delete failed webhooks of runs that ended 30 days ago, and return the number. One statement."""
    return await db.execute(queries.sweep_webhooks, {"seconds": repr(KEPT_FOR.total_seconds())})


def list_failed(limit: int = 20, cursor: str | None = None) -> Read[Page[Webhook]]:
    """Return a `Read` of a page of webhooks that have failed, newest first."""
    at, cursor_thread, cursor_run = decode_cursor(_KIND, cursor, (LAST, "", ""))
    position = {"cursor_at": at, "cursor_thread": cursor_thread, "cursor_run": cursor_run}
    return read_page("list_webhooks", position, limit, Webhook, _KIND, _place)


def _place(webhook: Webhook) -> Sequence[Any]:
    return webhook.ended_at, webhook.thread_id, webhook.run_id


def _key(webhook: Webhook) -> dict[str, Any]:
    return {"thread_id": webhook.thread_id, "run_id": webhook.run_id, "ended_at": webhook.ended_at}
