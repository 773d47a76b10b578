"""The pages and their actions: name, method, path and handler of each."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.server.pages import person, threads
from langgraph_pgstate.server.pages.page import Link, PageRoute

# Actions are named after what they act on.
PAGES: Final = (
    PageRoute("threads", "GET", "/threads", threads.threads),
    PageRoute("person", "GET", "/person", person.ask),
    PageRoute("person.keep", "POST", "/person", person.keep, "Your name is kept by this browser.", needs_person=False),
)
"""All pages and actions."""

NAVIGATION: Final = (Link("threads", "Threads", "g t"),)
"""The pages that every page links to; the first is the start."""
