"""The graph of the demo in a server: a payment in doubt is answered on the page, and the thread goes on."""

from __future__ import annotations

import asyncio

import pytest
from support import GUARD_SECONDS
from support.pages import inspected, state_of

from examples.demo.agent import AGENT
from examples.demo.child import Job, run
from examples.demo.children import started
from examples.demo.travel import graph
from langgraph_pgstate import PGStateSaver


@pytest.mark.slow
async def test_a_thread_of_the_demo_goes_on_with_a_persons_answer(dsn: str, saver: PGStateSaver) -> None:
    def pay() -> None:
        with started(Job("pay", dsn, saver.schema, "t", "p6", None, pay_seconds=2 * GUARD_SECONDS)) as child:
            next(event for event in child.events() if event["what"] == "tool")
            child.kill()
        run(Job("ask", dsn, saver.schema, "t", "p7", None))

    await asyncio.to_thread(pay)
    async with inspected(dsn, saver.schema, graphs={AGENT: graph}, worker={"poll": 0.1}) as (server, visitor):
        state = state_of(server)
        html = await visitor.page("/threads/t")
        assert "pay_hotel was started and has no recorded outcome" in html
        (waiting,) = (await visitor.data("/interrupts"))["threads"]
        (unknown,) = (await visitor.data("/tools"))["unknown"]
        assert (waiting["agent"], unknown["tool"]) == (AGENT, "pay_hotel")
        at = waiting["checkpoint_id"]
        await visitor.introduce("Eve")
        answer = f"/interrupts/t/{waiting['interrupts'][0]['interrupt_id']}/answer"
        assert (await visitor.act(answer, choice='"done"')).status_code == 303
        assert (await visitor.act("/threads/t/run", at=at, head=at, mode="on")).status_code == 303
        # Before the model asked for the payment.
        before = (await visitor.data("/threads/t", at=at))["checkpoint"]["parent_checkpoint_id"]
        forked = await visitor.act("/threads/t/fork", at=before, to="other", run="1")
        assert forked.status_code == 303
        async with asyncio.timeout(GUARD_SECONDS):
            for thread_id in ("t", "other"):
                while not (await state.runs.list(thread_id=thread_id, status="success")).items:
                    await asyncio.sleep(0.05)
        said = {id: (await state.messages.conversation(id))[-1].content for id in ("t", "other")}
        assert said == {"t": "The hotel: done.", "other": "The hotel: paid 0 EUR to Hotel Lisbon Central."}
