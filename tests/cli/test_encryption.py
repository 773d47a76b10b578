"""The command `encryption` on tables with tenants."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from support import config_of, put_arguments
from support.tenants import Walled, open_walled
from typer.testing import CliRunner

from langgraph_pgstate import Encryption, LocalMasterKey
from langgraph_pgstate.cli.app import app

TENANTS = ("acme", "globex", "initech")


@pytest.mark.slow
def test_all_tenants_are_served_in_turn(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose keys cannot be used is named, and the others go on."""
    old, new, lost = (LocalMasterKey(bytes([number]) * 32) for number in (1, 2, 3))
    (tmp_path / "old").write_bytes(b"\x01" * 32)
    (tmp_path / "new").write_bytes(b"\x02" * 32)
    monkeypatch.setenv("PGSTATE_ENCRYPTION_KEYS", f"file:{tmp_path}/new,file:{tmp_path}/old")
    with open_walled(dsn) as walled:
        for tenant in TENANTS:
            master = lost if tenant == "globex" else old
            with walled.open(encryption=Encryption(master), tenant=tenant) as state:
                state.saver.put(*put_arguments(config_of("t"), 0))

        def run(*arguments: str, code: int = 0, dsn: str = walled.owner) -> Any:
            given = ["--dsn", dsn, "--schema", walled.schema, *arguments]
            result = CliRunner().invoke(app, given)
            assert result.exit_code == code, result.output + repr(result.exception)
            return result

        shown = run("encryption", "rewrap", code=1).output
        assert "tenant globex: data key" in shown
        assert shown.count("wrapped 1 data key again") == 2
        assert masters(walled) == {("acme", new.id), ("globex", lost.id), ("initech", new.id)}
        found = [json.loads(line) for line in run("--json", "encryption", "status").stdout.splitlines()]
        assert [(one["tenant"], one["masters"][0][0]) for one in found] == [
            ("acme", new.id),
            ("globex", lost.id),
            ("initech", new.id),
        ]
        assert "tenant" not in run("--tenant", "acme", "encryption", "status").output
        # A role that sees all tenants counts the keys of all.
        every = run("--json", "encryption", "status", dsn=walled.operator).stdout
        assert {one[0]: one[1] for one in json.loads(every)["masters"]} == {new.id: 2, lost.id: 1}
        walled.rows("DELETE FROM {}.data_keys WHERE pgstate_tenant = 'globex'")
        walled.rows("DELETE FROM {}.segments WHERE pgstate_tenant = 'globex'")
        walled.rows("DELETE FROM {}.checkpoints WHERE pgstate_tenant = 'globex'")
        # One wait serves all tenants.
        monkeypatch.setattr("langgraph_pgstate.admin.rotation._MARGIN_SECONDS", 1.0 - Encryption(new).cache_seconds)
        slept: list[float] = []
        monkeypatch.setattr(
            "langgraph_pgstate.admin.rotation.time.sleep", lambda seconds: slept.append(sleep(seconds) or seconds)
        )
        reports = [json.loads(line) for line in run("--json", "encryption", "rotate").stdout.splitlines()]
        assert sum(slept) <= 1.0
        assert [(one["tenant"], one["keys"], one["retired"], one["left"]) for one in reports] == [
            ("acme", 1, 1, 0),
            ("globex", 0, 0, 0),
            ("initech", 1, 1, 0),
        ]


def masters(walled: Walled) -> set[Any]:
    return {*walled.rows("SELECT pgstate_tenant, master_id FROM {}.data_keys")}
