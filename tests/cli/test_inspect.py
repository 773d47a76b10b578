"""`pgstate inspect`: pages on a database, by a process that writes nothing."""

from __future__ import annotations

import re
import signal

import httpx
import psycopg
import pytest
from support import config_of, put_arguments, wait_until
from support.cli import Forked, Run

from langgraph_pgstate import PGStateSaver

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_pages_are_served_until_sigterm_and_nothing_is_written(
    dsn: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    saver.put(*put_arguments(config_of("t"), 0))
    connection.execute(
        f"INSERT INTO {saver.schema}.journal (thread_id, entry_id, data, created_at)"
        " VALUES ('t', 'e', '', now() - interval '1 hour')".encode()
    )
    # So that any write is an error.
    read_only = psycopg.conninfo.make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with Forked("--dsn", read_only, "--schema", saver.schema, "inspect", "--port", "0") as process:
        wait_until(lambda: process.returncode is not None or "/ui" in process.printed, "the address")
        url = re.findall(r"http://\S+/ui", process.printed)[0]
        wait_until(lambda: answers(url), "the server's start")
        assert "t" in [one["thread_id"] for one in httpx.get(f"{url}/threads?format=json").json()["threads"]]
        page = httpx.get(f"{url}/threads/t?view=state")
        assert (page.status_code, 'method="post"' in page.text) == (200, False)
        assert httpx.post(f"{url}/person", data={"name": "Eve"}).status_code == 403
        process.send_signal(signal.SIGTERM)
        assert process.communicate() == (f"{url}\n", "")
        assert process.returncode == 0
    row = connection.execute(f"SELECT count(*) FROM {saver.schema}.journal".encode()).fetchone()
    assert row == (1,)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/threads").status_code == 200
    except httpx.TransportError:
        return False


def test_there_is_no_json_of_a_server(run: Run) -> None:
    assert "format=json" in run("--json", "inspect", code=1).output
