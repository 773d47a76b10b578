"""Branches, lineages, labels and forks of threads, in both APIs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from support import config_of, put_arguments, put_chain
from support.ledger import ask, calls, open_bench, thread, tool_of
from support.record import ask as answer_of

from langgraph_pgstate import PGState, ThreadKeys
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import AsyncThreads, Threads
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger
from tests.test_state import APIS, open_state

Rows = Callable[..., list[Any]]


# What a fork takes along, and how a thread's rows are compared: all but what is the thread's own.
COPIED = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, state",
    "segments": "segment_id, data",
    "writes": "checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data",
    "messages": "message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, content",
    "labels": "checkpoint_ns, checkpoint_id, label",
}


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
async def state(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Any]:
    async with open_state(request.param, dsn, schema, project=("answers",)) as state:
        yield state


@pytest.fixture
def rows(connection: psycopg.Connection, schema: str) -> Rows:
    """What a query answers, with the schema on `search_path`."""

    def rows(query: str, *arguments: Any) -> list[Any]:
        with connection.transaction():
            connection.execute(f"SET LOCAL search_path = {schema}")
            return connection.execute(query.encode(), arguments).fetchall()

    return rows


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    answers: Annotated[list[str], operator.add]


def echo(saver: Any, *, lasting: bool = False) -> Any:
    """Two nodes, of which the second is a subgraph that asks when it is told to."""

    def asked(state: Talk) -> dict[str, Any]:
        said = state["messages"][-1].content
        return {"answers": [interrupt(f"{said}?") if str(said).startswith("ask") else f"heard {said}"]}

    inner = StateGraph(Talk)
    inner.add_node("first", lambda state: {"answers": [f"first {len(state['answers'])}"]})
    inner.add_node("asked", asked)
    inner.add_edge(START, "first")
    inner.add_edge("first", "asked")
    graph = StateGraph(Talk)
    graph.add_node("say", lambda state: {"messages": [HumanMessage(f"echo {len(state['messages'])}")]})
    graph.add_node("hear", lambda state: {"messages": [HumanMessage(str(state["messages"][-2].content))]})
    graph.add_node("inner", inner.compile(checkpointer=True if lasting else None))
    graph.add_edge(START, "say")
    graph.add_edge("say", "hear")
    graph.add_edge("hear", "inner")
    return graph.compile(checkpointer=saver)


async def history(graph: Any, thread_id: str) -> list[Any]:
    return [item async for item in graph.aget_state_history(config_of(thread_id))]


async def call(state: Any, graph: Any, *arguments: Any) -> Any:
    """Run a graph by the API of a state."""
    return graph.invoke(*arguments) if isinstance(state, PGState) else await graph.ainvoke(*arguments)


def told(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=text)], **more}


async def branching(saver: Any) -> list[dict[str, Any]]:
    """0─1─2─3, with 4 made from 1, 5 from 4, and 6 from 2."""
    configs = await put_chain(saver, "t", 4)
    for step, parent in ((4, 1), (5, 4), (6, 2)):
        configs.append(await saver.aput(*put_arguments(configs[parent], step)))
    return configs


async def test_branches_are_leaves_with_their_paths(state: Any, dsn: str) -> None:
    ids = [id_of(config) for config in await branching(state.saver)]
    found = await answer_of(state.threads.branches("t"))
    assert [item.checkpoint_id for item in found] == [ids[6], ids[5], ids[3]]
    assert [item.path for item in found] == [
        (ids[0], ids[1], ids[2], ids[6]),
        (ids[0], ids[1], ids[4], ids[5]),
        (ids[0], ids[1], ids[2], ids[3]),
    ]
    assert [item.forked_from for item in found] == [ids[2], ids[1], ids[2]]
    assert [item.is_head for item in found] == [True, False, False]
    assert [(item.step, item.source) for item in found] == [(6, "loop"), (5, "loop"), (3, "loop")]
    assert found[1].config == {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": ids[5]},
    }
    assert await answer_of(state.threads.branches("t", limit=1)) == found[:1]
    assert await answer_of(state.threads.branches("nobody")) == ()
    with pytest.raises(ConfigurationError):
        await answer_of(state.threads.branches("t", limit=0))


async def test_one_branch_has_left_no_sibling(state: Any) -> None:
    configs = await put_chain(state.saver, "t", 3)
    (only,) = await answer_of(state.threads.branches("t"))
    assert only.path == tuple(map(id_of, configs))
    assert only.forked_from is None


async def test_branches_know_where_they_parted_after_a_prune(state: Any) -> None:
    ids = [id_of(config) for config in await branching(state.saver)]
    await state.saver.aprune(["t"], keep_last=3)
    found = {item.checkpoint_id: item for item in await answer_of(state.threads.branches("t"))}
    assert found.keys() == {ids[4 + 1], ids[6]}
    assert found[ids[5]].path == (ids[4], ids[5])
    assert found[ids[5]].forked_from is None


async def test_siblings_whose_parent_is_gone_still_name_it(state: Any, rows: Rows, connection: Any) -> None:
    ids = [id_of(config) for config in await branching(state.saver)]
    connection.execute(
        f"DELETE FROM {state.schema}.checkpoints WHERE checkpoint_id = ANY(%s)", [[ids[0], ids[1], ids[2]]]
    )
    found = {item.checkpoint_id: item.forked_from for item in await answer_of(state.threads.branches("t"))}
    assert found == {ids[6]: ids[2], ids[5]: None, ids[3]: ids[2]}


async def test_a_lineage_leads_from_the_root(state: Any) -> None:
    configs = await branching(state.saver)
    ids = [id_of(config) for config in configs]
    await answer_of(state.threads.label(configs[1], "before"))
    steps = await answer_of(state.threads.lineage(configs[5]))
    assert [item.checkpoint_id for item in steps] == [ids[0], ids[1], ids[4], ids[5]]
    assert [item.parent_checkpoint_id for item in steps] == [None, ids[0], ids[1], ids[4]]
    assert [item.children for item in steps] == [1, 2, 1, 0]
    assert [item.label for item in steps] == [None, "before", None, None]
    assert steps[-1].config == configs[5]
    newest = await answer_of(state.threads.lineage(config_of("t")))
    assert [item.checkpoint_id for item in newest] == [ids[0], ids[1], ids[2], ids[6]]
    assert await answer_of(state.threads.lineage(config_of("nobody"))) == ()
    with pytest.raises(NotFoundError):
        await answer_of(state.threads.lineage({"configurable": {"thread_id": "t", "checkpoint_id": "none"}}))


async def test_a_checkpoint_that_is_its_own_parent_hangs_nothing(state: Any, connection: Any) -> None:
    configs = await put_chain(state.saver, "t", 2)
    connection.execute(f"UPDATE {state.schema}.checkpoints SET parent_checkpoint_id = checkpoint_id")
    assert [item.checkpoint_id for item in await answer_of(state.threads.lineage(configs[1]))] == [id_of(configs[1])]
    assert await answer_of(state.threads.branches("t")) == ()
    assert id_of(await answer_of(state.threads.fork("t"))) == id_of(configs[1])


# Labels


async def test_labels(state: Any) -> None:
    configs = await put_chain(state.saver, "t", 3)
    assert await answer_of(state.threads.label(configs[1], " before refund ")) == configs[1]
    assert await answer_of(state.threads.label(config_of("t"), "now")) == configs[2]
    found = await answer_of(state.threads.labels("t"))
    assert [(item.label, item.config) for item in found] == [("now", configs[2]), ("before refund", configs[1])]
    family = "a family \U0001f468\u200d\U0001f469\u200d\U0001f467"
    await answer_of(state.threads.label(configs[1], family))
    assert (await answer_of(state.threads.labels("t")))[0].label == "now"
    assert (await answer_of(state.threads.labels("t")))[1].label == family
    await answer_of(state.threads.label(configs[1], "another"))
    assert [item.label for item in await answer_of(state.threads.labels("t"))] == ["now", "another"]
    assert (await answer_of(state.threads.branches("t")))[0].label == "now"
    assert await answer_of(state.threads.unlabel(configs[2])) is True
    assert await answer_of(state.threads.unlabel(configs[2])) is False
    assert [item.label for item in await answer_of(state.threads.labels("t"))] == ["another"]


async def test_labels_that_are_refused(state: Any) -> None:
    configs = await put_chain(state.saver, "t", 1)
    for text in ("", "  ", "two\nlines", "x" * 201, "nul\0", "\ud800"):
        with pytest.raises(ConfigurationError):
            await answer_of(state.threads.label(configs[0], text))
    for config in (config_of("nobody"), {"configurable": {"thread_id": "t", "checkpoint_id": "none"}}):
        with pytest.raises(NotFoundError):
            await answer_of(state.threads.label(config, "text"))
    with pytest.raises(ConfigurationError):
        await answer_of(state.threads.unlabel(config_of("t")))
    assert await answer_of(state.threads.labels("t")) == ()


async def test_a_checkpoint_is_found_by_its_label_or_a_part_of_its_id(state: Any) -> None:
    configs = await put_chain(state.saver, "t", 3)
    await answer_of(state.threads.label(configs[0], "start"))
    assert await answer_of(state.threads.find("t", "start")) == configs[0]
    assert await answer_of(state.threads.find("t", id_of(configs[1]))) == configs[1]
    assert await answer_of(state.threads.find("t", id_of(configs[1])[9:18])) == configs[1]
    await answer_of(state.threads.label(configs[2], "start"))
    with pytest.raises(ConfigurationError, match="2 checkpoints"):
        await answer_of(state.threads.find("t", "start"))
    for name in ("", "nothing", id_of(configs[1])[:3]):
        with pytest.raises(NotFoundError):
            await answer_of(state.threads.find("t", name))


async def test_a_prune_keeps_what_has_a_label(state: Any) -> None:
    graph = echo(state.saver, lasting=True)
    for turn in range(4):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    states = await history(graph, "t")
    labelled = states[9]
    await answer_of(state.threads.label(labelled.config, "keep"))
    nested = [item async for item in state.saver.alist(config_of("t", "inner"))]
    older = next(item for item in nested if item.config["configurable"]["checkpoint_id"] < id_of(labelled.config))
    dry = await state.saver.aprune(["t"], dry_run=True)
    result = await state.saver.aprune(["t"])
    assert (dry.checkpoints, dry.writes, dry.segments) == (result.checkpoints, result.writes, result.segments)
    kept = [id_of(item.config) for item in await history(graph, "t")]
    assert kept == [id_of(states[0].config), id_of(labelled.config)]
    again = await state.saver.aget_tuple(older.config)
    assert again is not None
    assert again.checkpoint["channel_values"] == older.checkpoint["channel_values"]
    assert (await graph.aget_state(labelled.config)).values == labelled.values
    await answer_of(state.threads.unlabel(labelled.config))
    await state.saver.aprune(["t"])
    assert [id_of(item.config) for item in await history(graph, "t")] == kept[:1]


async def test_what_is_left_by_a_prune_is_forked_as_it_was_before(state: Any) -> None:
    """That nothing made from it is left does not make its superstep's writes pending again."""
    graph = echo(state.saver, lasting=True)
    for turn in range(3):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    states = await history(graph, "t")
    past = [item for item in states if item.next][2:4]
    for item in past:
        await answer_of(state.threads.label(item.config, f"at {item.next[0]}"))
    await state.saver.aprune(["t"])
    for item in past:
        forked = await answer_of(state.threads.fork("t", id_of(item.config)))
        there = await graph.aget_state(config_of(forked["configurable"]["thread_id"]))
        assert (there.values, there.next) == (item.values, item.next)
        went_on = await call(state, graph, None, config_of(forked["configurable"]["thread_id"]))
        assert went_on["answers"][-1].startswith("heard")


