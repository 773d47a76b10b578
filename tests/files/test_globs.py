"""Glob patterns mean in PostgreSQL what they mean to deepagents."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import examples

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.files.globs import compile_glob, compile_if_plain

PIECES = ["*", "**", "/", "?", "a", "b", ".", "ab", "[ab]", "[!a]", "[a-c]", "{a,b}", "{a*,*b}", "{a/b,c}", "x.py"]
PIECES += ["%", "_"]
PATTERNS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
NAMES = st.text("ab.cx%_", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def selected(connection: psycopg.Connection, pattern: str, paths: list[str], directory: str = "/") -> list[str] | None:
    """The paths from a directory that match, as the query finds them; `None` if the pattern is not plain."""
    if (glob := compile_if_plain(pattern, directory)) is None:
        return None
    found = connection.execute(
        'SELECT p FROM unnest(%s::text[]) AS u (p) WHERE p COLLATE "C" LIKE %s AND p COLLATE "C" ~ %s',
        [[directory + path for path in paths], glob.suffix, glob.expression],
    ).fetchall()
    assert all(path.startswith(glob.prefix) for (path,) in found)
    return [path.removeprefix(directory) for (path,) in found]


@pytest.mark.slow
def test_a_pattern_matches_as_deepagents_does(dsn: str) -> None:
    utils: Any = pytest.importorskip("deepagents.backends.utils")
    seen = {"plain": 0, "other": 0}
    with psycopg.connect(dsn, autocommit=True) as connection:

        @settings(max_examples=examples(2400))
        @given(PATTERNS, st.lists(PATHS, min_size=1, max_size=30), st.sampled_from(["/", "/a.b/", "/%_/"]))
        @example("**/x.py", ["x.py", "a/x.py", ".a/x.py", "a/.b/x.py", "a/b/x.py"], "/")
        @example("a/**", ["a", "a/b", "a/.b", "a/b/.c/d", "a/b/c"], "/")
        @example("*", ["a", ".a", "a/.b", "a/b"], "/")
        @example("**", ["a", ".a", "a/b", ".a/b", "a/.b"], "/")
        @example("/**", ["a", ".a", "a/b", ".a/b", "a/.b"], "/")
        def check(pattern: str, paths: list[str], directory: str) -> None:
            try:
                matches = utils.compile_grep_include_glob(pattern)
            except utils.InvalidGlobPatternError:
                return
            found = selected(connection, pattern, paths, directory)
            seen["other" if found is None else "plain"] += 1
            if found is not None:
                assert found == [path for path in paths if matches(path)]

        check()
    assert seen["plain"] > seen["other"]


@pytest.mark.parametrize("pattern", ["../*.py", "a/../b", "{a,b"])
def test_a_pattern_that_leads_away_or_is_unclear_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="glob"):
        compile_glob(pattern, "/")


def test_braces_that_stand_for_too_many_patterns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1,000"):
        compile_glob("{a,b}" * 12, "/")


def test_directories_without_wildcards_narrow_the_search() -> None:
    assert compile_glob("src/app/*.py", "/work/").prefix == "/work/src/app/"
    assert compile_glob("src/a*/x.py", "/").prefix == "/src/"
    assert compile_glob("*.py", "/work/").prefix == "/work/"
