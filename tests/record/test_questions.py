"""What the record answers: threads, runs, spans, events, statistics and provenance, in both APIs."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from support import counted
from support_record import PARTS, Parts, Record, ask, at, every_page, open_parts
from test_architecture import methods, parameters

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StaleVersionError
from langgraph_pgstate.operations.record.spans import build_tree
from langgraph_pgstate.operations.threads.paging import decode_cursor, encode_cursor
from langgraph_pgstate.types import Span

pytestmark = pytest.mark.smoke


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    return Record(connection, saver.schema)


@pytest.fixture(params=[Database, AsyncDatabase], ids=["blocking", "async"])
async def parts(request: pytest.FixtureRequest, dsn: str, record: Record) -> AsyncIterator[Parts]:
    async with open_parts(request.param, dsn, record.schema) as parts:
        yield parts


def ids(page: Any) -> list[str]:
    return [item.thread_id for item in page.items]


@pytest.mark.parametrize("number", range(5))
def test_both_colours_of_a_part_take_the_same_arguments(number: int) -> None:
    blocking, suspending = (methods(classes[number]) for classes in PARTS.values())
    assert blocking.keys() == suspending.keys()
    for name in blocking:
        assert parameters(blocking[name]) == parameters(suspending[name]), name
        assert name == "__init__" or inspect.iscoroutinefunction(suspending[name])
        assert not inspect.iscoroutinefunction(blocking[name])


async def test_threads_are_listed_latest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number in range(7):
        record.thread(f"t{number}", updated=number // 2, user_id="eve" if number % 2 else "bob")
    pages = await every_page(parts.threads.list, limit=3)
    assert [[item.thread_id for item in page] for page in pages] == [["t6", "t4", "t5"], ["t2", "t3", "t0"], ["t1"]]
    pages = await every_page(parts.threads.list, limit=2, user_id="eve")
    assert [[item.thread_id for item in page] for page in pages] == [["t5", "t3"], ["t1"]]


async def test_a_page_that_is_just_full_is_the_last(parts: Parts, record: Record) -> None:
    for number in range(4):
        record.thread(f"t{number}")
    assert [len(page) for page in await every_page(parts.threads.list, limit=2)] == [2, 2]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, "dcba"),
        ({"user_id": "eve"}, "ca"),
        ({"tenant_id": "acme"}, "ba"),
        ({"user_id": "eve", "tenant_id": "acme"}, "a"),
        ({"tenant_id": "acme", "user_id": "nobody"}, ""),
        ({"agent": "travel"}, "dc"),
        ({"status": "error"}, "b"),
        ({"status": "idle"}, "dca"),
        ({"status": "error", "user_id": "eve"}, ""),
        ({"updated_after": at(20)}, "dc"),
        ({"updated_before": at(20)}, "ba"),
        ({"created_after": at(0), "created_before": at(1)}, "dcba"),
        ({"created_after": at(1)}, ""),
    ],
)
async def test_threads_are_filtered(parts: Parts, record: Record, filters: dict[str, Any], found: str) -> None:
    record.thread("a", 0, user_id="eve", tenant_id="acme")
    record.thread("b", 10, user_id="bob", tenant_id="acme", status="error")
    record.thread("c", 20, user_id="eve", agent="travel")
    record.thread("d", 30, agent="travel")
    assert "".join(ids(await ask(parts.threads.list(**filters)))) == found
    assert "".join(ids(await ask(parts.threads.search(**filters)))) == found


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"metadata": {"topic": "travel"}}, "ba"),
        ({"metadata": {"nested": {"deep": 1}}}, "c"),
        ({"metadata": {"price": 1.5}}, "c"),
        ({"metadata": {}}, "cba"),
        ({"state": {"booking": {"hotel": "Astoria"}}}, "b"),
        ({"state": {"booking": {"hotel": "Astoria"}}, "metadata": {"topic": "none"}}, ""),
        ({"where": '$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"'}, "ba"),
        ({"where": '$.booking.check_in < "2027-03-15"', "metadata": {"topic": "travel"}}, "a"),
        ({"where": '$.booking.check_in < "2027-03-15"', "user_id": "bob"}, ""),
        ({"where": '$.booking.check_in > "2027-03-15"', "user_id": "bob"}, "b"),
        ({"where": '$.booking.hotel == "Astoria"', "tenant_id": "acme"}, ""),
    ],
)
async def test_threads_are_searched(parts: Parts, record: Record, wanted: dict[str, Any], found: str) -> None:
    record.thread("a", 0, metadata={"topic": "travel"}, user_id="eve")
    record.thread("b", 10, metadata={"topic": "travel", "tags": [1, 2]}, user_id="bob")
    record.thread("c", 20, metadata={"nested": {"deep": 1, "more": 2}, "price": 1.5}, user_id="bob")
    record.add("projections", thread_id="a", checkpoint_id="1", state={"booking": {"check_in": "2027-03-02"}})
    late = {"booking": {"check_in": "2027-03-30", "hotel": "Astoria"}}
    record.add("projections", thread_id="b", checkpoint_id="1", state=late)
    assert "".join(ids(await ask(parts.threads.search(**wanted)))) == found
    assert (
        "".join(item.thread_id for page in await every_page(parts.threads.search, limit=1, **wanted) for item in page)
        == found
    )


async def test_a_thread_is_shown_with_its_head_and_its_state(parts: Parts, record: Record) -> None:
    record.thread(title="Prague", metadata={"topic": "travel"}, expires_at=at(9))
    record.chain(["1", "2"])
    record.checkpoint("3", checkpoint_ns="sub")
    record.add("projections", thread_id="t", checkpoint_id="2", state={"booking": None})
    thread = await ask(parts.threads.get("t"))
    assert (thread.head_checkpoint_id, thread.state, thread.title) == ("2", {"booking": None}, "Prague")
    assert (thread.metadata, thread.version, thread.expires_at) == ({"topic": "travel"}, 1, at(9))
    assert await ask(parts.threads.get("nobody")) is None
    record.thread("7")
    bare = await ask(parts.threads.get(7))
    assert (bare.thread_id, bare.head_checkpoint_id, bare.state) == ("7", None, None)


async def test_metadata_merge_and_count_versions(parts: Parts, record: Record) -> None:
    record.thread(metadata={"a": 1, "b": {"c": 1}})
    changed = await ask(parts.threads.update_metadata("t", {"b": {"d": 2}, "e": None}))
    assert (changed.metadata, changed.version) == ({"a": 1, "b": {"d": 2}, "e": None}, 2)
    same = await ask(parts.threads.update_metadata("t", {"a": 1}))
    assert same.version == 2
    titled = await ask(parts.threads.set_title("t", "Prague", expected_version=2))
    assert (titled.title, titled.version, titled.metadata) == ("Prague", 3, changed.metadata)
    assert (await ask(parts.threads.set_title("t", None))).title is None
    assert (await ask(parts.threads.get("t"))).updated_at == at(0)


async def test_a_stale_version_is_refused(parts: Parts, record: Record) -> None:
    record.thread(metadata={"a": 1})
    await ask(parts.threads.update_metadata("t", {"a": 2}, expected_version=1))
    with pytest.raises(StaleVersionError) as raised:
        await ask(parts.threads.update_metadata("t", {"a": 3}, expected_version=1))
    assert (raised.value.thread_id, raised.value.expected, raised.value.found) == ("t", 1, 2)
    with pytest.raises(StaleVersionError):
        await ask(parts.threads.set_title("t", "x", expected_version=7))
    assert (await ask(parts.threads.get("t"))).metadata == {"a": 2}


async def test_a_change_whose_answer_was_lost_is_not_stale(dsn: str, record: Record) -> None:
    """It is repeated, and finds its own work."""
    record.thread()
    with counted(dsn) as proxy:
        async with open_parts(Database, proxy.dsn, record.schema) as parts:
            parts.threads.get("t")
            proxy.answers_to_lose = 1
            changed = parts.threads.update_metadata("t", {"a": 1}, expected_version=1)
            assert proxy.answers_to_lose == 0
    assert (changed.metadata, changed.version) == ({"a": 1}, 2)


async def test_an_unknown_thread_cannot_be_changed(parts: Parts) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await ask(parts.threads.update_metadata("nobody", {"a": 1}))


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": float("nan")}, {"a": "\ud800"}, {1: 2}, {"a": [b""]}])
async def test_metadata_that_json_cannot_say_are_refused(parts: Parts, record: Record, bad: dict[Any, Any]) -> None:
    record.thread()
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.update_metadata("t", bad))
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.search(metadata=bad))


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"cursor": "x"},
        {"cursor": ""},
        {"cursor": "é"},
        {"cursor": encode_cursor("runs", ("2026-01-01", ""))},
        {"cursor": encode_cursor("threads", ("yesterday", ""))},
        {"cursor": encode_cursor("threads", ("2026-01-01", 1))},
        {"cursor": encode_cursor("threads", ("2026-01-01", "\0"))},
        {"status": "sleeping"},
        {"user_id": "\0"},
        {"user_id": 7},
        {"updated_after": datetime(2026, 1, 1)},
        {"updated_after": "2026-01-01"},
    ],
)
async def test_what_cannot_be_searched_for_is_refused(parts: Parts, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.list(**bad))


@pytest.mark.parametrize("bad", ["$.booking.", "not a path", ""])
async def test_a_path_that_is_none_is_refused(parts: Parts, bad: str) -> None:
    with pytest.raises(ConfigurationError, match="is invalid"):
        await ask(parts.threads.search(where=bad))


def test_a_cursor_carries_what_it_was_given() -> None:
    values = (at(0.123456), "id ÿ", 7, 0.1)
    found = decode_cursor("x", encode_cursor("x", values), ("-infinity", "", 0, 0.0))
    assert [datetime.fromisoformat(found[0]), *found[1:]] == [*values]


async def test_runs_are_listed_newest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number in range(5):
        record.run(f"r{number}", started=number // 2, thread_id=f"t{number % 2}", agent="travel" if number else None)
    pages = await every_page(parts.runs.list, limit=2)
    assert [[item.run_id for item in page] for page in pages] == [["r4", "r2"], ["r3", "r0"], ["r1"]]
    pages = await every_page(parts.runs.list, limit=2, thread_id="t0")
    assert [[item.run_id for item in page] for page in pages] == [["r4", "r2"], ["r0"]]
    assert len((await ask(parts.runs.list(agent="travel"))).items) == 4


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"status": "error"}, "b"),
        ({"status": "success"}, "ca"),
        ({"status": "running"}, "ed"),
        ({"since": at(20)}, "edc"),
        ({"until": at(20)}, "ba"),
        ({"since": timedelta(seconds=1)}, ""),
        ({"user_id": "eve"}, "c"),
        ({"tenant_id": "acme"}, "c"),
        ({"min_steps": 10}, "c"),
        ({"thread_id": "t", "status": "error"}, "b"),
    ],
)
async def test_runs_are_filtered(parts: Parts, record: Record, filters: dict[str, Any], found: str) -> None:
    record.run("a", 0)
    record.run("b", 10, status="error", error_type="ValueError")
    record.run("c", 20, user_id="eve", tenant_id="acme", steps=10)
    record.run("d", 30, None, status="running", alive_until=at(31))
    record.run("e", 40, None, status="running", alive_until=datetime.max.replace(tzinfo=at(0).tzinfo))
    assert "".join(item.run_id for item in (await ask(parts.runs.list(**filters))).items) == found


async def test_failed_runs_are_those_that_ended_in_error_or_died(parts: Parts, record: Record) -> None:
    record.run("a", 0)
    record.run("b", 10, 2.5, status="error", error_type="ValueError", error_message="no room")
    record.run("c", 20, None, status="running", alive_until=at(31))
    record.run("d", 30, None, status="running", alive_until=datetime.max.replace(tzinfo=at(0).tzinfo))
    record.run("e", 40, None, status="running")
    record.run("f", 5, status="error", error_type="ProcessDied")
    pages = await every_page(parts.runs.failed, since=at(0), limit=1)
    crashed, failed, settled = (page[0] for page in pages)
    assert (crashed.run_id, crashed.status, crashed.is_crashed, crashed.duration) == ("c", "running", True, None)
    assert (failed.run_id, failed.error_message, failed.duration) == ("b", "no room", timedelta(seconds=2.5))
    assert not failed.is_crashed
    assert (settled.run_id, settled.status, settled.is_crashed) == ("f", "error", True)
    assert (await ask(parts.runs.failed())).items == ()
    shown = record.rows("SELECT run_id, is_crashed FROM failed_runs ORDER BY run_id")
    assert shown == [("b", False), ("c", True), ("f", True)]
    assert (await ask(parts.runs.get("t", "c"))) == crashed
    assert (await ask(parts.runs.get("t", "f"))) == settled
    for filters in ({}, {"thread_id": "t"}, {"status": "error"}):
        found = (await ask(parts.runs.list(**filters))).items
        assert settled in found
        assert {item.run_id for item in found if item.is_crashed} <= {"c", "f"}
    assert not (await ask(parts.runs.get("t", "e"))).is_crashed
    assert await ask(parts.runs.get("t", "x")) is None


async def test_an_unknown_run_status_is_refused(parts: Parts) -> None:
    with pytest.raises(ConfigurationError, match="unknown run status"):
        await ask(parts.runs.list(status="failed"))


async def test_threads_that_ran_away(parts: Parts, record: Record) -> None:
    for thread, run, steps in [("t", "a", 26), ("t", "b", 90), ("u", "c", 25), ("v", "d", 40), ("w", "e", 40)]:
        record.run(run, steps, thread_id=thread, steps=steps, cost=Decimal(steps), agent=run, user_id=f"user {run}")
    pages = await every_page(parts.threads.runaway, limit=1)
    found = [page[0] for page in pages]
    assert [(item.thread_id, item.runs, item.most_steps) for item in found] == [
        ("t", 2, 90),
        ("v", 1, 40),
        ("w", 1, 40),
    ]
    assert (found[0].run_id, found[0].agent, found[0].user_id) == ("b", "b", "user b")
    assert (found[0].cost, found[0].last_started_at) == (Decimal(116), at(90))
    assert [item.thread_id for item in (await ask(parts.threads.runaway(40))).items] == ["t"]
    assert [item.thread_id for item in (await ask(parts.threads.runaway(since=at(40)))).items] == ["t", "v", "w"]
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.runaway(24))
    rows = record.rows("SELECT thread_id, runs, most_steps FROM runaway_threads ORDER BY most_steps DESC, 1")
    assert rows == [("t", 2, 90), ("v", 1, 40), ("w", 1, 40)]


async def test_spans_are_listed_oldest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number, kind in enumerate(["graph", "node", "llm", "tool", "tool"]):
        record.span(f"s{number}", kind, number // 2, name="pay" if number == 4 else kind)
    record.span("other", run_id="q", started=-1, attributes={"a": [1]}, input={"x": 1}, output="null")
    pages = await every_page(parts.spans.list, "t", limit=2)
    assert [[item.span_id for item in page] for page in pages] == [["other", "s0"], ["s1", "s2"], ["s3", "s4"]]
    assert (pages[0][0].attributes, pages[0][0].input, pages[0][0].output) == ({"a": [1]}, {"x": 1}, None)
    for filters, found in [
        ({"run_id": "q"}, ["other"]),
        ({"kind": "tool"}, ["s3", "s4"]),
        ({"kind": "tool", "name": "pay"}, ["s4"]),
        ({"status": "error"}, []),
    ]:
        assert [item.span_id for item in (await ask(parts.spans.list("t", **filters))).items] == found


async def test_the_trace_of_a_run_is_a_tree(parts: Parts, record: Record) -> None:
    record.span("graph", "graph", 0, 9)
    record.span("agent", "node", 1, parent_span_id="graph")
    record.span("model", "llm", 2, parent_span_id="agent")
    record.span("tools", "node", 3, parent_span_id="graph")
    record.span("lost", "tool", 4, parent_span_id="never recorded")
    record.span("elsewhere", run_id="q")
    graph, lost = await ask(parts.spans.tree("t", "r"))
    assert (graph.span.name, [node.span.name for node in graph.children]) == ("graph", ["agent", "tools"])
    assert [node.span.name for node in graph.children[0].children] == ["model"]
    assert (lost.span.span_id, lost.children) == ("lost", ())
    assert await ask(parts.spans.tree("t", "nothing")) == ()


async def test_each_attempt_of_a_run_has_its_own_spans(parts: Parts, record: Record) -> None:
    """The same run id invoked again: a child belongs to the last root that started not later than it did."""
    for attempt, started in enumerate((0, 10, 20)):
        record.span("graph", "graph", started, 9)
        record.span(f"first {attempt}", "node", started, parent_span_id="graph")
        record.span(f"second {attempt}", "node", started + 2, parent_span_id="graph")
        record.span(f"model {attempt}", "llm", started + 3, parent_span_id=f"second {attempt}")
    record.span("early", "node", -1, parent_span_id="graph")
    roots = await ask(parts.spans.tree("t", "r"))
    assert [(root.span.span_id, root.span.started_at) for root in roots] == [
        ("graph", at(started)) for started in (0, 10, 20)
    ]
    assert [[node.span.name for node in root.children] for root in roots] == [
        ["early", "first 0", "second 0"], ["first 1", "second 1"], ["first 2", "second 2"]
    ]  # fmt: skip
    for attempt, root in enumerate(roots):
        assert [node.span.name for node in root.children[-1].children] == [f"model {attempt}"]


async def test_a_trace_of_more_than_a_page_is_whole(
    parts: Parts, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_pgstate.operations.record.spans.MAX_PAGE", 4)
    record.span("root", "graph")
    for number in range(8):
        record.span(f"s{number}", parent_span_id="root")
    (root,) = await ask(parts.spans.tree("t", "r"))
    assert len(root.children) == 8


def test_a_deep_trace_needs_no_deep_stack(record: Record, saver: PGStateSaver) -> None:
    blank = dict.fromkeys(field for field in Span.__dataclass_fields__)
    spans = [
        Span(**{**blank, "span_id": str(number), "parent_span_id": str(number - 1) if number else None})
        for number in range(5000)
    ]
    (node,) = build_tree(spans)
    for _ in range(4999):
        (node,) = node.children
    assert node.span.span_id == "4999"


async def test_tools_are_measured(parts: Parts, record: Record) -> None:
    for number in range(100):
        record.span(
            f"a{number}", "tool", number, number + 1, name="search", status="error" if number < 5 else "success"
        )
    record.span("b", "tool", 0, None, name="search", status="running")
    record.span("c", "tool", 500, 2, name="pay", agent="travel")
    record.span("d", "llm", 0)
    search, pay = await ask(parts.spans.tools(since=at(0)))
    assert (search.tool, search.calls, search.running, search.errors, search.unknown) == ("search", 101, 1, 5, 0)
    assert search.error_rate == pytest.approx(0.05)
    assert (search.mean, search.p50, search.p95) == pytest.approx((50.5, 50.5, 95.05))
    assert (pay.tool, pay.calls, pay.error_rate, pay.last_at) == ("pay", 1, 0.0, at(500))
    assert [item.tool for item in await ask(parts.spans.tools(since=at(400)))] == ["pay"]
    assert [item.tool for item in await ask(parts.spans.tools(since=None, agent="travel"))] == ["pay"]
    assert [item.tool for item in await ask(parts.spans.tools(since=None, limit=1))] == ["search"]
    assert await ask(parts.spans.tools(since=timedelta(seconds=1))) == ()
    rows = record.rows("SELECT tool, calls, errors, p95 FROM tool_statistics ORDER BY calls DESC")
    assert rows == [("search", 101, 5, pytest.approx(95.05)), ("pay", 1, 0, 2)]
    assert record.rows("SELECT count(*) FROM tool_calls WHERE seconds > 90") == [(10,)]


async def test_a_call_that_timed_out_is_unknown_and_no_error(parts: Parts, record: Record) -> None:
    """Whatever its span says: when its run ends it is cut off, or fails with an error of the ledger's."""
    for number, (status, outcome) in enumerate(
        [("cancelled", "timeout"), ("error", "unknown"), ("error", "error"), ("success", "success"), ("error", None)]
    ):
        record.span(f"s{number}", "tool", number, name="pay", status=status, tool_call_id=f"call {number}")
        if outcome is not None:
            record.execution(f"k{number}", number, status=outcome, tool_call_id=f"call {number}")
    # Another thread's calls may have the same ids.
    record.execution("k", thread_id="other", status="timeout", tool_call_id="call 3")
    record.execution("without a call", 9, tool="mail", status="unknown")
    record.span("still going", "tool", 9, None, name="pay", status="running")
    (by_span,) = await ask(parts.spans.tools(since=at(0)))
    assert (by_span.calls, by_span.running, by_span.errors, by_span.unknown) == (6, 1, 2, 2)
    assert by_span.error_rate == pytest.approx(2 / 3)
    found = record.rows("SELECT calls, errors, unknown, error_rate FROM tool_statistics")
    assert found == [(6, 2, 2, pytest.approx(2 / 3))]
    executions = {item.tool: item for item in await ask(parts.spans.executions(since=at(0)))}
    pay = executions["pay"]
    assert (pay.calls, pay.errors, pay.unknown, pay.error_rate) == (5, 1, 3, 0.5)


