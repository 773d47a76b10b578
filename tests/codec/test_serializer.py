"""Serializers: LangGraph's with the types that are allowed, and those of the user."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
from datetime import date
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.samples import config_of, forget, put_values, values_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import ConfigurationError, UnsafeTypeError
from tests.codec.test_fidelity import ALLOWED, Level, Mood, Opaque, Order, Person, Place, get_values, same

pytestmark = pytest.mark.smoke


# Types of the user's own.


@pytest.fixture
def strict(saver: PGStateSaver) -> PGStateSaver:
    """A saver over the same connections that builds nothing but LangGraph's own types and what is allowed."""
    return PGStateSaver.over(saver._database, {"schema": saver.schema, "strict": True})


USERS_OWN: dict[str, Any] = {
    "str enum": Mood.CALM,
    "int enum": Level.HIGH,
    "dataclass": Order(1, ["a"]),
    "model": Person(name="Ada", born=date(1815, 12, 10)),
    "namedtuple": Place(1, 2),
    "in a list": [Order(1, ["a" * 100]), Order(2, [])],
    "in a message": HumanMessage("x", additional_kwargs={"mood": Mood.CALM}),
}


@pytest.mark.parametrize("value", USERS_OWN.values(), ids=USERS_OWN)
def test_a_data_type_of_an_imported_module_comes_back(value: Any, saver: PGStateSaver) -> None:
    """Nobody has to say anything."""
    config = put_values(saver, config_of(), {"channel": value}, own={"order": Order(1, [])})
    saver.put_writes(config, [("channel", value)], "task")
    forget(saver)
    found = saver.get_tuple(config)
    assert found is not None
    assert same(found.checkpoint["channel_values"]["channel"]) == same(value)
    assert same(found.pending_writes) == same([("task", "channel", value)])
    assert found.metadata["own"] == {"order": Order(1, [])}  # type: ignore[typeddict-item]


@pytest.mark.parametrize("value", USERS_OWN.values(), ids=USERS_OWN)
@pytest.mark.parametrize("write", [False, True], ids=["channel", "write"])
def test_a_type_that_is_not_allowed_is_refused_by_name(write: bool, value: Any, strict: PGStateSaver) -> None:
    """In strict mode; the error says which type was met in which channel, and how to allow it."""
    config = put_values(strict, config_of(), {"channel": 1 if write else value})
    if write:
        strict.put_writes(config, [("channel", value)], "task")
    with pytest.raises(UnsafeTypeError, match="allowed_types=") as caught:
        strict.get_tuple(config)
    assert "'channel'" in caught.value.where
    assert set(caught.value.types) <= set(ALLOWED)
    assert all(f"{module}.{name} (in strict mode" in str(caught.value) for module, name in caught.value.types)
    assert all(f"{module}:{name}" in str(caught.value) for module, name in caught.value.types)
    with pytest.raises(UnsafeTypeError):
        [*strict.list(config)]


@pytest.mark.parametrize("value", USERS_OWN.values(), ids=USERS_OWN)
@pytest.mark.parametrize("how", ["class", "name", "allowlist"])
def test_an_allowed_type_comes_back(how: str, value: Any, strict: PGStateSaver) -> None:
    """What the error recommends works, also for what was stored before, and only for the saver that allows it."""
    config = put_values(strict, config_of(), {"channel": value})
    strict.put_writes(config, [("channel", value)], "task")
    with pytest.raises(UnsafeTypeError) as caught:
        strict.get_tuple(config)
    names = caught.value.types
    allowed: Any = [f"{module}:{name}" for module, name in names]
    if how == "class":
        allowed = [getattr(sys.modules[module], name) for module, name in names]
    allowing = (
        strict.with_allowlist(names)
        if how == "allowlist"
        else PGStateSaver.over(strict._database, {"schema": strict.schema, "strict": True, "allowed_types": allowed})
    )
    found = allowing.get_tuple(config)
    assert found is not None
    assert same(found.checkpoint["channel_values"]["channel"]) == same(value)
    assert same(found.pending_writes) == same([("task", "channel", value)])
    with pytest.raises(UnsafeTypeError):
        strict.get_tuple(config)


