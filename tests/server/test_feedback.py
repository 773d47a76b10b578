"""Feedback over HTTP."""

from __future__ import annotations

import pytest
from langgraph_sdk.client import LangGraphClient
from support.http import HELLO, http, sdk, serving

from langgraph_pgstate.server import AgentServer
from tests.server.test_auth import owners


@pytest.mark.slow
async def test_feedback_is_given_listed_and_deleted(server: AgentServer, client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    run = await client.runs.create("t", "chat", input=HELLO)
    await client.runs.join("t", run["run_id"])
    async with http(server) as plain:
        path = f"/threads/t/runs/{run['run_id']}/feedback"
        given = {"name": "tone", "score": 4, "comment": "kind", "created_by": "eve", "feedback_id": "f"}
        made = (await plain.post(path, json=given)).json()
        assert made == {**given, "thread_id": "t", "run_id": run["run_id"], "span_id": None, "source": "human"} | {
            "created_at": made["created_at"]
        }
        assert (await plain.post(path, json={"score": 1})).json()["name"] == "score"
        listed = (await plain.get(path, params={"name": "tone"})).json()
        assert listed == {"items": [made], "next": None}
        page = (await plain.get(path, params={"limit": 1})).json()
        assert (await plain.get(path, params={"cursor": page["next"]})).json()["items"] == [made]
        assert (await plain.delete(f"{path}/f")).status_code == 204
        assert (await plain.delete(f"{path}/f")).status_code == 404
        assert (await plain.post(path, json={})).status_code == 422
        assert (await plain.post(path, json={"score": 1, "source": "robot"})).status_code == 422
        assert (await plain.post("/threads/t/runs/none/feedback", json={"score": 1})).status_code == 404
        assert (await plain.get("/threads/t/runs/none/feedback")).status_code == 404
        assert (await plain.get("/threads/none/runs/none/feedback")).status_code == 404


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_feedback_is_the_threads_owners(dsn: str, schema: str, method: str) -> None:
    async with serving(dsn, schema, auth=owners()) as server:
        async with sdk(server, {"authorization": "token-eve"}) as eve:
            await eve.threads.create(thread_id="t")
            run = await eve.runs.create("t", "chat", input=HELLO)
            await eve.runs.join("t", run["run_id"])
        path = f"/threads/t/runs/{run['run_id']}/feedback"
        given = {"score": 1, "feedback_id": "f", "created_by": "somebody else"}
        async with http(server, {"authorization": "token-eve"}) as eves:
            assert (await eves.post(path, json=given)).json()["created_by"] == "eve"
        async with http(server, {"authorization": "token-bob"}) as bobs:
            answered = await bobs.request(method, f"{path}/f" if method == "DELETE" else path, json=given)
            assert answered.status_code == 404
