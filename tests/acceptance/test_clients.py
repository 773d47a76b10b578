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
from support_http import graphs, listening, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="Node and npm are missing"),
]
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
import assert from "node:assert";

const agent = new LangGraphAgent({ deploymentUrl: process.argv[2], graphId: "chat" });
agent.messages = [{ id: "first", role: "user", content: "Hello." }];
const types = [];
await agent.runAgent({}, { onEvent: ({ event }) => { types.push(event.type); } });
assert.equal(types[0], "RUN_STARTED");
assert.ok(types.filter((type) => type === "TEXT_MESSAGE_CONTENT").length > 2);
assert.equal(types.at(-1), "RUN_FINISHED");
assert.deepEqual(agent.messages.map((one) => one.content), ["Hello.", "Prague has a river."]);
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
    async with serving(dsn, schema, graphs={**graphs(), "inbox": inbox}) as server, listening(server) as url:
        process = await asyncio.create_subprocess_exec(
            "node", str(file), url, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(process.communicate(), 120)
        assert said.decode().strip() == "done"
