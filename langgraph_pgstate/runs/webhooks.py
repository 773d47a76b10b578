"""Webhooks: delivery of the ends of runs to the URLs that want to know them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.operations.runs import webhooks
from langgraph_pgstate.settings import WebhookSettings
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Delivery, Page, Webhook

if TYPE_CHECKING:
    import httpx

_AT_ONCE: Final = 10
_POLL_SECONDS: Final = 1.0
_MAX_ERROR: Final = 500
# Addresses of IPv6 that stand for one of IPv4, in their last 32 bits.
_NAT64: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))

_log = logging.getLogger("langgraph_pgstate.webhooks")


class RefusedAddressError(Exception):
    """A webhook's host has no address that may be connected to."""


class Webhooks:
    """Webhooks of runs, which workers deliver. An application without a worker calls `deliver`.

    Args:
        database: The database.
        queries: The queries of its schema.
        settings: Their secret, and where they may be delivered to.
    """

    def __init__(self, database: Database, queries: Queries, settings: WebhookSettings) -> None:
        self._database, self._queries, self._settings = database, queries, settings

    def deliver(self) -> int:
        """Deliver the webhooks that are due, and return the number of those that were taken.

        Safe in many processes at once. A webhook is delivered at least once, and each time with the same id.

        Raises:
            PGStateError: If the database cannot be used. What was not noted is delivered again.
        """
        delivered = 0
        while due := self._database.run(webhooks.claim, self._queries, _AT_ONCE, self._settings.claim_seconds):
            # In a thread of its own, for the caller's may have a loop that runs.
            with ThreadPoolExecutor(1) as executor:
                outcomes = executor.submit(asyncio.run, post_all(self._settings, due)).result()
            for one, (error, is_final) in zip(due, outcomes, strict=True):
                self._database.run(webhooks.end, self._queries, one, error, is_final=is_final)
                delivered += error is None
        return delivered

    def failed(self, *, limit: int = 20, cursor: str | None = None) -> Page[Webhook]:
        """Return a page of webhooks that could not be delivered, newest first. They are kept for 30 days.

        Args:
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = webhooks.request_failed(limit=limit, cursor=cursor)
        return self._database.run(webhooks.list_failed, self._queries, parameters)

    def retry(self, webhook: Webhook) -> bool:
        """Let a webhook that has failed be tried again, as often as the first time. Safe to repeat.

        Returns:
            Whether it was there.
        """
        return self._database.run(webhooks.retry, self._queries, webhook)

    def discard(self, webhook: Webhook) -> bool:
        """Delete a webhook. Safe to repeat.

        Returns:
            Whether it was there.
        """
        return self._database.run(webhooks.discard, self._queries, webhook)


class AsyncWebhooks:
    """Async twin of `Webhooks`."""

    def __init__(self, database: AsyncDatabase, queries: Queries, settings: WebhookSettings) -> None:
        self._database, self._queries, self._settings = database, queries, settings

    async def deliver(self) -> int:
        """Async twin of `Webhooks.deliver`."""
        delivered = 0
        while due := await self._database.run(webhooks.claim, self._queries, _AT_ONCE, self._settings.claim_seconds):
            for one, (error, is_final) in zip(due, await post_all(self._settings, due), strict=True):
                await self._database.run(webhooks.end, self._queries, one, error, is_final=is_final)
                delivered += error is None
        return delivered

    async def failed(self, *, limit: int = 20, cursor: str | None = None) -> Page[Webhook]:
        """Async twin of `Webhooks.failed`."""
        parameters = webhooks.request_failed(limit=limit, cursor=cursor)
        return await self._database.run(webhooks.list_failed, self._queries, parameters)

    async def retry(self, webhook: Webhook) -> bool:
        """Async twin of `Webhooks.retry`."""
        return await self._database.run(webhooks.retry, self._queries, webhook)

    async def discard(self, webhook: Webhook) -> bool:
        """Async twin of `Webhooks.discard`."""
        return await self._database.run(webhooks.discard, self._queries, webhook)


class WebhookThread:
    """A thread of a worker that delivers webhooks, so that no slow receiver keeps the worker from its runs.

    Args:
        part: The webhooks.
    """

    def __init__(self, part: Webhooks) -> None:
        self._part = part
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name="pgstate-webhooks", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def wake(self) -> None:
        """Look for webhooks at once: a run that has one has ended."""
        self._wake.set()

    def stop(self) -> None:
        """Stop, and wait for deliveries that go on, but not long: others deliver what is not noted."""
        self._is_stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            # Read first, so that what was noted before the stop is delivered.
            is_last = self._is_stopped
            try:
                self._part.deliver()
            except PGStateError as error:
                _log.warning("webhooks cannot be delivered: %s", error)
            except Exception:
                _log.exception("webhooks cannot be delivered")
            if not is_last:
                self._wake.wait(_POLL_SECONDS)
                self._wake.clear()


async def post_all(settings: WebhookSettings, deliveries: Sequence[Delivery]) -> list[tuple[str | None, bool]]:
    """Deliver webhooks at once. Raises nothing.

    Returns:
        Why each was not delivered, `None` if it was; and whether it is not to be tried again.
    """
    import httpx

    # Without the environment's proxies, which would connect to what is refused here.
    async with httpx.AsyncClient(trust_env=False, timeout=settings.timeout) as client:
        return await asyncio.gather(*(_try_to_post(client, settings, one) for one in deliveries))


async def _try_to_post(
    client: httpx.AsyncClient, settings: WebhookSettings, delivery: Delivery
) -> tuple[str | None, bool]:
    try:
        async with asyncio.timeout(settings.timeout):
            status = await _post(client, settings, delivery)
    except RefusedAddressError as error:
        return str(error), True
    except Exception as error:
        # Of the resolver, of TLS, of HTTP: each has types of its own.
        return f"{type(error).__name__}: {error}"[:_MAX_ERROR].replace("\0", ""), False
    return (None, False) if 200 <= status < 300 else (f"it answered {status}", False)


async def _post(client: httpx.AsyncClient, settings: WebhookSettings, delivery: Delivery) -> int:
    """Post a webhook to an address that was checked, and return the status of the answer, whose body is not read."""
    import httpx

    url = httpx.URL(delivery.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    address = await allowed_address(url.host, port, settings.networks)
    body = webhooks.body_of(delivery)
    headers = {
        "host": url.netloc.decode(),
        "content-type": "application/json",
        "user-agent": "langgraph-pgstate",
        **signed_headers(settings.secret, delivery.id, int(delivery.sent_at.timestamp()), body),
    }
    request = client.build_request(
        "POST", url.copy_with(host=address), content=body, headers=headers, extensions={"sni_hostname": url.host}
    )
    answer = await client.send(request, stream=True, follow_redirects=False)
    await answer.aclose()
    return answer.status_code


def signed_headers(secret: str | None, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a webhook, as the specification "Standard Webhooks" has them; without a secret, unsigned.

    Args:
        secret: The secret; what follows `whsec_` is base64.
        id: The id of the delivery.
        timestamp: Seconds since 1970.
        body: The body.
    """
    headers = {"webhook-id": id, "webhook-timestamp": str(timestamp)}
    if secret is not None:
        digest = hmac.new(_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def _key(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    if encoded == secret:
        return secret.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return secret.encode()


async def allowed_address(host: str, port: int, networks: Sequence[Any]) -> str:
    """Return an address of a host to connect to: a public one, or one of some networks.

    Raises:
        RefusedAddressError: If it has no such address.
        OSError: If the host is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, place in found:
        address = str(place[0])
        if may_connect(address, networks):
            return address
    raise RefusedAddressError(f"{host} is not a public address")


def may_connect(address: str, networks: Sequence[Any]) -> bool:
    """Return whether an address is public, or in one of some networks."""
    ip: Any = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6:
        teredo = ip.teredo[1] if ip.teredo else None
        is_translated = any(ip in network for network in _NAT64)
        nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if is_translated else None
        ip = ip.ipv4_mapped or ip.sixtofour or teredo or nat64 or ip
    return (ip.is_global and not ip.is_multicast) or any(
        ip in network for network in networks if network.version == ip.version
    )
