"""The command `privacy`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import config_of, put_arguments
from support.cli import Run

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.keep.receipts import make_receipt, signer_of, subject_of
from tests.keep.test_receipts import keys_of_ed25519

pytestmark = pytest.mark.smoke


@pytest.mark.slow
def test_a_user_is_exported_and_erased_with_a_receipt(
    terminal: Run, saver: PGStateSaver, dsn: str, tmp_path: Path
) -> None:
    config = config_of("hers")
    config["configurable"]["user_id"] = "evelyn"
    saver.put(*put_arguments(config, 1))
    saver.put(*put_arguments(config_of("bobs"), 1))
    key, receipt = tmp_path / "key", tmp_path / "receipt.json"
    key.write_text("a secret of the operator\n")
    # As the guide calls it in Python.
    with PGState.open(dsn, schema=saver.schema) as state:
        made = state.privacy.erase(user_id="nobody", key=key.read_bytes())
    receipt.write_text(json.dumps(dict(made.receipt or {})))
    verified = terminal("privacy", "verify", str(receipt), "--user", "nobody", "--key-file", str(key))
    assert "about this subject" in verified
    lines = [json.loads(line) for line in terminal("privacy", "export", "--user", "evelyn").splitlines()]
    assert {line["table"] for line in lines} >= {"threads", "checkpoints", "states"}
    assert all(line["row"]["thread_id"] == "hers" for line in lines)
    assert "would erase" in terminal("privacy", "erase", "--user", "evelyn", "--dry-run")
    with_key = ("--key-file", str(key))
    erase = ("privacy", "erase", "--user", "evelyn", "--yes", "--by", "Dora", "--to", str(receipt))
    shown = terminal(*erase, *with_key)
    assert "signature HMAC-SHA256" in shown
    assert saver.get_tuple(config_of("hers")) is None
    assert saver.get_tuple(config_of("bobs")) is not None
    assert terminal("privacy", "export", "--user", "evelyn") == ""
    assert "user" in terminal("privacy", "receipts")
    newest = json.loads(terminal("--json", "privacy", "receipts").splitlines()[0])
    assert newest["receipt"] == json.loads(receipt.read_text())
    again = tmp_path / "again.json"
    terminal("privacy", "receipts", newest["erasure_id"], "--to", str(again))
    assert json.loads(again.read_text()) == json.loads(receipt.read_text())
    assert json.loads(terminal("privacy", "receipts", newest["erasure_id"])) == newest["receipt"]
    assert "no erasure 'none'" in terminal("privacy", "receipts", "none", code=1)
    assert "cannot be read" in terminal("privacy", "verify", "none", *with_key, code=1)
    saver.put(*put_arguments(config, 1))
    with PGState.open(dsn, schema=saver.schema) as state:
        state.threads.hold("hers", "case 7", by="ada")
    assert "there is no receipt yet" in terminal("privacy", "erase", "--user", "evelyn", "--yes", code=1)
    assert "by=Dora, action=erase" in terminal("events", f"erasure:{newest['erasure_id']}")
    assert "about this subject" in terminal("privacy", "verify", str(receipt), "--user", "evelyn", *with_key)
    assert "another subject" in terminal("privacy", "verify", str(receipt), "--user", "bob", *with_key, code=1)
    receipt.write_text(receipt.read_text().replace('"rows": ', '"rows": 1'))
    assert "it was changed" in terminal("privacy", "verify", str(receipt), *with_key, code=1)
    assert "requires --user" in terminal("privacy", "export", code=1)
    assert "user_id or thread_id must be given" in terminal("privacy", "erase", "--yes", code=1)


def test_a_public_key_does_not_say_about_whom_a_receipt_is(terminal: Run, tmp_path: Path) -> None:
    private, public = keys_of_ed25519()
    receipt, key = tmp_path / "receipt.json", tmp_path / "key.pub"
    receipt.write_text(json.dumps(make_receipt({"rows": 3}, subject_of("user", "evelyn"), signer_of(private))))
    key.write_bytes(public)
    verify = ("privacy", "verify", str(receipt), "--key-file", str(key))
    assert "as it was signed" in terminal(*verify)
    assert "requires the private key" in terminal(*verify, "--user", "bob", code=1)


def test_an_export_that_is_not_whole_says_so(
    terminal: Run, saver: PGStateSaver, connection: psycopg.Connection, tmp_path: Path
) -> None:
    config = config_of("hers")
    config["configurable"]["user_id"] = "evelyn"
    saver.put(*put_arguments(config, 1))
    connection.execute(f'UPDATE "{saver.schema}".checkpoints SET state = substr(state, 1, 9)'.encode())
    shown = terminal("privacy", "export", "--user", "evelyn", "--to", str(tmp_path / "evelyn.jsonl"), code=1)
    assert "cannot be exported: states hers: it cannot be read here: CorruptStateError" in shown
    assert '"table":"checkpoints"' in (tmp_path / "evelyn.jsonl").read_text()


def test_a_file_that_cannot_be_written_is_found_before_the_erasure(
    terminal: Run, saver: PGStateSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("hers")
    config["configurable"]["user_id"] = "evelyn"
    saver.put(*put_arguments(config, 1))
    away, key, earlier = tmp_path / "away" / "r.json", tmp_path / "key", tmp_path / "earlier.json"
    key.write_text("a secret of the operator\n")
    earlier.write_text("earlier")
    erase = ("privacy", "erase", "--user", "evelyn", "--yes", "--key-file", str(key), "--to")
    for command in (erase, ("privacy", "export", "--user", "evelyn", "--to")):
        assert f"cannot write {away}: No such file" in terminal(*command, str(away), code=1).replace("\n", "")
    assert saver.get_tuple(config_of("hers")) is not None
    # A command that fails keeps the file as it was.
    assert "but not both" in terminal(*erase, str(earlier), "--thread", "hers", code=1)
    assert earlier.read_text() == "earlier"
    write = Path.write_text

    def full(self: Path, *arguments: Any) -> int:
        if self == earlier:
            raise OSError(28, "No space left on device")
        return write(self, *arguments)

    monkeypatch.setattr(Path, "write_text", full)
    shown = terminal(*erase, str(earlier), code=1)
    assert saver.get_tuple(config_of("hers")) is None
    (receipt_id,) = re.findall(r"receipt (\S+), signature", shown)
    assert f"cannot write {earlier}: No space left" in shown.replace("\n", "")
    assert json.loads(terminal("privacy", "receipts", receipt_id))["receipt_id"] == receipt_id
