"""A real Phoenix: it takes the spans, knows their kinds, tokens and messages, and has each once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import wait_until
from support.otlp import travel_graph
from support.recorder import config

from langgraph_pgstate import PGState
from langgraph_pgstate.otlp import SpanExporter

ENVIRONMENT = Path(__file__).parents[2] / ".phoenix"
pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def program() -> str:
    """Phoenix in an environment of its own: that which `PGSTATE_TEST_PHOENIX` names, or one that is made here once."""
    directory = Path(os.environ.get("PGSTATE_TEST_PHOENIX") or ENVIRONMENT)
    found = directory / "bin" / "phoenix"
    if not found.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = [str(directory / "bin" / "pip"), "install", "--quiet", "arize-phoenix>=15.10"]
        if subprocess.run(install, check=False).returncode != 0:
            pytest.skip("Phoenix cannot be installed here")
    return str(found)


@pytest.fixture
def phoenix(program: str, tmp_path: Path) -> Iterator[str]:
    """The address of a Phoenix that calls nobody."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(str(listener.getsockname()[1]))
    environment = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(tmp_path),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": ports[0],
        "PHOENIX_GRPC_PORT": ports[1],
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    url = f"http://127.0.0.1:{ports[0]}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen([program, "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(answers, "Phoenix's start")
        yield url
    finally:
        process.kill()
        process.wait()


def test_phoenix_reads_the_spans_and_has_each_once(dsn: str, schema: str, phoenix: str) -> None:
    exporter = SpanExporter(dsn, phoenix, schema=schema, content=True)
    exporter.export()
    with PGState.open(dsn, schema=schema) as state:
        graph = state.record(travel_graph().compile(checkpointer=state.saver, name="travel"))
        graph.invoke({"messages": [("user", "What is 1 + 2?")]}, config("t", user_id="eve"))
        stored = {span.span_id: span for span in state.spans.list("t").items}
        exporter.export()
        with state._database.lend() as (connection, _):
            connection.execute(
                f"INSERT INTO {schema}.span_exports SELECT thread_id, span_id, run_id, now(), ARRAY[span_id],"
                f" ARRAY[started_at] FROM {schema}.spans".encode()
            )
    assert exporter.export() == len(stored)

    def arrived() -> list[dict[str, object]]:
        found: list[dict[str, object]] = httpx.get(f"{phoenix}/v1/projects/default/spans?limit=100").json()["data"]
        return found

    wait_until(lambda: len(arrived()) >= len(stored), "all spans arrived")
    spans = {span["attributes"]["pgstate.span.id"]: span for span in arrived()}  # type: ignore[index]
    assert len(arrived()) == len(spans) == len(stored)
    kinds = {
        "llm": "LLM",
        "tool": "TOOL",
        "retriever": "RETRIEVER",
        "graph": "CHAIN",
        "node": "CHAIN",
        "chain": "CHAIN",
    }
    for span_id, span in spans.items():
        row, read = stored[span_id], span["attributes"]
        assert span["span_kind"] == kinds[row.kind]
        assert read["session.id"] == "t"
        parent = row.parent_span_id
        assert span["parent_id"] == (None if parent is None else spans[parent]["context"]["span_id"])
    model = next(spans[row.span_id]["attributes"] for row in stored.values() if row.kind == "llm")
    assert (model["llm.token_count.prompt"], model["llm.token_count.completion"]) == (100, 20)
    assert model["llm.input_messages.0.message.content"] == "What is 1 + 2?"
    tool = next(spans[row.span_id]["attributes"] for row in stored.values() if row.kind == "tool")
    assert (tool["tool.name"], tool["tool.id"], tool["output.value"]) == ("add", "call-1", "3")
