"""Metadata of runs that were not enqueued by a call of their own, in their rows and in webhooks."""

from __future__ import annotations

from typing import Any, TypedDict

import psycopg
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support import GUARD_SECONDS

from langgraph_pgstate import PGState
from langgraph_pgstate.worker import Worker


class State(TypedDict):
    value: Any


def asking() -> Any:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"value": interrupt("?")})
    builder.add_edge(START, "ask")
    return builder


def test_runs_of_schedules_and_resumed_runs_have_metadata(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    url = "https://hooks.invalid/done"
    with PGState.open(dsn, schema=schema) as state, Worker(state, {"agent": asking()}):
        state.schedules.put(
            "brief", "agent", {"value": 1}, cron="0 0 1 1 *", metadata={"team": "sales"}, webhook=url, thread_id="t"
        )
        run = state.schedules.trigger("brief")
        run.wait(GUARD_SECONDS)
        resumed = state.interrupts.answer_run("t", "yes")
        resumed.wait(GUARD_SECONDS)
        found = [state.runs.get("t", one.run_id) for one in (run, resumed)]
        listed = state.runs.list(thread_id="t").items
    told = [one.metadata for one in found if one is not None]
    assert told[0] == told[1]
    assert told[0].keys() == {"team", "schedule", "scheduled_at"}
    assert told[0]["schedule"] == "brief"
    assert [one.metadata for one in listed] == told
    rows = connection.execute(f"SELECT run -> 'metadata' FROM {schema}.webhooks".encode()).fetchall()
    assert [row[0] for row in rows] == told


class Reversing(CipherProtocol):
    """An encryption that is none."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_encrypted_metadata_has_no_copy_in_clear_text(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, serde=EncryptedSerializer(Reversing())) as state:
        state.schedules.put("brief", "agent", {"value": 1}, cron="0 0 1 1 *", metadata={"team": "sales"})
        run = state.schedules.trigger("brief")
        found = state.runs.get(run.thread_id, run.run_id)
    assert found is not None
    assert not found.metadata
