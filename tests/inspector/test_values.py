"""Values as JSON of a bounded size."""

from __future__ import annotations

from langgraph_pgstate.inspector.formatting import SHOWN, view, views


def test_a_small_value_is_whole_and_folded() -> None:
    found = view({"a": [1, {"b": None}], "big": 2**70})
    assert (found.type, found.is_whole, found.is_foldable) == ("dict", True, True)
    assert found.parts == {"a": [1, {"b": None}], "big": 2**70}
    assert str(2**70) in found.text


def test_a_large_value_shows_its_beginning() -> None:
    found = view({"text": "ä" * 5_000_000})
    assert (found.is_whole, found.is_foldable, found.parts) == (False, False, None)
    assert len(found.text) <= SHOWN
    assert found.size > 5_000_000
    assert found.text.startswith('{"text":"ä')


def test_a_value_of_many_parts_is_a_text() -> None:
    found = view([0] * 1000)
    assert (found.is_whole, found.is_foldable) == (False, False)
    assert view([0] * 100).is_foldable
    assert not view(5).is_foldable
    assert not view([]).is_foldable


def test_a_string_is_a_text_without_quotes() -> None:
    found = view('"Hello"\nNoor')
    assert (found.string, found.is_whole, found.is_foldable) == ('"Hello"\nNoor', True, False)
    assert view("ä\n" * 5000).string == ("ä\n" * 5000)[:SHOWN]
    assert view("\ud800").string is not None
    assert (view(5).string, view(["x"]).string) == (None, None)


def test_many_values_share_the_size_of_a_page() -> None:
    found = views({str(number): "x" * 3000 for number in range(100)}, 10_000)
    assert sum(len(one.text) for one in found.values()) <= 10_000 + SHOWN
    assert len(found) == 100
    assert found["99"].size > 3000
    folded = views({str(number): [0] * 100 for number in range(20)}, 100_000)
    assert sum(one.is_foldable for one in folded.values()) == 5
