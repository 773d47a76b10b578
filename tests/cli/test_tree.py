"""The command `tree`."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from support.cli import Run, words
from support.official import Account
from support.samples import config_of, put_values

from examples.demo.agent import build_agent, offline_model
from langgraph_pgstate import PGStateSaver

pytestmark = pytest.mark.smoke


def test_tree_shows_forks(run: Run, conversation: PGStateSaver) -> None:
    graph = build_agent(offline_model(), conversation, lambda *_: None, hotel_seconds=0)
    past = list(conversation.list({"configurable": {"thread_id": "two"}}))[-4]
    graph.update_state(past.config, {"messages": [HumanMessage("something else")]}, as_node="__start__")
    shown = run("tree", "two").output
    assert "branch 1" in shown
    assert "branch 2" in shown
    assert "something else" in shown
    assert "there is no thread 'nobody'" in words(run("tree", "nobody", code=1))


def test_tree_shows_types_that_it_does_not_build(run: Run, saver: PGStateSaver) -> None:
    """What they hold, as plain data; and nothing of the application is imported or built for it."""
    elsewhere = type("Order", (Account,), {"__module__": "never.imported"})
    config = put_values(saver, config_of("t"), {"messages": [HumanMessage("a table for two")]}, step=1)
    put_values(saver, config, {"order": elsewhere(7), "account": Account(8)}, step=2)
    Account.constructed = 0
    shown = words(run("tree", "t"))
    assert Account.constructed == 0
    for part in ("a table for two", "order={'number': 7", "account={'numb"):
        assert part in shown


def test_tree_says_what_it_does_not_show(run: Run, saver: PGStateSaver) -> None:
    config: Any = config_of("t")
    for step in range(6):
        config = put_values(saver, config, {"n": step}, step=step)
    assert "… older ones are not shown (--limit)" in words(run("tree", "t", "--limit", "2"))
    for limit in ("6", "7"):
        assert "not shown" not in words(run("tree", "t", "--limit", limit))
