"""`pgstate serve`: a process that is called, drained and killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from langgraph_sdk import get_client
from support import GUARD_SECONDS, wait_until
from support.cli import Forked, Run
from support.http import HELLO, until_running

from benchmarks.server import open_server
from benchmarks.serving import seconds_after_kill
from langgraph_pgstate.server import serving

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.once


class Served(Forked):
    """The command in a process, once it answers."""

    def __init__(self, dsn: str, schema: str, *arguments: str, cwd: Path = TESTS) -> None:
        super().__init__("--dsn", dsn, "--schema", schema, "serve", "--port", "0", *arguments, cwd=cwd)
        wait_until(self._is_ready, "the server's start")

    @property
    def url(self) -> str:
        """Where it listens."""
        return re.findall(r"at (http://\S+)", self.printed)[0]

    def _is_ready(self) -> bool:
        assert self.returncode is None, self.said
        try:
            return "at http://" in self.printed and httpx.get(f"{self.url}/ok").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """Send a signal; the exit code."""
        self.send_signal(number)
        return self.wait()


@pytest.fixture
def place(dsn: str, schema: str) -> Iterator[Any]:
    """Starts servers, and kills those that are left."""
    with ExitStack() as started:
        yield lambda *arguments, cwd=TESTS: started.enter_context(Served(dsn, schema, *arguments, cwd=cwd))


def children(served: Forked, count: int) -> list[int]:
    """The processes of a supervisor, once there are so many."""
    file = Path(f"/proc/{served.pid}/task/{served.pid}/children")
    wait_until(lambda: len(file.read_text().split()) == count, f"{count} processes")
    return [int(pid) for pid in file.read_text().split()]


GRAPHS = ("chat=support/http.py:chat", "slow=support/http.py:slow")


@pytest.mark.slow
async def test_a_run_goes_on_elsewhere_after_sigterm_and_its_stream_is_whole(place: Any) -> None:
    first = place(*GRAPHS)
    async with get_client(url=first.url, api_key=None) as client:
        await client.threads.create(thread_id="t")
        run = await client.runs.create("t", "slow", input={"count": 60}, stream_mode="values")
        stream = client.runs.join_stream("t", run["run_id"])
        seen = [await anext(stream) for _ in range(5)]
        # While the stream is open.
        assert first.stop() == 0
        second = place(*GRAPHS)
    async with get_client(url=second.url, api_key=None) as client:
        rest = [part async for part in client.runs.join_stream("t", run["run_id"], last_event_id=seen[-1].id)]
        counts = [part.data["count"] for part in [*seen, *rest] if part.event == "values"]
        assert (counts[0], counts[-1], sorted({*counts})) == (60, 0, [*range(61)])
        assert (rest[-1].event, rest[-1].data) == ("values", {"count": 0})
        assert (await client.runs.get("t", run["run_id"]))["status"] == "success"
    assert second.stop(signal.SIGINT) == 0


@pytest.mark.slow
async def test_a_second_signal_waits_for_nothing(dsn: str, schema: str) -> None:
    place = ("--dsn", dsn, "--schema", schema, "serve", "--port", "0")
    with Forked(*place, "stuck=support/http.py:stuck", cwd=TESTS) as served:
        wait_until(lambda: "Studio" in served.printed, "the server's start")
        async with get_client(url=re.findall(r"at (http://\S+)", served.printed)[0], api_key=None) as client:
            run = await client.runs.create("t", "stuck", input={"count": 1}, if_not_exists="create")
            await until_running(client, "t", run["run_id"])
        served.send_signal(signal.SIGTERM)
        wait_until(lambda: "drains; runs to stop: 1" in served.said, "the drain")
        served.send_signal(signal.SIGINT)
        # Its only superstep takes longer.
        assert served.wait(GUARD_SECONDS / 2) == 130


@pytest.mark.slow
async def test_a_client_that_reads_nothing_keeps_no_server_that_stops(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_GRACE_SECONDS", 1)
    place = ("--dsn", dsn, "--schema", schema, "serve", "--port", "0")
    with Forked(*place, "large=support/http.py:large", cwd=TESTS) as served:
        wait_until(lambda: "Studio" in served.printed, "the server's start")
        url = httpx.URL(re.findall(r"at (http://\S+)", served.printed)[0])
        async with get_client(url=str(url), api_key=None) as client:
            run = await client.runs.create("t", "large", input={}, stream_mode="custom", if_not_exists="create")
            await client.runs.join("t", run["run_id"])
        with socket.create_connection((url.host, url.port or 80)) as stalled:
            path = f"/threads/t/runs/{run['run_id']}/stream"
            stalled.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert stalled.recv(12) == b"HTTP/1.1 200"
            await asyncio.sleep(0.5)
            served.send_signal(signal.SIGTERM)
            assert served.wait() == 0


@pytest.mark.slow
async def test_nothing_is_lost_when_a_server_is_killed_amid_many_runs(dsn: str, tmp_path: Path) -> None:
    with open_server(dsn) as server, server.database("killed") as database:
        # So many supersteps that no run ends before the server is killed, however slow this machine is.
        await seconds_after_kill(database, tmp_path, 50, steps=150)


@pytest.mark.slow
def test_workers_share_the_port_and_are_replaced(dsn: str, schema: str) -> None:
    place = ("--dsn", dsn, "--schema", schema, "serve", "--port", "0")
    with Forked(*place, "--workers", "2", "--rate-limit", "10", *GRAPHS, cwd=TESTS) as served:
        killed = children(served, 2)[0]
        url = re.findall(r"at (http://\S+)", served.printed)[0]
        # They count together, and allow another one in six seconds.
        statuses = [httpx.post(f"{url}/threads/search", json={}, timeout=GUARD_SECONDS).status_code for _ in range(40)]
        assert {*statuses} == {200, 429}
        assert 10 <= statuses.count(200) <= 14
        os.kill(killed, signal.SIGKILL)
        # A new connection for each: none is lost, whether or not the dead one was replaced.
        assert {httpx.get(f"{url}/ok", timeout=GUARD_SECONDS).status_code for _ in range(20)} == {200}
        wait_until(lambda: killed not in children(served, 2), "a new process")
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        assert served.printed.count("serving chat") == 1
        warning = rf"\[{served.pid}\] WARNING server-\d \(process {killed}\) was ended by SIGKILL"
        assert re.search(warning, served.said)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/ok")


@pytest.mark.slow
def test_workers_that_cannot_start_say_why_once(dsn: str, schema: str) -> None:
    place = ("--dsn", dsn, "--schema", schema, "serve", "--workers", "3", "--port", "0")
    for arguments, said in (
        (("nothing:graph",), "nothing cannot be imported"),
        (("--host", "0.0.0.0", GRAPHS[0]), "without auth the server must listen"),
    ):
        with Forked(*place, *arguments, cwd=TESTS) as served:
            errors = served.communicate()[1]
            assert (served.returncode, errors.count(said)) == (1, 1), errors


@pytest.mark.slow
async def test_a_config_names_graphs_and_auth(place: Any, tmp_path: Path) -> None:
    (tmp_path / "guard.py").write_text(
        "from langgraph_sdk import Auth\nauth = Auth()\n"
        "@auth.authenticate\nasync def authenticate(authorization: str | None) -> str:\n"
        "    if authorization is None:\n        raise Auth.exceptions.HTTPException(401)\n    return authorization\n"
    )
    (tmp_path / "langgraph.json").write_text(
        '{"graphs": {"chat": "%s:chat"}, "auth": {"path": "./guard.py:auth"}, "store": {}}'
        % (TESTS / "support/http.py")
    )
    served = place("--host", "0.0.0.0", "--read-only", cwd=tmp_path)
    url = served.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.post(f"{url}/threads/search", json={}).status_code == 401
    given = {"authorization": "eve"}
    assert httpx.post(f"{url}/threads/search", json={}, headers=given).json() == []
    assert httpx.post(f"{url}/threads", json={}, headers=given).status_code == 403


@pytest.mark.slow
async def test_a_config_says_how_long_threads_are_kept_and_what_of_runs(
    place: Any, tmp_path: Path, connection: psycopg.Connection, schema: str
) -> None:
    config = {
        "graphs": {"chat": f"{TESTS / 'support/http.py'}:chat"},
        "checkpointer": {"ttl": {"default_ttl": 60}},
        "env": {"PGSTATE_RECORD_CONTENT": "false", "PGSTATE_PROJECT": "messages"},
    }
    (tmp_path / "langgraph.json").write_text(json.dumps(config))
    served = place(cwd=tmp_path)
    client = get_client(url=served.url)
    await client.runs.wait("t", "chat", input=HELLO, if_not_exists="create")
    found: Any = await client.threads.get("t", include=["ttl"])
    assert found["ttl"]["expires_at"] > found["created_at"]
    assert served.stop() == 0
    # Its content is in the checkpoints, and where it was asked for.
    columns = "input IS NULL, output IS NULL"
    assert connection.execute(f"SELECT {columns} FROM {schema}.runs").fetchall() == [(True, True)]
    assert connection.execute(f"SELECT count(*) FROM {schema}.projections").fetchone() == (1,)


@pytest.mark.slow
def test_what_cannot_be_served_is_said(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graphs = {"chat": f"{TESTS}/support/http.py:chat"}
    (tmp_path / "other.json").write_text(json.dumps({"graphs": graphs, "webhooks": {"url": {"max_url_length": 9}}}))
    for arguments, said in (
        (("--config", "other.json", "--port", "0"), "webhooks.url.max_url_length of langgraph.json is not supported"),
        ((), "requires a graph"),
        (("nothing", "--port", "0"), "a graph must be named like"),
        (("--host", "0.0.0.0", "--port", "0", f"{TESTS}/support/http.py:chat"), "without auth the server must listen"),
        (("--workers", "2", "--host", "203.0.113.1", "x:y"), "cannot listen on"),
        (("--host", "203.0.113.1", f"{TESTS}/support/http.py:chat"), "cannot listen on"),
    ):
        result = run("serve", *arguments, code=1)
        assert said in " ".join(result.output.split())