async def test_tool_executions_are_measured(parts: Parts, record: Record) -> None:
    for number, status in enumerate(["success", "error", "timeout", "unknown", "running", "success"]):
        record.execution(f"k{number}", number, None if status == "running" else 2, status=status)
    record.execution("other", tool="mail", status="pending", took=None)
    pay, mail = await ask(parts.spans.executions(since=at(0)))
    assert (pay.tool, pay.calls, pay.running, pay.errors, pay.unknown) == ("pay", 6, 1, 1, 2)
    assert (pay.error_rate, pay.p50) == (pytest.approx(1 / 3), 2)
    assert (mail.running, mail.error_rate, mail.mean) == (1, None, None)


async def test_usage_is_summed_up(parts: Parts, record: Record) -> None:
    record.run("r", agent="travel", user_id="eve", tenant_id="acme")
    record.run("q", agent="sales", user_id="bob")
    record.span("a", "llm", model="big", provider="p", cost=Decimal("0.25"), input_tokens=100, output_tokens=10)
    record.span("b", "llm", 86400, model="big", provider="p", cost=Decimal("0.50"), cache_read_tokens=3)
    record.span("c", "llm", run_id="q", model="small", provider="p", reasoning_tokens=2)
    record.span("d", "llm", run_id="q", model="small", agent="helper", cost=Decimal("0.1"))
    record.span("e", "tool")
    found = await ask(parts.runs.usage(since=at(0)))
    shown = [(item.agent, item.provider, item.model, item.calls, item.cost, item.unpriced) for item in found]
    assert shown == [
        ("travel", "p", "big", 2, Decimal("0.75"), 0),
        ("helper", None, "small", 1, Decimal("0.1"), 0),
        ("sales", "p", "small", 1, Decimal(0), 1),
    ]
    assert (found[0].input_tokens, found[0].output_tokens, found[0].cache_read_tokens) == (100, 10, 3)
    assert (found[2].reasoning_tokens, found[0].user_id, found[0].day) == (2, None, None)
    by_user = await ask(parts.runs.usage("user", since=at(0)))
    assert [(item.user_id, item.cost, item.agent) for item in by_user] == [
        ("eve", Decimal("0.75"), None),
        ("bob", Decimal("0.1"), None),
    ]
    by_day = await ask(parts.runs.usage(["day", "tenant"], since=at(1)))
    assert [(item.day, item.tenant_id, item.calls) for item in by_day] == [(date(2026, 3, 2), "acme", 1)]
    (total,) = await ask(parts.runs.usage([], since=None))
    assert (total.calls, total.cost, total.unpriced) == (4, Decimal("0.85"), 1)
    rows = record.rows("SELECT model, sum(cost) FROM usage_by_day GROUP BY model ORDER BY model")
    assert rows == [("big", Decimal("0.75")), ("small", Decimal("0.1"))]
    with pytest.raises(ConfigurationError, match="agent, model, tenant, user, day"):
        await ask(parts.runs.usage("api"))


