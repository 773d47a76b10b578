"""Everything LangGraph does with a past checkpoint goes on PostgreSQL as it does in memory, in both APIs."""

from __future__ import annotations

import itertools
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from support import spread

from tests.saver.test_graphs import (
    THREAD,
    Compare,
    Make,
    Run,
    approvals,
    chat,
    compare,
    counting,
    functional,
    same_ids,
    with_subgraph,
)

__all__ = ["compare", "same_ids"]


def at(state: Any) -> Any:
    """What names a state's checkpoint, and no more."""
    return {"configurable": dict(state.config["configurable"])}


def waiting(states: list[Any], *nodes: str) -> Any:
    """The newest state in which some nodes are next."""
    return next(state for state in states if state.next == nodes)


def asked(answer: Any) -> Any:
    """An answer with its questions as they read, in an order of their own: tasks ask at once."""
    return {**answer, "__interrupt__": sorted(repr(item.value) for item in answer.get("__interrupt__", ()))}


@pytest.mark.parametrize("position", spread(range(6)))
async def test_a_past_checkpoint_is_given_new_input(compare: Compare, position: int) -> None:
    async def script(run: Run) -> Any:
        for turn in range(2):
            await run.invoke({"answers": [f"turn {turn}"]})
        past = (await run.history())[position]
        return [await run.invoke({"answers": ["another turn"]}, at(past)), await run.invoke({"answers": ["on"]})]

    await compare(counting, script)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_every_checkpoint_is_replayed(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"messages": [HumanMessage("One?", id="q1")]})
        await run.invoke({"messages": [HumanMessage("Two?", id="q2")]})
        return [await run.invoke(None, at(past)) for past in await run.history() if past.next]

    await compare(chat, script, durability=durability)


@pytest.mark.slow
@pytest.mark.parametrize("as_node", [None, "a", "b", "c"])
async def test_past_checkpoints_are_updated_as_one_node_or_another(compare: Compare, as_node: str | None) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["one"]})
        await run.invoke({"answers": ["two"]})
        results = []
        for past in (await run.history())[1:7:2]:
            forked = await run.update(at(past), {"answers": ["edited"]}, as_node)
            results += [(await run.state(forked)).values, await run.invoke(None, forked)]
        return results

    await compare(counting, script)


@pytest.mark.slow
async def test_a_fork_of_a_fork_of_a_fork(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["one"]})
        results = []
        for depth in range(4):
            past = waiting(await run.history(), "b")
            forked = await run.update(at(past), {"answers": [f"fork {depth}"]}, "a")
            results.append(await run.invoke(None, forked))
        return results

    await compare(counting, script)


@pytest.mark.slow
async def test_questions_are_answered_differently(compare: Compare) -> None:
    """By replaying the checkpoint that asked, and by resuming at it."""

    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["start"]})
        question = await run.state()
        seen = []
        for word in ("yes", "no", "perhaps"):
            while pending := (await run.state()).interrupts:
                await run.invoke(Command(resume={item.id: f"{word} to {item.value['ask']}" for item in pending}))
            seen.append((await run.state()).values)
            seen.append(asked(await run.invoke(None, at(question))))
        return seen

    await compare(approvals, script)


def asking(saver: Any) -> Any:
    """One node that asks twice, between two that do not."""

    def ask(state: Any) -> dict[str, Any]:
        first = interrupt("first?")
        return {"answers": [f"{first}, {interrupt(f'{first} and?')}"]}

    class Answers(TypedDict):
        answers: Annotated[list[str], operator.add]

    graph = StateGraph(Answers)
    graph.add_node("before", lambda state: {"answers": ["before"]})
    graph.add_node("ask", ask)
    graph.add_node("after", lambda state: {"answers": [f"after {len(state['answers'])}"]})
    graph.add_edge(START, "before")
    graph.add_edge("before", "ask")
    graph.add_edge("ask", "after")
    return graph.compile(checkpointer=saver)


@pytest.mark.slow
async def test_a_question_is_answered_differently_where_it_was_asked(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": []})
        past = await run.state()
        results = [await run.invoke(Command(resume="yes")), await run.invoke(Command(resume="really"))]
        for first, second in (("no", "never"), ("maybe", "later")):
            results.append(await run.invoke(Command(resume=first), at(past)))
            results.append(await run.invoke(Command(resume=second)))
        results.append(await run.invoke(None, at(past)))
        results.append(await run.invoke(Command(resume="last"), at(await run.state())))
        edited = await run.update(at(past), {"answers": ["edited"]}, "before")
        results.append(await run.invoke(None, edited))
        results.append(await run.invoke(Command(resume="one")))
        results.append(await run.invoke(Command(resume="two", update={"answers": ["with an update"]})))
        return [asked(result) for result in results]

    await compare(asking, script)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointer", [None, True], ids=["plain", "own history"])
async def test_a_subgraphs_question_is_answered_differently(compare: Compare, checkpointer: bool | None) -> None:
    async def script(run: Run) -> Any:
        results = []
        for turn in range(2):
            await run.invoke({"answers": [f"turn {turn}"]})
            results.append(await run.invoke(Command(resume=f"answer {turn}")))
        states = await run.history()
        for number, past in enumerate([item for item in states if item.next == ("inner",)]):
            results.append(asked(await run.invoke(None, at(past))))
            results.append(await run.invoke(Command(resume=f"another answer {number}")))
        return results

    await compare(with_subgraph(checkpointer), script)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointer", [None, True], ids=["plain", "own history"])
async def test_a_fork_inside_a_subgraph(compare: Compare, checkpointer: bool | None) -> None:
    """The state of a subgraph at one of its own past checkpoints is changed, and the whole runs on from there."""

    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["one"]})
        waits = await run.state()
        nested = waits.tasks[0].state
        # Which of two histories is meant, the namespace alone tells.
        place = {key: value for key, value in nested.config["configurable"].items() if key != "checkpoint_id"}
        inside = await run.history({"configurable": place})
        results: list[Any] = [item.values for item in inside]
        forked = await run.update(nested.config, {"answers": ["slipped in"]}, "first")
        results.append((await run.state()).tasks[0].state.values)
        results.append(asked(await run.invoke(None, forked)))
        results.append(await run.invoke(Command(resume="after the fork")))
        past = inside[1]
        results.append(asked(await run.invoke(None, past.config)))
        results.append(asked(await run.invoke(Command(resume="after the replay"))))
        return results

    await compare(with_subgraph(checkpointer), script)


