"""Addresses of this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from the same machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Return whether the host of a URL is this machine."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
