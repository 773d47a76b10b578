"""Checks of the addresses of webhooks: only public addresses and allowed networks."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from langgraph_pgstate.runs.options import WebhookSettings

# IPv6 networks whose addresses hold an IPv4 address in their last 32 bits.
_NAT64: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
# Networks that are not public, although `ipaddress` counts some of these addresses as global: one for IETF protocols,
# and a service of Azure's machines.
_REFUSED: Final = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "168.63.129.16/32")))


class RefusedAddressError(Exception):
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


async def allowed_address(host: str, port: int, networks: Sequence[Any]) -> str:
    """Return an address of a host that is public or in an allowed network.

    Raises:
        RefusedAddressError: If the host has no such address.
        OSError: If the host is unknown.
    """
    found = await _resolve(host, port)
    for *_, place in found:
        address = str(place[0])
        if may_connect(address, networks):
            return address
    raise RefusedAddressError(f"{host} is not a public address")


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
    threading.Thread(target=resolve, name="pgstate-resolver", daemon=True).start()
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
