"""Settings of webhooks, given and from the environment."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from langgraph_pgstate import WebhookSettings
from langgraph_pgstate.errors import ConfigurationError


def test_the_environment_names_a_secret_and_networks() -> None:
    variables = {"PGSTATE_WEBHOOK_SECRET": "s", "PGSTATE_WEBHOOK_NETWORKS": "10.1.0.0/16, fd00::/8,"}
    settings = WebhookSettings.from_environment(variables)
    assert settings.networks == (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    assert settings == WebhookSettings("s", ("10.1.0.0/16", "fd00::/8"))
    assert "'s'" not in repr(settings)
    assert WebhookSettings.from_environment({}) == WebhookSettings()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"secret": ""}, "secret"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"allowed_networks": "10.1.0.0/16"}, "allowed_networks"),
        ({"allowed_networks": ["10.1.0.1/16"]}, "allowed_networks"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"WebhookSettings.{name}"):
        WebhookSettings(**wrong)
