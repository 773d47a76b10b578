"""Looks for advisories about the versions that a file names, by pip-audit, where a database of them can be reached.

A mirror of PyPI has none, and answers like a database without any. So one that must be found is asked for first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KNOWN = "jinja2==2.10"


def audit(requirements: Path, timeout: float) -> list[dict[str, Any]] | None:
    """Return packages and their advisories, or `None` if the database does not answer."""
    options = ["--disable-pip", "--no-deps", "--timeout", "3", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), *options]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout)
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError):
        return None


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        known = Path(directory, "known.txt")
        known.write_text(KNOWN)
        found = audit(known, 20)
    found = audit(Path(sys.argv[1]), 120) if found and found[0].get("vulns") else None
    if found is None:
        print("pip-audit: skipped, no database of advisories can be reached")
        return 0
    advisories = [(entry["name"], entry["version"], vuln) for entry in found for vuln in entry.get("vulns", ())]
    for name, version, vuln in advisories:
        print(f"pip-audit: {name} {version}: {vuln['id']}, mended in {', '.join(vuln['fix_versions']) or 'no version'}")
    return bool(advisories)


if __name__ == "__main__":
    sys.exit(main())
