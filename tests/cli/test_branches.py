"""The commands about branches: what they draw and compare, and which checkpoint a person means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from support import config_of, put_arguments
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.cli.tree import short_id

Run = Any


@dataclass
class Order:
    """A type that the commands may not build."""

    number: int


@pytest.fixture
def run(dsn: str, saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch) -> Run:
    """What `pgstate` prints on a terminal 120 columns wide."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 120)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", saver.schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


@pytest.fixture
def ids(saver: PGStateSaver) -> list[str]:
    """Ids of 15 checkpoints in a row, and one that was made from the third."""
    configs: list[Any] = [config_of("t")]
    for step in range(15):
        configs.append(saver.put(*put_arguments(configs[-1], step)))
    configs.append(saver.put(*put_arguments(configs[3], 20, messages=[HumanMessage("fork", id="0")])))
    return [config["configurable"]["checkpoint_id"] for config in configs[1:]]


def test_the_tree_shows_labels_forks_and_the_newest(run: Run, ids: list[str]) -> None:
    assert "is [before [refund]] now" in run("label", f"t@{short_id(ids[9])}", "before [refund]")
    shown = run("tree", "t").splitlines()
    assert shown[0] == "t"
    (labelled,) = (line for line in shown if "[before [refund]]" in line)
    assert short_id(ids[9]) in labelled
    # What has a label is not folded away with its neighbours.
    folds = [line.split("⋮")[1].split("more")[0].strip() for line in shown if "⋮" in line]
    assert folds == ["3"]
    assert [short_id(ids[15]) in line for line in shown if "newest" in line] == [True]
    assert sum("branch" in line for line in shown) == 2
    run("fork", "t@before [refund]", "--to", "u")
    fork = run("tree", "u").splitlines()
    assert fork[0] == f"u, forked from t at {short_id(ids[9])}"
    assert not any("newest" in line or "branch" in line for line in fork)
    assert "has no label any more" in run("label", "u@before [refund]", "--remove")
    assert "[before" not in run("tree", "u")


def test_a_fork_says_what_it_is(run: Run, ids: list[str]) -> None:
    said = " ".join(run("fork", f"t@{ids[1]}").split())
    assert said.startswith(f"forked t@{short_id(ids[1])} to thread ")
    assert said.endswith(", with 2 checkpoints")
    assert "history of its own" in run("fork", "t", "--to", said.split("thread ")[1].split(",")[0], code=1)
    assert "there is no thread 'nobody'" in run("fork", "nobody", code=1)
    assert "has no checkpoint 'nothing'" in run("fork", "t@nothing", code=1)
    # More digits may change between two of them.
    assert "matches 16 checkpoints" in run("fork", f"t@{ids[0][:4]}", code=1)
    run("label", "t", code=2)
    run("label", "t", "text", "--remove", code=2)


def test_a_thread_may_have_an_at_in_its_name(run: Run, saver: PGStateSaver) -> None:
    stored = saver.put(*put_arguments(config_of("eve@acme.com"), 0))
    assert "is [now] now" in run("label", "eve@acme.com", "now")
    assert "the states are the same" in run("diff", "eve@acme.com", "eve@acme.com@now")
    assert short_id(stored["configurable"]["checkpoint_id"]) in run("tree", "eve@acme.com")


def test_differences_are_shown(run: Run, saver: PGStateSaver) -> None:
    said = [HumanMessage("Lisbon [please]", id="1"), AIMessage("Which day?", id="2")]
    first = saver.put(*put_arguments(config_of("t"), 0, messages=said, booking={"city": "Lisbon", "nights": 2}, old=1))
    edited = [HumanMessage("Rome, please", id="1"), AIMessage("Which\nday?", id="2"), HumanMessage("9", id="3")]
    saver.put(*put_arguments(first, 1, messages=edited, booking={"city": "Rome", "who": ["Eve"]}, new=[1, 2]))
    place = f"t@{short_id(first['configurable']['checkpoint_id'])}"
    lines = [" ".join(line.split()) for line in run("diff", place, "t").splitlines()]
    assert lines[0] == f"--- {place}"
    assert lines[2:] == [
        "~ booking 1 added, 1 changed, 1 removed",
        "- nights: 2",
        "~ city: 'Lisbon' → 'Rome'",
        "+ who: ['Eve']",
        "~ messages 1 added, 2 edited",
        "~ 0 human: “Lisbon [please]”",
        "→ human: “Rome, please”",
        "~ 1 ai: Which day? (other fields)",
        "+ 2 human: “9”",
        "+ new",
        "+ [1, 2]",
        "- old",
        "- 1",
    ]


def test_long_differences_are_cut(run: Run, saver: PGStateSaver) -> None:
    first = saver.put(*put_arguments(config_of("t"), 0, items=["x"], note="a"))
    saver.put(*put_arguments(first, 1, items=["x", *map(str, range(100))], note="b" * 500))
    place = f"t@{short_id(first['configurable']['checkpoint_id'])}"
    shown = run("diff", place, "t")
    assert "… 60 more (--full)" in shown
    assert max(map(len, shown.splitlines())) <= 120
    full = run("diff", place, "t", "--full")
    assert "more (--full)" not in full
    assert "b" * 500 in full


def test_types_of_the_application_are_compared_by_what_they_hold(run: Run, saver: PGStateSaver) -> None:
    first = saver.put(*put_arguments(config_of("t"), 0, order=Order(1)))
    saver.put(*put_arguments(first, 1, order=Order(2)))
    place = f"t@{short_id(first['configurable']['checkpoint_id'])}"
    assert "number: 1 → 2" in run("diff", place, "t")