async def test_labels_go_with_their_thread_and_come_with_its_copy(state: Any, rows: Rows) -> None:
    configs = await put_chain(state.saver, "t", 2)
    await answer_of(state.threads.label(configs[0], "start"))
    await state.saver.acopy_thread("t", "u")
    assert [item.label for item in await answer_of(state.threads.labels("u"))] == ["start"]
    await state.saver.adelete_thread("t")
    assert rows("SELECT thread_id FROM labels") == [("u",)]


async def test_labels_go_with_the_runs_that_are_rolled_back(state: Any, rows: Rows) -> None:
    config, checkpoint, metadata, versions = put_arguments(config_of("t"), 0)
    config["metadata"] = {"run_id": "r"}
    stored = await state.saver.aput(config, checkpoint, metadata, versions)
    await answer_of(state.threads.label(stored, "start"))
    await state.saver.adelete_for_runs(["r"])
    assert rows("SELECT thread_id FROM labels") == []


# Forks


def same_rows(rows: Rows, target: str, source: str = "t") -> None:
    """Every row of the target is, but for its thread, one of the source."""
    for table, columns in COPIED.items():
        missing = rows(
            f"SELECT {columns} FROM {table} WHERE thread_id = %s EXCEPT SELECT {columns} FROM {table} "
            "WHERE thread_id = %s",
            target,
            source,
        )
        assert missing == [], table


