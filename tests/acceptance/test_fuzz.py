"""Damaged and forged bytes and requests: nothing fails, hangs, imports or executes, whatever is stored or sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import serving
from fuzz.requests import Request
from fuzz.serving import Response, complaint
from support import examples, run_children

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


def _send(dsn: str, schema: str, requests: int) -> None:
    found = serving.run(dsn, schema, "1", requests, is_watched=False)
    assert not found.found, f"{found.found}"
    assert found.statuses[200] > requests / 10


@pytest.mark.slow
def test_some_requests_get_answers(dsn: str, schema: str) -> None:
    assert run_children(_send, [(dsn, schema, 250)]) == [""]


@pytest.mark.slow
@pytest.mark.once
def test_any_request_gets_an_answer() -> None:
    command = [sys.executable, "-m", "fuzz", "--requests", str(examples(5000)), "--seed", "2"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "tests:."}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.once
def test_a_forged_archive_is_refused_or_read() -> None:
    command = [sys.executable, "-m", "fuzz", "--archives", str(examples(300)), "--seed", "2"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "tests:."}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (500, "application/json", b'{"detail":"internal error"}'),
        (503, "application/json", b'{"detail":"busy"}'),
        (200, "application/json", b'{"a":NaN}'),
        (200, "application/json", b"{"),
        (200, "application/json", b'"\xff"'),
        (422, "application/json", b"[]"),
        (200, "text/event-stream", b"data: {\n\n"),
        (200, "text/event-stream", b"nothing\n\n"),
        (200, "text/html; charset=utf-8", b"<!doctype html>\n<p>"),
        (200, "text/plain", b"Traceback (most recent call last)"),
    ],
)
def test_a_wrong_answer_is_found(status: int, kind: str, body: bytes) -> None:
    assert complaint(Request("x", "GET", b"/"), Response(status, {"content-type": kind}, body)) is not None
    assert (
        complaint(Request("x", "GET", b"/"), Response(200, {"content-type": kind, "content-length": "1"}, b""))
        is not None
    )
    assert complaint(Request("x", "GET", b"/"), Response(200, {"content-type": "application/json"}, b"[1]")) is None
