"""The table of pages: all of it is reachable, and nothing in it is ambiguous."""

from __future__ import annotations

import re
from pathlib import Path

from langgraph_pgstate.inspector import rendering
from langgraph_pgstate.inspector.routes import NAVIGATION, PAGES

PAGES_FOLDER = Path(rendering.__file__).parent


def test_names_and_paths_are_unique() -> None:
    assert len({page.name for page in PAGES}) == len(PAGES)
    places = [(page.method, re.sub(r"{\w+}", "{}", page.path)) for page in PAGES]
    assert len({*places}) == len(PAGES)


def test_methods_are_those_of_forms() -> None:
    assert {page.method for page in PAGES} == {"GET", "POST"}


def test_every_action_ends_with_a_sentence() -> None:
    assert [page.name for page in PAGES if not page.is_read and not re.fullmatch(r"[A-Z].*\.", page.notice)] == []


def test_the_navigation_leads_to_pages() -> None:
    known = {page.name: page for page in PAGES}
    for link in NAVIGATION:
        assert known[link.name].path == f"/{link.name}"
        assert known[link.name].is_read
    assert len({link.keys for link in NAVIGATION}) == len(NAVIGATION)


def test_templates_have_no_script_and_no_style_of_their_own() -> None:
    for template in (PAGES_FOLDER / "templates").glob("*.html"):
        text = template.read_text()
        assert not re.search(r"<script(?! src=\"\{\{)|<style|\sstyle=|\son\w+=|\|\s*safe", text), template.name
