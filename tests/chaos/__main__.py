"""`python -m chaos`: epochs of faults until there were enough, a table of them, and what was found."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .findings import Finding
from .injector import OF_WORKERS, Epoch
from .queue.storm import QueueStorm, Thousand
from .storm import FAULTS
from .world import TENANT, open_world

_MOST_SHOWN = 3


def main() -> int:
    """Run; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what agents do and which faults come")
    parser.add_argument("--faults", type=int, default=5000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time")
    parser.add_argument("--epoch", type=int, default=120, help="faults of an epoch, which ends with a verification")
    parser.add_argument("--first", type=int, default=0, help="number of the first epoch")
    parser.add_argument("--gap", type=float, default=0.25, help="seconds between two faults, on average")
    parser.add_argument("--without", default="", help=f"kinds to leave out: {', '.join([*FAULTS, *OF_WORKERS])}")
    parser.add_argument("--queue", action="store_true", help="agents are run by workers, from the queue")
    parser.add_argument("--tenant", action="store_true", help="all is one tenant's, beside another one of the same ids")
    parser.add_argument("--encrypt", action="store_true", help="all content is encrypted, each thread by its data key")
    parser.add_argument("--thousand", action="store_true", help="one epoch: 1,000 runs, a worker killed every second")
    parser.add_argument("--keep", type=Path, help="keep journals and data in this directory, which is made")
    options = parser.parse_args()
    if options.tenant and options.thousand:
        parser.error("--tenant is for agents, and for the storm of --queue")
    if options.encrypt and (options.queue or options.thousand):
        parser.error("--encrypt is for agents without a queue")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    without = tuple(filter(None, options.without.split(",")))
    began, counts, findings = time.monotonic(), Counter[str](), Counter[str]()
    compared, tolerated = Counter[str](), Counter[str]()
    keeps = options.keep is not None
    try:
        tenant = TENANT if options.tenant else None
        with open_world(directory, keeps=keeps, tenant=tenant, is_encrypted=options.encrypt) as world:
            number, broken = options.first, (0, 0)
            while counts.total() < options.faults and time.monotonic() - began < options.minutes * 60:
                seed = f"{options.seed}.{number}"
                place = directory / f"epoch-{number}"
                epoch: Epoch | QueueStorm
                if options.thousand:
                    epoch = Thousand(world, place, seed)
                elif options.queue:
                    epoch = QueueStorm(world, place, seed, without=without, gap=options.gap)
                else:
                    epoch = Epoch(world, place, seed, without=without, gap=options.gap)
                epoch.run(min(options.epoch, options.faults - counts.total()))
                cut, lost = world.proxy.broken()
                epoch.counts.update({"cut": cut - broken[0], "lose": lost - broken[1]})
                broken = cut, lost
                counts += epoch.counts
                assert epoch.verifier is not None
                tolerated += getattr(epoch.verifier, "tolerated", {})
                compared += epoch.verifier.compared
                for finding in epoch.findings:
                    findings[finding.kind] += 1
                    if findings[finding.kind] <= _MOST_SHOWN:
                        _show(finding, epoch)
                if not (keeps and epoch.findings):
                    epoch.clear()
                minutes = (time.monotonic() - began) / 60
                _say(f"epoch {seed}: {counts.total()} faults in {minutes:.1f} min, {findings.total()} findings")
                number += 1
                if options.thousand:
                    break
            how = "a file system in memory" if world.disk.is_mounted else "a trigger that fails with 53100"
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    _say("", *(f"{count:7} {kind}" for kind, count in sorted(counts.items())))
    _say(
        f"{counts.total():7} faults in {minutes:.1f} minutes, {counts.total() / minutes:.0f} a minute; disk: {how}", ""
    )
    _say(*(f"{count:7} {kind} compared" for kind, count in sorted(compared.items())), "")
    _say(*(f"{count:7} {kind}, as LangGraph has it" for kind, count in sorted(tolerated.items())))
    _say(*(f"{count:7} {kind}" for kind, count in sorted(findings.items())), f"{findings.total():7} findings")
    return 1 if findings else 0


def _show(finding: Finding, epoch: Epoch | QueueStorm) -> None:
    _say("", f"seed {epoch.seed}: {finding.kind} on {finding.thread}: {finding.text}")
    if epoch.verifier is not None and finding.thread:
        _say(*(f"    {line}" for line in epoch.verifier.excerpt(finding)))


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
