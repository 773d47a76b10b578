"""Addresses of this machine."""

from __future__ import annotations

import pytest

from langgraph_pgstate.server.auth import is_local, is_loopback


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback_addresses(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one


@pytest.mark.parametrize(
    ("url", "is_one"),
    [("http://localhost:2024/x", True), ("//[::1]:1", True), ("//example.com", False), ("//[", False), ("", False)],
)
def test_urls_of_this_machine(url: str, is_one: bool) -> None:
    assert is_local(url) is is_one
