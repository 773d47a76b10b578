"""Commands to a thread, in the protocol's second version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from support.http import ANSWER, HELLO, http, sdk, serving

from langgraph_pgstate.server import AgentServer

ASKED: dict[str, Any] = {"assistant_id": "asking", "input": {"count": 0}}


async def answered(client: LangGraphClient, method: str, thread_id: str = "t", **params: Any) -> Any:
    response = await client.http.client.post(
        f"/threads/{thread_id}/commands", json={"id": 1, "method": method, "params": params}
    )
    assert response.status_code == 200, response.text
    assert response.json()["id"] == 1
    return response.json()


async def done(client: LangGraphClient, method: str, thread_id: str = "t", **params: Any) -> Any:
    found = await answered(client, method, thread_id, **params)
    assert found["type"] == "success", found
    return found["result"]


async def refused(client: LangGraphClient, method: str, thread_id: str = "t", **params: Any) -> str:
    found = await answered(client, method, thread_id, **params)
    assert (found["type"], bool(found["message"])) == ("error", True)
    return str(found["error"])


async def interrupt(client: LangGraphClient) -> str:
    """Start a run that asks; its question's id."""
    run = await done(client, "run.start", **ASKED)
    await client.runs.join("t", run["run_id"])
    state: Any = await client.threads.get_state("t")
    return str(state["interrupts"][0]["id"])


async def test_a_run_is_started_on_a_thread_that_is_made(client: LangGraphClient) -> None:
    found = await answered(client, "run.start", assistant_id="chat", input=HELLO, metadata={"a": 1})
    run = await client.runs.get("t", found["result"]["run_id"])
    values: Any = await client.runs.join("t", run["run_id"])
    assert values["messages"][-1]["content"] == ANSWER
    assert run["metadata"]["a"] == 1
    assert found["meta"]["thread_id"] == "t"
    assert 0 < found["meta"]["applied_through_seq"] < 2**53


@pytest.mark.slow
async def test_interrupts_are_answered_once(client: LangGraphClient) -> None:
    asked = await interrupt(client)
    assert await refused(client, "input.respond", interrupt_id="other", response=1) == "no_such_interrupt"
    both = await asyncio.gather(
        *(answered(client, "input.respond", interrupt_id=asked, namespace=[], response="yes") for _ in range(2))
    )
    assert sorted(one["type"] for one in both) == ["error", "success"]
    [run] = [one["result"]["run_id"] for one in both if one["type"] == "success"]
    assert await client.runs.join("t", run) == {"count": 1, "answer": "yes"}
    assert await refused(client, "input.respond", interrupt_id=asked, response="yes") == "no_such_interrupt"


async def test_several_answers_are_given_with_the_metadata_of_their_run(client: LangGraphClient) -> None:
    asked = await interrupt(client)
    responses = [{"interrupt_id": asked, "namespace": [], "response": "yes"}]
    run = await done(client, "input.respond", responses=responses, metadata={"a": 1})
    assert await client.runs.join("t", run["run_id"]) == {"count": 1, "answer": "yes"}
    assert (await client.runs.get("t", run["run_id"]))["metadata"]["a"] == 1


async def test_the_input_of_a_thread_that_asks_is_the_answer(client: LangGraphClient) -> None:
    await interrupt(client)
    run = await done(client, "run.start", assistant_id="asking", input="yes")
    assert await client.runs.join("t", run["run_id"]) == {"count": 1, "answer": "yes"}


async def test_a_message_is_injected_after_the_runs_of_a_thread(client: LangGraphClient) -> None:
    await done(client, "run.start", assistant_id="chat", input=HELLO)
    assert await done(client, "input.inject", namespace=[], message={"role": "user", "content": "More."}) == {}
    for run in await client.runs.list("t"):
        await client.runs.join("t", run["run_id"])
    state: Any = await client.threads.get_state("t")
    assert [message["content"] for message in state["values"]["messages"]] == ["Hello.", ANSWER, "More.", ANSWER]
    message = {"role": "user", "content": "x"}
    assert await refused(client, "input.inject", namespace=["sub"], message=message) == "not_supported"


