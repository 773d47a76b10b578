"""What `langgraph.json` says about a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import Auth
from psycopg.conninfo import make_conninfo

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server.config import load_server_config, open_store

GRAPH = str(Path(__file__).parents[1] / "support_http.py")


def written(directory: Path, **config: Any) -> Path:
    file = directory / "langgraph.json"
    file.write_text(json.dumps({"graphs": {"chat": f"{GRAPH}:chat"}, **config}))
    return file


def test_graphs_auth_and_cors(tmp_path: Path) -> None:
    (tmp_path / "config_guard.py").write_text("from langgraph_sdk import Auth\nauth = Auth()\n")
    cors = {"allow_origins": ["https://example.com"], "other": 1}
    file = written(tmp_path, auth={"path": "./config_guard.py:auth"}, http={"cors": cors}, store={})
    graphs, options = load_server_config(file, "")
    assert [*graphs] == ["chat"]
    assert isinstance(options["auth"], Auth)
    assert options["cors"] is not None
    assert options["cors"]["allow_origins"] == ["https://example.com"]
    assert options["cors"]["allow_origin_regex"] is None
    assert "other" not in options["cors"]
    assert callable(options["store"])


def test_without_them_pages_of_this_machine_are_allowed(tmp_path: Path) -> None:
    _, options = load_server_config(written(tmp_path), "")
    assert [*options] == ["cors"]
    assert options["cors"] is not None
    assert "localhost" in options["cors"]["allow_origin_regex"]


@pytest.mark.parametrize("auth", ["x", {"path": "auth.py"}, {"path": "./none.py:auth"}])
def test_what_is_malformed_is_refused(tmp_path: Path, auth: Any) -> None:
    with pytest.raises(ConfigurationError):
        load_server_config(written(tmp_path, auth=auth), "")


async def test_the_store_is_langgraphs(dsn: str, schema: str) -> None:
    async with open_store(make_conninfo(dsn, options=f"-csearch_path={schema}"), {}) as store:
        await store.aput(("a",), "k", {"x": 1})
        found = await store.aget(("a",), "k")
        assert found is not None
        assert found.value == {"x": 1}
