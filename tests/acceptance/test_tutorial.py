"""The tutorial is typed from top to bottom; what it shows is what a reader gets."""

from __future__ import annotations

import ast
import itertools
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import psycopg
import pytest
import typer
from psycopg.conninfo import make_conninfo
from support import FORK
from support.cli import Forked
from support.tutorial import Reader, blocks_of, changed, commands_of, environment

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorial.md"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
pytestmark = pytest.mark.once


def test_its_programs_and_commands_can_be_read() -> None:
    files: dict[str, str] = {}
    for block in blocks_of(PAGE):
        if block.title is not None:
            files[block.title] = changed(files[block.title], block) if block.language == "diff" else block.code
            ast.parse(files[block.title], block.title)
        else:
            for command, _ in commands_of(block):
                program, *words = shlex.split(command)
                if program == "pgstate":
                    COMMANDS[words[0]].make_context(words[0], words[1:])
                else:
                    assert program in ("python", "touch", "cat"), command
    assert set(files) == {"desk.py", "chat.py", "client.py"}


@pytest.fixture
def database(dsn: str) -> Iterator[str]:
    """A database of its own, with no tables."""
    name = f"tutorial_{os.getpid()}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        yield make_conninfo(dsn, dbname=name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def run_program(dsn: str, directory: Path, arguments: list[str]) -> None:
    """Run a program of the reader's in this process, on a server that runs already."""

    def saver(kind: type[PGStateSaver]) -> PGStateSaver:
        made = kind.from_conn_string(dsn)
        made.setup()
        return made

    def state(kind: type[PGState]) -> PGState:
        made = kind.open(dsn)
        made.setup()
        return made

    PGStateSaver.embedded = classmethod(saver)  # type: ignore[assignment, method-assign]
    PGState.embedded = classmethod(state)  # type: ignore[assignment, method-assign]
    os.chdir(directory)
    sys.path.insert(0, str(directory))
    sys.argv = arguments
    with open("printed", "w") as sys.stdout:
        runpy.run_path(arguments[0], run_name="__main__")


def test_its_first_parts_print_what_they_show(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that needs no worker, in children of this process: they start in milliseconds."""
    monkeypatch.setenv("TZ", "UTC")

    def run(command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "pgstate":
            with Forked("--dsn", database, *arguments, cwd=tmp_path) as process:
                return "".join(process.communicate())
        child = FORK.Process(target=run_program, args=(database, tmp_path, arguments))
        child.start()
        child.join()
        assert child.exitcode == 0
        return (tmp_path / "printed").read_text()

    reader = Reader(tmp_path, run)
    typed = list(itertools.takewhile(lambda block: "worker" not in block.code, blocks_of(PAGE)))
    assert any("pgstate diff" in block.code for block in typed)
    for block in typed:
        reader.type(block)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_of_it_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    # The server of a root user runs as another one, who has to be let in.
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)

    def run(command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "pgstate":
            with Forked(*arguments, cwd=tmp_path) as process:
                return "".join(process.communicate())
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    replace = {"127.0.0.1:2024": f"127.0.0.1:{port}", "pgstate serve": f"pgstate serve --port {port}"}
    reader = Reader(tmp_path, run, replace)
    try:
        for block in blocks_of(PAGE):
            reader.type(block)
    finally:
        reader.close()


@pytest.mark.slow
def test_the_guide_to_testing_prints_what_it_shows(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)

    def run(command: str) -> str:
        # Plugins that a reader need not have.
        done = subprocess.run(
            ["bash", "-c", f"{command} -p no:asyncio -p no:cacheprovider"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    reader = Reader(tmp_path, run)
    for block in blocks_of(DOCS / "guides" / "testing.md"):
        reader.type(block)


def test_the_reference_has_every_command_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "site")
    pages = import_module("reference").pages()
    assert set(re.findall(r"^## `([\w-]+)`", pages["reference/command-line.md"], re.MULTILINE)) == set(COMMANDS)
    for variable in ("PGSTATE_DSN", "PGSTATE_POOL_TIMEOUT", "PGSTATE_THREAD_TTL"):
        assert f"| `{variable}` |" in pages["reference/settings.md"]
