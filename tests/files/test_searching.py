"""Lists and searches of files read no more than they must, and find what a scan of all texts finds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from langgraph_pgstate import PGState
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.files import Files
from langgraph_pgstate.files.contents import required_literal
from langgraph_pgstate.files.searching import file_index
from langgraph_pgstate.schema.queries import queries
from tests.architecture.test_sql import plan_of

ADA = ("ada",)
FILES = 3_000


@pytest.fixture
def many(dsn: str, schema: str) -> Iterator[Files]:
    """Files of four users, in directories of thirty."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        connection.execute(
            "INSERT INTO files (namespace, path, directory, version, size, line_count, is_text, deleted_at)"
            " SELECT ARRAY[u], format('/dir%%s/file%%s.md', n / 30, n), format('/dir%%s/', n / 30), 1, 5000, 2, true,"
            " CASE WHEN n %% 7 = 0 THEN now() END"
            " FROM generate_series(1, %(files)s::integer) AS n, unnest('{ada,bob,eve,joe}'::text[]) AS u",
            {"files": FILES},
        )
        connection.execute(
            "INSERT INTO file_texts SELECT namespace, path, repeat('words of a text ', 300) || E'\\nneedle ' || path"
            " FROM files WHERE deleted_at IS NULL"
        )
        connection.execute("ANALYZE files; ANALYZE file_texts")
    with PGState.open(dsn, schema=schema) as state:
        yield state.files


@pytest.mark.slow
def test_a_list_reads_only_what_it_returns(many: Files, schema: str, connection: psycopg.Connection) -> None:
    key = {"namespace": [*ADA]}
    calls: dict[str, dict[str, Any]] = {
        "list_directory": {**key, "first": "/", "after": "0"},
        "list_files": {**key, "first": "/dir7/", "after": "/dir70", "suffix": "%.md", "expression": "/[^./][^/]*$"},
        "get_file_head": {**key, "path": "/dir7/file211.md"},
        "get_files": {**key, "paths": ["/dir7/file211.md"]},
        "find_file": {**key, "path": "/dir7/file211.md"},
        "search_files": {
            **key,
            "first": "/dir7/",
            "after": "/dir70",
            "suffix": "%",
            "expression": None,
            "paths": None,
            "pattern": "needle",
            "containing": "%needle%",
            "most": 10,
        },
    }
    for name, values in calls.items():
        query = getattr(queries(schema), name)
        for generic in (False, True):
            plan = plan_of(connection, query, values, generic=generic, analyze=True)
            kinds = {(node["Node Type"], node.get("Relation Name")) for node in plan}
            assert not {kind for kind in kinds if kind[0] == "Seq Scan" and kind[1]}, (name, generic)
            read = sum(
                (node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)) * node.get("Actual Loops", 1)
                for node in plan
                if node.get("Relation Name")
            )
            assert read <= 250, (name, generic, read)


