"""Wheel and sdist: built from a checkout, and installed in fresh environments, each extra with its first commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import GUARD_SECONDS, wait_until
from support.server import ROOT

OTHERS = ("pyproject.toml", "README.md", "LICENSE")
UV = Path(sys.executable).with_name("uv")
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
EXAMPLE = ROOT / "examples" / "kill_and_resume.py"
GRAPH = """
from langgraph.graph import START, MessagesState, StateGraph

graph = StateGraph(MessagesState).add_node("a", lambda state: {}).add_edge(START, "a").compile()
"""
pytestmark = [pytest.mark.slow, pytest.mark.once]


def files_of_the_package() -> set[str]:
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "langgraph_pgstate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}


def uv(*arguments: str | Path) -> None:
    done = subprocess.run([UV, "--quiet", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in [*sorted(files_of_the_package()), *OTHERS]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    uv("build", "--build-constraint", CONSTRAINTS, "--out-dir", place, source)
    [sdist], [wheel] = place.glob("*.tar.gz"), place.glob("*.whl")
    return sdist, wheel


def test_both_have_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("langgraph_pgstate/")}
    assert files_of_the_package() == in_wheel
    assert in_wheel <= in_sdist
    assert {"README.md", "LICENSE"} <= in_sdist


@pytest.fixture
def install(built: tuple[Path, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Installs the wheel with some extras in a fresh environment; the folder of its programs."""

    def make(extras: str) -> Path:
        python = tmp_path / "venv" / "bin" / "python"
        uv("venv", "--python", sys.executable, tmp_path / "venv")
        wanted = f"langgraph-pgstate[{extras}] @ {built[1].as_uri()}"
        uv("pip", "install", "--python", python, "--constraint", CONSTRAINTS, wanted)
        return python.parent

    return make


def call(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """What a program prints, which finds the installed package only."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PGSTATE_DSN")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*command: str | Path, cwd: Path) -> Iterator[Callable[[], str]]:
    """A program that goes on until SIGTERM; what it has printed. It must not have ended by itself."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said: list[str] = []
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=said.extend, args=(process.stdout,))
        reader.start()
        try:
            yield lambda: "".join(said)
            process.send_signal(signal.SIGTERM)
            # 143 if it was still starting.
            assert process.wait(GUARD_SECONDS) in (0, 143), "".join(said)
        finally:
            process.kill()
            reader.join()


def test_embedded_runs_the_quick_start_of_the_readme(install: Callable[[str], Path], tmp_path: Path) -> None:
    python = install("embedded") / "python"
    assert "booking the hotel" in call(python, EXAMPLE, cwd=tmp_path, code=-signal.SIGKILL)
    assert call(python, EXAMPLE, cwd=tmp_path).splitlines() == [
        "booking the hotel",
        "{'booked': ['flight', 'hotel']}",
    ]
    where = call(python, "-c", "import langgraph_pgstate; print(langgraph_pgstate.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))


def test_binary_brings_a_libpq(install: Callable[[str], Path], tmp_path: Path, dsn: str, schema: str) -> None:
    program = f"""
import psycopg
from langgraph_pgstate import PGState
assert psycopg.pq.__impl__ == "binary"
with PGState.open({dsn!r}, schema={schema!r}) as state:
    state.setup()
    print(state.threads.list().items)
"""
    assert call(install("binary") / "python", "-c", program, cwd=tmp_path) == "()\n"


def test_cli_brings_the_command(install: Callable[[str], Path], tmp_path: Path, dsn: str, schema: str) -> None:
    pgstate = install("binary,cli") / "pgstate"
    assert "pgstate" in call(pgstate, "--help", cwd=tmp_path)
    call(pgstate, "--dsn", dsn, "--schema", schema, "setup", cwd=tmp_path)
    assert schema in call(pgstate, "--dsn", dsn, "--schema", schema, "status", cwd=tmp_path)


COMMANDS = {
    "server": [("serve", "agent.py:graph", "--port", "0"), ("inspect", "--port", "0")],
    "metrics": [("worker", "agent.py:graph", "--metrics-port", "0")],
    "otlp": [("export", "otlp", "--endpoint", "http://127.0.0.1:9", "--follow")],
}


@pytest.mark.parametrize("extra", [*COMMANDS])
def test_an_extra_brings_what_its_commands_need(
    extra: str, install: Callable[[str], Path], tmp_path: Path, dsn: str, schema: str
) -> None:
    pgstate = install(f"binary,{extra}") / "pgstate"
    (tmp_path / "agent.py").write_text(GRAPH)
    for arguments in COMMANDS[extra]:
        with running(pgstate, "--dsn", dsn, "--schema", schema, *arguments, cwd=tmp_path) as said:
            wait_until(said, f"what {arguments} says when it has started")
