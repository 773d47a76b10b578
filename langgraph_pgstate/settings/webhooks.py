"""Settings of webhooks."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Delivery of webhooks.

    Attributes:
        secret: Secret with which they are signed; unsigned without. What follows `whsec_` is base64.
        allowed_networks: Networks that are not public, but that webhooks may be delivered to, like `10.1.0.0/16`.
        timeout: Seconds that a receiver has to answer.
        headers: Headers that each request has, whatever its URL.
        allowed_hosts: The hosts that webhooks may be delivered to; `*.example.com` stands for all hosts below that one.
            All hosts by default.
        allowed_ports: The ports that they may be delivered to; all by default.
        require_https: Whether URLs must be those of HTTPS.
    """

    secret: str | None = field(default=None, repr=False)
    allowed_networks: Sequence[str] = ()
    timeout: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_hosts: Sequence[str] = ()
    allowed_ports: Sequence[int] = ()
    require_https: bool = False

    def __post_init__(self) -> None:
        if self.secret is not None and not (isinstance(self.secret, str) and self.secret):
            raise ConfigurationError("WebhookSettings.secret must be text, and not empty")
        timeout = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 300:
            raise ConfigurationError(f"WebhookSettings.timeout must be seconds, more than 0, not {timeout!r}")
        _ = self.networks
        if not isinstance(self.headers, Mapping) or not all(_is_header(*one) for one in self.headers.items()):
            raise ConfigurationError("WebhookSettings.headers are names and values of HTTP, in ASCII")
        for name, kind in (("allowed_hosts", str), ("allowed_ports", int)):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence) or not all(type(one) is kind for one in given):
                raise ArgumentTypeError(f"WebhookSettings.{name} is a list, not {given!r}")
        if not isinstance(self.require_https, bool):
            raise ArgumentTypeError(f"WebhookSettings.require_https is true or false, not {self.require_https!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> WebhookSettings:
        """Return the settings that `PGSTATE_WEBHOOK_SECRET` and `PGSTATE_WEBHOOK_NETWORKS` (with commas) name.

        Raises:
            ConfigurationError: If they are not usable.
        """
        given = os.environ if environment is None else environment
        networks = given.get("PGSTATE_WEBHOOK_NETWORKS", "").split(",")
        named = [one.strip() for one in networks if one.strip()]
        return cls(given.get("PGSTATE_WEBHOOK_SECRET") or None, tuple(named))

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks that are not public, but allowed.

        Raises:
            ConfigurationError: If one is not usable.
        """
        if isinstance(self.allowed_networks, str):
            raise ArgumentTypeError("WebhookSettings.allowed_networks is a list of networks, not text")
        try:
            return tuple(ipaddress.ip_network(one) for one in self.allowed_networks)
        except ValueError as error:
            raise ConfigurationError(f"WebhookSettings.allowed_networks: {error}") from None

    @property
    def claim_seconds(self) -> float:
        """Seconds after which another process delivers what this one has claimed, and not noted."""
        return 2 * self.timeout + 30


def _is_header(name: Any, value: Any) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) is not None and value.isascii() and value.isprintable()