def test_an_allowlist_may_be_widened(strict: PGStateSaver) -> None:
    """Subgraphs widen the parent's allowlist again; what is allowed already gives the same saver."""
    one = strict.with_allowlist([ALLOWED[0]])
    both = one.with_allowlist([ALLOWED[2]])
    assert both.with_allowlist(ALLOWED[:1]) is both
    config = put_values(both, config_of(), {"mood": Mood.CALM, "order": Order(1, [])})
    assert same(values_of(both, config)) == same({"mood": Mood.CALM, "order": Order(1, [])})
    with pytest.raises(UnsafeTypeError):
        one.get_tuple(config)


@pytest.mark.parametrize("bad", ["shop.state:Order", ["shop.state.Order"], [7], ["*", "shop.state:Order"], [":Order"]])
def test_what_names_no_type_is_refused(bad: Any, saver: PGStateSaver) -> None:
    with pytest.raises(ConfigurationError, match="allowed_types"):
        PGStateSaver.over(saver._database, {"schema": saver.schema, "allowed_types": bad})


@pytest.mark.parametrize("options", [{"strict": True}, {"allowed_types": [Order]}], ids=["strict", "allowed_types"])
def test_options_for_a_serializer_of_the_user_are_refused(options: Any, saver: PGStateSaver) -> None:
    """They would change nothing: it is left alone."""
    with pytest.raises(ConfigurationError, match="serde="):
        PGStateSaver.over(saver._database, {"schema": saver.schema, "serde": JsonPlusSerializer(), **options})


@pytest.mark.parametrize("value", USERS_OWN.values(), ids=USERS_OWN)
def test_a_serializer_of_the_user_decides_for_itself(value: Any, dsn: str, schema: str, saver: PGStateSaver) -> None:
    """`allowed_msgpack_modules=True` trusts the database."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=True)
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as trusting:
        config = put_values(trusting, config_of(), {"channel": value})
        assert same(get_values(trusting, config)["channel"]) == same(value)


def test_a_serializer_with_pickle_keeps_what_msgpack_cannot_say(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """The fallback of LangGraph's serializer works for values and for elements of lists."""
    serde = JsonPlusSerializer(pickle_fallback=True, allowed_msgpack_modules=True)
    values = {"one": Opaque, "many": [Opaque, "x" * 200]}
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as pickling:
        config = put_values(pickling, config_of(), values)
        assert get_values(pickling, config) == values


