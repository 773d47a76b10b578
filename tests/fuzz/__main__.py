"""`python -m fuzz`: damages and forges stored bytes, and reads them.

A reader may return a value or raise an error of this package. Everything else is a finding: another exception, more
than a few seconds or a gigabyte, an import, code, a process, a file that is written, a connection.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from langgraph_pgstate.errors import PGStateError

from . import guard
from .stored import READERS, Reader

_SECONDS = 5
_MOST_MEMORY = 2**31
_LENGTHS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(b"\xc9\xff\xff\xff\xff\x05", b"\xdc\xff\xff", b"\x91" * 2000, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\0" * 8),
)
_TOKENS = (
    *(b"\xc0", b"\xc1", b"\xc2", b"\x90", b"\x80", b"\xa0", b"\xc4\x00", b"\xcb" + struct.pack(">d", float("nan"))),
    *(
        b"builtins",
        b"os",
        b"system",
        b"eval",
        b"__reduce__",
        b"subprocess",
        b"Popen",
        b"antigravity",
        b"null",
        b"1e999",
    ),
    *(b"[" * 3000, b"{}", b"[]", b'"', b"-", b":", b".", b"\x00", b"\xed\xa0\x80", b"9" * 5000),
)


class Hang(BaseException):
    """An input that takes too long."""


def _hang(number: int, frame: Any) -> None:
    raise Hang


def mutate(dice: random.Random, seeds: list[bytes], reader: Reader) -> bytes:
    """Return bytes like those that are stored: flipped, cut, joined, with lengths that are not so; or any bytes."""
    if dice.random() < 0.03:
        return dice.randbytes(dice.randrange(200))
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(9):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 2 if at < len(data):
                data[at] = dice.randrange(256)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + dice.randrange(1, 9)]
            case 5:
                other = dice.choice(seeds)
                start = dice.randrange(len(other) + 1)
                data[at : at + dice.randrange(20)] = other[start : start + dice.randrange(1, 60)]
            case 6:
                length = dice.choice(_LENGTHS)
                data[at : at + dice.choice((0, len(length)))] = length
            case 7:
                token = dice.choice(_TOKENS)
                data[at : at + dice.choice((0, len(token)))] = token
            case 8:
                data[at:at] = data[at : at + dice.randrange(1, 40)]
    found = bytes(data)
    # Now and then the checksum stays wrong, or the frame itself is damaged.
    if reader.close is not None and dice.random() < 0.9:
        found = reader.close(found)
        if dice.random() < 0.1 and found:
            at = dice.randrange(len(found))
            found = found[:at] + bytes([dice.randrange(256)]) + found[at + 1 :]
    return found


def main() -> int:
    """Run; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many, of all readers together")
    parser.add_argument("--seed", type=int, default=1, help="which inputs")
    parser.add_argument("--only", default="", help=f"one of {', '.join(READERS)}")
    options = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    # Python imports a codec when it is first used.
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        "".encode(encoding)
    names = [options.only] if options.only else [*READERS]
    seeds = {name: [*READERS[name].seeds] for name in names}
    for name in names:
        reader = READERS[name]
        for seed in seeds[name]:
            reader.read(seed if reader.close is None else reader.close(seed))
        # What is imported at the first error is imported now.
        dice = random.Random(0)
        for _ in range(50):
            try:
                reader.read(mutate(dice, seeds[name], reader))
            except Exception:
                continue
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _hang)
    guard.install()
    inputs, outcomes, findings = Counter[str](), Counter[str](), Counter[str]()
    began = time.monotonic()
    for number in range(options.inputs):
        name = names[number % len(names)]
        dice = random.Random(f"{options.seed}.{number}")
        data = mutate(dice, seeds[name], READERS[name])
        finding = _read(READERS[name], data, outcomes)
        inputs[name] += 1
        if finding is not None:
            what, shown = finding
            findings[f"{name}: {what}"] += 1
            if findings[f"{name}: {what}"] == 1:
                _say(f"seed {options.seed}.{number}: {name}: {what}", f"    {data[:120].hex()}", shown)
    seconds = time.monotonic() - began
    _say(*(f"{count:9} {name}" for name, count in inputs.items()), "")
    _say(*(f"{count:9} {name}" for name, count in outcomes.most_common()), "")
    _say(f"{inputs.total():9} inputs in {seconds:.0f} s, {inputs.total() / seconds:.0f} a second")
    _say(*(f"{count:9} {what}" for what, count in findings.items()), f"{findings.total():9} findings")
    return 1 if findings else 0


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


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
