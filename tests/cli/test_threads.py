"""The commands `threads`, `show`, `conversation`, `search`, `events`, `delete` and `leases`."""

from __future__ import annotations

import json

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from support.cli import Run, lines
from support.official import Account
from support.record import Record
from support.samples import config_of, put_values

from langgraph_pgstate import PGState, PGStateSaver
from tests.interrupts.test_api import asking

pytestmark = pytest.mark.smoke


@pytest.fixture
def run(terminal: Run, saver: PGStateSaver) -> Run:
    return terminal


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    """Two messages at the second of two checkpoints, and three events."""
    record = Record(connection, saver.schema)
    record.thread("t", user_id="eve")
    record.chain(["c1", "c2"])
    record.message("m1", "c1", 0, "where is the [station]?")
    record.message("m2", "c2", 1, "at the river", role="ai", agent="guide", tool_calls=None)
    for number, kind in enumerate(("status", "handoff", "status")):
        record.event(f"{number}", kind, number, payload={"to": f"place {number}"})
    return record


def test_threads_are_listed(terminal: Run, travels: Record) -> None:
    shown = terminal("threads")
    assert [line.split()[0] for line in shown.splitlines()[3:6]] == ["trip-to-prague", "trip-to-oslo", "invoices"]
    assert "trip-to-prague Prague [in March] eve acme travel idle" in lines(shown, "prague")[0]
    assert "there are more" not in shown
    some = terminal("threads", "--user", "eve", "--limit", "1")
    assert "trip-to-prague" in some
    assert "the first 1 thread; there are more" in some
    assert "trip-to-oslo" in terminal("threads", "--status", "error", "--agent", "travel")
    assert terminal("threads", "--user", "nobody") == "no threads\n"
    assert "'asleep' is not one of idle, busy" in terminal("threads", "--status", "asleep", code=2)


def test_show_reads_custom_types_without_building_them(run: Run, saver: PGStateSaver) -> None:
    elsewhere = type("Order", (Account,), {"__module__": "never.imported"})
    messages = [HumanMessage("a table [for] two")]
    first = put_values(saver, config_of("t"), {"messages": messages}, step=1)
    put_values(saver, first, {"messages": messages, "order": elsewhere(7), "account": Account(8)}, step=2)
    Account.constructed = 0
    shown = run("show", "t")
    assert Account.constructed == 0
    assert "step 2" in shown
    for part in ("messages  1 message", "human: “a table [for] two”", 'order = {"number": 7', 'account = {"number": 8'):
        assert part in shown
    id = first["configurable"]["checkpoint_id"]
    assert "order" not in run("show", "t", "--checkpoint", id[:13])
    state = json.loads(run("--json", "show", "t"))
    assert (state["step"], state["parent_checkpoint_id"], state["interrupts"]) == (2, id, [])
    assert state["values"]["order"]["number"] == 7
    assert state["values"]["messages"][0]["content"] == "a table [for] two"
    assert "there is no thread 'nobody'" in run("show", "nobody", code=1)
    assert "has no checkpoint 'nothing'" in run("show", "t", "--checkpoint", "nothing", code=1)


def test_show_has_the_interrupts_of_the_newest_checkpoint(run: Run, saver: PGStateSaver) -> None:
    asking(saver, "where to?").invoke({"said": ["hello"]}, config_of("t"))
    shown = run("show", "t")
    assert 'said = ["hello"]' in shown
    assert "branch:" not in shown
    assert '{"question": "where to?"}' in shown
    assert "branch:" in run("show", "t", "--full")
    assert json.loads(run("--json", "show", "t"))["interrupts"][0]["value"] == {"question": "where to?"}


