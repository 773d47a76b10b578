"""Operations about the server itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from langgraph_pgstate import __version__
from langgraph_pgstate.server.openapi import document
from langgraph_pgstate.server.service import Call


async def ok(call: Call) -> Any:
    """Return that the server runs."""
    return {"ok": True}


async def info(call: Call) -> Any:
    """Return versions, and what the server can do."""
    return {
        "version": __version__,
        "langgraph_py_version": version("langgraph"),
        "flags": {"assistants": True, "crons": True, "langsmith": False, "langsmith_tracing_replicas": False},
    }


async def openapi(call: Call) -> Any:
    """Return the OpenAPI document."""
    return document(call.request.scope.get("root_path", ""), call.request.app.operations)
