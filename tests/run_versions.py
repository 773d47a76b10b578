"""Runs the tests marked `smoke` with other versions of the dependencies than those of .ci/constraints.txt.

`lowest`: the lowest that pyproject.toml declares, once for each Python that is there; `make test-versions` calls it.
`newest`: the newest that can be had, on this Python; `make test-newest` calls it. What it finds comes from outside, and
is mended by a change of its own: it is printed, and the exit code is 0.

Nothing of it is a test itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venv" / "lowest"
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
UV = str(Path(sys.executable).with_name("uv"))
PYTHONS = ("3.11", "3.13", "3.14")
# What the tests need beside the package, at versions that go with the lowest of its own.
TOOLS = (
    "pytest>=8",
    "pytest-asyncio>=0.24",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
    "langgraph-checkpoint-postgres>=3.2",
    "langgraph-checkpoint-conformance>=0.0.2",
    "langchain>=1.0",
    "numpy>=1.26",
    "fastapi>=0.115",
)
# An answer of the resolver, and so of pyproject.toml; anything else is of the network or the machine.
_NO_SOLUTION = "No solution found"
# Of the tests of the newest versions: when they end, and how much of the output of those that fail is shown.
_SECONDS = 480
_LINES = 100


def interpreter(version: str) -> str | None:
    """Return a working interpreter of a version, `None` if there is none."""
    # A shim of pyenv may be on the path although its version is not switched on.
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        say = [candidate or "false", "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
        found = subprocess.run(say, capture_output=True, text=True, check=False)
        if found.stdout.strip() == version:
            return candidate
    return None


def install(version: str, python: str) -> str:
    """Make an environment with the lowest versions.

    Returns:
        Its interpreter.

    Raises:
        subprocess.CalledProcessError: If the versions contradict each other, or cannot be had.
    """
    place = PLACE / version
    lowest = place / "lowest.txt"
    target = ["--python", str(place / "bin" / "python")]
    uv("venv", "--clear", "--python", python, str(place))
    resolved = ["--resolution", "lowest-direct", "--extra", "all", "--output-file", str(lowest), "pyproject.toml"]
    uv("pip", "compile", *target, *resolved)
    uv("pip", "install", *target, "--constraint", str(lowest), "--editable", ".[all]", *TOOLS)
    return target[1]


def uv(*arguments: str) -> str:
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    called = [UV, "--quiet", *arguments]
    return subprocess.run(called, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def run_lowest(options: list[str]) -> int:
    """Run the tests on each Python; the exit code of the last that failed."""
    code = 0
    for version in PYTHONS:
        python = interpreter(version)
        if python is None:
            print(f"lowest versions on Python {version}: skipped, there is no such Python here", flush=True)
            continue
        try:
            python = install(version, python)
        except subprocess.CalledProcessError as error:
            if _NO_SOLUTION in error.stderr:
                print(error.stderr, file=sys.stderr)
                code = 1
                continue
            print(f"lowest versions on Python {version}: skipped, they cannot be installed: {error.stderr}", flush=True)
            continue
        print(f"lowest versions on Python {version}:", flush=True)
        tests = [python, "-m", "pytest", "-m", "smoke", *options]
        code = subprocess.call(tests, cwd=ROOT, env={**os.environ, "PGSTATE_TEST_LOWEST": version}) or code
    return code


def run_newest(options: list[str]) -> int:
    """Run the tests with the newest versions; print which differ from the tested ones, and whether the tests pass."""
    with tempfile.TemporaryDirectory() as place:
        python = str(Path(place) / "bin" / "python")
        try:
            uv("venv", "--clear", "--python", sys.executable, place)
            uv("pip", "install", "--python", python, "--upgrade", "--editable", ".[dev]")
            installed = pins(uv("pip", "freeze", "--python", python, "--exclude-editable"))
        except subprocess.CalledProcessError as error:
            print(f"newest versions: they cannot be installed: {error.stderr}", flush=True)
            return 0
        tested = pins(uv("pip", "compile", "--python", python, "--no-deps", str(CONSTRAINTS)))
        news = [f"  {name} {tested.get(name, '-')} -> {at}" for name, at in installed.items() if tested.get(name) != at]
        print("\n".join([f"newest versions: {len(news)} differ from .ci/constraints.txt", *news]), flush=True)
        tests = [python, "-m", "pytest", "-m", "smoke", "--session-timeout", str(_SECONDS), *options]
        result = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stdout + result.stderr).splitlines()[-_LINES:]
        print("\n".join(f"  | {line}" for line in lines))
    outcome = "FAIL, a finding to mend next" if result.returncode else "pass"
    print(f"newest versions: the smoke tests {outcome}", flush=True)
    return 0


def pins(lines: str) -> dict[str, str]:
    """Return the version of each package in a list of requirements."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lines, re.MULTILINE))


if __name__ == "__main__":
    sys.exit({"lowest": run_lowest, "newest": run_newest}[sys.argv[1]](sys.argv[2:]))
