"""Metrics and analytics over HTTP, and who sees them."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk import Auth
from langgraph_sdk.client import LangGraphClient
from prometheus_client.parser import text_string_to_metric_families
from support.http import HELLO, http, sdk, serving

from langgraph_pgstate.server import AgentServer
from tests.server.test_auth import owners


async def test_metrics_are_scraped(server: AgentServer, client: LangGraphClient) -> None:
    assert server.service is not None
    assert server.service.state._database.observer is None
    async with http(server) as plain:
        await plain.get("/metrics")
        await client.threads.create(thread_id="t")
        await client.runs.wait("t", "chat", input=HELLO)
        answered = await plain.get("/metrics")
    assert answered.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answered.text)}
    counts = {
        sample.labels["operation"]: sample.value
        for sample in families["pgstate_operation_duration_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert counts["put"] >= 3
    assert families["pgstate_database_up"].samples[0].value == 1
    assert families["pgstate_pool_max_connections"].samples[0].value > 1


async def test_metrics_need_a_permission(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        if authorization is None:
            raise Auth.exceptions.HTTPException(401)
        return {"identity": authorization, "permissions": ["metrics:read"] if authorization == "prometheus" else []}

    async with serving(dsn, schema, auth=auth) as server:
        for user, status in ((None, 401), ("eve", 403), ("prometheus", 200)):
            async with http(server, {} if user is None else {"authorization": user}) as plain:
                assert (await plain.get("/metrics")).status_code == status


@pytest.mark.slow
async def test_analytics_are_those_of_the_threads_that_a_user_sees(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, auth=owners()) as server:
        for user in ("eve", "bob"):
            async with sdk(server, {"authorization": f"token-{user}"}) as client:
                await client.threads.create(thread_id=user)
                run = await client.runs.create(user, "chat" if user == "eve" else "failing", input=HELLO)
                await client.runs.join(user, run["run_id"])
                async with http(server, {"authorization": f"token-{user}"}) as plain:
                    path = f"/threads/{user}/runs/{run['run_id']}/feedback"
                    await plain.post(path, json={"score": 2})
        async with http(server, {"authorization": "token-eve"}) as plain:
            found = (await plain.get("/analytics", params={"days": 7, "by": "agent,day"})).json()
            assert [(one["agent"], one["status"], one["threads"]) for one in found["threads"]] == [("chat", "idle", 1)]
            [runs] = found["runs"]
            assert (runs["agent"], runs["runs"], runs["success"], runs["failure_rate"]) == ("chat", 1, 1, 0)
            assert [(one["count"], one["mean"]) for one in found["feedback"]] == [(1, 2)]
            assert found["is_complete"] is True
            assert (await plain.get("/analytics", params={"agent": "failing"})).json()["runs"] == []
            assert (await plain.get("/analytics", params={"by": "color"})).status_code == 422
            assert (await plain.get("/analytics", params={"days": "x"})).status_code == 422
        async with http(server, {"authorization": "token-bob"}) as plain:
            [runs] = (await plain.get("/analytics")).json()["runs"]
            assert (runs["agent"], runs["error"], runs["failure_rate"]) == ("failing", 1, 1)