def test_show_says_why_a_thread_is_interrupted_that_waits_for_no_answer(
    run: Run, saver: PGStateSaver, dsn: str, connection: psycopg.Connection
) -> None:
    def stop_of(thread_id: str) -> str:
        stop = json.loads(run("--json", "show", thread_id))["stop"]
        (line,) = lines(run("show", thread_id), "interrupted, before node:")
        return f"{stop}: {line.split(': ')[1].split(';')[0]}"

    graph = asking(saver, "where to?")
    with PGState.open(dsn, schema=saver.schema, pool=False) as state:
        for thread_id, options in (("t", {"interrupt_before": ["node"]}), ("u", {})):
            state.record(graph).invoke({"said": ["hello"]}, config_of(thread_id), **options)
    assert stop_of("t") == "breakpoint: a breakpoint"
    first = next(iter(saver.list(config_of("t"), filter={"step": -1})))
    past = first.config["configurable"]["checkpoint_id"]
    assert "interrupted" not in run("show", "t", "--checkpoint", past)
    graph.update_state(config_of("t"), {"said": ["more"]}, as_node="__start__")
    assert stop_of("t") == "breakpoint: a breakpoint"
    assert json.loads(run("--json", "show", "u"))["stop"] is None
    graph.update_state(config_of("u"), {"said": ["more"]}, as_node="__start__")
    assert stop_of("u") == "updated: its state was updated since it asked"
    # As of a run that a worker has ended for a cancellation: it was not interrupted by its graph.
    connection.execute(f"DELETE FROM {saver.schema}.events WHERE kind = 'interrupt'")
    assert stop_of("t") == "cancelled: its run was cancelled with the action interrupt, or drained"


def test_a_conversation_is_printed(run: Run, record: Record) -> None:
    lines = run("conversation", "t").splitlines()
    assert [lines[0].split("  ")[0], lines[1]] == ["human", "where is the [station]?"]
    assert [lines[2].split("  ")[0], lines[3]] == ["ai guide", "at the river"]
    assert "river" not in run("conversation", "t", "--checkpoint", "c1")
    assert "station" not in run("conversation", "t", "--last", "1")
    record.thread("silent")
    assert "no recorded messages" in run("conversation", "silent")
    assert "there is no thread 'nobody'" in run("conversation", "nobody", code=1)


def test_a_terminal_gets_ids_unchanged_and_obeys_no_text(run: Run, record: Record) -> None:
    hostile = "\x1b]0;a title\x07\x1b[2Jerased\x9b2K\ttab"
    record.thread("acme:key:17", 1, user_id="u:cat:1", title=hostile)
    record.message("m3", "c2", 2, hostile)
    listed, said = run("threads"), run("conversation", "t")
    assert "acme:key:17" in listed
    assert "u:cat:1" in listed
    assert "'acme:key:18'" in run("show", "acme:key:18", code=1)
    for shown in (listed, said):
        assert "erased" in shown
        assert not {"\x1b", "\x07", "\x9b"} & {*shown}


def test_messages_are_searched(run: Run, record: Record) -> None:
    assert "«station»" in run("search", "station", "--user", "eve")
    assert run("search", "station", "--user", "bob") == "no messages\n"
    assert json.loads(run("--json", "search", "river"))["message"]["message_id"] == "m2"
    assert "the first 1 message; there are more" in run("search", "station or river", "--limit", "1")


def test_the_newest_events_are_listed(run: Run, record: Record) -> None:
    assert [line.split()[3] for line in run("events", "t").splitlines() if "place" in line] == [
        "status",
        "handoff",
        "status",
    ]
    assert "to=place 0" not in run("events", "t", "--limit", "2")
    assert "to=place 1" in run("events", "t", "--kind", "handoff")


def test_a_thread_is_deleted_when_asked_twice(run: Run, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "operator")
    assert "Delete thread t with 2 checkpoints?" in run("delete", "t", input="n\n", code=1)
    assert "t" in run("threads")
    assert "deleted thread t: 2 checkpoints" in run("delete", "t", "--yes", "--tombstone", "1d")
    assert run("threads") == "no threads\n"
    assert record.rows("SELECT thread_id FROM tombstones") == [("t",)]
    found = record.rows("SELECT payload->>'by' FROM events WHERE thread_id = 't' AND kind = 'action'")
    assert found == [("operator",)]
    assert "there is no thread 't'" in run("delete", "t", "--yes", code=1)


def test_leases_are_listed(run: Run, record: Record) -> None:
    assert run("leases") == "no leases\n"
    holder = "host-7/boot/4026531836/4711/99/random:1"
    record.add("leases", thread_id="t", holder_id=holder, fencing_token=3, expires_at="2099-01-01")
    record.add("leases", thread_id="u", holder_id=None, fencing_token=3, expires_at="2099-01-01")
    shown = run("leases")
    assert shown.count("2099") == 1
    assert "4711" in shown.split()
    assert json.loads(run("--json", "leases"))["holder_id"] == holder
