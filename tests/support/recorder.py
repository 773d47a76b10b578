"""Helpers of the recorder's tests: a recorder with a saver, graphs of every kind, and rows as dicts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from psycopg.rows import dict_row

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.record import AsyncRecorder, Recorder
from langgraph_pgstate.record.options import RecorderSettings

USAGE = {
    "input_tokens": 100,
    "output_tokens": 20,
    "total_tokens": 120,
    "input_token_details": {"cache_read": 40},
    "output_token_details": {"reasoning": 5},
}


@contextmanager
def recording(
    dsn: str, schema: str, settings: RecorderSettings | None = None, *, hook: bool = True
) -> Iterator[tuple[PGStateSaver, Recorder]]:
    """Provide a blocking saver and its recorder, on a schema that is set up."""
    with Database.open(dsn, schema=schema) as database:
        recorder = Recorder(database, settings)
        with PGStateSaver.from_conn_string(dsn, schema=schema, hook=recorder if hook else None) as saver:
            yield saver, recorder
            recorder.close()


@asynccontextmanager
async def recording_async(
    dsn: str, schema: str, settings: RecorderSettings | None = None, *, hook: bool = True
) -> AsyncIterator[tuple[AsyncPGStateSaver, AsyncRecorder]]:
    """Provide the asynchronous pair."""
    async with AsyncDatabase.open(dsn, schema=schema) as database:
        recorder = AsyncRecorder(database, settings)
        given = recorder if hook else None
        async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, hook=given) as saver:
            yield saver, recorder
            await recorder.close()


def rows(connection: psycopg.Connection, schema: str, table: str, **where: Any) -> list[dict[str, Any]]:
    """Return a table's rows that have these values, in the order they began."""
    order = {"runs": "started_at", "spans": "started_at", "events": "event_id"}.get(table, "1")
    condition = " AND ".join(f"{name} = %({name})s" for name in where) or "true"
    with connection.cursor(row_factory=dict_row) as cursor:
        query = f"SELECT * FROM {schema}.{table} WHERE {condition} ORDER BY {order}"
        return cursor.execute(query.encode(), where).fetchall()


def config(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    """Return a config of a thread, and more of its `configurable`."""
    return {"configurable": {"thread_id": thread_id, **more}}


class Model(GenericFakeChatModel):
    """A model that says who it is, as real ones do."""

    def _get_ls_params(self, *args: Any, **kwargs: Any) -> Any:
        return {"ls_provider": "azure_openai", "ls_model_name": "gpt-x", "ls_model_type": "chat", "ls_temperature": 0.5}

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def model(*answers: Any) -> Model:
    """Return a model that gives these answers, or the same one for ever."""
    said = AIMessage(
        "hello you",
        usage_metadata=USAGE,
        response_metadata={"model_name": "gpt-x-2026", "finish_reason": "stop", "id": "resp-1"},
    )
    return Model(messages=iter(answers) if answers else itertools.cycle([said]))
