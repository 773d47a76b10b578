"""What the README shows of the record and the ledger is run."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState
from langgraph_pgstate.errors import NotFoundError, StaleHeadError
from langgraph_pgstate.tools import Backoff

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(heading: str, language: str) -> list[str]:
    """The code of one language below a heading, up to the next one."""
    _, _, rest = README.partition(f"\n{heading}\n")
    assert rest, heading
    section = re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, heading
    return found


class Trip(MessagesState):
    booking: dict[str, str]


def book(trip: Trip) -> dict[str, Any]:
    # A model is called, so that there is something to be paid.
    answer = GenericFakeChatModel(messages=iter([AIMessage("The Astoria is a hotel with a river view.", id="answer")]))
    return {
        "messages": [answer.invoke(trip["messages"])],
        "booking": {"hotel": "Astoria", "check_in": "2027-03-05"},
    }


def fail(trip: Trip) -> dict[str, Any]:
    raise ValueError("no room")


@pytest.fixture
def names(dsn: str, schema: str) -> dict[str, Any]:
    """What the snippets take as given."""
    builder = StateGraph(Trip).add_node(book).add_edge(START, "book")
    return {"builder": builder, "dsn": dsn, "schema": schema, "timedelta": timedelta, "Backoff": Backoff, "tool": tool}


def run(code: str, names: dict[str, Any]) -> None:
    here = code.replace('"postgresql://localhost/app"', "dsn, schema=schema")
    exec(here.replace("PGState.open(dsn)", "PGState.open(dsn, schema=schema)"), names)


def test_the_record(names: dict[str, Any], connection: psycopg.Connection, capsys: pytest.CaptureFixture[str]) -> None:
    dsn, schema = names["dsn"], names["schema"]
    [example] = blocks("## The record", "python")
    run(example, names)
    assert capsys.readouterr().out == (
        "human A river view in Prague, please.\nai The Astoria is a hotel with a river view.\n"
    )
    with PGState.open(dsn, schema=schema) as state:
        broken = state.record(StateGraph(Trip).add_node(fail).add_edge(START, "fail").compile(checkpointer=state.saver))
        with pytest.raises(ValueError, match="no room"):
            broken.invoke({"messages": []}, {"configurable": {"thread_id": "trip-2", "user_id": "eve"}})
        state.flush()
        [newest] = state.runs.list(thread_id="trip-1", limit=1).items
        found = state.threads.get("trip-1")
        names |= {"state": state, "run_id": newest.run_id, "past": newest.last_checkpoint_id}
        [questions] = blocks("### Questions in Python", "python")
        for line in questions.splitlines():
            if line:
                exec(f"answer = {line}", names)
                pages = [getattr(names["answer"], "items", names["answer"])]
                # Nobody called a tool, ran away or handed over.
                if not re.search(r"tools\(|handoffs|runaway", line):
                    assert all(pages), line
        assert found is not None
    answers = []
    for block in blocks("### Questions in SQL", "sql"):
        for statement in re.sub(r"^--.*$", "", block, flags=re.MULTILINE).split(";"):
            if statement.strip():
                here = statement.replace("pgstate.", f"{schema}.").replace("1f0a…", str(names["past"]))
                cursor = connection.execute(here.encode())
                answers.append(len(cursor.fetchall()) if cursor.description else None)
    # Failed runs, tools (2), runaways, money (2), handoffs, provenance, conversation, bookings, the index, bookings.
    assert answers == [1, 0, 0, 0, 1, 1, 0, 1, 2, 1, None, 1]


def test_the_ledger(names: dict[str, Any]) -> None:
    charged: list[str] = []

    @tool
    def charge(order_id: str, euros: int) -> str:
        """Charge a card."""
        charged.append(order_id)
        return f"{euros} euros"

    @tool
    def search(words: str) -> str:
        """Search."""
        return words

    names |= {"charge": charge, "search": search, "PGState": PGState, "ToolNode": ToolNode, "tool": tool}
    names["psycopg"] = psycopg
    names |= {
        "refund": lambda execution, result: charged.remove(execution.arguments["order_id"]),
        "was_charged": lambda execution: False,
    }
    names["model"] = GenericFakeChatModel(messages=iter([]))
    names["create_agent"] = pytest.importorskip("langchain.agents").create_agent
    with PGState.open(names["dsn"], schema=names["schema"]) as state:
        state.setup()
        names["state"] = state
        [example] = blocks("## Tools: each effect once", "python")
        run(example, names)
        names["ledger"] = ledger = state.tools
        [policies] = blocks("### Policies", "python")
        declared = policies.replace(
            "-> str: ...", "-> str:\n    '''Charge.'''\n    charged.append(order_id)\n    return ''"
        )
        exec(declared, names | {"charged": charged}, made := {})
        wish = {"name": "charge", "args": {"order_id": "17", "euros": 90}, "id": "call-1"}
        builder = StateGraph(MessagesState).add_node("tools", ToolNode([made["charge"]], wrap_tool_call=ledger))
        graph = state.record(builder.add_edge(START, "tools").compile(checkpointer=state.saver))
        for number in ("1", "2"):
            asked = AIMessage("", tool_calls=[wish | {"id": f"call-{number}"}])
            graph.invoke({"messages": [asked]}, {"configurable": {"thread_id": "order"}})
        assert charged == ["17"]
        [execution] = ledger.list("order")
        with pytest.raises(NotFoundError):
            ledger.settle("order", "another", "done")
        report = ledger.compensate("order")
        assert [taken.idempotency_key for taken in report.compensated] == [execution.idempotency_key]
        assert charged == []
        limited = graph.with_config(callbacks=[ledger.budget(max_steps=30, max_tokens=200_000)])
        limited.invoke({"messages": [asked]}, {"configurable": {"thread_id": "order-2"}})
        # A rollback takes back state, not what a tool did to the world.
        assert execution.run_id
        state.saver.delete_for_runs([execution.run_id])
        assert "charge:17" in [kept.idempotency_key for kept in ledger.list("order")]


async def test_on_an_event_loop(names: dict[str, Any]) -> None:
    dsn, schema = names["dsn"], names["schema"]
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        await saver.setup()
    async with AsyncPGState.open(dsn, schema=schema) as state:
        assert (await state.threads.list(user_id="eve", limit=20)).items == ()
        ToolNode([], awrap_tool_call=state.tools)


def ask(trip: Trip) -> dict[str, Any]:
    return {"booking": {"approved": str(interrupt({"question": "Book it?"}))}}


def test_forks(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with PGState.open(names["dsn"], schema=names["schema"]) as state:
        state.setup()
        graph = state.record(names["builder"].compile(checkpointer=state.saver))
        graph.invoke({"messages": [("user", "A river view.")], "booking": {"hotel": ""}}, trip_config("trip-1"))
        config = list(state.saver.list(trip_config("trip-1")))[1].config
        names |= {"state": state, "graph": graph, "config": config}
        tell, fork, compare = blocks("## Forks: go back, try again, compare", "python")
        run(tell, names)
        assert len(capsys.readouterr().out.splitlines()) == 1 + 2
        assert names["config"] == config
        run(fork, names)
        run(compare, names)
        told = capsys.readouterr().out
        assert "changed ('hotel',)  Astoria\n" in told
        assert "added 1 content='The Astoria" in told
        assert state.threads.get(names["fork"]["configurable"]["thread_id"]).forked_from_thread_id == "trip-1"  # type: ignore[union-attr]


def test_guards(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    refuse, hold = blocks("## Guards: never lose an update", "python")
    names |= {"PGState": PGState, "StaleHeadError": StaleHeadError, "charge": lambda order, fencing_token: None}
    names |= {"question": {"messages": [("user", "A river view.")]}, "config": trip_config("7"), "order": "17"}
    with PGState.open(names["dsn"], schema=names["schema"]) as state:
        state.setup()
    opened = refuse.replace('PGState.open(dsn, guard="head")', 'PGState.open(dsn, schema=schema, guard="head")')
    run(opened, names)
    with PGState.open(names["dsn"], schema=names["schema"], guard="lease") as state:
        names |= {"state": state, "graph": names["builder"].compile(checkpointer=state.saver)}
        run(hold, names)
        # Two questions; the answer is the same one.
        assert len(state.messages.conversation("7")) == 3
    assert capsys.readouterr().out == ""


def test_people_and_versions(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    [people] = blocks("## People in the loop", "python")
    [evolve] = blocks("## State that evolves", "python")
    config = {"configurable": {"thread_id": "trip-to-prague", "tenant_id": "acme", "user_id": "eve"}}
    with PGState.open(names["dsn"], schema=names["schema"]) as state:
        state.setup()
        graph = StateGraph(Trip).add_node(ask).add_edge(START, "ask").compile(checkpointer=state.saver)
        graph.invoke({"messages": []}, config)
        names |= {"state": state, "graph": graph, "config": config}
        run(people, names)
        assert graph.get_state(config).values["booking"] == {"approved": "{'ok': True}"}
    out = capsys.readouterr().out
    assert out.startswith("trip-to-prague eve ")
    assert out.endswith("[{'question': 'Book it?'}]\n")
    names |= {"PGState": PGState}
    run(evolve.replace("PGState.open(dsn, state", "PGState.open(dsn, schema=schema, state"), names)
    with names["state"] as state:
        assert state.saver.get_tuple(config) is not None


def trip_config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}
