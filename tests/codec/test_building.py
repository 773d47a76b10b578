"""Which types are built of what is stored: those of imported modules that are data, and nothing else runs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import hostile
import kinds
import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support import examples
from support.samples import config_of, forget, put_values, values_of

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.codec import building
from langgraph_pgstate.codec.messages import SHAPES, extension
from langgraph_pgstate.codec.serializer import StateSerializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import PGStateError, UnsafeTypeError

TESTS = Path(__file__).parents[1]
CODES = range(6)


def named(module: Any, name: Any, payload: Any, code: int, method: Any = "fromisoformat") -> bytes:
    """A value as stored bytes that name its type: the serializer's extensions, by hand."""
    fields = (module, name, payload, method) if code in (3, 5) else (module, name, payload)
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(fields)))


def payload_for(code: int, argument: Any) -> Any:
    """An argument as an extension of some code carries it."""
    return argument if code in (0, 3) else [argument] if code == 1 else {"argument": argument}


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[str]]:
    """What has run of `hostile`; nothing is to."""
    hostile.RAN.clear()
    yield hostile.RAN
    assert hostile.RAN == []


@pytest.fixture
def told() -> Iterator[None]:
    """Types are told of anew."""
    building._warned.clear()
    yield
    building._warned.clear()


def wrapped(data: bytes) -> Iterator[bytes]:
    """Some bytes, as they are and inside of everything that is taken apart."""
    yield data
    yield b"\x91" + data
    yield b"\x81\xa1a" + data
    for code in CODES:
        place = ("datetime", "datetime") if code == 3 else ("langgraph.types", "Interrupt")
        names = b"".join(map(ormsgpack.packb, place))
        yield extension(code, b"\x94" + names + data + ormsgpack.packb("fromisoformat"))
    yield extension(7, data)
    empty = {"content": "x", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": None, "id": "1"}
    key = ormsgpack.packb("additional_kwargs")
    fields = ormsgpack.packb(empty).replace(key + b"\x80", key + b"\x81\xa1k" + data)
    yield extension(5, SHAPES[HumanMessage].prefix + fields + ormsgpack.packb("model_validate_json"))


def test_the_hostile_values_are_inside_of_a_message() -> None:
    """What the message's own way, which is ours, sees."""
    *_, message = wrapped(ormsgpack.packb("inner"))
    found = ValueCodec().loads("msgpack", message, "here")
    assert found == HumanMessage("x", id="1", additional_kwargs={"k": "inner"})


CALLABLES = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "__import__"),
    ("builtins", "type"),
    ("builtins", "getattr"),
    ("builtins", "property"),
    ("functools", "partial"),
    ("operator", "methodcaller"),
    ("importlib", "import_module"),
    ("pickle", "loads"),
    ("types", "FunctionType"),
    ("collections", "namedtuple"),
    ("typing", "NamedTuple"),
    ("enum", "EnumType"),
    ("dataclasses", "make_dataclass"),
    ("pydantic", "create_model"),
    ("pydantic.main", "create_model"),
    ("ormsgpack", "unpackb"),
    ("langchain_core.load.load", "loads"),
    *(
        ("hostile", name)
        for name in ("run", "Effect", "Meta", "Metaclassed", "Descriptor", "Described", "Liar", "liar")
    ),
    *(("hostile", name) for name in ("LooksLikeATuple", "LooksLikeAnEnum", "make", "RAN")),
    *(("hostile", name) for name in ("Described.Inner", "Metaclassed.Inner", "Effect.fromisoformat", "Meta.__call__")),
]


@pytest.mark.parametrize(("module", "name"), CALLABLES, ids=[":".join(pair) for pair in CALLABLES])
def test_nothing_but_data_types_is_called(module: str, name: str, tmp_path: Path) -> None:
    """Whatever the extension, and wherever it stands; neither by a codec that refuses nor by one that reads on."""
    proof = tmp_path / "proof"
    command = f"touch {proof}"
    before = set(sys.modules)
    for argument in (command, f"__import__('os').system({command!r})", pickle.dumps(Touch(proof))):
        for code in CODES:
            for data in wrapped(named(module, name, payload_for(code, argument), code)):
                if "." in name:
                    # No name that a module has: nobody can build it, and it is plain data as in LangGraph.
                    ValueCodec().loads("msgpack", data, "here")
                else:
                    with pytest.raises(UnsafeTypeError, match=name) as refused:
                        ValueCodec().loads("msgpack", data, "here")
                    assert (module, name) in refused.value.types
                ValueCodec(refuse_unsafe=False).loads("msgpack", data, "here")
                StateSerializer().loads_typed(("msgpack", data))
    assert not proof.exists()
    assert set(sys.modules) == before


