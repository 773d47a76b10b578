"""Operations about the server itself, and its OpenAPI document, which is made from the table of operations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import models_json_schema

from langgraph_pgstate import __version__
from langgraph_pgstate.server.service import Call

if TYPE_CHECKING:
    from langgraph_pgstate.server.routes import Operation

DOCUMENT: Final = "/openapi.json"
"""The path of the OpenAPI document."""
_REFERENCES: Final = "#/components/schemas/{model}"


@cache
def document(prefix: str = "", operations: Sequence[Operation] | None = None) -> dict[str, Any]:
    """Return the OpenAPI document of some operations, by default all, below a prefix."""
    from langgraph_pgstate.server.routes import OPERATIONS

    served = OPERATIONS if operations is None else operations
    models = {one.body for one in served if one.body is not None and one.handler is not None}
    pairs = [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)]
    known, schemas = models_json_schema(pairs, ref_template=_REFERENCES)  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for one in served:
        if one.handler is None:
            continue
        described: dict[str, Any] = {
            "operationId": f"{one.name}:{one.method} {one.path}",
            "tags": [one.name.partition(".")[0]],
            "summary": one.summary,
            "responses": {"200": {"description": "the response"}, "422": {"description": "the request is invalid"}},
        }
        if one.description:
            described["description"] = one.description
        names = re.findall(r"{(\w+)}", one.path)
        if names:
            described["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if one.body is not None:
            content = {"application/json": {"schema": known[one.body, "validation"]}}
            described["requestBody"] = {"required": True, "content": content}
        paths.setdefault(prefix + one.path, {})[one.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "LangGraph on PostgreSQL", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def merged(own: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, Any]:
    """Return an application's OpenAPI document with the paths and schemas of the server added."""
    paths, schemas = own.get("paths", {}), own.get("components", {}).get("schemas", {})
    return {
        **own,
        "paths": paths | {path: described | paths.get(path, {}) for path, described in served["paths"].items()},
        "components": {**own.get("components", {}), "schemas": served["components"]["schemas"] | schemas},
    }


async def ok(call: Call) -> Any:
    """Respond that the server runs."""
    return {"ok": True}


async def info(call: Call) -> Any:
    """Return versions and the features of the server."""
    return {
        "version": __version__,
        "langgraph_py_version": version("langgraph"),
        "flags": {"assistants": True, "crons": True, "langsmith": False, "langsmith_tracing_replicas": False},
    }


async def openapi(call: Call) -> Any:
    """Return the OpenAPI document."""
    return document(call.request.scope.get("root_path", ""), call.request.app.operations)
