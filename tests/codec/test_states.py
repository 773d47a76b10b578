"""States of checkpoints as bytes."""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.states import Elements, Inline, Manifest, Run, Scalar, decode_state, encode_state
from langgraph_pgstate.errors import UnreadableFormatError
from tests.codec.test_values import CODEC

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


def test_what_a_later_version_wrote_is_not_damage() -> None:
    """Guard: `on_corrupt="previous"` must not go back behind it."""
    with pytest.raises(UnreadableFormatError, match="frame kind 5 needs a newer version of langgraph_pgstate"):
        frames.unpack(b"\x05whatever", "here")
    fields = [1, 4, "now", {"a": "1"}, {}, False, {"a": [9, "new"]}, {}, {}]
    for changed, why in ((fields, "an entry of kind 9"), ([2, *fields[1:]], "format 2")):
        with pytest.raises(UnreadableFormatError, match=why):
            decode_state(frames.pack(ormsgpack.packb(changed)), [], "here")
    with pytest.raises(UnreadableFormatError, match=r"another serializer.*msgpack\+aes"):
        CODEC.loads("msgpack+aes", b"secret", "here")


@pytest.mark.parametrize(
    ("entries", "is_compressed"),
    [
        ({"a": Inline("msgpack", b"prose of a user " * 60)}, False),
        ({"a": Scalar("prose of a user " * 60)}, False),
        ({"a": Scalar("prose of a user " * 600)}, True),
        ({"a": Inline("msgpack", b"prose"), "b": Scalar(1.5)}, True),
        ({"a": Inline("msgpack", CODEC.dumps("a", {"messages": [HumanMessage("hello " * 150)]})[1])}, True),
        ({"a": Elements(tuple(Run(number, 0, 1) for number in range(90)))}, True),
    ],
    ids=["a value", "a text", "a long text", "little", "a message", "a list"],
)
def test_a_state_that_is_mostly_small_values_is_not_compressed(entries: dict[str, Any], is_compressed: bool) -> None:
    """A dictionary shrinks messages and references, not what a user writes: its time is spent where it saves most."""
    versions = dict.fromkeys(entries, f"{1:032}.{0:016}")
    checkpoint = {"v": 4, "ts": "2026-01-02", "channel_versions": versions, "versions_seen": {}}
    ids = list(range(90))
    data = encode_state(checkpoint, Manifest(versions, dict(entries)), {}, {})
    assert (data[0] != frames.RAW) == is_compressed
    found = decode_state(data, ids, "here")
    assert (found.checkpoint, found.manifest.entries) == (checkpoint, entries)
