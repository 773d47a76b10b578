"""Headers that runs have in their config."""

from __future__ import annotations

from langgraph_pgstate.server import HeaderSelection


def test_headers_are_chosen() -> None:
    given = [
        ("X-A", "1"),
        ("x-secret-b", "2"),
        ("x-api-key", "3"),
        ("User-Agent", "4"),
        ("cookie", "5"),
        ("x-nul", "\0"),
    ]
    chosen = HeaderSelection(["x-*", "User-Agent"], ["*secret*"])
    assert chosen.of(given) == {"x-a": "1", "user-agent": "4"}
    assert HeaderSelection(["X-API-Key"]).of(given) == {"x-api-key": "3"}
