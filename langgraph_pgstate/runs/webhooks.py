"""Delivery of webhooks, which report the ends of runs to URLs, and checks of their addresses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.heavy import in_thread, start, start_thread
from langgraph_pgstate.paging import Page
from langgraph_pgstate.runs import webhook_rows as webhooks
from langgraph_pgstate.runs.options import WebhookSettings
from langgraph_pgstate.runs.types import Delivery, Webhook
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import of_tenant

if TYPE_CHECKING:
    import httpx

_AT_ONCE: Final = 20
_PER_HOST: Final = 4
_POLL_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0
# Maximum number of tenants whose webhooks the thread delivers at the same time.
_TENANTS_AT_ONCE: Final = 10
# Seconds after which the thread goes on with other tenants.
_TENANT_SECONDS: Final = 5.0
_MAX_ERROR: Final = 500
# IPv6 networks whose addresses hold an IPv4 address in their last 32 bits.
_NAT64: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
# Networks that are not public, although `ipaddress` counts some of these addresses as global: one for IETF protocols,
# and a service of Azure's machines.
_REFUSED: Final = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "168.63.129.16/32")))

_log = logging.getLogger("langgraph_pgstate.webhooks")


class AsyncWebhooks:
    """Webhooks of runs. Workers deliver webhooks. An application without a worker calls `deliver`.

    Args:
        database: The database.
        queries: The queries of the schema.
        settings: The secret, and the addresses to which webhooks may be delivered.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries, settings: WebhookSettings) -> None:
        self._database, self._queries, self.settings = database, queries, settings

    async def deliver(self) -> int:
        """Deliver the due webhooks, and return the number of attempts.

        Up to 20 webhooks are delivered at the same time, at most 4 to one host. Safe in many processes at once. A
        webhook is delivered at least once, each time with the same id.

        Raises:
            PGStateError: If the database is not available. Webhooks without a stored outcome are delivered again.
        """
        return await _deliver_due(self._database.run, self._queries, self.settings)

    async def failed(self, *, limit: int = 20, cursor: str | None = None) -> Page[Webhook]:
        """Return a page of webhooks that could not be delivered, newest first. Failed webhooks are kept for 30 days.

        Args:
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, webhooks.list_failed(limit, cursor))

    async def retry(self, webhook: Webhook) -> bool:
        """Make a failed webhook due again, with as many attempts as a new one. Safe to repeat.

        Returns:
            Whether the webhook exists.
        """
        return await self._database.run(webhooks.retry, self._queries, webhook)

    async def discard(self, webhook: Webhook) -> bool:
        """Delete a webhook. Safe to repeat.

        Returns:
            Whether the webhook existed.
        """
        return await self._database.run(webhooks.discard, self._queries, webhook)


class Webhooks:
    """Blocking twin of `AsyncWebhooks`."""

    def __init__(self, database: Database, queries: Queries, settings: WebhookSettings) -> None:
        self._database, self._queries, self.settings = BlockingRunner(database), queries, settings
        self._run = _runner(database)

    def deliver(self) -> int:
        """Blocking twin of `AsyncWebhooks.deliver`."""
        # Use another thread, because the caller's thread may have a running event loop.
        with ThreadPoolExecutor(1) as executor:
            due = _deliver_due(self._run, self._queries, self.settings)
            return executor.submit(asyncio.run, due).result()

    failed = blocking(AsyncWebhooks.failed)
    retry = blocking(AsyncWebhooks.retry)
    discard = blocking(AsyncWebhooks.discard)


class WebhookThread:
    """A worker's thread that delivers webhooks, so that slow receivers do not delay the runs.

    Args:
        database: The database. The thread may use all connections.
        queries: The queries of the schema.
        settings: Settings of the webhooks.
        of_tenants: Whether to deliver only webhooks of the tenants that `wake` names.
    """

    def __init__(
        self, database: Database, queries: Queries, settings: WebhookSettings, *, of_tenants: bool = False
    ) -> None:
        self._database, self._of_tenants = database, of_tenants
        self._named: deque[str] = deque()
        self._queries, self.settings = queries, settings
        self._until = float("inf")
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name="pgstate-webhooks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        start(self._thread)

    def wake(self, tenant: str | None) -> None:
        """Search for due webhooks at once; with `of_tenants`, only for webhooks of this tenant."""
        if self._of_tenants and tenant is not None and tenant not in self._named:
            self._named.append(tenant)
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread after a short wait for deliveries. Other processes repeat unfinished deliveries."""
        self._until = min(self._until, time.monotonic() + _STOP_SECONDS)
        self._is_stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            # Read the flag before the delivery, so that webhooks stored before the stop are delivered.
            is_last = self._is_stopped
            try:
                asyncio.run(self._deliver())
            except PGStateError as error:
                _log.warning("webhooks cannot be delivered: %s", error)
            except Exception:
                _log.exception("webhooks cannot be delivered")
            if not is_last:
                self._wake.wait(_POLL_SECONDS)
                self._wake.clear()

    async def _deliver(self) -> None:
        if not self._of_tenants:
            await _deliver_due(_runner(self._database), self._queries, self.settings, lambda: self._until)
            return
        while self._named:
            named = [self._named.popleft() for _ in range(min(len(self._named), _TENANTS_AT_ONCE))]
            # After `until`, other webhooks of these tenants wait for the next `wake`.
            until = time.monotonic() + _TENANT_SECONDS
            delivering = [self._deliver_of(tenant, until) for tenant in named]
            for error in await asyncio.gather(*delivering, return_exceptions=True):
                if isinstance(error, BaseException):
                    _log.warning("webhooks of a tenant cannot be delivered: %r", error)

    async def _deliver_of(self, tenant: str, until: float) -> None:
        run = _runner(of_tenant(self._database, tenant, self._queries))
        await _deliver_due(run, self._queries, self.settings, lambda: min(self._until, until))


