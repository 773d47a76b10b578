"""Operations about the server itself."""

from __future__ import annotations

from support.http import http

from langgraph_pgstate import __version__
from langgraph_pgstate.server import AgentServer


async def test_the_server_says_that_it_runs_and_what_it_is(server: AgentServer) -> None:
    async with http(server) as client:
        assert (await client.get("/ok")).json() == {"ok": True}
        info = (await client.get("/info")).json()
    assert info["version"] == __version__
    assert info["langgraph_py_version"]
    assert info["flags"]["assistants"] is True