async def test_a_fork_is_the_checkpoint_with_its_ancestors_alone(state: Any, rows: Rows) -> None:
    configs = await branching(state.saver)
    ids = [id_of(config) for config in configs]
    await answer_of(state.threads.label(configs[1], "before"))
    await answer_of(state.threads.label(configs[3], "elsewhere"))
    forked = await answer_of(state.threads.fork("t", ids[4]))
    target = forked["configurable"]["thread_id"]
    assert forked == {"configurable": {"thread_id": target, "checkpoint_ns": "", "checkpoint_id": ids[4]}}
    (branch,) = await answer_of(state.threads.branches(target))
    assert branch.path == (ids[0], ids[1], ids[4])
    same_rows(rows, target)
    assert [item.label for item in await answer_of(state.threads.labels(target))] == ["before"]
    for number in (0, 1, 4):
        ours = await state.saver.aget_tuple({"configurable": {"thread_id": target, "checkpoint_id": ids[number]}})
        theirs = await state.saver.aget_tuple(configs[number])
        assert ours.checkpoint == theirs.checkpoint
    # What is copied is what the three checkpoints refer to, each once.
    wanted = rows(
        "SELECT count(DISTINCT s) FROM checkpoints, unnest(segment_ids) AS s WHERE thread_id = 't' "
        "AND checkpoint_id = ANY(%s)",
        [ids[0], ids[1], ids[4]],
    )
    assert rows("SELECT count(*) FROM segments WHERE thread_id = %s", target) == wanted
    known = await answer_of(state.threads.get(target))
    assert (known.forked_from_thread_id, known.forked_from_checkpoint_id) == ("t", ids[4])
    assert known.head_checkpoint_id == ids[4]
    found = rows("SELECT thread_id, checkpoint_id, payload FROM events WHERE kind = 'fork' ORDER BY thread_id = 't'")
    assert found == [
        (target, ids[4], {"forked_from": {"thread_id": "t", "checkpoint_id": ids[4]}}),
        ("t", ids[4], {"forked_to": {"thread_id": target}}),
    ]
    # It goes on by itself, and outlives its source.
    await state.saver.aput(*put_arguments(forked, 9))
    await state.saver.adelete_thread("t")
    assert len(await answer_of(state.threads.lineage(config_of(target)))) == 4
    assert (await state.saver.aget_tuple(forked)).checkpoint["channel_values"]["messages"]