def nested(saver: Any) -> Any:
    """A subgraph within a subgraph, each of which adds what it has seen; the inner one asks."""

    class Answers(TypedDict):
        answers: Annotated[list[str], operator.add]

    def level(name: str, inside: Any) -> Any:
        graph = StateGraph(Answers)
        graph.add_node("enter", lambda state: {"answers": [f"{name} in {len(state['answers'])}"]})
        graph.add_node("inside", inside)
        graph.add_edge(START, "enter")
        graph.add_edge("enter", "inside")
        return graph

    deepest = level("deepest", lambda state: {"answers": [interrupt(f"{len(state['answers'])}?")]}).compile()
    return level("top", level("middle", deepest).compile()).compile(checkpointer=saver)


@pytest.mark.slow
async def test_forks_over_nested_subgraphs(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"answers": ["one"]})
        results = [await run.invoke(Command(resume="yes"))]
        past = waiting(await run.history(), "inside")
        forked = await run.update(at(past), {"answers": ["edited"]}, "enter")
        results.append(asked(await run.invoke(None, forked)))
        results.append(await run.invoke(Command(resume="no")))
        results.append(asked(await run.invoke(None, at(past))))
        deepest = (await run.state()).tasks[0].state.tasks[0].state
        await run.update(deepest.config, {"answers": ["deep"]}, "enter")
        results.append(await run.invoke(Command(resume="at last")))
        return results

    await compare(nested, script)


def fan_out(saver: Any) -> Any:
    """As many workers as there are topics, by Send; they may ask."""

    class Work(TypedDict):
        topics: list[str]
        done: Annotated[list[str], operator.add]

    def work(state: Any) -> dict[str, Any]:
        return {"done": [f"{state}: {interrupt(f'{state}?')}" if str(state).startswith("ask") else f"{state} done"]}

    graph = StateGraph(Work)
    graph.add_node("plan", lambda state: {})
    graph.add_node("work", work)
    graph.add_node("sum", lambda state: {"done": [f"{len(state['done'])} in all"]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: [Send("work", topic) for topic in state["topics"]], ["work"])
    graph.add_edge("work", "sum")
    return graph.compile(checkpointer=saver)


@pytest.mark.slow
async def test_forks_before_and_amid_sends(compare: Compare) -> None:
    async def script(run: Run) -> Any:
        await run.invoke({"topics": ["a", "ask b", "c"]})
        amid = await run.state()
        results = [await run.invoke(Command(resume="yes"))]
        results.append(asked(await run.invoke(None, at(amid))))
        results.append(await run.invoke(Command(resume="no")))
        before = waiting(await run.history(), "plan")
        forked = await run.update(at(before), {"topics": ["d", "e"]}, "plan")
        results.append(await run.invoke(None, forked))
        return results

    await compare(fan_out, script)


class Deltas(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda state, writes: [*(state or []), *itertools.chain(*writes)])]
    often: Annotated[
        list[str],
        DeltaChannel(lambda state, writes: [*(state or []), *itertools.chain(*writes)], snapshot_frequency=2),
    ]


def deltas(saver: Any) -> Any:
    """Two nodes that write to DeltaChannels, and one that asks between them."""
    graph = StateGraph(Deltas)
    graph.add_node("a", lambda state: {"log": [f"a{len(state['log'])}"], "often": ["a"]})
    graph.add_node("ask", lambda state: {"log": [interrupt(f"{len(state['log'])}?")]})
    graph.add_node("b", lambda state: {"log": [f"b{len(state['log'])}"], "often": ["b"]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "ask")
    graph.add_edge("ask", "b")
    return graph.compile(checkpointer=saver)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_delta_channels_answered_differently_and_given_new_input(compare: Compare, durability: str) -> None:
    async def script(run: Run) -> Any:
        results = []
        for turn in range(3):
            await run.invoke({"log": [f"turn {turn}"], "often": []})
            results.append(await run.invoke(Command(resume=f"yes {turn}")))
        states = await run.history()
        for past in [item for item in states if item.next == ("ask",)][:2]:
            results.append(asked(await run.invoke(None, at(past))))
            results.append(await run.invoke(Command(resume="no")))
        for past in [item for item in states if not item.next][:2]:
            results.append(asked(await run.invoke({"log": ["else"], "often": ["else"]}, at(past))))
            results.append(await run.invoke(Command(resume="all right")))
        return results

    await compare(deltas, script, durability=durability)


async def test_the_functional_api_replayed_and_answered_differently(compare: Compare) -> None:
    make: Make = functional

    async def script(run: Run) -> Any:
        await run.invoke(1)
        past = await run.state()
        results = [await run.invoke(Command(resume="yes"))]
        results.append(asked({"value": await run.invoke(None, at(past))}))
        results.append(await run.invoke(Command(resume="no"), THREAD))
        return [repr(result) for result in results]

    await compare(make, script)
