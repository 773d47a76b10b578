"""LangGraph's own `Encryption` object, as `langgraph.json` names it for its server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import AsyncPGStateSaver, config_of, open_saver, put_arguments

from langgraph_pgstate.errors import ConfigurationError, DataKeyError
from langgraph_pgstate.worker.config_keys import check_keys
from langgraph_pgstate.worker.state_config import load_state_config

APP = """
from langgraph_sdk import Encryption
from langgraph_sdk.encryption.types import DecryptResult

asked = []
mine = Encryption()


@mine.encrypt.blob
async def encrypt(ctx, blob):
    asked.append((ctx.model, ctx.metadata["scope"]))
    return bytes(byte ^ 90 for byte in blob)


@mine.decrypt.blob
async def decrypt(ctx, blob):
    return DecryptResult(bytes(byte ^ 90 for byte in blob))


contextual, bare = Encryption(), Encryption()
contextual.encrypt.blob(encrypt)
contextual.decrypt.blob(decrypt)


@contextual.context
async def context(user, ctx):
    return {}
"""


def config_file(directory: Path, name: str) -> Path:
    (directory / "the_encrypted_app.py").write_text(APP)
    file = directory / "langgraph.json"
    file.write_text(json.dumps({"graphs": {}, "encryption": {"path": f"./the_encrypted_app.py:{name}"}}))
    return file


@pytest.mark.filterwarnings("ignore:The Encryption API")
async def test_its_blob_handlers_wrap_data_keys(
    dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTATE_ENCRYPTION_SCOPE", "user")
    file = config_file(tmp_path, "mine")
    check_keys(json.loads(file.read_text()), {})
    encryption = load_state_config(file)["encryption"]
    assert encryption is not None
    config = config_of("t")
    config["configurable"]["user_id"] = "anna"
    async with open_saver(AsyncPGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        config = await saver.aput(*put_arguments(config, 0))
    again: Any = load_state_config(file)["encryption"]
    async with open_saver(AsyncPGStateSaver, dsn, schema, setup=False, encryption=again) as saver:
        assert await saver.aget_tuple(config) is not None
    master: Any = again.masters[0]
    wrapped = await master.wrap(bytes(32), {"key_id": "1", "scope": "user:anna"})
    with pytest.raises(DataKeyError):
        await master.unwrap(wrapped, {"key_id": "1", "scope": "user:bert"})


@pytest.mark.filterwarnings("ignore:The Encryption API")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bare", "encrypt.blob and decrypt.blob"),
        ("contextual", "not have a handler encryption.context.*PGSTATE_ENCRYPTION_SCOPE"),
        ("asked", "must be a langgraph_sdk.Encryption, not list"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_state_config(config_file(tmp_path, name))


@pytest.mark.filterwarnings("ignore:The Encryption API")
def test_keys_of_the_environment_go_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTATE_ENCRYPTION_KEYS", "env:K")
    assert "encryption" not in load_state_config(config_file(tmp_path, "bare"))