async def test_events_are_listed_oldest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number, kind in enumerate(["status", "interrupt", "resume", "fork", "status"]):
        record.event(f"e{number}", kind, payload={"number": number}, run_id="r" if number else None)
    pages = await every_page(parts.events.list, "t", limit=2)
    assert [[item.payload["number"] for item in page] for page in pages] == [[0, 1], [2, 3], [4]]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status"))).items] == ["e0", "e4"]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status", run_id="r"))).items] == ["e4"]


async def test_handoffs_are_counted(parts: Parts, record: Record) -> None:
    for thread in ("t", "u"):
        for number, (source, target) in enumerate([("boss", "flights"), ("flights", "boss"), ("boss", "flights")]):
            payload = {"from": source, "to": target, "reason": "because"}
            record.event(f"e{number}", "handoff", 10 * number**2, thread_id=thread, payload=payload)
    record.event("e9", "status", 5)
    there, back = await ask(parts.events.handoffs(since=None))
    assert (there.source, there.target, there.count, there.threads) == ("boss", "flights", 4, 2)
    assert (there.mean, there.p50, there.last_at) == (10, 10, at(40))
    assert (back.source, back.count, back.mean) == ("flights", 2, 30)
    assert await ask(parts.events.handoffs()) == ()
    rows = record.rows(
        "SELECT source, reason, seconds_to_next FROM handoffs WHERE thread_id = %s ORDER BY event_id", "t"
    )
    assert rows == [("boss", "because", 10), ("flights", "because", 30), ("boss", "because", None)]


