"""The calls of agent-inbox, and CopilotKit's agent, on a server: needs Node and npm's registry."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from support.http import listening, serving

from langgraph_pgstate.worker.graphs import load_value

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="Node and npm are missing"),
]
ROOT = Path(__file__).parents[2]
PACKAGES = ("@ag-ui/langgraph", "@ag-ui/client", "@langchain/core", "@langchain/langgraph-sdk", "rxjs")
INBOX = """
import { Client } from "@langchain/langgraph-sdk";
import assert from "node:assert";

const client = new Client({ apiUrl: process.argv[2] });
const args = { action: "send", args: { text: "Hello." } };
for (const answer of [
  { type: "accept", args },
  { type: "edit", args: { ...args, args: { text: "Good day." } } },
  { type: "response", args: "Kinder, please." },
  { type: "ignore", args: null },
]) {
  const { thread_id } = await client.threads.create();
  await client.runs.wait(thread_id, "inbox", { input: { messages: [] } });
  const found = await client.threads.search({ offset: 0, limit: 10, status: "interrupted" });
  assert.deepEqual(found.map((one) => one.thread_id), [thread_id]);
  const [[asked]] = Object.values(found[0].interrupts);
  assert.equal(asked.value[0].action_request.action, "send");
  if (answer.type === "ignore") {
    await client.runs.create(thread_id, "inbox", { command: { resume: [answer] } });
    while ((await client.threads.get(thread_id)).status !== "idle") await new Promise((done) => setTimeout(done, 50));
  } else {
    const nodes = [];
    const stream = client.runs.stream(thread_id, "inbox", { command: { resume: [answer] }, streamMode: "events" });
    for await (const { event, data } of stream) {
      assert.notEqual(event, "error");
      if (data.event === "on_chain_start" && data.metadata?.langgraph_node) nodes.push(data.metadata.langgraph_node);
    }
    assert.ok(nodes.includes("ask"));
  }
  const { values, next } = await client.threads.getState(thread_id);
  assert.deepEqual([values.answer, next], [[answer], []]);
}
const { thread_id } = await client.threads.create();
await client.runs.wait(thread_id, "inbox", { input: { messages: [] } });
await client.threads.updateState(thread_id, { values: null, asNode: "__end__" });
assert.equal((await client.threads.get(thread_id)).status, "idle");
console.log("done");
process.exit(0);
"""
COPILOT = """
import { LangGraphAgent } from "@ag-ui/langgraph";
import { Client } from "@langchain/langgraph-sdk";
import assert from "node:assert";

const agent = new LangGraphAgent({ deploymentUrl: process.argv[2], graphId: "travel", emitInterruptOutcome: true });
const run = async (parameters = {}) => {
  const events = [];
  await agent.runAgent(parameters, { onEvent: ({ event }) => { events.push(event); } });
  const types = events.map((event) => event.type);
  assert.equal(types[0], "RUN_STARTED");
  assert.equal(types.at(-1), "RUN_FINISHED");
  return { events, types, outcome: events.at(-1).outcome };
};
const ask = (content, id) => { agent.addMessage({ id, role: "user", content }); return run(); };
const said = () => agent.messages.map((one) => [one.role, one.content]).filter(([, content]) => content);

const found = await ask("What is there in Prague?", "first");
const hotels = "Astoria at 180 euros, Pension Vltava at 75 euros.";
const results = found.events.filter(({ type }) => type === "TOOL_CALL_RESULT");
assert.deepEqual(results.map(({ content }) => content), [hotels]);
assert.ok(found.types.includes("TOOL_CALL_START") && found.types.includes("STATE_SNAPSHOT"));
assert.ok(found.types.filter((type) => type === "TEXT_MESSAGE_CONTENT").length > 5);
const asked = await ask("Book the Astoria", "second");
assert.equal(asked.outcome.type, "interrupt");
const [{ id }] = asked.outcome.interrupts;
const booked = await run({ resume: [{ interruptId: id, status: "resolved", payload: "yes" }] });
assert.equal(booked.outcome, undefined);

// A message that is edited forks the thread before it.
const client = new Client({ apiUrl: process.argv[2] });
const contents = async () => (await client.threads.getState(agent.threadId)).values.messages.map((one) => one.content);
const answer = { id: "unknown", role: "assistant", content: "Which city?" };
agent.setMessages([agent.messages[0], answer, { id: "second", role: "user", content: "Book the Astoria" }]);
const again = await run();
assert.equal(again.outcome.type, "interrupt");
const states = await client.threads.getHistory(agent.threadId, { limit: 100 });
assert.equal(states.filter((one) => one.metadata.source === "update").length, 1);
assert.deepEqual((await contents()).slice(-2), ["Book the Astoria", ""]);
const [other] = again.outcome.interrupts;
await run({ resume: [{ interruptId: other.id, status: "resolved", payload: "no" }] });
assert.equal((await contents()).at(-1), "The Astoria was not booked. What else can I do for you?");

// The run of a page that stops it is cancelled.
agent.addMessage({ id: "third", role: "user", content: "What is there in Oslo?" });
const abort = { onEvent: ({ event }) => { if (event.type === "TEXT_MESSAGE_CONTENT") agent.abortRun(); } };
await agent.runAgent({ forwardedProps: { context: { pace: 0.3 } } }, abort).catch(() => undefined);
const last = async () => (await client.runs.list(agent.threadId))[0].status;
while (["pending", "running"].includes(await last())) await new Promise((done) => setTimeout(done, 50));
assert.equal(await last(), "interrupted");
console.log("done");
process.exit(0);
"""


class Mail(MessagesState):
    answer: list[dict[str, Any]]


async def ask(state: Mail) -> dict[str, Any]:
    asked = {
        "action_request": {"action": "send", "args": {"text": "Hello."}},
        "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
    }
    return {"answer": interrupt([asked])}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages of the clients."""
    directory = tmp_path_factory.mktemp("clients")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps", *PACKAGES]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode and re.search("ENOTFOUND|ETIMEDOUT|ECONNREFUSED|E40[34]", done.stderr):
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("script", [INBOX, COPILOT], ids=["agent-inbox", "copilotkit"])
async def test_a_client(dsn: str, schema: str, packages: Path, script: str) -> None:
    file = packages / "client.mjs"
    file.write_text(script, "utf-8")
    inbox = StateGraph(Mail).add_node(ask).add_edge(START, "ask").add_edge("ask", END).compile()
    travel = load_value("agent.py:builder", ROOT / "examples" / "studio").compile()
    async with serving(dsn, schema, graphs={"travel": travel, "inbox": inbox}) as server, listening(server) as url:
        process = await asyncio.create_subprocess_exec(
            "node", str(file), url, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(process.communicate(), 120)
        assert said.decode().splitlines()[-1] == "done", said.decode()
