"""The tables of docs/internals.md name the statements that do what they say."""

from __future__ import annotations

import re
from pathlib import Path

from langgraph_pgstate.schema.queries import queries

PAGE = (Path(__file__).parents[2] / "docs/internals.md").read_text()
STATEMENTS = {name: re.sub("--.*", "", query.text.decode()) for name, query in queries("pgstate").all.items()}


def named_in(section: str, column: int) -> set[str]:
    """The statements in a column of the table of a section."""
    (text,) = re.findall(rf"^## {section}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[column])}


def test_every_statement_that_locks_says_so() -> None:
    lock = re.compile(r"\bFOR (NO KEY )?(UPDATE|(KEY )?SHARE)\b")
    silent = {
        name
        for name, query in queries("pgstate").all.items()
        if lock.search(STATEMENTS[name]) and not re.search("(?i)lock|hold|claim", query.purpose)
    }
    assert silent == set()


def test_the_page_names_every_statement_that_sets_the_status_of_a_thread() -> None:
    update = re.compile(r'UPDATE "pgstate"\.threads\b(?:(?!\b(?:FROM|WHERE)\b).)*?\bstatus =', re.DOTALL)
    insert = re.compile(r'INSERT INTO "pgstate"\.threads \([^)]*\bstatus\b')
    setting = {name for name, text in STATEMENTS.items() if update.search(text) or insert.search(text)}
    assert len(setting) > 5
    assert named_in("Statuses of threads", 1) == setting


def test_the_page_names_every_statement_that_ends_a_run() -> None:
    update = re.compile(
        r'UPDATE "pgstate"\.runs\b(?:(?!\b(?:FROM|WHERE)\b).)*?\bstatus = (?!\'(?:pending|running)\')', re.DOTALL
    )
    ending = {name for name, text in STATEMENTS.items() if update.search(text)}
    assert len(ending) > 3
    # It inserts a recorded run when it begins, and stores its end over that.
    assert named_in("Who ends a run", 2) - {"fence_lease"} == ending | {"put_runs"}