def superstep(record: Record) -> None:
    """Checkpoints 1 to 4 of two runs, a fork at 2, and what the superstep from 3 to 4 did."""
    record.run("first", cost=Decimal(1))
    record.run("r", 10, cost=Decimal(2), agent="travel")
    record.run("aside", cost=Decimal(4))
    record.checkpoint("1", None, run_id="first", source="input", step=-1)
    record.checkpoint("2", "1", run_id="first", source="loop", step=0)
    record.checkpoint("2b", "2", run_id="aside", source="fork", step=1)
    record.checkpoint("3", "2", run_id="r", source="loop", step=1)
    record.checkpoint("4", "3", run_id="r", source="loop", step=2)
    record.span("graph", "graph", 0, 9, checkpoint_id="3")
    record.span("before", "llm", 1, parent_span_id="graph", checkpoint_id="2", step=1, cost=Decimal(8))
    record.span("agent", "node", 2, parent_span_id="graph", checkpoint_id="3", step=2)
    record.span("model", "llm", 3, parent_span_id="agent", checkpoint_id="3", cost=Decimal("0.5"), input_tokens=7)
    record.span("inner", "llm", 4, parent_span_id="agent", checkpoint_id="sub-1", cost=Decimal("0.25"))
    record.span("pay", "tool", 5, parent_span_id="agent", checkpoint_id="3", step=2, tool_call_id="call")
    record.span("not yet known where from", "node", 6, parent_span_id="graph", step=2)
    record.span("elsewhere", "node", 6, parent_span_id="graph", step=2, checkpoint_ns="sub:1")
    record.span("late", "tool", 6, run_id="aside", checkpoint_id="3")
    record.execution("key", 5, run_id="r", checkpoint_id="3")
    record.execution("key in a subgraph", 6, run_id="r", checkpoint_id="sub-1", tool_call_id="call")
    record.execution("before", 1, run_id="r", checkpoint_id="2")


