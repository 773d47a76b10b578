"""The command `privacy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import config_of, put_arguments
from support.cli import Run

from langgraph_pgstate import PGStateSaver

pytestmark = pytest.mark.smoke


def test_a_user_is_exported_and_erased_with_a_receipt(terminal: Run, saver: PGStateSaver, tmp_path: Path) -> None:
    config = config_of("hers")
    config["configurable"]["user_id"] = "evelyn"
    saver.put(*put_arguments(config, 1))
    saver.put(*put_arguments(config_of("bobs"), 1))
    key, receipt = tmp_path / "key", tmp_path / "receipt.json"
    key.write_text("a secret of the operator\n")
    lines = [json.loads(line) for line in terminal("privacy", "export", "--user", "evelyn").splitlines()]
    assert {line["table"] for line in lines} >= {"threads", "checkpoints", "states"}
    assert all(line["row"]["thread_id"] == "hers" for line in lines)
    assert "would erase" in terminal("privacy", "erase", "--user", "evelyn", "--dry-run")
    with_key = ("--key-file", str(key))
    shown = terminal("privacy", "erase", "--user", "evelyn", "--yes", "--to", str(receipt), *with_key)
    assert "signature HMAC-SHA256" in shown
    assert saver.get_tuple(config_of("hers")) is None
    assert saver.get_tuple(config_of("bobs")) is not None
    assert terminal("privacy", "export", "--user", "evelyn") == ""
    assert "user" in terminal("privacy", "receipts")
    assert json.loads(terminal("--json", "privacy", "receipts"))["receipt"] == json.loads(receipt.read_text())
    assert "about this subject" in terminal("privacy", "verify", str(receipt), "--user", "evelyn", *with_key)
    assert "another subject" in terminal("privacy", "verify", str(receipt), "--user", "bob", *with_key, code=1)
    receipt.write_text(receipt.read_text().replace('"rows": ', '"rows": 1'))
    assert "it was changed" in terminal("privacy", "verify", str(receipt), *with_key, code=1)
    assert "requires --user" in terminal("privacy", "export", code=1)
    assert "either user_id or thread_id" in terminal("privacy", "erase", "--yes", code=1)
