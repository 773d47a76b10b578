"""The pages of runs: lists, the spans of one, and what may be done to it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb
from support.pages import HOSTILE, inspected, state_of, statements
from support.record import Record, at

from langgraph_pgstate.inspector import runs
from langgraph_pgstate.inspector.runs import bar
from langgraph_pgstate.record.types import TimelineSpan

from .conftest import Place


def failed(record: Record) -> None:
    """A thread with a run that failed in a tool, and one that was a success."""
    record.thread("t", metadata={"owner": "eve"})
    error = {"error_type": "app.NoSuchHotelError", "error_message": HOSTILE, "error_traceback": HOSTILE}
    record.run("bad", 10, 9, status="error", agent=HOSTILE, user_id="eve", last_checkpoint_id="c2", **error)
    record.run("good", 0, 5, agent="desk", input={"text": HOSTILE})
    record.span("root", "graph", 10, 9, run_id="bad", status="error")
    record.span("think", "llm", 11, 2, run_id="bad", parent_span_id="root", model="gpt", input_tokens=7, cost=1)
    record.span(
        "pay", "tool", 14, 1, run_id="bad", parent_span_id="root", status="error", name=HOSTILE, output={"x": HOSTILE}
    )


async def test_runs_are_listed_by_the_filters_of_the_address(place: Place, record: Record) -> None:
    _, visitor = place
    failed(record)
    assert [one["run_id"] for one in (await visitor.data("/runs"))["runs"]] == ["bad", "good"]
    for query, found in (
        ({"status": "error"}, ["bad"]),
        ({"status": "success"}, ["good"]),
        ({"agent": "desk"}, ["good"]),
        ({"user": "eve"}, ["bad"]),
        ({"tenant": "nobody"}, []),
        ({"since": "1h"}, []),
        ({"status": "failed", "since": "90d"}, []),
    ):
        assert [one["run_id"] for one in (await visitor.data("/runs", **query))["runs"]] == found, query
    for query in ({"status": "lost"}, {"since": "9y"}, {"cursor": "x"}):
        assert (await visitor.client.get("/ui/runs", params=query)).status_code == 422
    html = await visitor.page("/runs")
    assert "<script>alert" not in html
    assert "NoSuchHotelError" in html
    assert "No run passes" in await visitor.page("/runs", tenant="nobody")


async def test_runs_are_sorted_by_cost_duration_and_tokens(
    place: Place, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, visitor = place
    for number, (cost, seconds, tokens) in enumerate(((2, 10, 50), (9, 30, 10), (9, 20, 90), (0, 40, 70))):
        record.run(f"r{number}", number, number + seconds, cost=cost, input_tokens=tokens, output_tokens=number)
    record.run("lasts", 1, None, status="running", input_tokens=1)
    record.run("waits", 0, None, status="pending")
    orders = {
        "cost": ["r1", "r2", "r0", "lasts", "r3", "waits"],
        "duration": ["lasts", "r3", "r1", "r2", "r0", "waits"],
        "tokens": ["r2", "r3", "r0", "r1", "lasts", "waits"],
    }
    for by, order in orders.items():
        with statements() as sent:
            found = await visitor.data("/runs", by=by)
        assert [one["run_id"] for one in found["runs"]] == order, by
        assert [name for name in sent if name != "find_entries"] == ["rank_runs", "sum_runs"]
    assert [one["run_id"] for one in (await visitor.data("/runs", by="cost", status="success"))["runs"]] == [
        *("r1", "r2", "r0", "r3")
    ]
    assert (await visitor.data("/runs", by="cost", day="2026-03-02"))["runs"] == []
    assert len((await visitor.data("/runs", day="2026-03-01"))["runs"]) == 6
    # There is no day after the last one.
    for day in ("9999-12-31", "0001-01-01T00:00:00+23:00"):
        refused = await visitor.client.get("/ui/runs", params={"day": day})
        assert (refused.status_code, "years 2 to 9998" in refused.text) == (422, True)
    assert (await visitor.client.get("/ui/runs", params={"by": "steps"})).status_code == 422
    assert (await visitor.client.get("/ui/runs", params={"day": "x"})).status_code == 422
    page = await visitor.page("/runs", by="cost", user="")
    assert re.search(r'<th class="number chosen" aria-sort="descending">Cost</th>', page)
    assert 'href="/ui/runs?by=duration"' in page
    # Page by page, also where several are equal.
    monkeypatch.setattr(runs, "_PAGE", 1)
    for by, order in orders.items():
        seen, cursor = [], None
        while True:
            found = await visitor.data("/runs", by=by, **({} if cursor is None else {"cursor": cursor}))
            seen += [one["run_id"] for one in found["runs"]]
            if (cursor := found["next"]) is None:
                break
        assert seen == order, by


async def test_runs_that_go_on_are_on_one_of_the_pages_by_duration(
    place: Place, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, visitor = place
    monkeypatch.setattr(runs, "_PAGE", 1)
    for number in range(3):
        record.run(f"r{number}", 0, None, status="running")
    seen, cursor = [], ""
    while cursor is not None:
        found = await visitor.data("/runs", by="duration", cursor=cursor)
        seen += [one["run_id"] for one in found["runs"]]
        # One ends between two pages: it does not move before the cursor.
        record.connection.execute(f"UPDATE {record.schema}.runs SET ended_at = now() WHERE run_id = 'r1'")
        cursor = found["next"]
    assert seen == ["r0", "r1", "r2"]


async def test_a_filtered_list_says_which_threads_and_models_cost_most(place: Place, record: Record) -> None:
    _, visitor = place
    calls = {"kind": "llm", "input_tokens": 100, "output_tokens": 20}
    for number, (thread_id, model, cost) in enumerate((("t", "big", 5), ("t", "small", 1), (HOSTILE, "big", 2))):
        record.run(f"r{number}", number, thread_id=thread_id, user_id="eve", cost=cost)
        record.span(
            f"s{number}", started=number, thread_id=thread_id, run_id=f"r{number}", model=model, cost=cost, **calls
        )
    record.run("other", 9, user_id="adam")
    record.run("bad", 8, user_id="eve", status="error")
    found = (await visitor.data("/runs", user="eve", by="cost"))["sums"]
    assert (found["runs"], found["is_complete"], found["total"]["cost"]) == (4, True, 8)
    assert [(one["name"], one["runs"], one["cost"]) for one in found["by_thread"]] == [("t", 2, 6), (HOSTILE, 1, 2)]
    assert [(one["name"], one["cost"]) for one in found["by_model"]] == [("big", 7), ("small", 1)]
    page = await visitor.page("/runs", user="eve", by="cost")
    assert "<strong>4 runs</strong>: cost <strong>8.00</strong>, <strong>360</strong> tokens" in page
    assert 'href="/ui/runs?user=eve&amp;by=cost&amp;model=big"' in page
    assert "<script>alert" not in page
    page = await visitor.page("/runs", user="eve", model="small")
    assert "<strong>1 run</strong>: cost <strong>1.00</strong>, <strong>120</strong> tokens of small" in page
    assert "<option selected>cost</option>" in page
    # Those of the other filters; the list of all runs has none.
    of_model = (await visitor.data("/runs", user="eve", model="small"))["sums"]
    assert (of_model["total"]["cost"], of_model["total"]["runs"]) == (1, 1)
    assert (await visitor.data("/runs", user="eve", status="failed"))["sums"]["runs"] == 1
    assert (await visitor.data("/runs", user="eve", status="success"))["sums"]["runs"] == 3
    assert (await visitor.data("/runs"))["sums"] is None
    assert "Sums" not in await visitor.page("/runs", user="adam")


async def test_a_run_shows_its_spans_its_error_and_the_checkpoint_before(place: Place, record: Record) -> None:
    _, visitor = place
    failed(record)
    with statements() as sent:
        html = await visitor.page("/runs/t/bad", span="pay")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in html
    assert "Traceback" in html
    assert 'href="/ui/threads/t?at=c2"' in html
    data = await visitor.data("/runs/t/bad")
    assert [(one["span_id"], one["depth"]) for one in data["timeline"]["spans"]] == [
        ("root", 0),
        ("think", 1),
        ("pay", 1),
    ]
    assert (data["before"], data["duration"], data["bars"][1]) == ("c2", 9.0, [111.1, 222.2])
    errors = await visitor.data("/runs/t/bad", status="error")
    assert [one["span_id"] for one in errors["timeline"]["spans"]] == ["root", "pay"]
    assert "No span is of this kind" in await visitor.page("/runs/t/bad", kind="retriever")
    assert (await visitor.data("/runs/t/good"))["before"] is None
    assert "No spans" in await visitor.page("/runs/t/good")
    for path in ("/runs/t/none", "/runs/none/bad", "/runs/t/bad?span=none"):
        assert (await visitor.client.get(f"/ui{path}")).status_code == 404, path
    for path in ("/runs/t/bad?kind=x", "/runs/t/bad?offset=x", "/runs/t/bad?since=x", "/runs/t/bad?since=2027-01-01"):
        assert (await visitor.client.get(f"/ui{path}")).status_code == 422, path


async def test_the_duration_of_a_run_is_that_of_its_last_attempt(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("again", 20, 2, attempt=2)
    record.span("root", "graph", 10, 5, run_id="again", status="error", error_type="ProcessDied")
    record.span("root2", "graph", 20, 2, run_id="again")
    data = await visitor.data("/runs/t/again")
    assert (data["duration"], data["altogether"], data["axis"]) == (2, 12, [0, 6, 12])
    html = await visitor.page("/runs/t/again")
    assert "Last attempt" in html
    assert "of 12 s" in html
    assert "2 s" in await visitor.page("/runs")


async def test_a_run_that_is_interrupted_shows_what_it_waits_for(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("waits", 10, 1, status="interrupted", first_checkpoint_id="c2")
    record.execution("k1", 5, None, tool="pay", status="unknown")
    for number, question in enumerate(("Before?", f"Did it take effect? {HOSTILE}")):
        payload = Jsonb({"interrupts": [{"id": "i", "value": {"question": question}}]})
        record.event(f"e{number}", "interrupt", 10 + number, run_id="waits", payload=payload)
    with statements() as sent:
        html = await visitor.page("/runs/t/waits")
    assert len([name for name in sent if name != "find_entries"]) <= 5, sent
    assert "<script>alert" not in html
    assert "Did it take effect?" in html
    assert "Before?" not in html
    assert "Settle: did pay take effect?" in html
    assert 'href="/ui/threads/t?at=c2"' in html


@pytest.mark.slow
async def test_an_answered_run_tells_who_answered_and_which_run_went_on(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("waits", 10, 1, status="interrupted")
    payload = Jsonb({"interrupts": [{"id": "i", "value": {"question": "Book it?"}}]})
    record.event("e0", "answer", 5, payload=Jsonb({"interrupt_id": "i", "by": "before"}))
    record.event("e1", "interrupt", 11, run_id="waits", payload=payload)
    html = await visitor.page("/runs/t/waits")
    assert "Answered" not in html
    assert "/ui/interrupts?thread=t&amp;id=i" in html
    record.event("e2", "answer", 20, payload=Jsonb({"interrupt_id": "i", "by": HOSTILE}))
    record.event("e3", "answer", 40, payload=Jsonb({"interrupt_id": "i", "by": "later"}))
    for number in range(1000):
        record.event(f"e4-{number:03}", "answer", 41, payload=Jsonb({"interrupt_id": "other", "by": "later"}))
    record.run("went on", 21, 1)
    record.run("later", 50, 1)
    with statements() as sent:
        html = await visitor.page("/runs/t/waits")
    assert len([name for name in sent if name != "find_entries"]) <= 6, sent
    assert "Answered by &lt;script" in html
    assert "<script>alert" not in html
    assert 'href="/ui/runs/t/went%20on"' in html
    assert "/ui/interrupts?thread=t&amp;id=i" not in html


async def test_a_run_that_waits_for_a_decision_shows_the_calls(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("waits", 10, 1, status="interrupted")
    call = {"name": "pay", "args": {"amount": 180, "why": "x" * 40}, "description": "**Pay** the hotel"}
    value = {"review_configs": [{"action_name": "pay"}], "action_requests": [call]}
    payload = Jsonb({"interrupts": [{"id": "i", "value": value}]})
    record.event("e", "interrupt", 11, run_id="waits", payload=payload)
    await visitor.introduce()
    html = await visitor.page("/runs/t/waits")
    card = html.partition('<div class="card waits">')[2].partition("</div>")[0]
    # Its JSON is folded away.
    assert "review_configs" not in card.partition("<details")[0]
    assert re.search(r'<p class="call" dir="auto">pay\(.*amount=180', card)
    assert '<a class="button primary" href="/ui/interrupts?thread=t&amp;id=i"' in card


@pytest.mark.slow
async def test_a_run_of_many_spans_is_shown_a_window_at_a_time(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("r", 0, 1000)
    record.connection.execute(
        f"""
        INSERT INTO {record.schema}.spans (
            thread_id, run_id, span_id, parent_span_id, kind, name, status, started_at, ended_at, semconv_version
        )
        SELECT 't', 'r', 's' || n, CASE WHEN n > 0 THEN 's0' END, 'node', repeat('long name ', 20), 'success',
            %s + n * interval '0.1 s', %s + n * interval '0.1 s' + interval '1 s', '1'
        FROM generate_series(0, 9999) AS n
        """,
        [at(0), at(0)],
    )
    first = await visitor.page("/runs/t/r")
    assert "1–150 of 10,000 spans" in first
    last = await visitor.page("/runs/t/r", offset=9900)
    assert "9,901–10,000 of 10,000 spans" in last
    assert 'rel="next"' not in last


async def test_a_run_shows_its_feedback(place: Place, record: Record) -> None:
    server, visitor = place
    failed(record)
    await state_of(server).runs.feedback.add(
        "t", "bad", name="tone", score=0.25, comment=HOSTILE, by="Eve", span_id="think"
    )
    with statements() as sent:
        page = await visitor.page("/runs/t/bad")
    assert len([name for name in sent if name != "find_entries"]) <= 5, sent
    for part in ("<strong>tone</strong>", "0.25", "Eve", "span=think#span-think", "&lt;script&gt;"):
        assert part in page, part
    assert "<script>alert" not in page
    assert "<th>Feedback</th>" not in await visitor.page("/runs/t/good")


async def test_a_span_opens_below_its_row(place: Place, record: Record) -> None:
    _, visitor = place
    record.run("r", 0, 100)
    for number in range(200):
        record.span(f"s{number}", "node" if number else "graph", number, 1, parent_span_id="s0" if number else None)
    record.connection.execute(
        f"UPDATE {record.schema}.spans SET run_id = 'r', checkpoint_id = 'c', checkpoint_ns = 'in:1'"
    )
    page = await visitor.page("/runs/t/r", span="s70")
    rows = re.findall(r'<tr data-row id="span-(s\d+)"|<tr class="(opened)"', page)
    place_of = [name or opened for name, opened in rows].index("opened")
    assert (rows[place_of - 1][0], rows[place_of + 1][0]) == ("s70", "s71")
    assert page.count('class="card detail"') == 1
    assert 'href="/ui/runs/t/r?span=s71#span-s71"' in page
    # The checkpoint of a span in a subgraph is that of the subgraph.
    assert "at=c&amp;ns=in%3A1" in page
    # One that another page has is shown above.
    page = await visitor.page("/runs/t/r", span="s199")
    assert page.index("not among those below") < page.index('class="card detail"') < page.index('id="span-s0"')


async def test_a_run_is_cancelled_retried_and_discarded_by_name(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        await state.threads.create("t", agent="trip")
        run = await state.runs.enqueue("trip", {"messages": []}, thread_id="t")
        path = f"/runs/t/{run.run_id}"
        assert (await visitor.act(f"{path}/cancel")).status_code == 403
        await visitor.introduce("Eve")
        assert "Cancel" in await visitor.page(path)
        assert "Cancel" in await visitor.page("/queue")
        response = await visitor.act(f"{path}/cancel", back="queue", sure="1")
        assert (response.status_code, response.headers["location"]) == (303, "/ui/queue?notice=run.cancel")
        assert await run.status() == "cancelled"
        assert "Retry" in await visitor.page(path)
        assert (await visitor.act(f"{path}/retry")).headers["location"] == f"/ui{path}?notice=run.retry"
        assert (await visitor.act(f"{path}/retry")).status_code == 409
        assert await run.status() == "pending"
        assert (await visitor.act(f"{path}/cancel", how="nonsense", sure="1")).status_code == 422
        await visitor.act(f"{path}/cancel", sure="1")
        assert (await visitor.act(f"{path}/discard", sure="1")).status_code == 303
        assert (await visitor.act(f"{path}/discard", sure="1")).status_code == 409
        assert (await visitor.act("/runs/t/none/cancel", sure="1")).status_code == 404
        events = await state.events.list("t", kind="action")
        done = [(one.payload["action"], one.payload["by"], one.run_id) for one in events.items]
        assert done == [(name, "Eve", run.run_id) for name in ("cancel", "retry", "cancel", "discard")]


def test_a_bar_stays_in_its_drawing() -> None:
    begun = datetime(2026, 1, 1, tzinfo=UTC)

    def place(start: float, end: float | None, seconds: float = 10) -> tuple[float, float]:
        blank = dict.fromkeys(TimelineSpan.__dataclass_fields__)
        times = [begun + timedelta(seconds=start), None if end is None else begun + timedelta(seconds=end)]
        span = TimelineSpan(**{**blank, "started_at": times[0], "ended_at": times[1]})  # type: ignore[arg-type]
        return bar(span, begun, seconds)

    assert place(0, 10) == (0, 1000)
    assert place(2.5, 5) == (250, 250)
    assert place(5, None) == (500, 500)
    assert place(-5, 20) == (0, 1000)
    assert place(1, 1) == (100, 2)
    assert place(0, 0, 0) == (0, 1000)


async def test_an_error_leads_to_the_decision_it_waits_for(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    error = {
        "error_type": "langgraph_pgstate.errors.ToolOutcomeUnknownError",
        "error_message": "pay ('k?1' on thread 't') was started and has no recorded outcome",
    }
    record.run("bad", status="error", **error)
    record.run("good")
    record.span("pay", "tool", run_id="bad", status="error", **error)
    record.span("look", "tool", run_id="bad", status="error", error_type="app.Error", error_message="k2")
    record.execution("k?1", status="unknown", tool="pay")
    record.execution("done", tool="ship")
    way = '<a class="button" href="/ui/tools/t/k%3F1">Settle: did pay take effect?</a>'
    assert (await visitor.page("/runs/t/bad")).count(way) == 1
    assert (await visitor.page("/runs/t/bad", span="pay")).count(way) == 2
    assert (await visitor.page("/runs/t/bad", span="look")).count(way) == 1
    assert "did pay" not in await visitor.page("/runs/t/good")
    await visitor.introduce()
    assert (await visitor.act("/tools/t/k%3F1/settle", decision="done")).status_code == 303
    assert "did pay" not in await visitor.page("/runs/t/bad")


async def test_a_run_before_a_fork_is_shown_on_its_thread(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.run("r")
    record.thread("forked", forked_from_thread_id="t")
    record.thread("again", forked_from_thread_id="forked")
    record.thread("ring", forked_from_thread_id="ring")
    response = await visitor.client.get("/ui/runs/again/r", follow_redirects=True)
    assert (response.status_code, response.url.path) == (200, "/ui/runs/t/r")
    for path in ("/ui/runs/again/none", "/ui/runs/ring/r"):
        response = await visitor.client.get(path, follow_redirects=True)
        assert response.status_code == 404
    # Checkpoints of a copy name runs, too. Nothing says which thread was copied.
    record.thread("copy")
    response = await visitor.client.get("/ui/runs/copy/r")
    assert (response.status_code, "the thread is a copy" in response.text) == (404, True)
