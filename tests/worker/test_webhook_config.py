"""What `langgraph.json` says about webhooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_pgstate import WebhookSettings
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.worker.state_config import load_webhook_settings


def load(directory: Path, webhooks: Any) -> WebhookSettings:
    file = directory / "langgraph.json"
    file.write_text(json.dumps({"webhooks": webhooks}))
    return load_webhook_settings(file)


def test_headers_and_limits_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LG_WEBHOOK_A", "one"), ("LG_WEBHOOK_B", "two"), ("PGSTATE_WEBHOOK_SECRET", "s")):
        monkeypatch.setenv(name, value)
    url = {
        "require_https": True,
        "allowed_domains": ["*.example.com"],
        "allowed_ports": [443],
        "disable_loopback": True,
    }
    headers = {"x-key": "Bearer ${{ env.LG_WEBHOOK_A }}-${{env.LG_WEBHOOK_B}}", "x-plain": "$x {{y}}"}
    assert load(tmp_path, {"url": url, "headers": headers}) == WebhookSettings(
        "s",
        headers={"x-key": "Bearer one-two", "x-plain": "$x {{y}}"},
        allowed_hosts=["*.example.com"],
        allowed_ports=[443],
        require_https=True,
    )
    assert load(tmp_path, None) == WebhookSettings("s")
    monkeypatch.setenv("OTHER_KEY", "three")
    found = load(tmp_path, {"env_prefix": "OTHER_", "headers": {"x": "${{ env.OTHER_KEY }}"}})
    assert found.headers == {"x": "three"}


@pytest.mark.parametrize(
    ("webhooks", "said"),
    [
        (["x"], "webhooks of langgraph.json must be an object"),
        ({"secret": "x"}, "webhooks.secret of langgraph.json is not supported"),
        ({"url": {"max_url_length": 10}}, "webhooks.url.max_url_length of langgraph.json is not supported"),
        ({"url": {"disable_loopback": False}}, "disable_loopback = false"),
        ({"url": {"allowed_domains": "example.com"}}, "allowed_hosts must be a list"),
        ({"headers": {"x": "${{ env.PATH }}"}}, "PATH, which must begin with LG_WEBHOOK_"),
        ({"headers": {"x": "${{ env.LG_WEBHOOK_NOT_SET }}"}}, "LG_WEBHOOK_NOT_SET, which must be set"),
        ({"headers": {"x": 1}}, "must be text, not int"),
        ({"env_prefix": 1}, "env_prefix of langgraph.json must be text"),
    ],
)
def test_what_is_malformed_or_not_supported_is_named(webhooks: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(tmp_path, webhooks)
