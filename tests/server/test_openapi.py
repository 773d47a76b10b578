"""The OpenAPI document."""

from __future__ import annotations

import json

from support.http import http, serving

from langgraph_pgstate.server.json import to_json
from langgraph_pgstate.server.meta import document
from langgraph_pgstate.server.routes import OPERATIONS


def test_it_has_every_operation_that_works_with_its_body() -> None:
    found = json.loads(to_json(document()))
    for one in OPERATIONS:
        if one.handler is None:
            assert one.method.lower() not in found["paths"].get(one.path, {})
            continue
        described = found["paths"][one.path][one.method.lower()]
        assert described["summary"].endswith(".")
        assert ("requestBody" in described) is (one.body is not None)
        if one.body is not None:
            reference = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert reference.rpartition("/")[2] in found["components"]["schemas"]
    text = json.dumps(found)
    assert all(f'"{part}"' in text for part in ("thread_id", "checkpoint_id"))


async def test_it_is_served_below_the_prefix(dsn: str, schema: str) -> None:
    async with serving(dsn, schema, prefix="/agents") as server, http(server) as client:
        found = (await client.get("/agents/openapi.json")).json()
    assert "/agents/threads/search" in found["paths"]
