"""The addresses to which webhooks may be delivered."""

from __future__ import annotations

import pytest

from langgraph_pgstate import WebhookSettings
from langgraph_pgstate.runs.webhooks import may_connect, refusal_of


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff0e::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:a00:1::", False),
        ("192.0.0.9", False),
        ("168.63.129.16", False),
        ("240.0.0.1", False),
        ("fec0::1", False),
        ("::a00:1", False),
        ("::ffff:0:a00:1", False),
        ("5f00::1", False),
        ("4000::1", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert may_connect(address, ()) is is_public
    assert may_connect("10.0.0.1", WebhookSettings(allowed_networks=("fd00::/8", "10.0.0.0/8")).networks)


def test_hosts_are_whole_names() -> None:
    allowed = WebhookSettings(allowed_hosts=["Hooks.example.com", "*.corp.example"], allowed_ports=[443])
    for host, is_allowed in (
        ("hooks.example.com", True),
        ("HOOKS.EXAMPLE.COM", True),
        ("a.hooks.example.com", False),
        ("evilhooks.example.com", False),
        ("a.b.corp.example", True),
        ("corp.example", False),
        ("evilcorp.example", False),
    ):
        assert (refusal_of("https", host, 443, allowed) is None) is is_allowed, host
    assert refusal_of("https", "hooks.example.com", 8443, allowed) == "port 8443 is not allowed"