async def test_a_checkpoint_says_what_led_to_it(parts: Parts, record: Record) -> None:
    superstep(record)
    found = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "4"}}))
    assert (found.checkpoint_id, found.parent_checkpoint_id, found.source, found.step) == ("4", "3", "loop", 2)
    assert (found.run.run_id, found.run.agent) == ("r", "travel")
    assert [span.span_id for span in found.spans] == ["agent", "model", "inner", "pay", "not yet known where from"]
    assert [item.idempotency_key for item in found.executions] == ["key", "key in a subgraph"]
    assert found.cost == Decimal("0.75")
    assert (found.depth, found.forked_from, found.run_ids) == (3, "2", ("first", "r"))
    assert found.branch_cost == Decimal(3)
    newest = await ask(parts.runs.provenance({"configurable": {"thread_id": "t"}}))
    assert newest == found
    fork = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "2b"}}))
    assert (fork.run_ids, fork.branch_cost, fork.spans) == (("first", "aside"), Decimal(5), ())
    root = await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "1"}}))
    assert (root.depth, root.forked_from, root.spans) == (0, None, ())
    assert await ask(parts.runs.provenance({"configurable": {"thread_id": "t", "checkpoint_id": "x"}})) is None


async def test_a_checkpoint_without_a_record_has_a_branch(parts: Parts, record: Record) -> None:
    record.chain(["1", "2"])
    found = await ask(parts.runs.provenance({"configurable": {"thread_id": "t"}}))
    assert (found.run, found.spans, found.executions, found.run_ids, found.branch_cost) == (None, (), (), (), 0)


def test_the_view_says_what_led_to_a_checkpoint(record: Record) -> None:
    superstep(record)
    record.span("step only", "llm", 7, parent_span_id="agent", step=2, cost=Decimal(16))
    record.span("in a subgraph", "llm", 7, parent_span_id="agent", step=2, cost=Decimal(32), checkpoint_ns="sub:1")
    columns = "run_id, agent, tools, model_calls, cost, branches"
    query = f"SELECT {columns} FROM provenance WHERE thread_id = %s AND checkpoint_id = %s"
    assert record.rows(query, "t", "4") == [("r", "travel", ["pay"], 2, Decimal("16.5"), 1)]
    assert record.rows(query, "t", "3") == [("r", "travel", None, 1, Decimal(8), 2)]
