"""What `langgraph.json` says about a server."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.memory import InMemoryStore
from langgraph_sdk import Auth
from starlette.applications import Starlette
from support.http import sdk, serving

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.server import create_app
from langgraph_pgstate.server.config import load_server_config
from langgraph_pgstate.worker.graphs import load_environment

GRAPH = str(Path(__file__).parents[1] / "support/http.py")


def written(directory: Path, **config: Any) -> Path:
    file = directory / "langgraph.json"
    file.write_text(json.dumps({"graphs": {"chat": f"{GRAPH}:chat"}, **config}))
    return file


def test_graphs_auth_and_cors(tmp_path: Path) -> None:
    (tmp_path / "config_guard.py").write_text("from langgraph_sdk import Auth\nauth = Auth()\n")
    cors = {"allow_origins": ["https://example.com"], "other": 1}
    file = written(tmp_path, auth={"path": "./config_guard.py:auth"}, http={"cors": cors}, store={})
    graphs, options = load_server_config(file)
    assert [*graphs] == ["chat"]
    assert isinstance(options["auth"], Auth)
    assert options["cors"] is not None
    assert options["cors"]["allow_origins"] == ["https://example.com"]
    assert options["cors"]["allow_origin_regex"] is None
    assert "other" not in options["cors"]
    assert options["memory"] == {}


def test_without_them_pages_of_this_machine_are_allowed(tmp_path: Path) -> None:
    _, options = load_server_config(written(tmp_path))
    assert [*options] == ["cors", "memory"]
    assert options["cors"] is not None
    assert "localhost" in options["cors"]["allow_origin_regex"]


@pytest.mark.parametrize("auth", ["x", {"path": "auth.py"}, {"path": "./none.py:auth"}])
def test_what_is_malformed_is_refused(tmp_path: Path, auth: Any) -> None:
    with pytest.raises(ConfigurationError):
        load_server_config(written(tmp_path, auth=auth))


def test_the_store_has_the_options_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "embed.py").write_text("def embed(texts):\n    return [[1.0, 0.0] for _ in texts]\n")
    index = {"dims": 2, "embed": "./embed.py:embed", "fields": ["text"]}
    _, options = load_server_config(written(tmp_path, store={"index": index, "ttl": {"default_ttl": 5}}))
    memory: Any = options["memory"]
    assert memory["ttl"] == {"default_ttl": 5}
    assert memory["index"]["embed"](["a"]) == [[1.0, 0.0]]
    (tmp_path / "own.py").write_text("from langgraph.store.memory import InMemoryStore\nstore = InMemoryStore()\n")
    _, options = load_server_config(written(tmp_path, store={"path": "./own.py:store"}))
    assert isinstance(options["store"], InMemoryStore)


@pytest.mark.parametrize(
    ("path", "config"),
    [
        ("http.disable_webhooks", {"http": {"disable_webhooks": True}}),
        ("http.app", {"http": {"app": "./none.py:b"}}),
        ("http.configurable_headers", {"http": {"configurable_headers": {"includes": "x"}}}),
    ],
)
def test_a_key_that_must_not_be_ignored_is_refused(tmp_path: Path, path: str, config: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("none.py" if path == "http.app" else path)):
        load_server_config(written(tmp_path, **config))


def test_other_keys_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path, auth={"cache": {"ttl_seconds": 1}}, http={"other": 1}, env={"PGSTATE_SCHEMA": "x"}, new=1)
    load_environment(file)
    os.environ.pop("PGSTATE_SCHEMA")
    for name in ("auth.cache", "http.other", "PGSTATE_SCHEMA", "new"):
        assert sum(name in one.message.split() for one in caplog.records) == 1


def test_websockets_of_the_app_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "webapp.py").write_text(
        "from starlette.applications import Starlette\nfrom starlette.routing import WebSocketRoute\n"
        'app = Starlette(routes=[WebSocketRoute("/live", print)])\nplain = Starlette()\n'
    )
    for name in ("plain", "app"):
        caplog.clear()
        load_server_config(written(tmp_path, http={"app": f"./webapp.py:{name}", "disable_store": True}))
        assert [one.message for one in caplog.records if "WebSockets" in one.message] == (
            ["WebSockets of http.app are not served: /live"] if name == "app" else []
        )


def test_the_file_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTATE_DSN", "")
    monkeypatch.delenv("PGSTATE_DSN")
    load_environment(written(tmp_path, env={"PGSTATE_DSN": "dbname=there"}))
    assert Target(None, "pgstate").with_environment().dsn == "dbname=there"
    assert Target("dbname=here", "pgstate").with_environment().dsn == "dbname=here"
    os.environ.pop("PGSTATE_DSN")


def test_parts_are_left_out_below_a_prefix(tmp_path: Path) -> None:
    http = {"disable_runs": True, "disable_meta": True, "disable_ui": True, "mount_prefix": "/api"}
    graphs, options = load_server_config(written(tmp_path, http=http))
    assert (options["prefix"], options["inspector"]) == ("/api", False)
    paths = {one.path for one in create_app(lambda: None, graphs, **options).operations}  # type: ignore[arg-type,return-value]
    assert {"/ok", "/threads", "/store/items"} <= paths
    assert not any("runs" in path or path.endswith("/commands") or path == "/info" for path in paths)


@pytest.mark.parametrize("refreshes", [True, False])
async def test_items_expire_unless_they_are_read(
    dsn: str, schema: str, tmp_path: Path, connection: psycopg.Connection, refreshes: bool
) -> None:
    ttl = {"default_ttl": 60, "refresh_on_read": refreshes}
    _, options = load_server_config(written(tmp_path, store={"ttl": ttl}))

    def expiry() -> Any:
        return connection.execute(f"SELECT expires_at FROM {schema}.memories".encode()).fetchone()

    async with serving(dsn, schema, memory=options["memory"], worker=False) as server, sdk(server) as client:
        await client.store.put_item(["a"], "k", {"x": 1})
        assert server.service is not None
        store: Any = server.service.store
        # `refresh_on_read` decides where the client says nothing.
        for given, is_later in ((None, refreshes), (True, True), (False, False)):
            before = expiry()
            await client.store.get_item(["a"], "k", refresh_ttl=given)
            await store.flush()
            assert (expiry() > before) is is_later
        connection.execute(f"UPDATE {schema}.memories SET expires_at = now()".encode())
        assert await client.store.get_item(["a"], "k") is None
        assert await store.sweep_ttl() == 1


async def test_a_read_only_server_writes_nothing_about_items(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    memory: Any = {"ttl": {"default_ttl": 60}}
    async with serving(dsn, schema, memory=memory, worker=False) as server, sdk(server) as client:
        await client.store.put_item(["a"], "k", {"x": 1})
    before = connection.execute(f"SELECT xmin::text FROM {schema}.memories".encode()).fetchone()
    async with serving(dsn, schema, memory=memory, read_only=True) as server, sdk(server) as client:
        assert (await client.store.get_item(["a"], "k"))["value"] == {"x": 1}
        assert len((await client.store.search_items(["a"]))["items"]) == 1
    assert connection.execute(f"SELECT xmin::text FROM {schema}.memories".encode()).fetchone() == before


@pytest.mark.slow
@pytest.mark.bare
async def test_a_function_of_a_file_embeds_items(
    dsn: str, schema: str, tmp_path: Path, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        pytest.skip("the server has no pgvector")
    (tmp_path / "embedding.py").write_text(
        "async def embed(texts):\n    return [[float('river' in one), float('bank' in one), 0.1] for one in texts]\n"
    )
    index = {"dims": 3, "embed": "./embedding.py:embed", "fields": ["text"]}
    _, options = load_server_config(written(tmp_path, store={"index": index}))
    async with serving(dsn, schema, memory=options["memory"], worker=False) as server, sdk(server) as client:
        for text in ("a bank", "a river", "a sea"):
            await client.store.put_item(["a"], text, {"text": text, "other": "river"})
        for text in ("river", "bank"):
            found = await client.store.search_items(["a"], query=text, limit=1)
            assert [one["key"] for one in found["items"]] == [f"a {text}"]


def test_headers_and_the_order_of_middleware(tmp_path: Path) -> None:
    (tmp_path / "config_app.py").write_text("from starlette.applications import Starlette\napp = Starlette()\n")
    http: dict[str, Any] = {"app": "./config_app.py:app", "configurable_headers": {"includes": ["x-*"]}}
    _, options = load_server_config(written(tmp_path, http=http))
    assert isinstance(options["app"], Starlette)
    assert options["configurable_headers"] is not None
    assert options["configurable_headers"].of([("x-a", "1")]) == {"x-a": "1"}
    assert "app_auth" not in options
    http["enable_custom_route_auth"] = True
    for given, place in ((None, "middleware_first"), ("middleware_first", "middleware_first"), ("auth_first",) * 2):
        file = written(tmp_path, http={**http, "middleware_order": given})
        assert load_server_config(file)[1]["app_auth"] == place
    with pytest.raises(ConfigurationError, match="middleware_order"):
        load_server_config(written(tmp_path, http={**http, "middleware_order": "last"}))
