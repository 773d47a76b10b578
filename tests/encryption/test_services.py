"""Master keys of key management services: their own clients, against servers that speak their protocols."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support import AsyncPGStateSaver, config_of, open_saver, put_arguments
from support.key_services import SERVICES, Service, service

from langgraph_pgstate import Encryption
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.encryption.keys import KeyRing, call_blocking
from langgraph_pgstate.encryption.masters import master_of
from langgraph_pgstate.errors import ConfigurationError, DataKeyError, KeyUnavailableError

for _name in ("boto3", "moto", "flask", "hvac", "google.cloud.kms_v1"):
    pytest.importorskip(_name)

CONTEXT = {"key_id": "1122334455667788", "scope": "user:anna"}
KEY = bytes(range(32))


@pytest.fixture(params=sorted(SERVICES))
def kms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with service(request.param, monkeypatch) as found:
        yield found


def test_a_key_is_wrapped_and_bound_to_its_context(kms: Service) -> None:
    master = kms.master()
    assert master.id == kms.url == master_of(kms.url).id
    wrapped = master.wrap(KEY, CONTEXT)
    assert KEY not in wrapped
    assert master.unwrap(wrapped, CONTEXT) == KEY
    assert kms.aad == [CONTEXT, CONTEXT]
    for given, context in ((wrapped, {**CONTEXT, "scope": "user:bert"}), (wrapped[:-4] + b"AAAA", CONTEXT)):
        with pytest.raises(DataKeyError, match="1122334455667788"):
            master.unwrap(given, context)


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["denied", "disabled", "throttled", "broken", "slow"])
def test_refusals_say_whether_they_pass(mood: str, kms: Service) -> None:
    """Guard: what a person has to change is not retried, and is not passed over."""
    master = kms.master()
    wrapped, kms.mood = master.wrap(KEY, CONTEXT), mood
    ring = KeyRing(Encryption(master), None)
    runner: Any = SimpleNamespace(call=call_blocking)
    with pytest.raises(KeyUnavailableError, match="does not respond") as raised:
        run_blocking(ring.ask(runner, master, master.unwrap, wrapped, CONTEXT))
    assert raised.value.retryable == (mood not in ("denied", "disabled"))
    kms.mood = ""
    assert master.unwrap(wrapped, CONTEXT) == KEY


async def put(saver: Any, thread_id: str, user: str = "anna", step: int = 0) -> Any:
    config = config_of(thread_id)
    config["configurable"]["user_id"] = user
    return await saver.aput(*put_arguments(config, step))


@pytest.mark.slow
async def test_the_service_is_asked_once_and_may_then_be_gone(kms: Service, dsn: str, schema: str) -> None:
    """100 tasks at once ask it once for a key; what is cached goes on when it is dead; a new key fails closed."""
    encryption = Encryption(kms.master(), scope="user")
    async with open_saver(AsyncPGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        configs = await asyncio.gather(*(put(saver, f"t{number}") for number in range(100)))
    assert kms.asked == 1
    encryption = Encryption(kms.master(), scope="user")
    async with open_saver(AsyncPGStateSaver, dsn, schema, setup=False, encryption=encryption) as saver:
        assert all(await asyncio.gather(*map(saver.aget_tuple, configs)))
        assert kms.asked == 2
        kms.stop()
        saver._database.keys.expire()
        assert all(await asyncio.gather(*map(saver.aget_tuple, configs)))
        await put(saver, "t0", step=1)
        with pytest.raises(KeyUnavailableError, match="does not respond") as raised:
            await put(saver, "new", "bert")
        assert raised.value.retryable
        assert await saver.aget_tuple(config_of("new")) is None


async def test_a_refusal_ends_the_use_of_cached_keys(kms: Service, dsn: str, schema: str) -> None:
    """Guard: who takes the right to the master key away has it taken from programs that run."""
    async with open_saver(AsyncPGStateSaver, dsn, schema, setup=False, encryption=Encryption(kms.master())) as saver:
        config = await put(saver, "t")
        kms.mood = "denied"
        assert await saver.aget_tuple(config) is not None
        saver._database.keys.expire()
        with pytest.raises(KeyUnavailableError) as raised:
            await saver.aget_tuple(config)
        assert not raised.value.retryable


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("aws-kms://alias/pgstate", "not of an alias"),
        ("aws-kms://arn:aws:kms:eu-central-1:123456789012:alias/x", "not of an alias"),
        ("gcp-kms://projects/p/cryptoKeys/k", "gcp-kms://projects/PROJECT/"),
        ("vault://pgstate", "vault://transit/KEY"),
        ("kms://key", "file:PATH or env:NAME, aws-kms://KEY"),
    ],
)
def test_urls_of_another_form_are_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Encryption(url)


def test_a_multi_region_key_is_one_key() -> None:
    first, second = (
        master_of(f"aws-kms://arn:aws:kms:{region}:123456789012:key/mrk-12") for region in ("eu-central-1", "us-east-1")
    )
    assert first.id == second.id


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("boto3", "aws-kms://arn:aws:kms:eu-central-1:123456789012:key/12", "aws"),
        ("google.cloud.kms_v1", "gcp-kms://projects/p/locations/l/keyRings/r/cryptoKeys/k", "gcp"),
        ("hvac", "vault://transit/k", "vault"),
    ],
)
def test_the_error_names_the_extra(module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"langgraph-pgstate\[{extra}\]"):
        Encryption(url)


def test_clients_are_imported_only_for_their_keys() -> None:
    text = "import sys; from langgraph_pgstate import Encryption; Encryption('env:K'); " + (
        "print([n for n in ('boto3', 'hvac', 'google.cloud.kms_v1') if n in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", text], env={"K": "00" * 32}, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
