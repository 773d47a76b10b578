"""Threads with rows in each table, and all rows of a thread."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import psycopg
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from psycopg import sql

from langgraph_pgstate import PGState
from langgraph_pgstate.keep import objects
from langgraph_pgstate.keep.packing import PACK
from langgraph_pgstate.keep.tables import NOT_ARCHIVED
from support import GUARD_SECONDS

bookings: list[str] = []


@tool
def book(hotel: str) -> str:
    """Book a hotel."""
    bookings.append(hotel)
    return f"{hotel} is booked."


def agent(state: PGState) -> Any:
    """Return a graph that calls a tool, says something in a subgraph and asks a person."""
    call = AIMessage("", id="call", tool_calls=[{"name": "book", "args": {"hotel": "Astoria"}, "id": "1"}])
    inner = StateGraph(MessagesState).add_node("say", lambda _: {"messages": [AIMessage("It is done.", id="said")]})
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda _: {"messages": [call]})
    graph.add_node("tools", ToolNode([book], wrap_tool_call=state.tools))
    graph.add_node("inner", inner.add_edge(START, "say").compile())
    graph.add_node("ask", lambda _: {"messages": [("user", interrupt("Is that all?"))]})
    for one, other in ((START, "model"), ("model", "tools"), ("tools", "inner"), ("inner", "ask")):
        graph.add_edge(one, other)
    return state.record(graph.compile(checkpointer=state.saver))


def config_of(thread_id: str, **more: Any) -> dict[str, Any]:
    """Return the config of a run."""
    return {"configurable": {"thread_id": thread_id, "user_id": "eve", **more}}


def make_rich_thread(state: PGState, thread_id: str) -> Any:
    """Make a thread that waits for an answer, with a branch, a label, feedback and metadata. Return its graph."""
    graph = agent(state)
    graph.invoke({"messages": [("user", "Book the Astoria.")]}, config_of(thread_id))
    past = [*graph.get_state_history(config_of(thread_id))][2].config
    graph.update_state(past, {"messages": [("user", "Or not.")]})
    state.flush()
    state.threads.label(config_of(thread_id), "before the answer")
    state.threads.update_metadata(thread_id, {"case": 7})
    (run, *_) = state.runs.list(thread_id=thread_id).items
    state.runs.feedback.add(thread_id, run.run_id, name="helpful", score=1.0, comment="Ünïcode \u2028 and \U0001f600")
    return graph


def rows_of(dsn: str, schema: str, thread_id: str, *, stub: bool = False) -> dict[str, list[str]]:
    """Return all rows of a thread by table, as text; of `threads` without what an archive changes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'thread_id'"
            " WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1",
            [schema],
        ).fetchall()
        found = {}
        for (table,) in tables:
            if table in NOT_ARCHIVED and table not in ("memories", "memory_versions", "file_versions"):
                continue
            left_out = "{archived_at,archive_id,expires_at}" if table == "threads" else "{}"
            query = sql.SQL("SELECT (to_jsonb(t) - {}::text[])::text FROM {} t WHERE thread_id = %s ORDER BY 1").format(
                left_out, sql.Identifier(schema, table)
            )
            rows = [text for (text,) in connection.execute(query, [thread_id]).fetchall()]
            if rows:
                found[table] = rows
    return found


def states_of(graph: Any, thread_id: str) -> list[Any]:
    """Return every state of a thread, with its tasks and interrupts."""
    return [repr(one) for one in graph.get_state_history(config_of(thread_id))]


def answer(graph: Any, thread_id: str) -> Any:
    """Answer the interrupt of a thread, on the branch that has it."""
    (waiting,) = [one for one in graph.get_state_history(config_of(thread_id)) if one.interrupts]
    return graph.invoke(Command(resume="Yes."), waiting.config)


def age_archives(dsn: str, schema: str, by: timedelta) -> None:
    """Let archives seem to have been begun earlier."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = sql.SQL("UPDATE {} SET created_at = created_at - %s")
        connection.execute(query.format(sql.Identifier(schema, "archives")), [by])


def archive_and_die(dsn: str, schema: str, url: str, thread_id: str, began: Any, ends: Any) -> None:
    """Archive a thread in a process of its own, wait, store the pack, and be killed."""
    put = objects._Folder.put

    def put_late(self: Any, name: str, data: bytes) -> None:
        if not name.endswith(PACK):
            put(self, name, data)
            return
        began.set()
        ends.wait(GUARD_SECONDS)
        put(self, name, data)
        os.kill(os.getpid(), signal.SIGKILL)

    objects._Folder.put = put_late  # type: ignore[method-assign]
    with PGState.open(dsn, schema=schema, pool=False, recover_journal=False) as state:
        state.archive.put([thread_id], to=url, idle_for=timedelta(0))