async def test_forks_that_are_refused(state: Any, rows: Rows) -> None:
    configs = await put_chain(state.saver, "t", 2)
    await put_chain(state.saver, "other", 1)
    before = {table: rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("threads", "checkpoints", "events")}
    with pytest.raises(NotFoundError):
        await answer_of(state.threads.fork("nobody"))
    with pytest.raises(NotFoundError):
        await answer_of(state.threads.fork("t", "none"))
    with pytest.raises(NotFoundError):
        await answer_of(state.threads.fork("t", "none", "new"))
    with pytest.raises(ConfigurationError, match="history of its own"):
        await answer_of(state.threads.fork("t", id_of(configs[0]), "other"))
    with pytest.raises(ConfigurationError, match="onto itself"):
        await answer_of(state.threads.fork("t", to="t"))
    with pytest.raises(ConfigurationError):
        await answer_of(state.threads.fork("t", to="x" * 5000))
    assert before == {table: rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in before}


async def test_copies_and_forks_may_have_another_owner(state: Any) -> None:
    (config,) = await put_chain(state.saver, "t", 1)
    await answer_of(state.threads.update_metadata("t", {"owner": "eve", "guests": ["bob"]}))
    owner: Any = {"user_id": "bob", "metadata": {"owner": "bob"}}
    for name, given in (("same", None), ("bobs", owner), ("nobodys", {})):
        await answer_of(state.threads.fork("t", id_of(config), f"fork {name}", owner=given))
        await state.saver.acopy_thread("t", f"copy {name}", owner=given)
        for target in (f"fork {name}", f"copy {name}"):
            found = await answer_of(state.threads.get(target))
            wanted = {"owner": "eve", "guests": ["bob"]} if given is None else given.get("metadata", {})
            assert (found.user_id, found.metadata) == ((given or {}).get("user_id"), wanted)
    for bad in ({"user": "bob"}, {"user_id": "bob\0"}, {"metadata": {"owner": "b\0ob"}}):
        with pytest.raises(ConfigurationError):
            await answer_of(state.threads.fork("t", id_of(config), "refused", owner=bad))
    assert await answer_of(state.threads.get("refused")) is None


