"""The table of the keys of `langgraph.json` has those of the schema."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints, is_typeddict

import langgraph_cli.schemas

from langgraph_pgstate.worker.config_keys import KEYS, NOTES


def keys_of(kind: Any, above: str = "") -> set[str]:
    """The paths of a type's keys, as the table has them."""
    found = set()
    for name, hint in get_type_hints(kind).items():
        path, kinds = f"{above}{name}", [hint, *get_args(hint)]
        kinds += [inner for one in kinds for inner in get_args(one)]
        below = [one for one in kinds if is_typeddict(one)]
        if path in KEYS or not below:
            found.add(path)
        for one in () if path in KEYS else below:
            found |= keys_of(one, f"{path}.*." if name == "graphs" else f"{path}.")
    return found


def test_the_table_has_every_key_of_the_schema() -> None:
    assert keys_of(langgraph_cli.schemas.Config) == {*KEYS}
    assert {*NOTES} <= {*KEYS}
