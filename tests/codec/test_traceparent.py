"""Callers' traces: those of W3C are taken, all else is ignored."""

from __future__ import annotations

import pytest

from langgraph_pgstate.codec.traceparent import TraceParent, check_traceparent, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [(f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-00", False), (f"cc-{TRACE}-{SPAN}-03-what-comes", True)],
)
def test_a_traceparent_names_a_span(value: str, is_sampled: bool) -> None:
    assert check_traceparent(value) == value
    assert parse_traceparent(value) == TraceParent(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01 ",
        f"01-{TRACE}-{SPAN}-01-\0",
        f"01-{TRACE}-{SPAN}-01-{'a' * 500}",
    ],
)
def test_anything_else_is_no_traceparent(value: object) -> None:
    assert check_traceparent(value) is None
    assert parse_traceparent(str(value)) is None or len(str(value)) > 512