async def test_a_fork_can_be_repeated(state: Any, rows: Rows) -> None:
    configs = await put_chain(state.saver, "t", 2)
    first = await answer_of(state.threads.fork("t", id_of(configs[0]), "u"))
    await state.saver.aput(*put_arguments(first, 7))
    assert await answer_of(state.threads.fork("t", id_of(configs[0]), "u")) == first
    assert rows("SELECT count(*) FROM events WHERE kind = 'fork'") == [(2,)]
    assert rows("SELECT count(*) FROM checkpoints WHERE thread_id = 'u'") == [(2,)]
    with pytest.raises(ConfigurationError, match="history of its own"):
        await answer_of(state.threads.fork("t", id_of(configs[1]), "u"))


async def test_copies_and_forks_have_the_status_of_their_newest_checkpoint(state: Any) -> None:
    def node(current: Any) -> Any:
        if current["answers"][-1] == "ask":
            return {"answers": [interrupt("?")]}
        raise ValueError("no")

    class Answers(TypedDict):
        answers: Annotated[list[str], operator.add]

    builder = StateGraph(Answers)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=state.saver)
    await call(state, graph, {"answers": ["ask"]}, config_of("interrupted"))
    with pytest.raises(ValueError, match="no"):
        await call(state, graph, {"answers": ["fail"]}, config_of("error"))
    for status in ("interrupted", "error"):
        await state.saver.acopy_thread(status, f"{status} copy")
        await answer_of(state.threads.fork(status, to=f"{status} fork"))
        for kind in ("copy", "fork"):
            assert (await answer_of(state.threads.get(f"{status} {kind}"))).status == status
    (first,) = [one async for one in graph.aget_state_history(config_of("interrupted"), limit=2)][1:]
    await answer_of(state.threads.fork("interrupted", id_of(first.config), to="before"))
    assert (await answer_of(state.threads.get("before"))).status == "idle"


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "own history"])
async def test_a_fork_of_the_head_waits_where_its_source_waits(state: Any, rows: Rows, lasting: bool) -> None:
    """Pending writes and the subgraph that asks are there; both answer for themselves."""
    graph = echo(state.saver, lasting=lasting)
    await call(state, graph, told("one", answers=[]), config_of("t"))
    await call(state, graph, told("ask two"), config_of("t"))
    before = await graph.aget_state(config_of("t"), subgraphs=True)
    await answer_of(state.threads.fork("t", to="u"))
    same_rows(rows, "u")
    there = await graph.aget_state(config_of("u"), subgraphs=True)
    assert (there.values, there.next, there.interrupts) == (before.values, before.next, before.interrupts)
    assert there.tasks[0].state.values == before.tasks[0].state.values
    assert (await answer_of(state.threads.get("u"))).status == "interrupted"
    yes = await call(state, graph, Command(resume="yes"), config_of("t"))
    no = await call(state, graph, Command(resume="no"), config_of("u"))
    assert yes["answers"][-1] == "yes"
    assert no["answers"] == [*yes["answers"][:-1], "no"]


