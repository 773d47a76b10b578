"""Alerts and dashboard: every metric that they name exists, and the reference describes all."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.record import Record

from langgraph_pgstate import PGState
from langgraph_pgstate.metrics import Metrics
from tests.admin.test_gauges import fill

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
PROMTOOL = shutil.which("promtool")
NAME = r"\bpgstate_\w+"


def expressions() -> list[str]:
    """What the dashboard asks."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


@pytest.fixture
def families(dsn: str, record: Record) -> list[Any]:
    """All metrics, of a database with rows of every kind."""
    fill(record)
    with PGState.open(dsn, schema=record.schema, pool=2) as state:
        metrics = Metrics(state)
        metrics._operations.refused.labels(error="StaleHeadError")
        return [*metrics.collect()]


def test_every_metric_that_is_named_exists(families: list[Any]) -> None:
    samples = {sample.name for family in families for sample in family.samples}
    alerts = (MONITORING / "alerts.yml").read_text()
    assert {*re.findall(NAME, alerts)} <= samples
    tests = (MONITORING / "alerts.test.yml").read_text()
    assert {*re.findall(NAME, tests)} <= samples
    asked = {name for expression in expressions() for name in re.findall(NAME, expression)}
    assert asked <= samples
    # A number that nobody looks at is not worth its reading.
    unseen = {family.name for family in families if not any(name.startswith(family.name) for name in asked)}
    assert unseen == set()


def test_the_reference_describes_every_metric(families: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = import_module("reference").metrics_page()
    assert {*re.findall(r"^\| `(pgstate_\w+)` \| \S", page, re.MULTILINE)} == {family.name for family in families}


def test_every_alert_is_described_and_fired(monkeypatch: pytest.MonkeyPatch) -> None:
    alerts = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    page = import_module("reference").metrics_page()
    assert re.findall(r"^\| `(PGState\w+)`", page, re.MULTILINE) == alerts
    assert re.findall(r"alertname: (\w+)", (MONITORING / "alerts.test.yml").read_text()) == alerts


@pytest.mark.once
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_understands_rules_and_dashboard(tmp_path: Path) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    # Grafana's variables.
    plain = [one.replace("$job", ".*").replace("$__rate_interval", "1m") for one in expressions()]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(plain)]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for command in (
        ("check", "rules", "alerts.yml", "dashboard.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts.test.yml"),
    ):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