def test_a_refused_type_is_not_confused_between_threads(strict: PGStateSaver) -> None:
    """A refusal on one thread does not fail the reading of plain values on another."""
    saver = strict
    bad = put_values(saver, config_of("bad"), {"channel": Order(1, [])})
    good = put_values(saver, config_of("good"), {"channel": {"plain": "x" * 500}})

    async def read() -> list[Any]:
        calls = [asyncio.to_thread(saver.get_tuple, config) for _ in range(20) for config in (bad, good)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(read())
    assert all(isinstance(item, UnsafeTypeError) for item in found[0::2])
    assert all(not isinstance(item, BaseException) for item in found[1::2])


# Secrecy.


class ToyCipher(CipherProtocol):
    """Hides bytes from a search; not from anybody who reads this."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "toy", base64.b85encode(self._mask(plaintext))

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "toy"
        return self._mask(base64.b85decode(ciphertext))

    def _mask(self, data: bytes) -> bytes:
        stream = b"".join(hashlib.sha256(bytes([number % 256])).digest() for number in range(len(data) // 32 + 1))
        return bytes(left ^ right for left, right in zip(data, stream, strict=False))


SECRETS = [f"secret-{number:02d}-{hashlib.sha256(bytes([number])).hexdigest()[:12]}" for number in range(20)]


def planted() -> dict[str, Any]:
    """Channel values with 14 of the secrets, each where another way of storing leads to."""
    given = iter(SECRETS)
    return {
        "scalar": next(given),
        "sentence": f"the word is {next(given)}",
        "long": f"{next(given)} " * 500,
        "strings": [next(given), "x" * 200],
        "short list": [next(given)],
        "messages": [HumanMessage(f"my card: {next(given)} " + "x" * 100, id=str(number)) for number in range(3)],
        "calls": [AIMessage("", tool_calls=[{"name": "pay", "args": {"card": next(given)}, "id": "c"}])],
        "dict": {"key": next(given)},
        "keys": {next(given): 1},
        "nested": {"a": [{"b": (next(given),)}]},
        "bytes": next(given).encode(),
        "odd": {"s": {next(given)}},
    }


def dump(connection: psycopg.Connection, schema: str) -> bytes:
    """Every byte of every column of every table, and what is inside of frames."""
    parts = []
    names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    for (name,) in names:
        for row in connection.execute(f'SELECT * FROM "{schema}"."{name}"'):
            parts += [item if isinstance(item, bytes) else str(item).encode() for item in row]
            parts += [frames.unpack(item, name) for item in row if isinstance(item, bytes)]
    assert parts
    return b"\n".join(parts)


@pytest.mark.parametrize("inner", [None, JsonPlusSerializer(allowed_msgpack_modules=True)], ids=["default", "own"])
def test_an_encrypting_serializer_hides_every_value(
    inner: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Nothing of channel values and pending writes is in the tables in clear, whatever way they are stored."""
    serde = EncryptedSerializer(ToyCipher()) if inner is None else EncryptedSerializer(ToyCipher(), inner)
    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as saver:
        saver.setup()
        values = planted()
        parent = put_values(saver, config_of(), values)
        values["messages"] = [*values["messages"], HumanMessage(SECRETS[14] + "x" * 100)]
        config = put_values(saver, parent, values)
        writes: list[tuple[str, Any]] = [
            ("scalar", SECRETS[15]),
            ("messages", [HumanMessage(SECRETS[16])]),
            ("__interrupt__", {"ask": SECRETS[17]}),
            ("__error__", SECRETS[18]),
            ("__resume__", [SECRETS[19]]),
        ]
        saver.put_writes(config, writes, "task")
        raw = dump(connection, schema)
        assert not [secret for secret in SECRETS if secret.encode() in raw]
        assert same(get_values(saver, config)) == same({**values, "nested": {"a": [{"b": [SECRETS[11]]}]}})
        found = saver.get_tuple(config)
        assert found is not None
        assert sorted((channel, str(value)) for _, channel, value in found.pending_writes or []) == sorted(
            (channel, str(value)) for channel, value in writes
        )


def test_without_encryption_the_search_finds_the_secrets(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The search of the test above would notice: scalars are in the rows as they are."""
    put_values(saver, config_of(), {"scalar": SECRETS[0]}, topic=SECRETS[1])
    raw = dump(connection, schema)
    assert SECRETS[1].encode() in raw
    assert any(secret.encode() in raw for secret in SECRETS[:1])


def test_a_serializer_that_is_not_langgraphs_sees_every_value_whole(dsn: str, schema: str) -> None:
    """Even scalars go through it: it may be there to hide them."""
    seen = []

    class Watching(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            seen.append(obj)
            return super().dumps_typed(obj)

    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=Watching()) as saver:
        saver.setup()
        values = {"scalar": "x", "number": 5, "none": None, "list": ["y" * 300], "surrogate": {"a": 1}}
        config = put_values(saver, config_of(), values)
        assert [value for value in seen if value in values.values()] == [*values.values()]
        assert get_values(saver, config) == values
