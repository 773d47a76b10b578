"""The pages and their actions: name, method, path and handler of each."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.server.pages import actions, person, thread, threads
from langgraph_pgstate.server.pages.page import Link, PageRoute

_THREAD: Final = "/threads/{thread_id}"

# Actions are named after what they act on.
PAGES: Final = (
    PageRoute("threads", "GET", "/threads", threads.threads),
    PageRoute("thread.value", "GET", f"{_THREAD}/value", thread.value),
    PageRoute("thread.fork", "POST", f"{_THREAD}/fork", actions.fork, "This is the new thread."),
    PageRoute("thread.run", "POST", f"{_THREAD}/run", actions.run, "The run is in the queue."),
    PageRoute("thread.ask_for_edit", "GET", f"{_THREAD}/edit", actions.ask_for_edit),
    PageRoute("thread.edit", "POST", f"{_THREAD}/edit", actions.edit, "The state is changed."),
    PageRoute("thread.label", "POST", f"{_THREAD}/label", actions.label, "The label is changed."),
    PageRoute("thread.ask_for_deletion", "GET", f"{_THREAD}/delete", actions.ask_for_deletion),
    PageRoute("thread.delete", "POST", f"{_THREAD}/delete", actions.delete, "The thread is deleted."),
    PageRoute("thread", "GET", _THREAD, thread.thread),
    PageRoute("person", "GET", "/person", person.ask),
    PageRoute("person.keep", "POST", "/person", person.keep, "Your name is kept by this browser.", needs_person=False),
)
"""All pages and actions."""

NAVIGATION: Final = (Link("threads", "Threads", "g t"),)
"""The pages that every page links to; the first is the start."""
