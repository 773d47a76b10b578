"""Addresses, and what a handler knows of a request."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from starlette.requests import Request

from langgraph_pgstate.inspector.page import PageCall, PageRoute, address, segment

IDS = ["plain", "a/b", "..", ".", "~2F", "a b?c#d", "ä%2F", "\\x", "a\nb", "~", "a~~b", "<script>"]


@pytest.mark.parametrize("id", IDS)
def test_an_id_is_one_part_of_a_path(id: str) -> None:
    path = urlsplit(address("/ui", "threads", id)).path
    assert path.count("/") == 3
    last = unquote(path.rpartition("/")[2])
    assert last not in (".", "..")
    request = Request({"type": "http", "path_params": {"thread_id": last}, "query_string": b"", "headers": []})
    call = PageCall(None, request)  # type: ignore[arg-type]
    assert call.path("thread_id") == id


def test_ids_are_told_apart() -> None:
    assert len({segment(id) for id in IDS}) == len(IDS)


def test_empty_parameters_are_left_out() -> None:
    assert address("/ui", "threads", at=None, q="", status="error", number=0) == "/ui/threads?status=error&number=0"


def test_a_field_that_is_blank_is_none() -> None:
    call = PageCall(None, None, form={"a": " x ", "b": "  "})  # type: ignore[arg-type]
    assert (call.field("a"), call.field("b"), call.field("c")) == ("x", None, None)


def test_only_pages_read() -> None:
    async def handler(call: PageCall) -> None: ...

    assert PageRoute("x", "GET", "/x", handler).is_read
    assert not PageRoute("x", "POST", "/x", handler).is_read
