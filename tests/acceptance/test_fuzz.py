"""Stored bytes that are damaged or forged: reading them does nothing, and raises only errors of this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import examples

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_bytes_are_refused_by_name(seed: int) -> None:
    """`make fuzz` reads a million. The audit hook of the process stays, so it has one of its own."""
    command = [sys.executable, "-m", "fuzz", "--inputs", str(examples(6000)), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "tests:."}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.once
def test_what_reading_may_not_do_is_seen(tmp_path: Path) -> None:
    """Guard: without the hook, the test above would pass whatever is imported or run."""
    program = f"""
import os, socket, subprocess, sys
from fuzz import guard
guard.install()
deeds = [
    lambda: __import__("antigravity_of_nobody"),
    lambda: exec("1"),
    lambda: os.system("true"),
    lambda: subprocess.run(["true"]),
    lambda: open({str(tmp_path / "x")!r}, "w"),
    lambda: socket.create_connection(("127.0.0.1", 1)),
]
for deed in deeds:
    with guard.watched() as seen:
        try:
            deed()
        except (ImportError, OSError):
            pass
    print(bool(seen))
with guard.watched() as seen:
    open("/dev/null").close()
print(bool(seen))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": "tests:."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True"] * 6 + ["False"], done.stderr
