"""What statements do with content: each says it, and a column that holds content is forgotten by none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import langgraph_pgstate
from langgraph_pgstate.db.contents import Contents
from langgraph_pgstate.encryption.columns import CONTENTS, KEYS
from langgraph_pgstate.schema.queries import queries

GUIDE = Path(langgraph_pgstate.__file__).parents[1] / "docs" / "guides" / "encryption.md"
_KEYWORDS = {
    *("set", "where", "select", "on", "using", "values", "cross", "left", "join", "for", "order", "as"),
    *("returning", "inner", "group", "limit", "union", "full", "right"),
}


def touched(text: str) -> set[str]:
    """The columns with content that a statement names, of the tables that it names."""
    text = re.sub(r"--[^\n]*|'[^']*'", "", text)
    # Sizes are readable.
    text = re.sub(r"(octet_length|pg_column_size)\((\w+\.)?\w+\)", "", text)
    tables: set[str] = set()
    names: dict[str, set[str]] = {}
    for table, alias in re.findall(r'"pgstate"\.(\w+)(?: (?:AS )?(\w+))?', text):
        tables.add(table)
        names.setdefault(table, set()).add(table)
        if alias and alias.lower() not in _KEYWORDS:
            names.setdefault(alias, set()).add(table)
    found = set()
    for alias, column in re.findall(r"(?:(\w+)\.)?\b([a-z_]+)\b", text):
        for table in names.get(alias) or (() if alias else tables):
            found.add(f"{table}.{column}")
    return found & CONTENTS.keys()


def test_every_statement_says_what_it_does_with_content() -> None:
    """Guard: without its line a column would be stored in plain text, or not be read."""
    forgotten = {}
    for name, query in queries("pgstate").all.items():
        said = query.contents.columns if query.contents is not None else frozenset()
        if found := touched(query.text.decode()) - said:
            forgotten[name] = sorted(found)
    assert forgotten == {}


def test_the_search_finds_columns() -> None:
    """The test above rests on it."""
    assert touched('SELECT s.data, w.idx FROM "pgstate".segments s, "pgstate".writes w') == {"segments.data"}
    assert touched('UPDATE "pgstate".checkpoints SET state = $1') == {"checkpoints.state"}
    assert touched('SELECT octet_length(state) FROM "pgstate".checkpoints') == set()


def test_tables_with_content_have_their_keys() -> None:
    assert {name.partition(".")[0] for name in CONTENTS} == KEYS.keys()


def described() -> str:
    """The table of the guide."""
    lines = []
    for name, content in CONTENTS.items():
        readable = ", ".join(f"`{key}`" for key in sorted(content.readable))
        lines.append(f"| `{name}` | {content.says} | {readable} |")
    return "\n".join(["| column | content | keys that stay readable |", "|---|---|---|", *lines])


def test_the_guide_lists_what_is_encrypted() -> None:
    """Paste what it shows between the marks."""
    text = GUIDE.read_text("utf-8")
    begin, end = text.index("<!-- generated: contents -->"), text.index("<!-- end -->")
    assert text[begin:end].partition("\n")[2].strip() == described()


@pytest.mark.parametrize("line", ["seals: threads.no_such_column", "opens: checkpoints.state form data", "hides: it"])
def test_a_line_that_says_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of contents"):
        Contents([line])