@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "own history"])
async def test_a_fork_of_a_question_that_was_answered_asks_again(state: Any, lasting: bool) -> None:
    """What was answered, and what came of it, belongs to the branch that went on.

    It is run from the config that `fork` answers, so that LangGraph replays it: a subgraph with a history of its own
    would take its last call for the one that goes on, in memory, too.
    """
    graph = echo(state.saver, lasting=lasting)
    await call(state, graph, told("one", answers=[]), config_of("t"))
    await call(state, graph, told("ask two"), config_of("t"))
    asked = await graph.aget_state(config_of("t"))
    yes = await call(state, graph, Command(resume="yes"), config_of("t"))
    for answers in ([None, "no"],) if lasting else (["no"], [None, "no"]):
        forked = await answer_of(state.threads.fork("t", id_of(asked.config)))
        config = config_of(forked["configurable"]["thread_id"])
        there = await graph.aget_state(config)
        assert (there.values, there.next) == (asked.values, asked.next)
        for answer in answers:
            given = (None, forked) if answer is None else (Command(resume=answer), config)
            no = await call(state, graph, *given)
        assert no["answers"] == [*yes["answers"][:-1], "no"]
        assert (await graph.aget_state(config)).next == ()
    assert (await graph.aget_state(config_of("t"))).values["answers"][-1] == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["plain", "own history"])
async def test_every_checkpoint_can_be_forked(state: Any, rows: Rows, lasting: bool) -> None:
    """Its state is what it was, and what comes after is what a thread does that was never longer."""
    graph = echo(state.saver, lasting=lasting)
    for turn in range(3):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    for past in await history(graph, "t"):
        forked = await answer_of(state.threads.fork("t", id_of(past.config)))
        thread_id = forked["configurable"]["thread_id"]
        same_rows(rows, thread_id)
        there = await graph.aget_state(config_of(thread_id))
        assert (there.values, there.next, there.metadata["step"]) == (past.values, past.next, past.metadata["step"])
        if past.next:
            await call(state, graph, None, config_of(thread_id))
        # The very same checkpoint, run on in a thread that was cut off there.
        assert [item.values for item in await history(graph, thread_id)][-1] == (await history(graph, "t"))[-1].values
        said = await call(state, graph, told("more"), config_of(thread_id))
        assert said["answers"][-1] == "heard more"
        conversation = await answer_of(state.messages.conversation(thread_id))
        assert [item.message_id for item in conversation] == [item.id for item in said["messages"]]


async def test_a_subgraph_of_its_own_history_stands_where_the_fork_starts(state: Any) -> None:
    graph = echo(state.saver, lasting=True)
    for turn in range(3):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    states = await history(graph, "t")
    end_of_first = [item for item in states if not item.next][-1]
    before_second = [item for item in states if item.next == ("inner",)][-2]
    for past in (end_of_first, before_second):
        forked = await answer_of(state.threads.fork("t", id_of(past.config)))
        thread_id = forked["configurable"]["thread_id"]
        nested = [item async for item in state.saver.alist(config_of(thread_id, "inner"))]
        assert nested
        assert {item.metadata["parents"][""] for item in nested} <= {
            item.checkpoint_id for item in (await answer_of(state.threads.lineage(forked)))[:-1]
        }
        newest = nested[0].checkpoint["channel_values"]["answers"]
        assert newest[-1] == "heard turn 0"


