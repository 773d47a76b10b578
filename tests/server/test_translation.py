"""Events of runs as events of the protocol's second version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import AIMessageChunk
from langgraph.types import Interrupt
from support.http import CHANNELS

from langgraph_pgstate.runs.types import StreamEvent, ThreadEvent
from langgraph_pgstate.server.translation import EventFilter, Translation

START = datetime(2026, 1, 1, tzinfo=UTC)
ALL = EventFilter(CHANNELS)


def events(*given: tuple[Any, ...], run_id: str = "r", seconds: float = 0) -> list[ThreadEvent]:
    """Events of a run: mode, data, namespace."""
    found = []
    at = START + timedelta(seconds=seconds)
    for number, (mode, data, *rest) in enumerate([("metadata", {"run_id": run_id, "attempt": 1}), *given], 1):
        id = f"{number - 1}.{mode}" if mode in ("end", "error") else str(number)
        found.append(
            ThreadEvent(run_id, "agent", StreamEvent(id, mode, rest[0] if rest else (), data, 1, stored_at=at))
        )
    return found


def told(found: list[ThreadEvent], wanted: EventFilter = ALL, since: int | None = None) -> list[dict[str, Any]]:
    translation = Translation(wanted, since)
    return [event for one in found for event in translation.translate(one)]


def short(found: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(event["method"], event["params"]["data"]) for event in found]


def test_a_run_has_a_life() -> None:
    assert short(told(events(("end", {"status": "success"})))) == [
        ("lifecycle", {"event": "running", "graph_name": "agent"}),
        ("lifecycle", {"event": "completed", "graph_name": "agent"}),
    ]
    error = {"error": "m.ValueError", "message": "no such hotel"}
    failed = told(events(("error", error), ("end", {"status": "error"})))
    assert failed[-1]["params"]["data"] == {"event": "failed", "graph_name": "agent", "error": "no such hotel"}
    for status in ("interrupted", "cancelled", "deleted"):
        assert told(events(("end", {"status": status})))[-1]["params"]["data"]["event"] == "interrupted"
    assert told(events(("end", {"status": "timeout"})))[-1]["params"]["data"]["error"] == "the run ended as timeout"


def test_numbers_grow_from_run_to_run_and_ids_are_the_same_in_all_streams() -> None:
    both = [
        *events(("values", {"a": 1}), ("custom", 1), ("end", {"status": "success"})),
        *events(("values", {"a": 2}), ("end", {"status": "success"}), run_id="s", seconds=1),
    ]
    whole = told(both)
    numbers = [event["seq"] for event in whole]
    assert numbers == sorted({*numbers})
    assert max(numbers) < 2**53
    assert len({event["event_id"] for event in whole}) == len(whole)
    for place, event in enumerate(whole):
        rest = told(both, since=event["seq"])
        assert [one["event_id"] for one in rest] == [one["event_id"] for one in whole[place + 1 :]]
    some = told(both, EventFilter(["values"]))
    assert some == [event for event in whole if event["method"] == "values"]
    assert whole[0]["params"]["timestamp"] == START.timestamp() * 1000


def test_nothing_is_lost_after_an_event_that_becomes_very_many() -> None:
    wide: Any = ("updates", {f"node{number}": {} for number in range(40)})
    given = events(wide, ("custom", 1), ("custom", 2), ("end", {"status": "success"}))
    whole = told(given)
    for place, event in enumerate(whole):
        assert told(given, since=event["seq"]) == whole[place + 1 :]


def test_numbers_after_a_gap_grow_with_time_too() -> None:
    whole = events(*[("custom", number) for number in range(9)], ("end", {"status": "success"}))
    before = told(whole)
    gap = ThreadEvent("r", "agent", StreamEvent("5", "gap", (), {"first": "1", "last": "5"}, 0))
    for rest in ([gap, *whole[5:]], [gap, *whole[-1:]]):
        after = told(rest)
        assert [event["event_id"] for event in after] == [event["event_id"] for event in before[-len(after) :]]
        assert after[0]["seq"] > START.timestamp() * 1_000_000
        assert told(rest, since=after[0]["seq"]) == after[1:]


def test_values_follow_their_checkpoint_and_have_no_interrupts() -> None:
    config: Any = {"configurable": {"checkpoint_id": "c2"}}
    parent: Any = {"configurable": {"checkpoint_id": "c1"}}
    checkpoint = {"config": config, "parent_config": parent, "metadata": {"step": 1, "source": "loop"}, "values": {}}
    asked = Interrupt("Go on?", id="i")
    found = told(
        events(
            ("values", {"a": 1}),
            ("checkpoints", checkpoint),
            ("values", {"__interrupt__": (asked,)}, ("ask:1",)),
            ("updates", {"__interrupt__": (asked,)}),
            ("values", {"a": 1, "__interrupt__": (asked,)}),
            ("end", {"status": "interrupted"}),
        )
    )
    assert short(found)[1:-1] == [
        ("checkpoints", {"id": "c2", "parent_id": "c1", "step": 1, "source": "loop"}),
        ("values", {"a": 1}),
        ("input.requested", {"interrupt_id": "i", "payload": "Go on?", "value": "Go on?"}),
        ("values", {"a": 1}),
    ]
    assert found[3]["params"]["namespace"] == ("ask:1",)


def test_updates_and_messages_name_their_node() -> None:
    message = (AIMessageChunk("Hello", id="1", chunk_position="last"), {"langgraph_node": "speak"})
    found = told(events(("updates", {"a": {"x": 1}, "b": None}), ("messages", message, ("n:1",)), ("tools", {"t": 1})))
    assert short(found)[1:3] == [
        ("updates", {"node": "a", "values": {"x": 1}}),
        ("updates", {"node": "b", "values": None}),
    ]
    messages = [event for event in found if event["method"] == "messages"]
    assert [event["params"]["data"]["event"] for event in messages][-1] == "message-finish"
    assert {(event["params"]["node"], event["params"]["namespace"]) for event in messages} == {("speak", ("n:1",))}
    assert short(found)[-1] == ("tools", {"t": 1})


def test_a_message_that_breaks_off_is_finished_before_the_run_ends() -> None:
    message = (AIMessageChunk("Hello", id="1"), {"langgraph_node": "speak"})
    found = told(events(("messages", message), ("end", {"status": "cancelled"})))
    assert [event["method"] for event in found][-3:] == ["messages", "messages", "lifecycle"]
    assert found[-2]["params"]["data"] == {"event": "message-finish", "id": "1"}


def test_subgraphs_have_a_life() -> None:
    call = {"tool_call": {"id": "call"}}
    given = events(
        ("tasks", {"id": "1", "name": "outer", "input": call}),
        ("tasks", {"id": "2", "name": "inner", "input": {}}, ("outer:1",)),
        ("tasks", {"id": "3", "name": "leaf", "input": {}}, ("outer:1", "inner:2")),
        ("tasks", {"id": "2", "name": "inner", "result": {}, "error": "no", "interrupts": []}, ("outer:1",)),
        ("end", {"status": "success"}),
    )
    lives = told(given, EventFilter(["lifecycle"]))
    assert [("/".join(event["params"]["namespace"]), event["params"]["data"]["event"]) for event in lives] == [
        ("", "running"),
        ("outer:1", "started"),
        ("outer:1/inner:2", "started"),
        ("outer:1/inner:2", "failed"),
        ("outer:1", "completed"),
        ("", "completed"),
    ]
    assert lives[1]["params"]["data"]["cause"] == {"type": "toolCall", "tool_call_id": "call"}
    assert lives[3]["params"]["data"]["error"] == "no"


def test_what_nodes_write_has_its_name_as_channel() -> None:
    whole = {"name": "b", "payload": 1}
    given = events(("custom", {"name": "a", "x": 1}), ("custom", whole), ("custom", {"name": 3}), ("custom", 4))
    data = [event["params"]["data"] for event in told(given, EventFilter(["custom"]))]
    named = {"name": "a", "x": 1, "payload": {"name": "a", "x": 1}}
    assert data == [named, whole, {"payload": {"name": 3}}, {"payload": 4}]
    assert [event["params"]["data"]["name"] for event in told(given, EventFilter(["custom:b"]))] == ["b"]


def test_a_filter_has_channels_namespaces_and_a_depth() -> None:
    assert EventFilter(["custom"]).wants("custom", (), {"name": "a"})
    assert EventFilter(["custom:a"]).wants("custom", (), {"name": "a"})
    assert not EventFilter(["custom:a"]).wants("custom", (), {"name": "b"})
    assert not EventFilter(["values"]).wants("updates", (), {})
    below = EventFilter(["values"], [["a"], ["b:1"]])
    for namespace, is_wanted in {
        (): False,
        ("a:1",): True,
        ("a:1", "x:2"): True,
        ("b:1",): True,
        ("b:2",): False,
    }.items():
        assert below.wants("values", namespace, {}) is is_wanted
    near = EventFilter(["values"], [[]], 1)
    assert [near.wants("values", ("a:1",) * length, {}) for length in range(3)] == [True, True, False]
