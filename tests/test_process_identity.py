"""Holders: a process is known to be dead only where that can be proven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from langgraph_pgstate.process_identity import holder_id, is_known_dead

CHILD = (
    "import sys, time; from langgraph_pgstate.process_identity import holder_id; "
    "print(holder_id(), flush=True); time.sleep(60)"
)


def _child() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_the_id_is_the_same_for_as_long_as_the_process_lives() -> None:
    assert holder_id() == holder_id()
    assert len(holder_id().split("/")) == 6
    assert not is_known_dead(holder_id())


def test_a_killed_process_is_known_to_be_dead() -> None:
    process, holder = _child()
    assert not is_known_dead(holder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_known_dead(holder)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_process_of_another_place_may_be_alive(part: int) -> None:
    process, holder = _child()
    process.kill()
    process.wait()
    parts = holder.split("/")
    parts[part] = "elsewhere"
    assert not is_known_dead("/".join(parts))
    parts[part] = "-"
    assert not is_known_dead("/".join(parts))


@pytest.mark.parametrize("nonsense", ["", "a/b/c/d/e/f", "a/b", "a/b/c/0/e/f", "a/b/c/-1/e/f"])
def test_nonsense_proves_nothing(nonsense: str) -> None:
    assert not is_known_dead(nonsense)
    place = holder_id().split("/")[:3]
    assert not is_known_dead("/".join([*place, "0", "1", "x"]))
    assert not is_known_dead("/".join([*place, "-1", "1", "x"]))
    assert not is_known_dead("/".join([*place, "9" * 40, "1", "x"]))


def test_a_forked_child_is_another_holder() -> None:
    mine = holder_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, holder_id().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        theirs = answer.read()
    os.waitpid(child, 0)
    assert theirs != mine
    assert is_known_dead(theirs)