@pytest.mark.slow
def test_an_index_of_trigrams_serves_searches(
    many: Files, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """What it finds is what a scan finds, whatever is special in LIKE."""
    assert file_index(schema, "ext").text.decode() == (
        f'CREATE INDEX IF NOT EXISTS file_texts_content_idx ON "{schema}".file_texts'
        ' USING gin (content "ext".gin_trgm_ops)'
    )
    for number, line in enumerate(("100% sure", "a_b_c", "back\\slash", "needle_x")):
        many.write(ADA, f"/special/{number}.md", f"{line}\n")
    patterns = [*((text, False) for text in ("100%", "a_b", "axb", "back\\", "needle_x")), ("e_[a-z]", True)]
    before = [many.grep(ADA, pattern, regex=is_regex, limit=None) for pattern, is_regex in patterns]
    assert [len(found.lines) for found in before] == [1, 1, 0, 1, 1, 1]
    with Admin.open(dsn, schema=schema) as admin:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'pg_trgm'").fetchall():
            with pytest.raises(ConfigurationError, match="requires the extension pg_trgm"):
                admin.setup(file_index=True)
            pytest.skip("the server has no pg_trgm: PGSTATE_TEST_VERSION=15 uses one that has")
        admin.setup(file_index=True)
        admin.setup(file_index=True)
    try:
        assert [many.grep(ADA, pattern, regex=is_regex, limit=None) for pattern, is_regex in patterns] == before
        every: dict[str, Any] = {
            "first": "/",
            "after": "0",
            "suffix": "%",
            "expression": None,
            "paths": None,
            "most": None,
        }
        searches = {
            "search_files": {"pattern": "needle_x", "containing": r"%needle\_x%"},
            "search_files_by_regex": {"pattern": "(?n)e_[a-z]x?y", "literal": "e_", "containing": r"%e\_%"},
        }
        connection.execute("SET enable_seqscan = off")
        for name, values in searches.items():
            for generic in (False, True):
                key = {"namespace": [*ADA], **every, **values}
                plan = plan_of(connection, getattr(queries(schema), name), key, generic=generic, analyze=True)
                assert "file_texts_content_idx" in {node.get("Index Name") for node in plan}, (name, generic)
    finally:
        connection.execute(f"DROP INDEX {schema}.file_texts_content_idx; RESET enable_seqscan")


@pytest.mark.slow
def test_a_directory_lists_what_is_in_it(many: Files) -> None:
    assert [entry.path for entry in many.ls(ADA)] == sorted(f"/dir{number}/" for number in range(101))
    found = many.ls(ADA, "/dir7")
    assert [entry.path for entry in found] == [f"/dir7/file{n}.md" for n in range(210, 240) if n % 7]
    assert {(entry.size, entry.line_count, entry.is_dir) for entry in found} == {(5000, 2, False)}
    assert many.ls(ADA, "/dir") == many.ls(ADA, "/dir7/file211.md") == many.ls(("nobody",)) == ()


@pytest.mark.slow
def test_a_search_finds_lines_up_to_its_limit(many: Files) -> None:
    found = many.grep(ADA, "needle", directory="/dir7", limit=5)
    assert [(line.path, line.number) for line in found.lines] == [
        (f"/dir7/file{n}.md", 2) for n in range(211, 217) if n % 7
    ][:5]
    assert found.is_truncated
    count = len(many.ls(ADA, "/dir7"))
    assert not many.grep(ADA, "needle", directory="/dir7", limit=count).is_truncated
    assert many.grep(ADA, "needle", directory="/dir7", limit=count - 1).is_truncated
    assert len(many.grep(ADA, "needle", limit=None).lines) == FILES - FILES // 7
    assert len(many.grep(ADA, "", directory="/dir7/file211.md").lines) == 2
    assert many.grep(ADA, "text \nneedle").lines == ()
    assert many.grep(ADA, "x", limit=0).lines == ()


LINES = ["abc", "a.c", "ABC", "a1b2", "", "x+y", "[z]", "\\d", "tab\there", "{1}", "(group)", "é1"]
REGEXES = [
    *["a.c", "^a", "c$", "^$", "a|x", "[a-c]+1", r"\d", r"\\d", r"a\.c", "(abc|x)", "b2*", "b2+", "x\\+", "(?i)abc"],
    *[
        "ab?c",
        "a{1}b",
        "[[:digit:]]b",
        r"\[z\]",
        "[]z]",
        "tab\there",
        "(a)(b)",
        r"\mabc",
        "é",
        "a.*b",
        "^$|z",
        "[\\]]z",
    ],
    *["{", "x{0,1}y", "(?:ab)c", "ab(?=c)", r"\u0061b", "a\\", "(", "*a", "[", "***=a"],
]


def test_a_regular_expression_finds_the_lines_that_it_matches(files: Files, connection: psycopg.Connection) -> None:
    """The literal that is looked for first leaves out no file."""
    for number, line in enumerate(LINES):
        files.write(ADA, f"/{number:02}", f"first\n{line}\nlast")
    for pattern in REGEXES:
        try:
            rows = connection.execute("SELECT l FROM unnest(%s::text[]) AS u (l) WHERE l ~ %s", [LINES, pattern])
            expected = [line for (line,) in rows.fetchall()]
        except psycopg.Error:
            with pytest.raises(ConfigurationError, match="pattern"):
                files.grep(ADA, pattern, regex=True)
            continue
        if pattern.startswith("***"):
            with pytest.raises(ConfigurationError, match="pattern"):
                files.grep(ADA, pattern, regex=True)
            continue
        found = [line.text for line in files.grep(ADA, pattern, regex=True).lines if line.number == 2]
        assert found == expected, pattern


PIECES = [
    "a",
    "b",
    "ab",
    "*",
    "+",
    "?",
    "{2}",
    "{0,1}",
    "(",
    ")",
    "|",
    "[ab]",
    "[^a]",
    "[]a]",
    ".",
    "\\.",
    "\\d",
    "\\",
    "^",
]


@pytest.mark.slow
@settings(max_examples=examples(3_600))
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text("ab.1", max_size=12))
def test_the_literal_of_an_expression_is_in_all_that_it_matches(pattern: str, text: str) -> None:
    """By Python's expressions, which mean the same here."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError):
        return
    if (found := compiled.search(text)) is not None:
        assert required_literal(pattern) in found[0] or required_literal(pattern) in text


def test_literals_of_expressions_are_found() -> None:
    expected = {
        "needle_[a-z]+": "needle_",
        "in.*needle": "needle",
        r"def \w+\(self": "",
        r"foo\.bar": "foo.bar",
        "colou?r": "colo",
        "(a|b)cde": "cde",
        "abc|d": "",
        "": "",
    }
    expected[r"def \w+\(self"] = "(self"
    assert {pattern: required_literal(pattern) for pattern in expected} == expected
