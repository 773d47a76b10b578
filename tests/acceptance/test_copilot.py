"""A page of CopilotKit with its runtime, in a browser, on a server: needs Node, npm's registry and Chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from langgraph_sdk import get_client
from support.http import listening, serving

from langgraph_pgstate.worker.graphs import load_value

if TYPE_CHECKING:
    from playwright.async_api import Page

async_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="Node and npm are missing"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing"),
]
PACKAGES = (
    "@copilotkit/runtime@1",
    "@copilotkit/react-core@1",
    "@langchain/core@1",
    "@langchain/langgraph-sdk@1",
    "esbuild",
    "react@19",
    "react-dom@19",
    "zod@3",
)
RUNTIME = """
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { CopilotRuntime, InMemoryAgentRunner } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";
import { LangGraphAgent } from "@copilotkit/runtime/langgraph";

const assistantConfig = { configurable: { pace: 0.3 } };
const travel = new LangGraphAgent({ deploymentUrl: process.argv[2], graphId: "travel", assistantConfig });
const runtime = new CopilotRuntime({ agents: { default: travel }, runner: new InMemoryAgentRunner() });
const listener = createCopilotNodeListener({ runtime, basePath: "/api" });
const files = { "/page.js": "text/javascript", "/page.css": "text/css" };
const server = createServer((request, response) => {
  if (request.url.startsWith("/api")) return listener(request, response);
  response.setHeader("content-type", files[request.url] ?? "text/html");
  response.end(files[request.url] ? readFileSync("." + request.url) : `<!doctype html><meta charset="utf-8">
    <link rel="stylesheet" href="/page.css"><div id="root"></div><script type="module" src="/page.js"></script>`);
}).listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
"""
PAGE = """
import { createRoot } from "react-dom/client";
import { CopilotChat, CopilotKitProvider, useInterrupt } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";

function Chat() {
  useInterrupt({
    render: ({ event, resolve }) => (
      <p>
        {JSON.stringify(event.value)} <button onClick={() => resolve("yes")}>Approve</button>
      </p>
    ),
  });
  return <CopilotChat threadId={new URLSearchParams(location.search).get("thread")} />;
}

createRoot(document.getElementById("root")).render(
  <CopilotKitProvider runtimeUrl="/api" showDevConsole={false}>
    <Chat />
  </CopilotKitProvider>,
);
"""
WHOLE = "Astoria at 180 euros, Pension Vltava at 75 euros. What else can I do for you?"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the page, built, and its runtime."""
    made = tmp_path_factory.mktemp("copilot")
    (made / "runtime.mjs").write_text(RUNTIME, "utf-8")
    (made / "page.jsx").write_text(PAGE, "utf-8")
    install = ["npm", "install", "--no-audit", "--no-fund", "--legacy-peer-deps", "--prefer-offline", *PACKAGES]
    bundle = ["npx", "esbuild", "page.jsx", "--bundle", "--format=esm", "--jsx=automatic", "--outfile=page.js"]
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("woff2", "woff", "ttf")]
    for command in (install, [*bundle, *loaders, "--log-level=error"]):
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode and re.search("ENOTFOUND|ETIMEDOUT|ECONNREFUSED|E40[34]", done.stderr):
            pytest.skip("npm's registry cannot be reached")
        assert done.returncode == 0, done.stderr
    return made


@asynccontextmanager
async def running(directory: Path, url: str) -> AsyncIterator[str]:
    """The address of the page, whose runtime calls the server at `url`."""
    process = await asyncio.create_subprocess_exec(
        *("node", "runtime.mjs", url),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "COPILOTKIT_TELEMETRY_DISABLED": "true"},
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def say(page: Page, text: str) -> None:
    await page.locator("textarea").fill(text)
    await page.keyboard.press("Enter")


async def test_a_page_is_answered_reloaded_asked_and_stopped(dsn: str, schema: str, directory: Path) -> None:
    travel = load_value("agent.py:builder", ROOT / "examples" / "studio").compile()
    async with (
        serving(dsn, schema, graphs={"travel": travel}) as server,
        listening(server) as url,
        running(directory, url) as address,
        async_api.async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        client = get_client(url=url)
        thread = "00000000-0000-4000-8000-000000000001"
        await page.goto(f"{address}/?thread={thread}")
        seen = async_api.expect(page.locator("body"))
        await page.locator("textarea").wait_for(timeout=60_000)
        await say(page, "What is there in Prague?")
        await seen.to_contain_text("Astoria at", timeout=60_000)
        assert "do for you" not in await page.locator("body").inner_text()
        # The page that is loaded again, in the middle, has the words before and those that follow, once.
        await page.reload()
        await seen.to_contain_text(WHOLE, timeout=60_000)
        assert (await page.locator("body").inner_text()).count("Pension") == 1
        await say(page, "Book the Astoria")
        await seen.to_contain_text("Book the Astoria for 180 euros?", timeout=60_000)
        assert (await client.threads.get(thread))["status"] == "interrupted"
        await page.get_by_role("button", name="Approve").click()
        await seen.to_contain_text("The Astoria is booked. What else can I do for you?", timeout=60_000)
        state = await client.threads.get_state(thread)
        assert (state["next"], state["values"]["booking"]["status"]) == ([], "approved")
        await say(page, "What is there in Oslo?")
        await seen.to_contain_text("Fjord at", timeout=60_000)
        await page.get_by_test_id("copilot-send-button").click()
        async with asyncio.timeout(60):
            while (await client.runs.list(thread, limit=1))[0]["status"] in ("pending", "running"):
                await asyncio.sleep(0.1)
        assert (await client.runs.list(thread, limit=1))[0]["status"] == "interrupted"
        assert errors == []
        await browser.close()
