"""The example's page in a browser, and the JavaScript SDK, on a server: needs Node, npm's registry and Chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from support.http import graphs, listening, serving

from langgraph_pgstate.worker.graphs import load_value

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

async_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="Node and npm are missing"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing"),
]
SCRIPT = """
import { Client } from "@langchain/langgraph-sdk";
import assert from "node:assert";

const client = new Client({ apiUrl: process.argv[2] });
const input = { messages: [{ role: "user", content: "Hello." }] };
const { thread_id } = await client.threads.create();
const events = [];
for await (const part of client.runs.stream(thread_id, "chat", { input, streamMode: ["values", "messages-tuple"] })) {
  events.push(part.event);
}
assert.equal(events[0], "metadata");
assert.ok(events.filter((name) => name === "messages").length > 2);
const state = await client.threads.getState(thread_id);
assert.equal(state.values.messages.at(-1).content, "Prague has a river.");

const thread = client.threads.stream({ assistantId: "asking" });
await thread.run.start({ input: { count: 0 } });
for await (const _ of thread.values) {}
assert.deepEqual(thread.interrupts.map((one) => one.payload), [{ question: "Go on?" }]);
const [{ interruptId, namespace }] = thread.interrupts;
await thread.input.respond({ interrupt_id: interruptId, namespace, response: "yes" });
while ((await client.threads.get(thread.threadId)).status !== "idle") await new Promise((done) => setTimeout(done, 50));
assert.deepEqual((await client.threads.getState(thread.threadId)).values, { count: 1, answer: "yes" });
await thread.close();

const talk = client.threads.stream({ assistantId: "chat" });
await talk.run.start({ input });
const words = [];
for await (const message of talk.messages) for await (const word of message.text) words.push(word);
assert.equal(words.join(""), "Prague has a river.");
assert.equal((await talk.output).messages.at(-1).text, "Prague has a river.");
await talk.close();
console.log("done");
process.exit(0);
"""


@pytest.fixture(scope="module")
def page_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, built by its own command."""
    directory = tmp_path_factory.mktemp("chat") / "chat"
    shutil.copytree(ROOT / "examples" / "chat", directory, ignore=shutil.ignore_patterns("node_modules", "dist"))
    command = ["npm", "run", "build"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    if built.returncode and re.search("ENOTFOUND|ETIMEDOUT|ECONNREFUSED|E40[34]", built.stderr):
        pytest.skip("npm's registry cannot be reached")
    assert built.returncode == 0, built.stderr
    return directory


@asynccontextmanager
async def opened(dsn: str, schema: str, directory: Path) -> AsyncIterator[tuple[Browser, str]]:
    """A browser, and the address of the page with its server."""
    example = ROOT / "examples" / "studio"
    made = load_value("agent.py:builder", example).compile()
    files = Starlette(routes=[Mount("/", StaticFiles(directory=directory, html=True))])
    cors = {"allow_origin_regex": "http://127.0.0.1:[0-9]+", "allow_methods": ["*"], "allow_headers": ["*"]}
    async with (
        serving(dsn, schema, graphs={"travel": made}, cors=cors) as server,
        listening(server) as url,
        listening(files) as pages,
        async_api.async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser, f"{pages}/?server={url}"
        await browser.close()


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def test_a_chat_is_reloaded_in_the_middle_and_approved(
    dsn: str, schema: str, page_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = load_value("agent.py:Settings", ROOT / "examples" / "studio")
    monkeypatch.setattr(settings.__init__, "__defaults__", (0.5,))
    async with opened(dsn, schema, page_directory) as (browser, address):
        page = await browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(address)
        await say(page, "What is there in Prague?")
        answer = page.locator(".ai > p")
        await async_api.expect(answer).to_contain_text("Astoria at", timeout=30_000)
        told = await answer.inner_text()
        assert "do for you" not in told
        await page.reload()
        # It goes on where it was, word by word, and is not told twice.
        await async_api.expect(page.get_by_role("status")).to_have_text("working", timeout=30_000)
        await async_api.expect(answer).to_contain_text("Pension", timeout=30_000)
        await async_api.expect(page.get_by_role("status")).to_have_text("ready", timeout=30_000)
        whole = "Astoria at 180 euros, Pension Vltava at 75 euros. What else can I do for you?"
        assert await answer.all_inner_texts() == [whole]
        assert await page.locator(".human").count() == 1
        await say(page, "Book the Astoria")
        await async_api.expect(page.locator(".question")).to_contain_text(
            "Book the Astoria for 180 euros?", timeout=30_000
        )
        await async_api.expect(page.get_by_role("status")).to_have_text("waiting for you", timeout=30_000)
        other = await browser.new_page()
        await other.goto(page.url)
        await async_api.expect(other.locator(".question")).to_be_visible(timeout=30_000)
        await other.get_by_role("button", name="Approve").click()
        # Both pages have streams of the thread, which go on.
        for one in (other, page):
            await async_api.expect(one.locator(".ai > p").last).to_have_text(
                "The Astoria is booked. What else can I do for you?", timeout=30_000
            )
        # The protocol has no event for an answer that another client gave: the first page asks on until it is reloaded.
        await page.reload()
        await async_api.expect(page.get_by_role("status")).to_have_text("ready", timeout=30_000)
        await say(page, "Book the Fjord")
        await page.get_by_role("button", name="Deny").click()
        await async_api.expect(page.locator(".ai > p").last).to_contain_text(
            "The Fjord was not booked.", timeout=30_000
        )
        assert errors == []


async def test_the_sdk_of_javascript(dsn: str, schema: str, page_directory: Path) -> None:
    script = page_directory / "sdk.mjs"
    script.write_text(SCRIPT, "utf-8")
    async with serving(dsn, schema, graphs=graphs()) as server, listening(server) as url:
        process = await asyncio.create_subprocess_exec(
            "node", str(script), url, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(process.communicate(), 120)
        assert said.decode().strip() == "done"
