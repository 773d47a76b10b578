"""Reading of damaged and forged stored bytes.

A reader may return a value or raise an error of this package. Everything else is a finding: another exception, more
than a few seconds or a gigabyte, an import, code, a process, a file that is written, a connection.
"""

from __future__ import annotations

import logging
import random
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langgraph_pgstate.errors import PGStateError

from . import guard
from .mutating import changed, damaged
from .stored import READERS, Reader

_SECONDS = 5
_MOST_MEMORY = 2**31


class Hang(BaseException):
    """An input that takes too long."""


def _hang(number: int, frame: Any) -> None:
    raise Hang


def forged(dice: random.Random, seeds: Sequence[bytes], reader: Reader) -> bytes:
    """Return bytes like those that are stored: damaged, or of another form."""
    tree = reader.tree
    if tree is not None and dice.random() < 0.5:
        value = tree.load(dice.choice(seeds))
        for _ in range(dice.choice((1, 1, 2, 4))):
            value = changed(dice, value, tree.other)
        found = tree.dump(value)
    else:
        found = damaged(dice, seeds)
    # Now and then the checksum stays wrong, or the frame itself is damaged.
    if reader.close is not None and dice.random() < 0.9:
        found = reader.close(found)
        if dice.random() < 0.1 and found:
            at = dice.randrange(len(found))
            found = found[:at] + bytes([dice.randrange(256)]) + found[at + 1 :]
    return found


def run(inputs: int, seed: str, only: str = "") -> Counter[str]:
    """Read forged bytes, and return the number of findings by kind. The audit hook and the limit of memory stay."""
    logging.disable()
    warnings.simplefilter("ignore")
    # Python imports a codec when it is first used.
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        "".encode(encoding)
    names = [only] if only else [*READERS]
    seeds = {name: [*READERS[name].seeds] for name in names}
    for name in names:
        reader = READERS[name]
        for one in seeds[name]:
            reader.read(one if reader.close is None else reader.close(one))
        # What is imported at the first error is imported now.
        dice = random.Random(0)
        for _ in range(50):
            try:
                reader.read(forged(dice, seeds[name], reader))
            except Exception:
                continue
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _hang)
    guard.install()
    read, outcomes, findings = Counter[str](), Counter[str](), Counter[str]()
    began = time.monotonic()
    for number in range(inputs):
        name = names[number % len(names)]
        data = forged(random.Random(f"{seed}.{number}"), seeds[name], READERS[name])
        finding = _read(READERS[name], data, outcomes)
        read[name] += 1
        if finding is not None:
            what, shown = finding
            findings[f"{name}: {what}"] += 1
            if findings[f"{name}: {what}"] == 1:
                say(f"seed {seed}.{number}: {name}: {what}", f"    {data[:120].hex()}", shown)
    seconds = time.monotonic() - began
    say(*(f"{count:9} {name}" for name, count in read.items()), "")
    say(*(f"{count:9} {name}" for name, count in outcomes.most_common()), "")
    say(f"{read.total():9} inputs in {seconds:.0f} s, {read.total() / seconds:.0f} a second")
    return findings


def _read(reader: Reader, data: bytes, outcomes: Counter[str]) -> tuple[str, str] | None:
    found: tuple[str, str] | None = None
    with guard.watched() as seen:
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            reader.read(data)
            outcomes["a value"] += 1
        except PGStateError as error:
            outcomes[type(error).__name__] += 1
        except (Exception, Hang) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = (
                f"{type(error).__name__} at {where.name}",
                "".join(traceback.format_exception(error, limit=-5))[:1500],
            )
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return found or ((seen[0], "\n".join(seen[:5])) if seen else None)


def say(*lines: str) -> None:
    """Print lines at once."""
    print("\n".join(lines), flush=True)  # noqa: T201