async def test_a_subgraph_that_went_on_from_another_branch_keeps_its_ancestors(state: Any, rows: Rows) -> None:
    """Its namespace is one for all branches: what it rests on comes along wherever it was made."""
    configs = await branching(state.saver)
    inner: Any = config_of("t", "inner")
    for step, root in enumerate((1, 3, 4, 6)):
        config, checkpoint, metadata, versions = put_arguments(inner, step)
        inner = await state.saver.aput(
            config, checkpoint, {**metadata, "parents": {"": id_of(configs[root])}}, versions
        )
        if root == 4:
            wanted = id_of(inner)
    forked = await answer_of(state.threads.fork("t", id_of(configs[5])))
    thread_id = forked["configurable"]["thread_id"]
    steps = await answer_of(state.threads.lineage(config_of(thread_id, "inner")))
    assert [item.step for item in steps] == [0, 1, 2]
    assert steps[-1].checkpoint_id == wanted
    same_rows(rows, thread_id)


async def test_a_fork_has_not_moved_on_yet(state: Any, rows: Rows, connection: psycopg.Connection) -> None:
    """As a guard notes it: of the ancestors it is known which advanced them, of the fork's head it is not."""
    ids = [id_of(config) for config in await branching(state.saver)]
    for id, following in ((0, 1), (1, 2), (4, 5)):
        connection.execute(
            f"UPDATE {state.schema}.checkpoints SET next_checkpoint_id = %s, state_version = 3 WHERE checkpoint_id=%s",
            [ids[following], ids[id]],
        )
    await answer_of(state.threads.fork("t", ids[4], "u"))
    await state.saver.acopy_thread("t", "v")
    ours = "SELECT checkpoint_id, next_checkpoint_id, state_version FROM checkpoints WHERE thread_id = %s ORDER BY 1"
    assert rows(ours, "u") == [(ids[0], ids[1], 3), (ids[1], None, 3), (ids[4], None, 3)]
    assert rows(ours, "v") == rows(ours, "t")


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda state, writes: [*(state or []), *itertools.chain(*writes)])]


