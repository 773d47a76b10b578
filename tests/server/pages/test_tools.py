"""The pages of tools, and the decision about an unknown effect."""

from __future__ import annotations

from support_pages import HOSTILE, inspected, state_of, statements
from support_record import Record

from langgraph_pgstate.server.pages import tools

from .conftest import Place


async def test_tools_show_unknown_effects_and_statistics(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.execution("k1", 0, tool="pay", status="unknown", arguments={"card": HOSTILE}, run_id="r")
    record.execution("k2", 5, tool="mail", preview=HOSTILE)
    record.connection.execute(f"UPDATE {record.schema}.tool_executions SET started_at = now() - interval '1 h'")
    record.span("s", "tool", 0, 2, name="mail")
    record.connection.execute(
        f"UPDATE {record.schema}.spans SET started_at = now() - interval '1 h', ended_at = now() - interval '59 min'"
    )
    with statements() as sent:
        html = await visitor.page("/tools")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in html
    data = await visitor.data("/tools")
    assert [one["idempotency_key"] for one in data["unknown"]] == ["k1"]
    assert {one["tool"]: one["unknown"] for one in data["actions"]} == {"pay": 1, "mail": 0}
    assert [(one["tool"], one["p95"]) for one in data["calls"]] == [("mail", 60.0)]
    assert [one["idempotency_key"] for one in (await visitor.data("/tools", tool="mail"))["recent"]] == ["k2"]
    assert "No effect is unknown" in await visitor.page("/tools", tool="mail")
    assert (await visitor.client.get("/ui/tools", params={"since": "x"})).status_code == 422


async def test_the_wait_for_a_person_is_no_duration(place: Place, record: Record) -> None:
    _, visitor = place
    record.execution("k1", 0, 900, tool="pay", alive_until=None)
    assert "15 min" not in await visitor.page("/tools")
    record.execution("k2", 0, 900, tool="mail")
    assert "15 min" in await visitor.page("/tools")


async def test_statistics_of_too_many_calls_say_so(place: Place, record: Record, monkeypatch: object) -> None:
    _, visitor = place
    record.execution("k1", status="success")
    record.connection.execute(f"UPDATE {record.schema}.tool_executions SET started_at = now()")
    before, tools.NEWEST = tools.NEWEST, 1  # type: ignore[misc]
    try:
        assert "Of the newest 1 calls" in await visitor.page("/tools")
    finally:
        tools.NEWEST = before  # type: ignore[misc]
    assert "Of the newest" not in await visitor.page("/tools")


async def test_a_named_person_settles_an_effect(dsn: str, schema: str, record: Record) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        record.thread("t")
        for key in ("a/b#1", "k2", "k3"):
            record.execution(key, status="unknown", run_id="r", arguments={"card": 1})
        path = "/tools/t/a~2Fb%231"
        assert "Did it take effect?" in await visitor.page(path)
        assert (await visitor.act(f"{path}/settle", decision="done")).status_code == 403
        await visitor.introduce("Eve")
        assert (await visitor.act(f"{path}/settle", decision="maybe")).status_code == 422
        settled = await visitor.act(f"{path}/settle", decision="done", result='{"paid": true}')
        assert settled.headers["location"] == f"/ui{path}?notice=tool.settle&of=t"
        html = await visitor.page(path)
        assert "Did it take effect?" not in html
        assert "paid" in html
        await visitor.introduce("Adam")
        second = await visitor.act(f"{path}/settle", decision="fail")
        assert (second.status_code, "settled just now by Eve" in second.text) == (409, True)
        await visitor.introduce("Eve")
        old = await visitor.act("/tools/t/k2/settle", decision="retry", expects="error 1")
        assert (old.status_code, "has changed" in old.text) == (409, True)
        assert (await visitor.act("/tools/t/k2/settle", decision="retry")).status_code == 303
        assert (await visitor.act("/tools/t/k3/settle", decision="fail")).status_code == 303
        assert "It failed" in await visitor.page("/tools/t/k3")
        assert (await visitor.act("/tools/t/none/settle", decision="fail")).status_code == 404
        assert (await visitor.client.get("/ui/tools/t/none")).status_code == 404
        events = await state_of(server).events.list("t", kind="action")
        done = [(one.payload["action"], one.payload["by"], one.payload["key"]) for one in events.items]
        assert done == [("settle", "Eve", key) for key in ("a/b#1", "k2", "k3")]
