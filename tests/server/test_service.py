"""One request with its caller."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from langgraph_pgstate.server.service import Call


def call(query: str) -> Call:
    service: Any = None
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query.encode()}
    return Call(service, Request({**scope, "path_params": {"thread_id": "t"}}))


def test_parameters_of_the_query() -> None:
    found = call("a=1&b=&c=True&d=x,y&d=z&e=nothing")
    assert (found.path("thread_id"), found.query("a"), found.query("b"), found.query("z")) == ("t", "1", None, None)
    assert (found.flag("a"), found.flag("c"), found.flag("e"), found.flag("z")) == (True, True, False, False)
    assert (found.names("d"), found.names("z")) == (["x", "y", "z"], None)
    assert (found.number("a", 7), found.number("z", 7)) == (1, 7)
    with pytest.raises(HTTPException, match="NUL"):
        call("a=1%00").query("a")


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "11", "9" * 5000])
def test_a_number_is_one_within_its_bounds(text: str) -> None:
    with pytest.raises(HTTPException) as refused:
        call(f"n={text}").number("n", 0, 10)
    assert refused.value.status_code == 422


async def test_without_an_authority_nothing_is_limited() -> None:
    found = call("")
    found.service = type("Service", (), {"authority": None})()
    assert await found.authorize("threads", "read", {}) is None
