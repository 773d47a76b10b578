"""Runs the tests marked `smoke` with every dependency at the lowest version that pyproject.toml declares.

Once for each Python that is there. `make test-versions` calls it; nothing of it is a test itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venv" / "lowest"
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
    uv(["venv", "--clear", "--python", python, str(place)])
    resolved = ["--resolution", "lowest-direct", "--extra", "all", "--output-file", str(lowest), "pyproject.toml"]
    uv(["pip", "compile", *target, *resolved])
    uv(["pip", "install", *target, "--constraint", str(lowest), "--editable", ".[all]", *TOOLS])
    return target[1]


def uv(arguments: list[str]) -> None:
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([UV, "--quiet", *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)


def main() -> int:
    """Run the tests on each version; the exit code of the last that failed."""
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
        tests = [python, "-m", "pytest", "-m", "smoke", *sys.argv[1:]]
        code = subprocess.call(tests, cwd=ROOT, env={**os.environ, "PGSTATE_TEST_LOWEST": version}) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