class Touch:
    """Pickled, it is a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["unknown", "__getattr__", "run2"])
def test_what_a_module_makes_up_is_not_asked_for(name: str, ran: list[str]) -> None:
    """`__getattr__` of a module does not run. A function that stands there under this name is none."""
    for code in CODES:
        data = named("hostile", name, payload_for(code, "x"), code)
        if name == "__getattr__":
            with pytest.raises(UnsafeTypeError):
                ValueCodec().loads("msgpack", data, "here")
        else:
            assert ValueCodec().loads("msgpack", data, "here") == payload_for(code, "x")


@pytest.mark.parametrize("method", ["system", "utcfromtimestamp", "__init__", "strptime", "mro"])
@pytest.mark.parametrize(
    "pair", [("datetime", "datetime"), ("kinds", "Moment"), ("os", "system"), ("hostile", "Effect")]
)
def test_one_method_of_one_kind_is_called(pair: tuple[str, str], method: str) -> None:
    with pytest.raises(UnsafeTypeError):
        ValueCodec().loads("msgpack", named(*pair, "2026-01-02", 3, method), "here")


def test_methods_of_that_name_on_other_data_types_are_not_called() -> None:
    """`fromisoformat` is a datetime's, `construct` and `model_construct` are a pydantic model's."""
    with pytest.raises(UnsafeTypeError):
        ValueCodec().loads("msgpack", named("hostile", "Methodical", "2026-01-02", 3), "here")
    for code in (4, 5):
        assert ValueCodec().loads("msgpack", named("hostile", "Methodical", {"gone": 1}, code), "here") == {"gone": 1}


def test_enums_make_no_enums() -> None:
    """Called with more than a value, an enum makes a new one."""
    for module, name in (("enum", "Enum"), ("hostile", "Kind")):
        for code, payload in itertools.product((1, 2, 4, 5), (["Made", "a b"], {"value": "Made", "names": "a b"})):
            with pytest.raises(UnsafeTypeError):
                ValueCodec().loads("msgpack", named(module, name, payload, code), "here")
    assert ValueCodec().loads("msgpack", named("hostile", "Kind", 1, 0), "here") is hostile.Kind.ONE
    assert ValueCodec().loads("msgpack", named("hostile", "Kind", 2, 0), "here") == 2


@pytest.mark.parametrize("fields", [(), (1,), (["os"], "system", "x"), ({"os": 1}, None, 1), ("os", 7, "x"), "osx"])
def test_what_names_no_type_is_damage(fields: Any) -> None:
    for code in CODES:
        data = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(fields)))
        with pytest.raises(PGStateError):
            ValueCodec().loads("msgpack", data, "here")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported and was not; it holds a data type."""
    (tmp_path / "elsewhere.py").write_text(
        "import dataclasses, hostile\nhostile.RAN.append('imported')\n\n"
        "@dataclasses.dataclass\nclass Parcel:\n    number: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "elsewhere"
    hostile.RAN.clear()
    sys.modules.pop("elsewhere", None)


def test_nothing_is_imported_while_reading(elsewhere: str, saver: PGStateSaver) -> None:
    """The error names the type, the channel, and both ways to allow it, which work."""
    plant(saver, named(elsewhere, "Parcel", {"number": 7}, 2))
    with pytest.raises(UnsafeTypeError) as refused:
        saver.get_tuple(config_of())
    assert elsewhere not in sys.modules
    assert hostile.RAN == []
    assert refused.value.types == [("elsewhere", "Parcel")]
    for part in (
        "elsewhere.Parcel (its module is not imported here)",
        "channel 'channel'",
        "Import it before reading",
        "allowed_types=['elsewhere:Parcel']",
        "PGSTATE_ALLOWED_TYPES=elsewhere:Parcel",
    ):
        assert part in str(refused.value)
    database: Any = saver._database
    allowing = PGStateSaver.over(
        database, {"schema": saver.schema, "allowed_types": ["elsewhere:Parcel"], "strict": True}
    )
    assert values_of(allowing, config_of())["channel"].number == 7
    # Now it is imported.
    assert values_of(saver, config_of())["channel"].number == 7
    with pytest.raises(UnsafeTypeError):
        values_of(PGStateSaver.over(database, {"schema": saver.schema, "strict": True}), config_of())


def plant(saver: PGStateSaver, data: bytes, kind: str = "msgpack") -> Any:
    """Store bytes that no serializer wrote."""

    class Planting(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return kind, data

    planting = PGStateSaver.over(saver._database, {"schema": saver.schema, "serde": Planting()})
    config = put_values(planting, config_of(), {"channel": "planted"})
    forget(saver)
    return config


def test_what_is_planted_runs_nowhere(dsn: str, schema: str, saver: PGStateSaver, tmp_path: Path) -> None:
    """As a value, as a write, in a list of checkpoints, in a comparison."""
    proof = tmp_path / "proof"
    for data in (named("os", "system", f"touch {proof}", 0), b"\x91" + named("hostile", "Effect", [], 1)):
        config = plant(saver, data)
        with PGState.open(dsn, schema=schema) as state:
            for read in (
                lambda: saver.get_tuple(config),  # noqa: B023
                lambda: [*saver.list(config)],  # noqa: B023
                lambda: state.threads.diff(config, config),  # noqa: B023
            ):
                with pytest.raises(UnsafeTypeError):
                    read()
    assert not proof.exists()


@pytest.mark.parametrize("lc", [1, 2])
@pytest.mark.parametrize("place", ["os:system", "builtins:eval", "hostile:Effect", "elsewhere:Parcel"])
def test_json_constructors_obey_the_same_rule(lc: int, place: str, elsewhere: str, tmp_path: Path) -> None:
    """What LangGraph stored as JSON in its first year."""
    proof = tmp_path / "proof"
    value = {"lc": lc, "type": "constructor", "id": place.split(":"), "args": [f"touch {proof}"], "kwargs": {}}
    for stored in (value, [value], {"a": {"b": value}}):
        with pytest.raises(UnsafeTypeError, match=place.split(":")[1]):
            ValueCodec().loads("json", json.dumps(stored).encode(), "here")
    assert not proof.exists()
    assert elsewhere not in sys.modules


def test_old_json_is_read() -> None:
    """Messages under LangChain's old names, values of the standard library, data types; no variable is given away."""
    os.environ["PGSTATE_TEST_SECRET"] = "secret"  # pragma: allowlist secret
    stored = {
        "message": {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", "HumanMessage"],
            "kwargs": {"content": "hello", "id": "1"},
        },
        "id": {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": [UUID(int=5).hex]},
        "order": {"lc": 2, "type": "constructor", "id": ["kinds", "Order"], "kwargs": {"number": 1}},
        "api": {"lc": 2, "type": "constructor", "id": ["kinds", "Color"], "args": ["red"]},
        "secret": {"lc": 1, "type": "secret", "id": ["PGSTATE_TEST_SECRET"]},
    }
    assert ValueCodec().loads("json", json.dumps(stored).encode(), "here") == {
        "message": HumanMessage("hello", id="1"),
        "id": UUID(int=5),
        "order": kinds.Order(1),
        "api": kinds.Color.RED,
        "secret": None,
    }


def test_pickles_are_not_read(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    with pytest.raises(PGStateError, match="another serializer"):
        ValueCodec().loads("pickle", pickle.dumps(Touch(proof)), "here")
    assert not proof.exists()


class Proxy:
    """Stands for a module, as some libraries do."""

    def __getattribute__(self, name: str) -> Any:
        hostile.RAN.append(f"proxy {name}")
        return hostile.run


class LazyModule(ModuleType):
    """A module that is loaded when it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        hostile.RAN.append(f"lazy {name}")
        return hostile.run


@pytest.mark.parametrize("module", [Proxy(), LazyModule("lazy"), None, 7], ids=["proxy", "lazy", "none", "number"])
def test_what_stands_for_a_module_is_not_asked(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "standing_in", module)
    codec = ValueCodec(refuse_unsafe=False)
    for code in CODES:
        payload = payload_for(code, "x")
        assert codec.loads("msgpack", named("standing_in", "run", payload, code), "here") == payload
    if type(module) is not LazyModule:
        with pytest.raises(UnsafeTypeError, match="not imported"):
            ValueCodec().loads("msgpack", named("standing_in", "run", "x", 0), "here")


def test_a_module_that_is_loaded_lazily_stays_so(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec(elsewhere)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, elsewhere, module)
    spec.loader.exec_module(module)
    ValueCodec(refuse_unsafe=False).loads("msgpack", named(elsewhere, "Parcel", {"number": 1}, 2), "here")
    assert hostile.RAN == []


def test_a_type_of_a_module_that_is_being_imported_is_no_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: a read that races with an import would give dicts now and objects later."""
    module = ModuleType("half")
    module.__spec__ = importlib.util.spec_from_loader("half", None)
    monkeypatch.setitem(sys.modules, "half", module)
    data = named("half", "Order", {"number": 1}, 2)
    assert ValueCodec().loads("msgpack", data, "here") == {"number": 1}
    monkeypatch.setattr(module.__spec__, "_initializing", True, raising=False)
    with pytest.raises(UnsafeTypeError, match="not imported"):
        ValueCodec().loads("msgpack", data, "here")


# Types of every kind, read by another process.

READER = """
import sys
sys.path.insert(0, {tests!r})
import kinds
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph_pgstate.codec.values import ValueCodec
from support.samples import exactly
theirs, ours = JsonPlusSerializer(allowed_msgpack_modules=True), ValueCodec()
def seen(value):
    if isinstance(value, dict):
        return {{key: seen(item) for key, item in value.items()}}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [seen(item) for item in value]
    return type(value), repr(value)
print("ready", flush=True)
for line in sys.stdin:
    data = bytes.fromhex(line)
    before = set(sys.modules)
    found = ours.loads("msgpack", data, "here")
    imported = set(sys.modules) - before
    is_same = seen(found) == seen(theirs.loads_typed(("msgpack", data)))
    again = ours.dumps("channel", found)[1]
    print(is_same, again == data, len(imported), flush=True)
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[Callable[[bytes], list[str]]]:
    """A process that has imported `kinds`, and nothing of this file; it says what it reads."""
    command = [sys.executable, "-c", READER.format(tests=str(TESTS))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"

        def read(data: bytes) -> list[str]:
            print(data.hex(), file=child.stdin, flush=True)
            return child.stdout.readline().split()

        yield read
        child.stdin.close()


TEXT = st.text(max_size=5)
LEAVES = st.one_of(
    st.sampled_from([*kinds.Color, *kinds.Level, *kinds.Mood, *kinds.Rights, kinds.Rights.READ | kinds.Rights.WRITE]),
    st.builds(kinds.Money, st.decimals(allow_nan=False, allow_infinity=False)),
    st.builds(kinds.Key, int=st.integers(0, 2**64)),
    st.builds(kinds.Tags, st.sets(st.integers(0, 5), max_size=1)),
    st.builds(kinds.Folder, st.sampled_from(["/a/b", "c"])),
    st.builds(kinds.IntBox, content=st.integers(0, 9)),
    st.builds(kinds.Names, st.lists(TEXT, max_size=2)),
    st.builds(kinds.Old, name=TEXT),
    st.builds(kinds.Loud, content=TEXT, volume=st.integers(0, 9)),
    st.integers(0, 9),
    TEXT,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(kinds.Order, st.integers(0, 9), st.lists(inner, max_size=2)),
        st.builds(kinds.Special, st.integers(0, 9), st.lists(inner, max_size=2)),
        st.builds(kinds.Frozen, inner),
        st.builds(kinds.Person, name=TEXT, inner=inner),
        st.builds(kinds.Place, inner, inner),
        st.builds(kinds.Pair, inner, inner),
        st.builds(kinds.Queue, st.lists(inner, max_size=2)),
        st.lists(inner, max_size=3),
        st.dictionaries(TEXT, inner, max_size=2),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(
    max_examples=examples(300), derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(value=VALUES)
def test_types_of_every_kind_are_read_by_another_process(value: Any, reader: Callable[[bytes], list[str]]) -> None:
    """As LangGraph's own serializer reads them when it builds whatever is named; and nothing is imported for it."""
    kind, data = ValueCodec().dumps("channel", value)
    assert (kind, data) == JsonPlusSerializer().dumps_typed(value)
    is_same, _, imported = reader(data)
    assert (is_same, imported) == ("True", "0")


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [kinds.Outer.Inner(3), kinds.Moment(2026, 1, 2, 3, 4, 5, 6)], ids=lambda value: type(value).__qualname__
)
def test_what_langgraph_cannot_find_again_is_found(value: Any, reader: Callable[[bytes], list[str]]) -> None:
    """A class inside of a class, and a datetime of the user's own, which it reads as plain data."""
    data = ValueCodec().dumps("channel", value)[1]
    found = ValueCodec().loads("msgpack", data, "here")
    assert (type(found), found) == (type(value), value)
    assert reader(data) == ["False", "True", "0"]


def test_a_class_that_two_classes_hold_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that was found there before the other came."""
    data = named("kinds", "Inner", {"value": 1}, 2)
    codec = ValueCodec()
    assert codec.loads("msgpack", data, "here") == kinds.Outer.Inner(1)
    inner = dataclass(type("Inner", (), {"__module__": "kinds", "__qualname__": "Other.Inner"}))
    other = type("Other", (), {"__module__": "kinds", "Inner": inner})
    monkeypatch.setattr(kinds, "Other", other, raising=False)
    assert codec.loads("msgpack", data, "here") == {"value": 1}


def test_a_class_that_was_made_anew_is_the_one_that_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook."""
    codec = ValueCodec()
    data = codec.dumps("channel", kinds.Order(1))[1]
    assert type(codec.loads("msgpack", data, "here")) is kinds.Order
    newer = dataclass(type("Order", (), {"__module__": "kinds", "__annotations__": {"number": int, "lines": list}}))
    monkeypatch.setattr(kinds, "Order", newer)
    assert type(codec.loads("msgpack", data, "here")) is newer
    # What is no data type any more is judged anew, too.
    monkeypatch.setattr(kinds, "Order", hostile.run)
    with pytest.raises(UnsafeTypeError):
        codec.loads("msgpack", data, "here")


def test_attrs_classes_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangGraph's serializer stores none; what another version of it stored is read. They are known by one name."""
    made = dataclass(type("Made", (), {"__module__": "kinds", "__annotations__": {"a": int}}))
    data = named("kinds", "Made", {"a": 1}, 2)
    for _ in ("__dataclass_fields__", "__attrs_attrs__"):
        monkeypatch.setattr(kinds, "Made", made, raising=False)
        assert ValueCodec().loads("msgpack", data, "here") == made(1)
        made = type("Made", (), {"__init__": made.__init__, "__eq__": made.__eq__, "__attrs_attrs__": ()})
    made = type("Made", (), {"__init__": made.__init__, "__eq__": made.__eq__})
    monkeypatch.setattr(kinds, "Made", made)
    with pytest.raises(UnsafeTypeError):
        ValueCodec().loads("msgpack", data, "here")


def test_arrays_are_built_where_numpy_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    data = ValueCodec().dumps("array", numpy.arange(3))[1]
    for codec in (ValueCodec(), ValueCodec(StateSerializer(strict=True))):
        assert codec.loads("msgpack", data, "here").tolist() == [0, 1, 2]
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "numpy")
            with pytest.raises(UnsafeTypeError, match=r"numpy.ndarray \(its module is not imported"):
                codec.loads("msgpack", data, "here")
            assert "numpy" not in sys.modules


def test_langgraphs_variable_makes_savers_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ValueCodec().dumps("channel", kinds.Order(1))
    assert ValueCodec().loads(*stored, "here") == kinds.Order(1)
    # What LANGGRAPH_STRICT_MSGPACK=true sets when LangGraph is imported.
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(UnsafeTypeError, match="in strict mode only LangGraph's own types are built"):
        ValueCodec().loads(*stored, "here")


def test_a_module_that_is_gone_is_allowed_as_plain_data(caplog: pytest.LogCaptureFixture, told: None) -> None:
    """So that upcasters can take it from there."""
    data = named("long.gone", "Order", {"number": 1}, 2)
    with pytest.raises(UnsafeTypeError):
        ValueCodec().loads("msgpack", data, "here")
    codec = ValueCodec(StateSerializer([("long.gone", "Order")]))
    assert "long.gone.Order cannot be built (its module cannot be imported" in caplog.text
    assert codec.loads("msgpack", data, "here") == {"number": 1}


def test_what_no_longer_fits_its_class_is_plain_data(caplog: pytest.LogCaptureFixture, told: None) -> None:
    """As in LangGraph, and it is said once."""
    codec = ValueCodec()
    for _ in range(3):
        assert codec.loads("msgpack", named("kinds", "Frozen", {"gone": 1}, 2), "here") == {"gone": 1}
    assert caplog.text.count("kinds.Frozen cannot be built (TypeError)") == 1


# Warnings.


class Plain:
    """No data type, that LangGraph's serializer takes for a named tuple."""

    def _asdict(self) -> dict[str, Any]:
        return {"a": 1}


def local() -> Any:
    @dataclass
    class Local:
        number: int

    return Local(1)


@pytest.mark.parametrize("place", ["channel", "list", "write", "inside"])
@pytest.mark.parametrize(
    ("make", "name", "why"), [(local, "local.<locals>.Local", "has no Local"), (Plain, "Plain", "no data type")]
)
def test_what_could_not_be_read_back_is_said_when_it_is_stored(
    make: Any, name: str, why: str, place: str, saver: PGStateSaver, caplog: pytest.LogCaptureFixture, told: None
) -> None:
    """Once, by name; also inside of another object, and of a type that is allowed nothing is said."""
    for number in range(3):
        value = make()
        if place == "write":
            saver.put_writes(config_of("t", "", f"1f0-{number}"), [("channel", value)], "task")
        else:
            stored = {"channel": value, "list": [value], "inside": kinds.Frozen({"a": value})}[place]
            put_values(saver, config_of(), {"channel": stored})
    records = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(records) == 1
    assert f"test_building.{name} is stored, and a new process could not read it back" in records[0]
    assert why in records[0]
    caplog.clear()
    building._warned.clear()
    ValueCodec(StateSerializer([type(make())])).dumps("channel", make())
    assert not caplog.records


def test_nothing_is_said_of_what_can_be_read(caplog: pytest.LogCaptureFixture, told: None) -> None:
    values = [
        kinds.Order(1),
        kinds.Person(name="x"),
        kinds.Outer.Inner(1),
        kinds.Moment(2026, 1, 1),
        datetime(2026, 1, 1),
    ]
    values += [Decimal(1), {1}, Path("a"), HumanMessage("x", id=7), kinds.Old(name="x"), ValueError("x"), *kinds.Color]
    ValueCodec().dumps("channel", values)
    assert not caplog.records


def test_a_class_of_the_program_itself_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told: None
) -> None:
    """Another program has another `__main__`; the same one reads it."""
    mine = dataclass(type("Mine", (), {"__module__": "__main__", "__annotations__": {"number": int}}))
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    stored = ValueCodec().dumps("channel", mine(1))
    assert "__main__.Mine is stored, and a new process could not read it back: it is defined in" in caplog.text
    assert ValueCodec().loads(*stored, "here") == mine(1)


@pytest.mark.slow
def test_local_classes_are_plain_data_as_in_langgraph(saver: PGStateSaver, told: None) -> None:
    """LangGraph coerces them where its schema says so."""
    put_values(saver, config_of(), {"channel": local()})
    assert values_of(saver, config_of())["channel"] == {"number": 1}
    # Its class, if it is allowed, is found anyhow.
    value = local()
    codec = ValueCodec(StateSerializer([type(value)]))
    assert codec.loads(*codec.dumps("channel", value), "here") == value
