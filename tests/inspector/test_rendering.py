"""Pages as HTML or JSON, and the files that they use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from starlette.requests import Request

from langgraph_pgstate.inspector import rendering
from langgraph_pgstate.inspector.rendering import environment, static_address, static_answer, wants_json


def asking(accept: str, query: bytes = b"") -> bool:
    headers = [(b"accept", accept.encode())]
    return wants_json(Request({"type": "http", "query_string": query, "headers": headers}))


def test_json_is_negotiated() -> None:
    assert asking("application/json")
    assert asking("text/html", b"format=json")
    assert not asking("text/html,application/xhtml+xml,application/json;q=0.9")
    assert not asking("*/*")
    assert not asking("application/json", b"format=html")


def test_all_that_is_inserted_is_escaped() -> None:
    assert environment().from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nothing }}").render()


def test_files_are_kept_by_browsers_until_they_change() -> None:
    for name in ("pages.css", "pages.js", "icon.svg"):
        found = static_answer(name)
        assert found is not None
        assert "immutable" in found.headers["cache-control"]
        assert static_address("/ui", name).startswith(f"/ui/static/{name}?")
    for name in ("../rendering.py", "pages", "", "..%2Fapp.py"):
        assert static_answer(name) is None


def test_a_key_does_the_same_on_all_pages() -> None:
    known: dict[str, set[str]] = {}
    for name in environment().list_templates():
        text = (Path(rendering.__file__).parent / "templates" / name).read_text()
        for key, does in re.findall(r'data-key="([^"{]+)" data-does="([^"]+)"', text):
            known.setdefault(key, set()).add(does)
    assert {"b", "f", "n", "p", "x"} <= known.keys()
    assert {key: does for key, does in known.items() if len(does) > 1} == {}
