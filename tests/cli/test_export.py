"""`pgstate export otlp`, and the exporter of `serve` and `worker`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from cli.test_serve import Served
from support import wait_until
from support.cli import Forked, Run
from support.otlp import CALLER, Collector, attributes, collecting, travel_graph
from support.recorder import config, rows

from langgraph_pgstate import PGState
from langgraph_pgstate.cli.export import exporting

AGENT = """
from support.http import chat
graph = chat()
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.delenv("PGSTATE_OTLP_ENDPOINT", raising=False)
    with collecting() as collector:
        yield collector


def invoke(dsn: str, schema: str, thread_id: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        graph = state.record(travel_graph().compile(checkpointer=state.saver, name="travel"))
        graph.invoke({"messages": [("user", "What is 1 + 2?")]}, config(thread_id))


def test_what_was_not_exported_is_exported(run: Run, dsn: str, schema: str, collector: Collector) -> None:
    export = ("export", "otlp", "--endpoint", collector.endpoint)
    assert "exported 0 spans" in run(*export).output
    invoke(dsn, schema, "t")
    assert "exported 11 spans" in run(*export).output
    assert json.loads(run("--json", *export).output) == {"spans": 0}
    again = json.loads(run("--json", *export, "--since", "1h", "--content").output)
    assert again == {"spans": 11}
    assert "It is 3." in str(collector.spans)
    assert set(collector.counts.values()) == {2}


def test_what_cannot_be_exported_is_said(run: Run, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--endpoint or PGSTATE_OTLP_ENDPOINT must be" in run("export", "otlp", code=1).output
    assert "requires --to" in run("export", "parquet", code=1).output
    assert "must name a bucket or a folder" in run("export", "parquet", "--to", "memory://x", code=1).output
    assert "otlp" in run("export", "zipkin", "--endpoint", collector.endpoint, code=2).output
    monkeypatch.setenv("PGSTATE_OTLP_ENDPOINT", "localhost:4318")
    assert "must be the address of an OTLP collector, like" in run("export", "otlp", code=1).output
    monkeypatch.setenv("PGSTATE_OTLP_ENDPOINT", collector.endpoint)
    assert "prints no JSON" in run("--json", "export", "otlp", "--follow", code=1).output
    assert "exported 0 spans" in run("export", "otlp").output


def test_a_collector_that_is_away_is_said(run: Run, dsn: str, schema: str, collector: Collector) -> None:
    export = ("export", "otlp", "--endpoint", collector.endpoint)
    run(*export)
    invoke(dsn, schema, "t")
    from support.otlp import Reply

    collector.replies = [Reply(401)]
    assert "the collector responds with 401" in run(*export, code=1).output
    assert "exported 11 spans" in run(*export).output


def test_without_an_endpoint_nothing_is_done() -> None:
    with exporting("no database", "no schema", None, False):
        pass


@pytest.mark.slow
@pytest.mark.once
def test_a_follower_exports_until_sigterm(
    dsn: str, schema: str, collector: Collector, connection: psycopg.Connection, tmp_path: Path
) -> None:
    arguments = ("--dsn", dsn, "--schema", schema, "export", "otlp", "--endpoint", collector.endpoint, "--follow")
    with Forked(*arguments, cwd=tmp_path) as process:
        wait_until(lambda: bool(rows(connection, schema, "exporters")), "it has registered")
        invoke(dsn, schema, "t")
        wait_until(lambda: len(collector.spans) == 11, "all spans arrived")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert f"spans are exported to {collector.endpoint}/v1/traces" in log


@pytest.mark.slow
@pytest.mark.once
def test_a_server_exports_runs_as_part_of_the_trace_of_a_request(
    dsn: str,
    schema: str,
    collector: Collector,
    connection: psycopg.Connection,
) -> None:
    with Served(dsn, schema, "chat=support/http.py:chat", "--otlp-endpoint", collector.endpoint) as served:
        wait_until(lambda: bool(rows(connection, schema, "exporters")), "it has registered")
        with httpx.Client(base_url=served.url) as client:
            client.post("/threads", json={"thread_id": "t"})
            asked = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "Hello."}]}}
            said = client.post("/threads/t/runs/wait", json=asked, headers={"traceparent": CALLER}, timeout=60)
        assert said.status_code == 200
        # The last spans are exported when it stops.
        assert served.stop() == 0
    stored = {row["span_id"] for row in rows(connection, schema, "spans")}
    assert collector.by_id.keys() == stored
    assert {span.trace_id.hex() for span in collector.spans} == {CALLER[3:35]}
    (root,) = [span for span in collector.spans if span.name.startswith("invoke_workflow")]
    assert root.parent_span_id.hex() == CALLER[36:52]
    assert all("gen_ai.input.messages" not in attributes(span) for span in collector.spans)


@pytest.mark.slow
@pytest.mark.once
def test_a_worker_exports_what_it_runs(
    run: Any,
    dsn: str,
    schema: str,
    collector: Collector,
    connection: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    run("export", "otlp", "--endpoint", collector.endpoint)
    run("enqueue", "agent", '{"messages": "Hello."}', "--thread", "t")
    monkeypatch.setenv("PGSTATE_OTLP_ENDPOINT", collector.endpoint)
    with Forked(
        "--dsn", dsn, "--schema", schema, "worker", "agent=agent.py:graph", "--once", "--otlp-content", cwd=tmp_path
    ) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert collector.by_id.keys() == {row["span_id"] for row in rows(connection, schema, "spans")}
    assert [span for span in collector.spans if "gen_ai.output.messages" in attributes(span)]
