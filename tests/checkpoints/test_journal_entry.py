"""Entries of the journal that are damaged, or newer than their reader."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import ormsgpack
import pytest
from support import config_of, spread
from support.recorder import rows

from langgraph_pgstate import PGState
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import CorruptStateError
from langgraph_pgstate.record import journal
from langgraph_pgstate.runs.streams import decode_batch
from langgraph_pgstate.runs.types import StoredBatch
from langgraph_pgstate.schema.queries import queries
from tests.record.test_journal import IDLE, STEPS, Connection, chat, question


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, recording=IDLE) as opened:
        opened.setup()
        yield opened


def test_an_entry_that_is_damaged_keeps_no_other_back(
    state: PGState, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    connection.execute(f"INSERT INTO {state.schema}.journal (thread_id, entry_id, data) VALUES ('t', '0', '\\x02ff')")
    state.flush()
    assert "is left out" in caplog.text
    assert len(rows(connection, state.schema, "messages")) == STEPS + 1


def test_an_entry_of_a_newer_version_stays_for_it(state: PGState, connection: Connection) -> None:
    """Guard: an older program would take it out and lose what it says."""
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    connection.execute(f"INSERT INTO {state.schema}.journal (thread_id, entry_id, data) VALUES ('t', '0', '\\x03ff')")
    database = state._database
    database.run(journal.write, queries(state.schema), ["t"])
    assert "0" in [row["entry_id"] for row in rows(connection, state.schema, "journal")]
    connection.execute(f"DELETE FROM {state.schema}.journal WHERE entry_id = '0'")
    state.flush()
    assert len(rows(connection, state.schema, "messages")) == STEPS + 1


def test_a_name_that_is_a_deep_list_is_damage() -> None:
    """Guard: Python cannot convert such a list to a text."""
    deep = b"\x91" * 1000 + b"\x90"
    entry = b"\x99\x01" + b"\x90" * 4 + b"\x91\x92" + deep + b"\xc4\x02{}" + b"\x90\x90\xcb" + bytes(8)
    with pytest.raises(CorruptStateError, match="it does not decode"):
        JournalEntry.unpack("t", frames.pack_short_lived(entry))
    events = b"\x91\x95" + deep + b"\x90\xc0\xa1x\xc4\x00"
    batch = StoredBatch(1, 1, 1, None, frames.pack_short_lived(events), datetime.now(UTC))
    with pytest.raises(CorruptStateError, match="it is not a batch of events"):
        list(decode_batch(ValueCodec(), batch, "events"))


@pytest.mark.parametrize(
    "rest",
    spread(
        [
            ([1], [], [], [], [], [], [], 1.0),
            (1, [], [], [], [], [], [], 1.0),
            ([], [], [], [], [b"x"], [], [], 1.0),
            ([], [], [], [], [], [("t",)], [], 1.0),
            ([], [], [], [], [], [], [("t", "r", "x")], 1.0),
            ([], [], [], [], [], [], [], None),
            ([b"no JSON"], [], [], [], [], [], [], 1.0),
            ([], [], [b"[1]"], [], [], [], [], 1.0),
            ([], [], [], [], [("compared", b'{"messages": [1]}'), ("written", b"1")], [], [], 1.0),
        ]
    ),
)
def test_an_entry_of_another_form_keeps_no_other_back(
    rest: Any, state: PGState, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: its checksum is right, as a forger makes it."""
    state.record(chat().compile(checkpointer=state.saver)).invoke(question(), config_of("t"))
    data = frames.pack_short_lived(ormsgpack.packb((1, *rest)))
    query = f"INSERT INTO {state.schema}.journal (thread_id, entry_id, data) VALUES ('t', '0', %s)"
    connection.execute(query.encode(), [data])
    state.flush()
    assert "left out" in caplog.text or "refuses" in caplog.text
    assert len(rows(connection, state.schema, "messages")) == STEPS + 1
    assert rows(connection, state.schema, "journal") == []
