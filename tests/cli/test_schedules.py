"""The command `schedule`."""

from __future__ import annotations

import json

import pytest
from support.cli import Run, words

from langgraph_pgstate import PGStateSaver


def test_a_schedule_is_added_listed_paused_resumed_triggered_and_deleted(run: Run, saver: PGStateSaver) -> None:
    assert "no schedules" in words(run("schedule"))
    added = ("schedule", "add", "brief", "agent", "0 9 * * 1-5", '{"messages": []}', "--timezone", "Europe/Prague")
    assert "next: " in words(run(*added, "--missed", "once", "--thread", "t"))
    listed = run("schedule").output
    assert "brief" in listed
    assert "0 9 * * 1-5" in listed
    assert "paused" in words(run("schedule", "pause", "brief"))
    assert "paused" in words(run("schedule", "list"))
    assert "next: " in words(run("schedule", "resume", "brief"))
    assert "on thread t" in words(run("schedule", "trigger", "brief"))
    (found,) = map(json.loads, run("--json", "schedule").output.splitlines())
    assert (found["name"], found["missed"], found["thread_id"]) == ("brief", "once", "t")
    assert json.loads(run("--json", "schedule", "trigger", "brief").output)["thread_id"] == "t"
    assert len(json.loads(run("--json", *added).output)["next_ticks"]) == 5
    assert json.loads(run("--json", "schedule", "delete", "brief").output) == {"name": "brief", "action": "delete"}
    assert "no schedule 'brief'" in words(run("schedule", "delete", "brief", code=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "brief", "agent"), "schedule takes"),
        (("pause",), "schedule takes"),
        (("list", "brief"), "schedule takes"),
        (("add", "brief", "agent", "0 9 * *"), "it has 4 fields"),
        (("add", "brief", "agent", "0 9 * * *", "{"), "must be JSON"),
        (("add", "brief", "agent", "0 9 * * *", "--timezone", "Mars"), "timezone must be"),
        (("resume", "brief"), "no schedule 'brief'"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: tuple[str, ...], message: str, run: Run, saver: PGStateSaver) -> None:
    assert message in words(run("schedule", *arguments, code=1))