def _runner(database: Database) -> Callable[..., Awaitable[Any]]:
    """Return a function that runs operations in threads, to keep the event loop free."""
    run: Callable[..., Any] = database.run
    return partial(in_thread, run)


@cache
def _tls() -> ssl.SSLContext:
    """Return the settings of TLS, cached because reading the certificates is slow."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


async def _deliver_due(
    run: Callable[..., Awaitable[Any]],
    queries: Queries,
    settings: WebhookSettings,
    until: Callable[[], float] = lambda: float("inf"),
) -> int:
    """Deliver webhooks until none is due, store each outcome at once, and return the number of attempts.

    After the time that `until` returns, by the monotonic clock, no webhook is claimed.
    """
    import httpx

    delivered = 0
    tasks: dict[asyncio.Task[bool], str] = {}

    async def deliver(one: Delivery) -> bool:
        error, is_final = await _try_to_post(client, settings, one)
        try:
            await run(webhooks.end, queries, one, error, is_final=is_final)
        except PGStateError as refused:
            if error is None or refused.retryable:
                raise
            # The database refuses characters that its encoding lacks.
            plain = error.encode("ascii", "backslashreplace").decode()
            await run(webhooks.end, queries, one, plain, is_final=is_final)
        return error is None

    # Ignore the environment's proxies, which may connect to refused addresses.
    async with httpx.AsyncClient(trust_env=False, timeout=settings.timeout, verify=_tls()) as client:
        try:
            while True:
                while len(tasks) < _AT_ONCE and time.monotonic() < until():
                    counts = Counter(tasks.values())
                    busy = [host for host, count in counts.items() if count >= _PER_HOST]
                    # All claimed webhooks may be for one host, so claim no more than this host may have.
                    most = _PER_HOST - max((count for count in counts.values() if count < _PER_HOST), default=0)
                    limit = min(most, _AT_ONCE - len(tasks))
                    due = await run(webhooks.claim, queries, limit, settings.claim_seconds, busy)
                    if not due:
                        break
                    tasks.update({asyncio.create_task(deliver(one)): webhooks.host_of(one.url) for one in due})
                if not tasks:
                    return delivered
                done, _ = await asyncio.wait(tasks, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del tasks[task]
                    delivered += task.result()
        except PGStateError:
            # Wait for deliveries in progress, so that their outcomes are stored.
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _try_to_post(
    client: httpx.AsyncClient, settings: WebhookSettings, delivery: Delivery
) -> tuple[str | None, bool]:
    try:
        async with asyncio.timeout(settings.timeout):
            status = await _post(client, settings, delivery)
    except _RefusedAddressError as error:
        return str(error), True
    except Exception as error:
        # The resolver, TLS and HTTP raise errors of many classes.
        return f"{type(error).__name__}: {error}"[:_MAX_ERROR].replace("\0", ""), False
    return (None, False) if 200 <= status < 300 else (f"the receiver responded with status {status}", False)


async def _post(client: httpx.AsyncClient, settings: WebhookSettings, delivery: Delivery) -> int:
    """Post a webhook to a checked address, and return the HTTP status. The response's body is not read."""
    import httpx

    # Parse the URL as httpx does for the connection, so that the checked host is the connected host.
    url = httpx.URL(delivery.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    if reason := refusal_of(url.scheme, url.raw_host.decode(), port, settings):
        raise _RefusedAddressError(reason)
    address = await _allowed_address(url.host, port, settings.networks)
    body = webhooks.body_of(delivery)
    headers = {
        **{name.lower(): value for name, value in settings.headers.items()},
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
    """Return a webhook's headers by the specification "Standard Webhooks". Without a secret, nothing is signed.

    The part of the secret after `whsec_` is base64. `timestamp` is in seconds since 1970.
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


class _RefusedAddressError(Exception):
    """The error of a webhook with a URL or an address that is not allowed."""


def refusal_of(scheme: str, host: str, port: int, settings: WebhookSettings) -> str | None:
    """Return the reason why the settings refuse a URL, or `None`. No address is looked up."""
    if settings.require_https and scheme != "https":
        return "the URL must begin with https://"
    if settings.allowed_ports and port not in settings.allowed_ports:
        return f"port {port} is not allowed"
    if settings.allowed_hosts and not any(_is_host(host.lower(), one.lower()) for one in settings.allowed_hosts):
        return f"{host} is not allowed"
    return None


def _is_host(host: str, allowed: str) -> bool:
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed


async def _allowed_address(host: str, port: int, networks: Sequence[Any]) -> str:
    """Return an address of a host that is public or in an allowed network.

    Raises:
        _RefusedAddressError: If the host has no such address.
        OSError: If the host is unknown.
    """
    found = await _resolve(host, port)
    for *_, place in found:
        address = str(place[0])
        if may_connect(address, networks):
            return address
    raise _RefusedAddressError(f"{host} is not a public address")


async def _resolve(host: str, port: int) -> list[Any]:
    """Return the result of `socket.getaddrinfo`. A cancelled call does not wait for the resolver."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def resolve() -> None:
        found: list[Any] = []
        failed: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:
            failed = error
        # A closed loop raises `RuntimeError`.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end, found, failed)

    def end(found: list[Any], failed: Exception | None) -> None:
        if future.done():
            return
        if failed is None:
            future.set_result(found)
        else:
            future.set_exception(failed)

    # Use a daemon thread, because a process waits for the threads of an executor before the process ends.
    start_thread(resolve, "pgstate-resolver")
    return await future


def may_connect(address: str, networks: Sequence[Any]) -> bool:
    """Return whether an address is public, or in one of the given networks."""
    ip: Any = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6:
        teredo = ip.teredo[1] if ip.teredo else None
        is_translated = any(ip in network for network in _NAT64)
        nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if is_translated else None
        ip = ip.ipv4_mapped or ip.sixtofour or teredo or nat64 or ip
    is_usual = ip in _GLOBAL_IPV6 if ip.version == 6 else not any(ip in network for network in _REFUSED)
    return (ip.is_global and not ip.is_multicast and is_usual) or any(
        ip in network for network in networks if network.version == ip.version
    )