@pytest.mark.slow
async def test_delta_channels_are_rebuilt_in_a_fork(state: Any) -> None:
    builder = StateGraph(Delta)
    builder.add_node("a", lambda state: {"log": [f"a{len(state['log'])}"]})
    builder.add_node("b", lambda state: {"log": [f"b{len(state['log'])}"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    graph = builder.compile(checkpointer=state.saver)
    for turn in range(4):
        await call(state, graph, {"log": [f"turn {turn}"]}, config_of("t"))
    for past in await history(graph, "t"):
        forked = await answer_of(state.threads.fork("t", id_of(past.config)))
        config = config_of(forked["configurable"]["thread_id"])
        assert (await graph.aget_state(config)).values == past.values
        went_on = await call(state, graph, {"log": ["on"]}, config)
        length = len(past.values.get("log", []))
        assert went_on["log"][: length + 1] == [*past.values.get("log", []), "on"]


async def test_what_was_said_before_a_prune_comes_along(state: Any) -> None:
    graph = echo(state.saver)
    for turn in range(3):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    await state.saver.aprune(["t"])
    said = (await graph.aget_state(config_of("t"))).values["messages"]
    await answer_of(state.threads.fork("t", to="u"))
    conversation = await answer_of(state.messages.conversation("u"))
    assert [item.message_id for item in conversation] == [item.id for item in said]


async def test_a_fork_can_be_found_by_its_state(state: Any) -> None:
    graph = echo(state.saver)
    for turn in range(2):
        await call(state, graph, told(f"turn {turn}", answers=[]), config_of("t"))
    states = await history(graph, "t")
    past = next(item for item in states if not item.next and item.config != states[0].config)
    await answer_of(state.threads.fork("t", id_of(past.config), "past"))
    await answer_of(state.threads.fork("t", to="head"))
    for thread_id, values in (("past", past.values), ("head", states[0].values)):
        assert (await answer_of(state.threads.get(thread_id))).state == {"answers": values["answers"]}
    found = await answer_of(state.threads.search(state={"answers": ["heard turn 0"]}))
    assert {item.thread_id for item in found.items} == {"t", "past", "head"}


async def test_a_fork_is_its_owners(state: Any, dsn: str) -> None:
    async with open_state(type(state), dsn, state.schema, thread_keys=ThreadKeys()) as other:
        config = config_of("t")
        config["configurable"]["user_id"] = "eve"
        await other.saver.aput(*put_arguments(config, 0))
        await answer_of(other.threads.update_metadata("t", {"topic": "x"}))
        await answer_of(other.threads.fork("t", to="u"))
        found = await answer_of(other.threads.get("u"))
        original = await answer_of(other.threads.get("t"))
        assert (found.user_id, found.metadata) == (original.user_id, {"topic": "x"})
        stored = await other.saver.aget_tuple(config_of("u"))
        assert stored.metadata.get("thread_id") in (None, "u")


# The ledger


@pytest.mark.parametrize("api", [ToolLedger, AsyncToolLedger], ids=lambda api: api.__name__)
async def test_results_of_tools_made_before_a_fork_are_reused_after_it(
    api: type, dsn: str, schema: str, rows: Rows
) -> None:
    """In a thread of its own, and on a branch within the thread; what other branches did is not the fork's."""
    charged: list[str] = []

    def charge(order: str) -> str:
        charged.append(order)
        return f"charged {order}"

    async with open_bench(api, dsn, schema) as bench:
        bench.ledger.policy("charge", key=lambda arguments: arguments["order"])
        graph = bench.agent(
            [tool_of(bench, "charge", charge)],
            calls(("call_1", "charge", {"order": "o1"})),
            calls(("call_2", "charge", {"order": "o2"})),
        )
        await bench.invoke(graph, ask(), thread())
        assert charged == ["o1", "o2"]
        states = [item async for item in graph.aget_state_history(thread())]
        second, first = (item for item in states if item.next == ("tools",))
        part = (AsyncThreads if bench.is_async else Threads)(bench.saver._database, queries(schema))

        # Forked where the second call is about to be made: neither is made again.
        late = await bench.do(part.fork, "t", id_of(second.config))
        await bench.invoke(graph, None, config_of(late["configurable"]["thread_id"]))
        assert charged == ["o1", "o2"]
        # On a branch within the thread, too.
        await bench.invoke(graph, None, second.config)
        assert charged == ["o1", "o2"]

        # Forked where the first call is: the second belongs to the source alone.
        early = await bench.do(part.fork, "t", id_of(first.config))
        thread_id = early["configurable"]["thread_id"]
        keys = rows("SELECT idempotency_key FROM tool_executions WHERE thread_id = %s", thread_id)
        assert keys == [("charge:o1",)]
        await bench.invoke(graph, None, config_of(thread_id))
        assert charged == ["o1", "o2", "o2"]

        # What a prune left nothing of but the ledger's row counts as before.
        await bench.saver.aprune(["t"])
        pruned = await bench.do(part.fork, "t")
        keys = rows(
            "SELECT idempotency_key FROM tool_executions WHERE thread_id = %s ORDER BY 1",
            pruned["configurable"]["thread_id"],
        )
        assert keys == [("charge:o1",), ("charge:o2",)]


async def test_what_a_person_does_is_recorded_with_the_name(state: Any) -> None:
    saver = state.saver
    is_async = type(state).__name__.startswith("Async")
    config = await answer_of((saver.aput if is_async else saver.put)(*put_arguments(config_of("t"), 0)))
    await answer_of(state.threads.label(config, "before", by="eve"))
    for _ in range(2):
        await answer_of(state.threads.unlabel(config, by="adam"))
        await answer_of(state.threads.fork("t", to="u", by="eve"))
    await answer_of(saver.adelete_thread("u", by="eve") if is_async else saver.delete_thread("u", by="eve"))
    found = (await answer_of(state.events.list("t", kind="action"))).items
    assert [event.payload for event in found] == [
        {"action": "label", "by": "eve", "label": "before"},
        {"action": "label", "by": "adam", "label": None},
        {"action": "fork", "by": "eve", "source": "t", "target": "u"},
    ]
    assert {event.checkpoint_id for event in found} == {id_of(config)}
    left = (await answer_of(state.events.list("u"))).items
    assert [event.payload for event in left] == [{"action": "delete", "by": "eve"}]