@pytest.mark.slow
async def test_states_are_read_and_forked(client: LangGraphClient) -> None:
    await interrupt(client)
    tree = (await done(client, "agent.getTree"))["tree"]
    assert (tree["namespace"], tree["status"], tree["graph_name"]) == ([], "interrupted", "asking")
    [child] = tree["children"]
    assert (child["namespace"][0].partition(":")[0], child["status"]) == ("approval", "interrupted")
    state = await done(client, "state.get", namespace=[], keys=["count", "none"])
    assert state["values"] == {"count": 1}
    assert (await done(client, "state.get", namespace=child["namespace"]))["values"] == {"count": 1}
    listed = (await done(client, "state.listCheckpoints"))["checkpoints"]
    assert [one["step"] for one in listed] == [1, 0, -1]
    assert listed[0]["id"] == state["checkpoint"]["id"]
    rest = (await done(client, "state.listCheckpoints", before=listed[0]["id"], limit=1))["checkpoints"]
    assert rest == listed[1:2]
    forked = await done(client, "state.fork", checkpoint_id=listed[1]["id"])
    assert forked["thread_id"] == "t"
    assert (await client.runs.join("t", forked["run_id"]))["__interrupt__"]  # type: ignore[call-overload,index]


async def test_commands_are_refused_by_the_codes_of_the_protocol(server: AgentServer, client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    assert await refused(client, "run.start") == "invalid_argument"
    assert await refused(client, "run.start", assistant_id="none", input={}) == "no_such_run"
    assert await refused(client, "none.such") == "unknown_command"
    assert await refused(client, "subscription.subscribe") == "not_supported"
    assert await refused(client, "agent.getTree") == "no_such_run"
    assert await refused(client, "state.get", "none") == "no_such_run"
    assert await refused(client, "state.get") == "invalid_argument"
    async with http(server) as plain:
        assert (await plain.post("/threads/t/commands", json={"method": "state.get"})).status_code == 422


@pytest.mark.parametrize("strategy", ["multitaskStrategy", "multitask_strategy"])
async def test_a_busy_thread_refuses_a_run(server: AgentServer, strategy: str) -> None:
    async with sdk(server) as client:
        run = await done(client, "run.start", assistant_id="slow", input={"count": 40})
        again = {"assistant_id": "slow", "input": {"count": 1}, strategy: "reject"}
        assert await refused(client, "run.start", **again) == "unknown_error"
        await client.runs.cancel("t", run["run_id"])


async def test_a_run_that_is_about_to_ask_may_be_answered_at_once(client: LangGraphClient) -> None:
    """Pages answer some interrupts by themselves, before the run that asks has ended."""
    run = await done(client, "run.start", **ASKED)
    async with asyncio.timeout(60):
        while not (await client.threads.get_state("t"))["interrupts"]:  # type: ignore[typeddict-item]
            await asyncio.sleep(0)
    state: Any = await client.threads.get_state("t")
    answer = await done(client, "input.respond", interrupt_id=state["interrupts"][0]["id"], response="yes")
    assert await client.runs.join("t", answer["run_id"]) == {"count": 1, "answer": "yes"}
    assert (await client.runs.get("t", run["run_id"]))["status"] == "interrupted"


@pytest.mark.slow
async def test_an_answer_that_was_cancelled_is_given_again(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, sdk(server) as client:
        asked = await interrupt(client)
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        first = await done(client, "input.respond", interrupt_id=asked, response="yes")
        assert await refused(client, "input.respond", interrupt_id=asked, response="yes") == "no_such_interrupt"
        await client.runs.cancel("t", first["run_id"])
        again = await done(client, "input.respond", interrupt_id=asked, response="no")
        assert again["run_id"] != first["run_id"]
    async with serving(dsn, schema) as server, sdk(server) as client:
        assert await client.runs.join("t", again["run_id"]) == {"count": 1, "answer": "no"}


@pytest.mark.slow
async def test_an_answer_is_refused_while_another_run_may_answer(dsn: str, schema: str) -> None:
    """Guard: the other runs in the queue. The next interrupt of the same task would get the second answer."""
    async with serving(dsn, schema) as server, sdk(server) as client:
        asked = await interrupt(client)
    async with serving(dsn, schema, worker=False) as server, sdk(server) as client:
        later: Any = {"assistant_id": "asking", "input": {"count": 5}, "after_seconds": 3600}
        await client.runs.create("t", **later)
        other = await client.runs.create("t", "asking", command={"resume": "yes"})
        assert await refused(client, "input.respond", interrupt_id=asked, response="no") == "unknown_error"
        await client.runs.cancel("t", other["run_id"])
        await done(client, "input.respond", interrupt_id=asked, response="no")
